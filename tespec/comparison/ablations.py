"""The paper's ablations: what each row changes of the default pre-training, and its published numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from tespec.comparison.published import Facts, read_published
from tespec.core.errors import UserError
from tespec.core.paths import CONFIGS, PUBLISHED

METHOD = "tespec"  # that is ablated
METRICS = ("miou", "mean_class_acc")  # of the published numbers
DECIMALS = 3


class AblationRow(Facts):
    """A row of an ablation.

    Attributes:
        name: as in the paper's table.
        paper: published mIoU and mAcc in percent; None: not published.
        set: settings that differ from the default pre-training.
        scale: factors of settings, relative to those of the profile.
        default: whether it is the default pre-training.
    """

    name: str
    paper: list[float | None] = Field(default=[None, None], min_length=len(METRICS), max_length=len(METRICS))
    set: dict[str, Any] = Field(default={})
    scale: dict[str, float] = Field(default={})
    default: bool = False

    def changes(self, facts: Mapping[str, Any]) -> list[str]:
        """What it changes of a recipe whose resolved settings are `facts`, as `KEY=VALUE`.

        Raises:
            KeyError: there is no such setting, as when the objective is another one.
        """
        values = self.set | {key: _scaled(_at(facts, key), factor) for key, factor in self.scale.items()}
        return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]


class Ablation(Facts):
    """One table: its title, its label in the paper's source, what varies, and the task that it is measured on."""

    name: str
    title: str
    label: str
    variable: str
    task: str
    rows: Annotated[list[AblationRow], Field(min_length=1)]

    @property
    def has_published(self) -> bool:
        """Whether the paper has numbers of it."""
        return any(value is not None for row in self.rows for value in row.paper)


@cache
def read_ablations() -> dict[str, Ablation]:
    """All of the paper's ablations by name, and those of this project behind them."""
    found: dict[str, Ablation] = {}
    for path in (PUBLISHED / "ablations.yaml", CONFIGS / "ablations.yaml"):
        try:
            content = read_published(path, dict[str, dict[str, Any]])
            found |= {name: Ablation.model_validate({"name": name, **facts}) for name, facts in content.items()}
        except ValueError as error:
            said = " ".join(str(error).splitlines()[1:3])
            raise UserError(path, f"is not as it was shipped ({said})", "restore it from the repository") from error
    return found


def variant_name(ablation: Ablation, row: AblationRow) -> str:
    """What a record's `variant` says, "masking: 25%"; "" for the default, which every table shares.

    An ablation on a second task ("target_ddd17") shares the names of the first one's rows ("target: Eq. 6").
    """
    return "" if row.default else f"{ablation.name.removesuffix(f'_{ablation.task}')}: {row.name}"


def _at(facts: Mapping[str, Any], key: str) -> Any:
    value: Any = facts
    for part in key.split("."):
        if not isinstance(value, Mapping):
            raise KeyError(key)
        value = value[part]
    return value


def _scaled(value: float, factor: float) -> float:
    return round(value * factor) if isinstance(value, int) else value * factor
