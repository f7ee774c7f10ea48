"""Choose the learning rate of every method's pre-training on the sample world, by one rule for all.

python tools/learning_rates.py --only moby imagenet

Each method is pre-trained at two learning rates, for the same number of steps. The rate with the
lower validation loss is chosen, or the other one if the rank of the last stage is below 8 there.
The results are in a CSV file; rates that it contains are not measured again. The last lines are
those of `methods:` in configs/profiles/sample.yaml that have to change.
"""

import tempfile
from itertools import product
from pathlib import Path
from typing import Annotated

import tespec.core.compat  # noqa: F401  # before mmengine

import cyclopts
import pandas as pd

from tespec.core.config import pretraining_settings
from tespec.core.files import write_all
from tespec.core.paths import REPOSITORY
from tespec.pretraining.method import find_method
from tespec.registry import pretrained_methods
from tespec.runs.data import SAMPLE, Data, find_data
from tespec.runs.pretrain import pretrain
from tespec.runs.setup import Setup
from tespec.training.device import flush_denormals

PROFILE = "sample"
RATES = (2.5e-4, 1.0e-3)
STEPS = 150
MIN_RANK = 8.0  # a last stage of lower rank counts as collapsed
RESULTS = REPOSITORY / "results" / "sample" / "learning_rates.csv"
WORK = Path(tempfile.gettempdir()) / "learning_rates"
COLUMNS = ("method", "version", "peak_lr", "steps", "loss", "rank", "chosen")


def compared_methods() -> list[str]:
    """List the methods with a pre-training: ImageNet, which two others need, then by name."""
    names = [name for name in pretrained_methods() if find_method(name).architectures]
    return sorted(names, key=lambda name: (name != "imagenet", name))


def choose(rows: pd.DataFrame) -> float | None:
    """Choose the learning rate of a method.

    Args:
        rows: its rows, with the columns `peak_lr`, `loss` and `rank`.

    Returns:
        The chosen rate, None if a rate has no row yet.
    """
    if len(rows) < len(RATES):
        return None
    best, other = rows.sort_values("loss").itertuples(index=False)
    chosen = best if best.rank >= MIN_RANK else other
    return float(chosen.peak_lr)


def chosen_rates(table: pd.DataFrame) -> dict[str, float]:
    """Return the rates that a table of results chooses, by method."""
    rates = {str(method): choose(rows) for method, rows in table.groupby("method")}
    return {method: rate for method, rate in rates.items() if rate is not None}


def read(path: Path = RESULTS) -> pd.DataFrame:
    """Read the results; an empty table before the first one."""
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=list(COLUMNS))


def measure(
    method: str, rate: float, steps: int, world: Path | None, work: Path
) -> tuple[float, float]:
    """Pre-train a method with seed 0 on one thread.

    Args:
        method: name of the method.
        rate: peak learning rate.
        steps: number of steps, of which a twentieth warms up as in the profile.
        world: folder of a sample world's data sets; None: the sample world, which is made if it is
            missing.
        work: folder of records, checkpoints and weights, from which an unfinished pre-training
            resumes.

    Returns:
        Validation loss, and rank of the last stage.
    """
    changes = (f"optimisation.steps={steps}", f"optimisation.warmup_steps={steps // 20}")
    settings = pretraining_settings(method, PROFILE, [*changes, f"optimisation.peak_lr={rate}"])
    if world is None:
        data = find_data(settings.dataset, Path(SAMPLE)).generate()
    else:
        data = Data(world / settings.dataset, SAMPLE)
    setup = Setup(device="cpu", threads=1, results=work / "results", runs=work / "runs")
    setup.prepare()
    metrics = pretrain(method, settings, data, 0, setup).record.metrics
    loss = next(iter(metrics.values()))
    rank = metrics["last_stage_rank"]
    assert loss is not None
    assert rank is not None
    return loss, rank


def main(
    *,
    only: Annotated[tuple[str, ...], cyclopts.Parameter(consume_multiple=True)] = (),
    out: Path = RESULTS,
    work: Path = WORK,
    world: Path | None = None,
    steps: int = STEPS,
) -> None:
    """Choose learning rates.

    Args:
        only: methods; default: all.
        out: CSV file of results.
        work: folder of the pre-trainings, from which they resume.
        world: folder of a sample world's data sets; default: the sample world.
        steps: steps of each pre-training.
    """
    for method, rate in product(only or compared_methods(), RATES):
        version = find_method(method).version
        cell = {"method": method, "version": version, "peak_lr": rate, "steps": steps}
        table = read(out)
        if (table[list(cell)] == list(cell.values())).all(axis=1).any():
            continue
        with flush_denormals():
            loss, rank = measure(method, rate, steps, world, work)
        table = read(out)  # another process may have added rows
        table = table[(table["method"] != method) | (table["peak_lr"] != rate)]
        row = cell | {"loss": round(loss, 5), "rank": round(rank, 2), "chosen": ""}
        table = pd.DataFrame([*table.to_dict("records"), row], columns=list(COLUMNS))
        is_chosen = table["method"].map(chosen_rates(table)) == table["peak_lr"]
        table["chosen"] = is_chosen.map({True: "yes", False: ""})
        write_all({out: table.sort_values(["method", "peak_lr"]).to_csv(index=False)})
    for method, rate in chosen_rates(read(out)).items():
        present = pretraining_settings(method, PROFILE).optimisation.peak_lr
        if rate != present:
            line = f"  {method}: {{optimisation: {{peak_lr: {rate:g}}}}}"
            print(f"{line}  # instead of {present:g}")


if __name__ == "__main__":
    cyclopts.run(main)
