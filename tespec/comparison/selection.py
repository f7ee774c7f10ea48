"""Which records tables show, and which of them share a column."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pandas as pd

from tespec.comparison.frame import ALL_FRAMES, COLUMNS
from tespec.comparison.published import read_ablations
from tespec.comparison.records import RESULTS_VERSION, TEST
from tespec.core.errors import UserError
from tespec.core.settings import suggest

# What tables show unless a filter or `by` names the column.
DEFAULTS = {
    "split": TEST,
    "label_fraction": 1.0,
    "frozen": False,
    "overrides": "",
    "variant": "",
    "pretraining_overrides": "",
    "frames": ALL_FRAMES,
}
# Columns of the frame that make a row and a measured column of a table. Of the rest of `CELL`, which says how a method
# came about, a table shows the newest.
ROW = ["kind", "method", "arch", "backbone", "tta"]
SETTING = ["data", "profile", *DEFAULTS, "results_version", "data_fingerprint", "task_version"]
ORIGIN = ["method_version", "plugin", "weights"]
LEVELS = [*SETTING, *ORIGIN, "seed", "machine", "revision"]  # that `by` may name
MEASURED = "measured"


class Selection(NamedTuple):
    """Rows of a frame that tables show, with columns `tta` and `column`, and what was left out, in words."""

    frame: pd.DataFrame
    left_out: tuple[str, ...]


def select(frame: pd.DataFrame, where: Mapping[str, str], by: str = "", free: Iterable[str] = ()) -> Selection:
    """Evaluations and references that fit `where`, and `DEFAULTS` where neither it, `by` nor `free` names a column.

    Of several results versions, and of several versions, plug-ins or weights of a method, it keeps the newest.

    Raises:
        UserError: there is no such column or value.
    """
    for key in where:
        if key not in COLUMNS:
            raise UserError(f"column {key}", "no such column of the frame", suggest(key, COLUMNS))
    if by and by not in LEVELS:
        raise UserError(f"column {by}", "cannot be a level of columns", suggest(by, LEVELS))
    chosen = frame[frame["kind"].isin(["evaluation", "reference"])]
    for key, wanted in where.items():
        texts = chosen[key].map(as_text)
        fits = [text for text in texts.unique() if text == wanted or fnmatchcase(text, wanted)]
        if not fits:
            raise UserError(f"{key}={wanted}", "no such evaluation", suggest(wanted, [*filter(None, texts.unique())]))
        chosen = chosen[texts.isin(fits)]
    ablated = {variant for each in read_ablations().values() for variant in each.variants} - {""}
    named = {*where, by, *free}
    left_out: list[str] = []
    for key, value in DEFAULTS.items():
        if key in named or (key == "pretraining_overrides" and "variant" in named):
            continue
        kept = chosen[key] == value
        others = chosen[~kept & ~chosen["variant"].isin(ablated)]  # which have tables of their own
        if key != "frames" and len(others):
            values = ", ".join(as_text(each) for each in others[key].unique()[:3])
            left_out.append(f"Not shown: {others['name'].nunique()} results with {key} {values} (--where {key}=VALUE).")
        chosen = chosen[kept]
    if "results_version" not in named:
        chosen = _newest(chosen, ["task", "data", "profile"], ["results_version"], "results_version", left_out)
    versions = [name for name in ORIGIN if name not in named]
    chosen = _newest(chosen, [*ROW[:-1], "task", *SETTING], versions, "written", left_out)
    augmented = chosen["overrides"].str.contains("test_time_augmentation=(?!none)", regex=True)
    # Versions that the caller named all stay: only the others are reduced to the newest.
    names = column_names(chosen, {by, *free}, [name for name in ORIGIN if name in where])
    return Selection(chosen.assign(tta=augmented, column=names), tuple(left_out))


def column_names(frame: pd.DataFrame, said: Iterable[str], more: Iterable[str] = ()) -> pd.Series[str]:
    """Name of the measured column of each row: data, profile, and each setting that is not the default.

    Settings in `said` are told elsewhere. Two columns never share a name: what they differ in, of the settings and of
    `more`, is added.
    """
    keys = [key for key in [*SETTING, *more] if key not in {*said}]
    settings = frame[["task", *keys]].drop_duplicates()
    settings = settings.assign(column=[_name(facts) for facts in settings.to_dict("records")])
    for _, alike in settings.groupby(["task", "column"]):
        for key in keys:
            texts = alike[key].map(as_text)
            if texts.nunique() > 1:
                settings.loc[alike.index, "column"] += f", {key} " + texts.str[:8]
    names = frame[["task", *keys]].merge(settings, how="left")["column"]
    return pd.Series([f"{MEASURED} ({name})" for name in names], index=frame.index, dtype=object)


def as_text(value: Any) -> str:
    """A value of the frame as it is shown and looked for."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _newest(
    frame: pd.DataFrame, places: list[str], versions: list[str], order: str, left_out: list[str]
) -> pd.DataFrame:
    """Rows of the newest of several `versions` in each of `places`; says which results that leaves out."""
    if frame.empty or not versions:
        return frame
    newest = frame.groupby([*places, *versions], sort=False)[order].transform("max")
    kept = newest == frame.groupby(places, sort=False)[order].transform("max")
    if not kept.all():
        count, which = frame.loc[~kept, "name"].nunique(), " or ".join(versions)
        left_out.append(f"Not shown: {count} results of an older {which} (--where {versions[0]}=VALUE).")
    return frame[kept]


def _name(facts: Mapping[Hashable, Any]) -> str:
    """Data, profile and what differs from the defaults of some settings."""
    said = {
        "label_fraction": lambda value: f"{100 * value:g} % of labels",
        "frozen": lambda _: "frozen backbone",
        "split": lambda value: f"{value} split",
        "frames": lambda value: f"{value} frames",
    }
    words = [facts.get("data"), facts.get("profile")]
    words += [said.get(key, str)(facts[key]) for key, value in DEFAULTS.items() if facts.get(key, value) != value]
    if facts.get("results_version", RESULTS_VERSION) != RESULTS_VERSION:
        words.append(f"results version {facts['results_version']}")
    return ", ".join(filter(None, words))
