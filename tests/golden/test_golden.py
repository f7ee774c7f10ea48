"""Golden values: numbers of every stage, which move when the code computes something else, and at no other time."""

from __future__ import annotations

import json
import math
import os
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from golden.cases import FAMILIES, NUMBERS, PRETRAININGS, TASKS, Values, tolerance
from tespec.core.config import names
from tespec.registry import pretrained_methods

DATA = Path(__file__).parent / "data"
WRITES = os.environ.get("GOLDEN") == "write"
SHOWN = 12  # values of a failure
SAID = "a moved golden value is a mistake or a decision with a line in CHANGELOG.md; regenerate with `make golden`"


@pytest.mark.parametrize(("family", "case"), [(family, case) for family, cases in FAMILIES.items() for case in cases])
def test_golden(tiny_world: Path, tmp_path: Path, family: str, case: str) -> None:
    found = FAMILIES[family][case](tiny_world, tmp_path)
    if isinstance(found, pd.DataFrame):
        path, text = DATA / f"{family}_{case}.csv", found.to_csv(index=False, lineterminator="\n")
        if WRITES:
            path.write_text(text)
        stored, new = by_key(path.read_text()), by_key(text)
    else:
        path, new = DATA / f"{family}.json", {name: plain(value) for name, value in found.items()}
        every = json.loads(path.read_text()) if path.is_file() else {}
        if WRITES:
            kept = {name: values for name, values in every.items() if name in FAMILIES[family]}
            every = dict(sorted((kept | {case: new}).items()))
            path.write_text(json.dumps(every, indent=0) + "\n")
        stored = every.get(case, {})
    moved = moved_values(f"{family}/{case}", stored, new)
    more = f"\n... and {len(moved) - SHOWN} more" if len(moved) > SHOWN else ""
    if moved:
        pytest.fail(f"{path.name}, {case}: {SAID}\n" + "\n".join(moved[:SHOWN]) + more, pytrace=False)


def plain(value: Any) -> Any:
    """A number as JSON has it, floats with eight digits."""
    value = value.item() if isinstance(value, np.generic) else value
    return float(f"{value:.8g}") if isinstance(value, float) else value


def by_key(text: str) -> Values:
    """The numbers of each row of a CSV, by its other columns."""
    found: Values = {}
    for row in pd.read_csv(StringIO(text), dtype=str, keep_default_na=False).to_dict("records"):
        numbers = {name: float(row.pop(name)) if row[name] else "" for name in NUMBERS if name in row}
        key = ", ".join(f"{name}={value}" for name, value in row.items() if value)
        assert key not in found, f"two rows are {key}"
        found |= {key: "stands"} | {f"{key}: {name}": value for name, value in numbers.items()}
    return found


def moved_values(where: str, stored: Values, found: Values) -> list[str]:
    """A line for each value that is not the stored one, that is new, or that is gone."""
    lines = [f"{name}: was {stored[name]!r}, is gone" for name in stored if name not in found]
    for name, new in found.items():
        if name not in stored:
            lines.append(f"{name}: is new, {new!r}")
            continue
        old, (rtol, atol) = stored[name], tolerance(f"{where}/{name}")
        inexact = isinstance(old, float) and isinstance(new, (int, float))
        if not (math.isclose(old, new, rel_tol=rtol, abs_tol=atol) if inexact else old == new):
            lines.append(f"{name}: was {old!r}, now {new!r}" + (f" (tolerance {rtol:g}, {atol:g})" if inexact else ""))
    return lines


def test_every_method_and_task_has_a_golden_case() -> None:
    assert {case.split(",")[0] for case in PRETRAININGS} == set(pretrained_methods()) - {
        "cpc"
    }  # trained by TESPEC's recipe, "tespec, objective cpc"
    assert set(names("tasks")) == set(TASKS)
