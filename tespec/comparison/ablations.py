"""The paper's ablations: what each row changes of the default pre-training, and its published numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml
from tespec.core.paths import CONFIGS, PUBLISHED

METHOD = "tespec"  # that is ablated
METRICS = ("miou", "mean_class_acc")  # of the published numbers
DECIMALS = 3


class Facts(BaseModel):
    """What a YAML file holds: no other keys, no other types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


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
        from tespec.core.config import flattened  # brings mmengine, which tables do without

        known = flattened(facts)
        scaled = {key: known[key] * factor for key, factor in self.scale.items()}
        values = self.set | {key: round(new) if isinstance(known[key], int) else new for key, new in scaled.items()}
        return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]


class Ablation(Facts):
    """One table: its title, its label in the paper's source, what varies, and the task that it is measured on."""

    name: str = ""
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
            found |= TypeAdapter(dict[str, Ablation]).validate_python(read_yaml(path))
        except UNREADABLE as error:  # a ValidationError is a ValueError
            said = " ".join(str(error).splitlines()[1:3])
            raise UserError(path, f"is no table of ablations ({said})", "see results/paper/ablations.yaml") from error
    return {name: each.model_copy(update={"name": name}) for name, each in found.items()}


def variant_name(ablation: Ablation, row: AblationRow) -> str:
    """What a record's `variant` says, "masking: 25%"; "" for the default, which every table shares.

    An ablation on a second task ("target_ddd17") shares the names of the first one's rows ("target: Eq. 6").
    """
    return "" if row.default else f"{ablation.name.removesuffix(f'_{ablation.task}')}: {row.name}"
