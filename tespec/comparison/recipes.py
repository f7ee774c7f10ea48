"""Which pre-training a record's weights come from, as far as the weights say it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tespec.comparison.identity import canonical
from tespec.comparison.records import Record
from tespec.config import as_facts, pretraining_settings
from tespec.errors import UserError
from tespec.settings import Pretraining

SETTINGS = tuple(field.name for field in fields(Pretraining))


def recipe_of(record: Record) -> dict[str, Any] | None:
    """Settings of the pre-training of a record's weights; None for weights that were not made here."""
    recipe = record["weights"].get("recipe")
    if not isinstance(recipe, dict) or not set(SETTINGS) <= set(recipe):
        return None
    return {name: recipe[name] for name in SETTINGS}


def recipe_key(record: Record) -> str:
    """Equal for records whose weights were made by the same settings."""
    return canonical(recipe_of(record))


def is_default(record: Record) -> bool:
    """Whether its weights were made by an unchanged recipe of configs/pretraining, or not here."""
    recipe = recipe_of(record)
    if recipe is None:
        return True
    try:
        default = as_facts(pretraining_settings(str(recipe["name"]), str(recipe["profile"])))
    except (UserError, KeyError):
        return False
    # The network is the method's, and its size follows from it.
    return canonical(recipe | {"width": ""}) == canonical(default | {"width": ""})
