"""Published numbers and ablations of `results/paper/*.yaml`, and the layout of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml
from tespec.core.paths import CONFIGS, PUBLISHED

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("detection", "segmentation", "depth")
PAPER, BEYOND = "paper", "beyond"  # sources of published numbers
NONE = "-"  # no number
ABLATED = "tespec"  # method of the ablations
METRICS = ("miou", "mean_class_acc")  # metrics of the published ablations


class AblationRow(BaseModel):
    """Row of an ablation."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str  # label in the paper's table
    # Published mIoU and mAcc in percent; None: not published.
    paper: list[float | None] = Field(
        default=[None, None], min_length=len(METRICS), max_length=len(METRICS)
    )
    set: dict[str, Any] = {}  # settings that differ from the default pre-training
    scale: dict[str, float] = {}  # factors applied to settings of the profile
    default: bool = False  # whether the row is the default pre-training

    def overrides(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that the row changes in the default pre-training, by dotted name.

        Args:
            facts: resolved settings of the default pre-training by dotted name, which `scale`
                multiplies.

        Raises:
            KeyError: a setting of `scale` is not in `facts`, for instance because it belongs to
                another objective.
        """
        scaled = {key: facts[key] * factor for key, factor in self.scale.items()}
        return self.set | {
            key: round(value) if isinstance(facts[key], int) else value
            for key, value in scaled.items()
        }

    def changes(self, facts: Mapping[str, Any]) -> list[str]:
        """Return `overrides` as `KEY=VALUE`; `facts` is nested as in YAML."""
        from tespec.core.config import flattened  # imports mmengine, which tables do not need

        return [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in self.overrides(flattened(facts)).items()
        ]


class Ablation(BaseModel):
    """Ablation table."""

    model_config = AblationRow.model_config

    name: str = ""
    title: str
    label: str  # in the paper's LaTeX source
    variable: str  # quantity that the rows vary
    task: str  # of the evaluation
    rows: Annotated[list[AblationRow], Field(min_length=1)]

    @property
    def labels(self) -> list[str]:
        """Labels of the rows in tables."""
        return [f"{row.name} (default)" if row.default else row.name for row in self.rows]


@cache
def read_ablations() -> dict[str, Ablation]:
    """Read the paper's ablations by name, then this project's, which may add rows to them."""
    ablations: dict[str, Ablation] = {}
    for path in (PUBLISHED / "ablations.yaml", CONFIGS / "ablations.yaml"):
        try:
            tables = read_yaml(path)
            for name in ablations.keys() & tables:
                rows = [*ablations[name].rows, *tables[name]["rows"]]
                tables[name] = ablations[name].model_dump() | {"rows": rows}
            ablations |= TypeAdapter(dict[str, Ablation]).validate_python(tables)
        except (*UNREADABLE, LookupError, TypeError) as error:  # a ValidationError is a ValueError
            reason = " ".join(str(error).splitlines()[:3])
            raise UserError(
                path, f"is not an ablation table ({reason})", "see results/paper/ablations.yaml"
            ) from error
    return {name: table.model_copy(update={"name": name}) for name, table in ablations.items()}


@cache
def read_published(name: str) -> dict[str, Any]:
    """Read a YAML file of published numbers: one of `TABLES`, or `BEYOND`."""
    return dict(read_yaml(PUBLISHED / f"{name}.yaml"))


def titles_of(table: str) -> tuple[dict[str, str], dict[str, str]]:
    """Titles of the tasks and metrics of a comparison table, by name."""
    content = read_published(table)
    tasks = {task["name"]: task["title"] for task in content["tasks"]}
    return tasks, {metric["name"]: metric["title"] for metric in content["metrics"]}


def task_titles() -> dict[str, str]:
    """Titles of all tasks of the paper, by name."""
    return {task: title for table in TABLES for task, title in titles_of(table)[0].items()}


@cache
def published_frame() -> pd.DataFrame:
    """Return all numbers of the comparison tables, then of the ablations, in the paper's order.

    A number that is not published is NaN. Columns are those of the frame of records, the keys of a
    row in `results/paper/*.yaml`, and:
        table, block, group, order: name of the table, index and heading of the group of rows,
            a number that increases with the rows.
        source: "paper", "published" in an ablation, or "beyond" for a row of another publication,
            which is never ranked.
        ranked: whether the row competes for the best number; measured rows of its method follow
            it.
        label: title of the method with its footnote mark.
        text: the number as the table shows it.
        tta: whether the result uses test-time augmentation.
        bold: whether the paper sets the number in bold.
    """
    import pandas as pd

    numbers: list[dict[str, Any]] = []
    for name in TABLES:
        table = read_published(name)
        tasks, _ = titles_of(name)
        rows = read_published(BEYOND)["rows"].get(name, ())
        for block, group in enumerate(
            [*table["groups"], {"heading": "Other publications", "rows": rows}]
        ):
            is_paper = block < len(table["groups"])
            for row in group["rows"]:
                if unknown := row["scores"].keys() - tasks:
                    what = f"{row['title']} has scores of tasks that the table lacks"
                    raise ValueError(f"{what}: {', '.join(unknown)}")
                position = {
                    "table": name,
                    "source": PAPER if is_paper else BEYOND,
                    "block": block,
                    "group": group["heading"] or "",
                    "order": len(numbers),
                    "ranked": is_paper and row.get("ranked", True),
                }
                for number in _numbers(row, table["metrics"]):
                    # Other publications report percentages with at most two decimals.
                    is_short = number["unit"] == "%" and not is_paper
                    digits = min(2, table["decimals"]) if is_short else table["decimals"]
                    value = number["value"]
                    text = NONE if value is None else f"{value:.{digits}f}"
                    numbers.append(position | number | {"text": text})
    ranked = (number for number in numbers if number["ranked"] and number["method"] == ABLATED)
    facts = next(ranked) | {"source": "published", "block": 0, "group": ""}
    for name, ablation in read_ablations().items():
        for index, (row, label) in enumerate(zip(ablation.rows, ablation.labels, strict=True)):
            data = task_titles().get(row.set.get("dataset", ""), facts["pretraining_data"])
            position = {"table": f"ablation_{name}", "order": index, "label": label}
            position |= {"task": ablation.task, "pretraining_data": data, "bold": row.default}
            numbers += [
                facts | position | {"metric": metric, "value": value, "text": f"{value:.3f}"}
                for metric, value in zip(METRICS, row.paper, strict=True)
                if value is not None
            ]
    return pd.DataFrame(numbers).astype({"value": "float64"})


def _numbers(row: Mapping[str, Any], metrics: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield each number of a row, those for all labels first, with facts of row and metric."""
    mark = row.get("mark", "")
    facts = {
        "method": row["method"],
        "title": row["title"],
        "mark": mark,
        "label": row["title"] + mark,
        "network": row["backbone"],
        "citation": row.get("citation", ""),
        "pretraining_data": row["pretraining"],
        "tta": row.get("test_time_augmentation", False),
        "arch": "recurrent" if row["recurrent"] else "feedforward",
    }
    of_metric = {
        metric["name"]: {"unit": metric.get("unit", ""), "better": metric["better"]}
        for metric in metrics
    }
    cells = [
        (task, metric, 1.0, value)
        for task, values in row["scores"].items()
        # the last metrics of a row may not be published
        for metric, value in zip_longest(of_metric, values)
    ]
    cells += [
        (task, metric, fraction, value)
        for metric, tasks in row.get("few_labels", {}).items()
        for task, values in tasks.items()
        for fraction, value in values.items()
    ]
    for task, metric, fraction, value in cells:
        frozen = fraction == "frozen"
        evaluation = fraction if frozen else f"{100 * float(fraction):g} % of labels"
        cell = {
            "task": task,
            "metric": metric,
            "value": value,
            "bold": metric in row.get("bold", {}).get(task, ()),
            "frozen": frozen,
            "label_fraction": 1.0 if frozen else float(fraction),
            "evaluation": "full" if fraction == 1 else evaluation,
        }
        yield facts | of_metric[metric] | cell
