"""Size and power of the rule that decides claims, on simulated pages: the paper's claims, and gains over a baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tespec.comparison.contrasts import (
    ARCHITECTURES,
    CONTRARY,
    HOLDS,
    Claim,
    Comparison,
    Decision,
    Evidence,
    decide,
    parsed,
    part_of,
    read_claims,
)
from tespec.comparison.statistics import fit

SEEDS = (3, 5, 10)
EFFECTS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
LARGE = 20.0
SEED_DEVIATION = 1.0
PATTERNS = 20  # of missing runs, in a simulation
ONE, FOUR = "patch_norm", "tespec"  # claims of one comparison and of four that a better TESPEC makes true
TASKS = ("ddd17", "gen1", "mvsec")
PRETRAINED = ("imagenet", "moby", "ecddp", "tespec", "mem", "cm3ae")

Truth = Callable[[str], float]  # of a cell; the default row of an ablation is the method itself


@dataclass(frozen=True)
class Case:
    """How pages are drawn; effects and deviations in units of the residual deviation.

    Attributes:
        title: in words.
        truth: mean of each cell.
        noisy: factor of the variance of recurrent networks.
        missing: share of the runs that are not there.
        page: what is asked, one of `PAGES`.
    """

    title: str
    truth: Truth
    noisy: float = 1.0
    missing: float = 0.0
    page: str = "claims"


@cache
def gains() -> tuple[Claim, ...]:
    """What the page of gains over no pre-training asks: one comparison for each method, architecture and task."""
    return tuple(
        Claim(cell, f"{cell} beats none", "", (Comparison("over none", (cell,), (f"scratch/{arch}",)),), TASKS)
        for arch in ARCHITECTURES
        for cell in (f"{method}/{arch}" for method in PRETRAINED)
    )


PAGES: dict[str, Callable[[], tuple[Claim, ...]]] = {"claims": read_claims, "gains": gains}


def lifted(by: float, *cells: str) -> Truth:
    """Means of 0, but for `cells`."""
    return lambda cell: by if cell in cells else 0.0


NOTHING = lifted(0.0)
# One comparison of each conjunction has no effect, the others are as good as certain.
HANGING = lifted(LARGE, "tespec/recurrent", "scratch/recurrent")
CASES = (
    Case("no effect anywhere", NOTHING),
    Case("the same, recurrent networks with three times the variance", NOTHING, noisy=3.0),
    Case("the same, nine times the variance", NOTHING, noisy=9.0),
    Case("no effect anywhere, a fifth of the runs missing", NOTHING, missing=0.2),
    Case("one comparison without effect, the others certain", HANGING),
    Case("the same, recurrent networks with three times the variance", HANGING, noisy=3.0),
    Case("gains over no pre-training, no effect anywhere", NOTHING, page="gains"),
    Case("the same, recurrent networks with three times the variance", NOTHING, noisy=3.0, page="gains"),
    Case("the same, twelve times the variance", NOTHING, noisy=12.0, page="gains"),
)


def simulate(case: Case, seeds: int, pages: int, key: int) -> Iterator[list[tuple[Claim, Decision, bool]]]:
    """Each page's claims with what was decided, and whether that is false."""
    claims = PAGES[case.page]()
    questions = [(claim, task, each) for claim in claims for task, each in claim.by_task().items()]
    tasks: dict[str, dict[str, str]] = {}
    for _, task, comparisons in questions:
        tasks.setdefault(task, {}).update({cell: _name(cell) for each in comparisons for cell in each.cells})
    rng = np.random.default_rng(key)
    block = math.ceil(pages / PATTERNS)
    there: dict[str, np.ndarray] = {}
    for page in range(pages):
        found = {}
        for task, cells in tasks.items():
            names = list(dict.fromkeys(cells.values()))
            if page % block == 0:
                there[task] = rng.random((len(names), seeds)) >= case.missing
            found[task] = _evidence(case, names, cells, there[task], rng)
        decisions = decide([[part_of(each, found[task]) for each in members] for _, task, members in questions])
        yield [
            (claim, decision, _is_false(decision, members, case.truth))
            for (claim, _, members), decision in zip(questions, decisions, strict=True)
        ]


def _name(cell: str) -> str:
    wanted = parsed(cell)
    default = wanted.row is None or wanted.row.default
    return f"{wanted.method}/{wanted.arch}" if default else cell


def _evidence(
    case: Case, names: Sequence[str], cells: Mapping[str, str], there: np.ndarray, rng: np.random.Generator
) -> Evidence:
    kinds = {name: "feedforward" if name.endswith("/feedforward") else "recurrent" for name in names}
    deviations = [1.0 if kinds[name] == "feedforward" else math.sqrt(case.noisy) for name in names]
    scores = rng.normal(size=there.shape) * np.array(deviations)[:, None]
    scores += (
        rng.normal(0.0, SEED_DEVIATION, (1, there.shape[1])) + np.array([case.truth(name) for name in names])[:, None]
    )
    kept = {
        name: {seed: float(value) for seed, value in enumerate(row) if runs[seed]}
        for name, row, runs in zip(names, scores, there, strict=True)
    }
    return Evidence(fit(kept, kinds), {cell: name for cell, name in cells.items() if kept[name]}, -math.inf)


def _is_false(decision: Decision, comparisons: Sequence[Comparison], truth: Truth) -> bool:
    effects = [
        sum(truth(_name(cell)) for cell in each.more) - sum(truth(_name(cell)) for cell in each.less)
        for each in comparisons
    ]
    wrong = {HOLDS: min(effects) <= 0, CONTRARY: min(effects) >= 0}
    return wrong.get(decision.verdict, False)


def size(case: Case, seeds: int, pages: int, key: int = 0) -> float:
    """Share of the pages with a false verdict."""
    return sum(any(false for _, _, false in page) for page in simulate(case, seeds, pages, key)) / pages


def power(effect: float, seeds: int, pages: int, key: int = 0) -> dict[str, float]:
    """How often a claim of one comparison, and one of four, is found to hold where TESPEC is better by `effect`."""
    case = Case("", lifted(effect, "tespec/recurrent"))
    found: dict[str, list[bool]] = {ONE: [], FOUR: []}
    for page in simulate(case, seeds, pages, key):
        for claim, decision, _ in page:
            if claim.name in found:
                found[claim.name].append(decision.verdict == HOLDS)
    return {name: sum(held) / len(held) for name, held in found.items()}


def table(pages: int, key: int = 0) -> str:
    """Size and power as Markdown, from so many pages for each size and a quarter of them for each power."""
    heads = [f"{seeds} seeds" for seeds in SEEDS]
    lines = [_line("pages with a false verdict", *heads), _line(":---", *["---:"] * len(heads))]
    for case in CASES:
        lines.append(_line(case.title, *(f"{size(case, seeds, pages, key):.1%}" for seeds in SEEDS)))
    heads = [f"{head}, {parts}" for head in heads for parts in ("one comparison", "four")]
    lines += ["", _line("claim found, by its effect", *heads), _line(":---", *["---:"] * len(heads))]
    for effect in EFFECTS:
        shares = [power(effect, seeds, max(1, pages // 4), key) for seeds in SEEDS]
        lines.append(_line(f"{effect:g}", *(f"{each[name]:.0%}" for each in shares for name in (ONE, FOUR))))
    return "\n".join(lines)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
