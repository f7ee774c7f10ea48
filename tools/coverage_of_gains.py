"""Count in simulated tables how often intervals of gains cover the truth, and false positives.

python tools/coverage_of_gains.py --tables 5000

A table has two networks, with the noise of feed-forward and recurrent Swin in the committed study,
or another one by scenario, and eight methods and a baseline in each. Columns of the result:

coverage      fraction of 95 % intervals that contain the true gain, in each network
family error  fraction of tables without true gains where a p after Holm is below 0.05
power         fraction of true gains of 1, 2 and 3 standard deviations of a run where it is below
              0.05; a method of each network has each of them, and the other five have none
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import cyclopts
import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from tespec.comparison.statistics import ALPHA, gains, holm

METHODS, BASELINE = 8, 0
POWER = (1, 2, 3)  # methods with a true gain of as many standard deviations of a run


@dataclass(frozen=True)
class Noise:
    """Variances in a network."""

    seed: float
    pretraining: float
    baseline_seed: float
    method_seed: float
    run: float


NETWORKS = {
    "feed-forward": Noise(0.062, 0.016, 0.228, 0.056, 0.103),
    "recurrent": Noise(1.58, 0.20, 3.42, 1.05, 2.03),
}
DISTRIBUTIONS = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "t4": lambda rng, size: rng.standard_t(4, size) / math.sqrt(2),
    "skewed": lambda rng, size: rng.standard_exponential(size) - 1,
}


@dataclass(frozen=True)
class Scenario:
    """A design, and how its noise differs from that of the committed study."""

    pretrainings: int = 2
    seeds: int = 5  # of each pre-training
    is_crossed: bool = True  # all pre-trainings have the same seeds
    # Standard deviation between pre-trainings, relative to that of fine-tuning, in each network.
    ratios: tuple[float, float] | None = None
    baseline: float = 1.0  # factor of the variance of the baseline
    missing: float = 0.0  # fraction of runs
    distribution: str = "normal"


SCENARIOS = {
    "as the committed study": Scenario(),
    "equal pre-trainings": Scenario(ratios=(0.0, 0.0)),
    "recurrent: pre-trainings as noisy as runs": Scenario(ratios=(0.0, 1.0)),
    "recurrent: pre-trainings twice as noisy": Scenario(ratios=(0.0, 2.0)),
    "1 pre-training, all equal": Scenario(pretrainings=1, ratios=(0.0, 0.0)),
    "3 pre-trainings": Scenario(pretrainings=3),
    "3 seeds": Scenario(seeds=3),
    "10 seeds": Scenario(seeds=10),
    "not crossed": Scenario(is_crossed=False),
    "baseline: a quarter of the variance": Scenario(baseline=0.25),
    "baseline: 9 times the variance": Scenario(baseline=9.0),
    "15 % of the runs missing": Scenario(missing=0.15),
    "t4 tails": Scenario(distribution="t4"),
    "skewed": Scenario(distribution="skewed"),
}
WIDTH = max(map(len, SCENARIOS))


def runs_of(scenario: Scenario) -> pd.DataFrame:
    """List the runs of a network: method, pretraining and seed."""
    rows: list[tuple[int, float, int]] = []
    for pretraining in range(scenario.pretrainings):
        first = 0 if scenario.is_crossed else pretraining * scenario.seeds
        for seed in range(first, first + scenario.seeds):
            rows += [(method, pretraining, seed) for method in range(1, METHODS + 1)]
            if first or not pretraining:
                rows.append((BASELINE, math.nan, seed))
    return pd.DataFrame(rows, columns=["method", "pretraining", "seed"])


def draw_scores(
    runs: pd.DataFrame, noise: Noise, scenario: Scenario, rng: Generator
) -> NDArray[np.float64]:
    """Draw the score of each run, without true gains."""

    def effect(variance: float, keys: NDArray[np.int64]) -> NDArray[np.float64]:
        levels, of_runs = np.unique(keys, return_inverse=True)
        values = DISTRIBUTIONS[scenario.distribution](rng, len(levels))
        return math.sqrt(variance) * values[of_runs]

    method = runs["method"].to_numpy()
    seed = runs["seed"].to_numpy()
    start = method * scenario.pretrainings + runs["pretraining"].fillna(0).to_numpy(int)
    of_baseline = effect(noise.baseline_seed * scenario.baseline, seed)
    of_method = effect(noise.method_seed, method * len(runs) + seed)
    of_method += effect(noise.pretraining, start)
    of_method += effect(noise.run, np.arange(len(runs)))
    return effect(noise.seed, seed) + np.where(method == BASELINE, of_baseline, of_method)


def simulate(scenario: Scenario, tables: int) -> dict[str, float]:
    """Simulate tables and return the columns of the result."""
    rng = np.random.default_rng(0)
    design = runs_of(scenario)
    noises = dict(NETWORKS)
    for network, ratio in zip(NETWORKS, scenario.ratios or (), strict=False):
        noise = NETWORKS[network]
        pretraining = ratio**2 * (noise.method_seed + noise.run)
        noises[network] = replace(noise, pretraining=pretraining)
    rows: list[tuple[Any, ...]] = []
    for table in range(tables):
        for network, noise in noises.items():
            deviation = math.sqrt(noise.pretraining + noise.method_seed + noise.run)
            runs = design.assign(value=draw_scores(design, noise, scenario, rng))
            runs = runs[rng.random(len(runs)) >= scenario.missing]
            for method, gain in gains(runs, BASELINE).items():
                rows.append((table, network, method, deviation, *gain[:5]))
    columns = ["table", "network", "method", "deviation", "mean", "low", "high", "p", "dof"]
    frame = pd.DataFrame(rows, columns=columns).dropna()

    is_covered = (frame["low"] <= 0) & (frame["high"] >= 0)
    coverage = is_covered.groupby(frame["network"]).mean()
    is_found = frame.groupby("table")["p"].transform(holm) < ALPHA
    family_error = is_found.groupby(frame["table"]).any().mean()
    # A true gain shifts the mean and leaves the variance as it is.
    true_gain = frame["method"].where(frame["method"].isin(POWER), 0) * frame["deviation"]
    error = (frame["high"] - frame["mean"]) / stdtrit(frame["dof"], 1 - ALPHA / 2)
    frame["p"] = 2 * stdtr(frame["dof"], -(frame["mean"] + true_gain).abs() / error)
    is_detected = frame.groupby("table")["p"].transform(holm) < ALPHA
    power = is_detected.groupby(frame["method"]).mean()
    return {
        **coverage.add_prefix("coverage "),
        "family error": family_error,
        **power[list(POWER)].rename("power {} sd".format),
    }


def main(*, tables: int = 1000) -> None:
    """Simulate all scenarios and print a row for each.

    Args:
        tables: tables of each scenario.
    """
    for name, scenario in SCENARIOS.items():
        row = pd.Series(simulate(scenario, tables))
        if name == next(iter(SCENARIOS)):
            print(" " * WIDTH, "  ".join(row.index))
        cells = [f"{value:.3f}".rjust(len(column)) for column, value in row.items()]
        print(name.ljust(WIDTH), "  ".join(cells), flush=True)


if __name__ == "__main__":
    cyclopts.run(main)
