"""Run one of the paper's ablations end to end: pre-train each row, fine-tune it, and put it beside the paper's numbers.

python benchmarks/ablate.py masking
python benchmarks/ablate.py objective --seeds 0 1 2
python benchmarks/ablate.py --list
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.command import Parser, run
from tespec.core.errors import UserError

if TYPE_CHECKING:
    from tespec.comparison.ablations import Ablation, AblationRow
    from tespec.comparison.records import Record
    from tespec.runs.data import Data
    from tespec.runs.setup import Setup

METHOD = "tespec"


def parse() -> argparse.Namespace:
    """Read the command line."""
    from tespec.cli.options import add_run_options, whole_number

    parser = Parser(description=__doc__)
    parser.add_argument("table", nargs="?", help="name of a table; --list names them")
    parser.add_argument("--list", action="store_true", help="list the tables and their rows")
    parser.add_argument("--arch", choices=("recurrent", "feedforward"), default="recurrent", help="default: recurrent")
    parser.add_argument("--seeds", type=whole_number, nargs="+", metavar="N", help="several seeds (default: --seed)")
    parser.add_argument("--data", type=Path, metavar="ROOT", help="the task's data (default: ./data/<task>)")
    parser.add_argument("--pretraining-data", type=Path, metavar="PATH",
                        help="recordings to pre-train on, or for `dataset` a folder of data sets by name")  # fmt: skip
    add_run_options(parser)
    options = parser.parse_args()
    if not options.table and not options.list:
        parser.error("name a table (--list names them)")
    return options


def main() -> None:
    """Run what the command line says."""
    options = parse()
    from tespec.comparison.ablations import ablations, read_ablation

    if options.list:
        for name, each in ablations().items():
            print(f"{name:13} {each.title} on {each.task}: {', '.join(row.name for row in each.rows)}")
        return
    ablation = read_ablation(options.table)
    from tespec.cli.options import setup_of
    from tespec.core.progress import say
    from tespec.core.registry import register_methods
    from tespec.runs.data import find_data

    register_methods(options.plugins)
    data = find_data(ablation.task, options.data)
    if data.notice:
        say(data.notice)
    if options.dry_run:
        print_changes(ablation, options.profile or data.profile)
        return
    setup = setup_of(options, "run")
    measured: dict[str, list[Record]] = {}
    for row in ablation.rows:
        for seed in options.seeds or [options.seed]:
            say(f"{ablation.title}: {row.name}, seed {seed}")
            measured.setdefault(row.name, []).append(measure(ablation, row, data, seed, setup, options))
    write_table(ablation, measured, options)


def measure(
    ablation: Ablation, row: AblationRow, data: Data, seed: int, setup: Setup, options: argparse.Namespace
) -> Record:
    """Pre-train one row and fine-tune from it, or take up complete results."""
    from dataclasses import replace

    from tespec.core.config import as_facts, pretraining_settings
    from tespec.pretraining.method import find_method
    from tespec.runs.data import settings_of
    from tespec.runs.finetune import finetune
    from tespec.runs.pretrain import pretrain

    method = find_method(METHOD)
    profile = options.profile or data.profile
    default = pretraining_settings(METHOD, profile, _of_pretraining(options.set))
    changes = [*_of_pretraining(options.set), *row.changes(as_facts(default))]
    recipe = pretraining_settings(METHOD, profile, changes)
    recordings = source(data, recipe.dataset, options.pretraining_data, several="dataset" in row.set)
    weights = pretrain(METHOD, method, recipe, recordings, seed, setup).weights
    own = [change for change in options.set if not change.startswith("pretraining.")]
    settings = settings_of(data, ablation.task, options.arch, profile, own)
    # Rows differ in the data they were pre-trained on at most; none of them takes the lower rate of a task on it.
    settings = replace(settings, peak_lr_after={})
    return finetune(METHOD, method, settings, data, weights, seed, setup)


def source(data: Data, dataset: str, given: Path | None, *, several: bool) -> Data:
    """Recordings to pre-train on."""
    from tespec.runs.data import find_recordings, sibling

    if given is not None:
        return find_recordings(dataset, given / dataset if several or (given / dataset).is_dir() else given)
    if data.is_sample:
        return sibling(data, dataset)
    found = find_recordings(dataset, None)
    if found.is_sample:
        raise UserError(f"{dataset} recordings", "are not given, and real labels do not go with the sample world",
                        "give --pretraining-data PATH")  # fmt: skip
    return found


def _of_pretraining(changes: list[str]) -> list[str]:
    prefix = "pretraining."
    return [change.removeprefix(prefix) for change in changes if change.startswith(prefix)]


def print_changes(ablation: Ablation, profile: str) -> None:
    """Print what each row changes."""
    from tespec.core.config import as_facts, pretraining_settings

    facts = as_facts(pretraining_settings(METHOD, profile))
    for row in ablation.rows:
        print(f"{row.name:12} {' '.join(row.changes(facts)) or 'as it is'}")


def write_table(ablation: Ablation, measured: dict[str, list[Record]], options: argparse.Namespace) -> None:
    """Print the table and write it in all forms."""
    from tespec.cli.tables import publish
    from tespec.comparison.ablations import Measured, measured_table
    from tespec.comparison.basis import bases

    basis = bases([record for records in measured.values() for record in records])[0]
    table = measured_table(ablation, Measured(basis, options.arch, measured))
    publish([(f"ablation_{ablation.name}", table)], options.results / "tables")


if __name__ == "__main__":
    sys.exit(run(main))
