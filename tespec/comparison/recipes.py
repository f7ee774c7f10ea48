"""Which pre-training a record's weights come from, as far as the weights say it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tespec.comparison.identity import canonical
from tespec.comparison.records import Record
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Pretraining

AUTO = "auto"
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
    """Whether its weights were made by a method's unchanged recipe, or not here."""
    recipe = recipe_of(record)
    if recipe is None:
        return True
    try:
        default = as_facts(pretraining_settings(str(recipe["name"]), str(recipe["profile"])))
    except (UserError, KeyError):
        return False
    return agrees(recipe, default)


def agrees(recipe: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a record's pre-training has the settings that are wanted."""
    # The network is the method's, and its size follows from it.
    return _agree(recipe | {"width": ""}, wanted | {"width": ""})


def _agree(recipe: Any, default: Any) -> bool:
    """Whether both have the same values where both have one: another version of the harness may have other settings.

    What a default leaves to the device is whatever it was.
    """
    if isinstance(recipe, dict) and isinstance(default, dict):
        return all(_agree(value, default[key]) for key, value in recipe.items() if key in default)
    return default == AUTO or canonical(recipe) == canonical(default)
