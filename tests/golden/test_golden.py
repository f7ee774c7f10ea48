"""Golden values of every stage, which change only when the code computes something else."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from fnmatch import fnmatch
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from golden.cases import FAMILIES, PRETRAININGS, TASKS, Values
from tespec.core.config import names
from tespec.registry import pretrained_methods

DATA = Path(__file__).parent / "data"
WRITES = os.environ.get("GOLDEN") == "write"
SHOWN = 12  # changed values listed in a failure
MESSAGE = (
    "a moved golden value is a mistake or a decision with a line in CHANGELOG.md; "
    "regenerate with `make golden`"
)


# Relative and absolute tolerance of floats by family/case/name; the first match counts, other
# values are exact.
# Vector instructions and the number of threads change the order of sums, hence the last digits.
TOLERANCES: Sequence[tuple[str, float, float]] = (
    ("metrics/*", 1e-6, 1e-9),
    ("settings/*", 1e-7, 0.0),
    ("events/intensity*", 1e-4, 1e-5),
    ("features/*", 1e-3, 1e-4),
    # After two steps, rounding decides which pixels and boxes count; in points. Detectors score
    # near 0, so this only checks that boxes reach the scorer; the scores of the label prior check
    # more.
    ("finetuning/[dg1]*/score *", 0.0, 0.5),
    ("finetuning/mvsec*/score *", 1e-2, 0.0),
    ("*/answer, share *", 0.0, 0.01),
    ("*/answer, *", 1e-2, 0.0),
    # Both normalise batches of nearly equal features, which amplifies the last digit.
    ("pretraining/tespec, objective cpc/*", 1e-2, 0.0),
    ("pretraining/ecdp/*", 5e-3, 0.0),
    ("pretraining/cm3ae/score *", 5e-3, 0.0),  # differ by 3e-3 without vector instructions
    # After one step of Adam, the signs of the smallest gradients count; without vector instructions
    # it differs by 9e-3.
    ("finetuning/dsec*/grad_norm, step 2", 2e-2, 0.0),
    ("*/grad_norm*", 2e-3, 0.0),
    ("*", 1e-3, 1e-6),
)


def tolerance(name: str) -> tuple[float, float]:
    """Relative and absolute tolerance of the float `name`, a family/case/name."""
    return next((rtol, atol) for pattern, rtol, atol in TOLERANCES if fnmatch(name, pattern))


@pytest.mark.parametrize(
    ("family", "case"), [(family, case) for family, cases in FAMILIES.items() for case in cases]
)
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
        pytest.fail(
            f"{path.name}, {case}: {MESSAGE}\n" + "\n".join(moved[:SHOWN]) + more, pytrace=False
        )


def plain(value: Any) -> Any:
    """Value as JSON stores it, with floats rounded to eight digits."""
    value = value.item() if isinstance(value, np.generic) else value
    return float(f"{value:.8g}") if isinstance(value, float) else value


def by_key(text: str) -> Values:
    """Value of each row of a CSV, keyed by the other columns."""
    found: Values = {}
    for row in pd.read_csv(StringIO(text), dtype=str, keep_default_na=False).to_dict("records"):
        number = row.pop("value", None)
        key = ", ".join(f"{name}={value}" for name, value in row.items() if value)
        assert key not in found, f"two rows are {key}"
        found[key] = "stands" if number is None else float(number)
    return found


def moved_values(where: str, stored: Values, found: Values) -> list[str]:
    """One line for each changed, new or missing value."""
    lines = [f"{name}: was {stored[name]!r}, is gone" for name in stored if name not in found]
    for name, new in found.items():
        if name not in stored:
            lines.append(f"{name}: is new, {new!r}")
            continue
        old, (rtol, atol) = stored[name], tolerance(f"{where}/{name}")
        inexact = isinstance(old, float) and isinstance(new, (int, float))
        if not (math.isclose(old, new, rel_tol=rtol, abs_tol=atol) if inexact else old == new):
            lines.append(
                f"{name}: was {old!r}, now {new!r}"
                + (f" (tolerance {rtol:g}, {atol:g})" if inexact else "")
            )
    return lines


def test_every_method_and_task_has_a_golden_case() -> None:
    assert {case.split(",")[0] for case in PRETRAININGS} == set(pretrained_methods()) - {
        "cpc"
    }  # trained by TESPEC's recipe, "tespec, objective cpc"
    assert set(names("tasks")) == set(TASKS)
