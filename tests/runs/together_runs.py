"""Short runs of every task and objective, in one process or as a program in multiple processes.

torchrun --nproc-per-node 2 together_runs.py WORLD FOLDER CASE...
"""

import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from short_runs import cell_spec, setup_in, short_pretrainings, stopped_after

from baselines.mem import Mem
from tespec.core.config import pretraining_settings
from tespec.datasets.batches import LabelledBatches
from tespec.registry import register_methods
from tespec.runs.data import Data
from tespec.runs.finetune import finetune
from tespec.runs.pretrain import pretrain
from tespec.training.device import launched

FEW = ["optimisation.steps=4", "optimisation.warmup_steps=1", "batch_size=4"]
STILL = ["head.dropout=0.0"]  # each process draws its own dropout
FROZEN = "optimisation.peak_lr=1e-15"
# Data, architecture and changes.
TASKS = {
    "ddd17": ("ddd17", "recurrent", ["segments=3", *STILL]),
    "dsec, no memory": ("dsec", "feedforward", STILL),
    "gen1": ("gen1", "recurrent", ["segments=4"]),
    "mvsec": ("mvsec", "recurrent", ["segments=4"]),
    # Lanes 2 and 3, those of the second process, have no labels.
    "ddd17, unlabelled": ("ddd17", "recurrent", ["segments=3", *STILL]),
    "gen1, unlabelled": ("gen1", "recurrent", ["segments=4"]),
    "mvsec, unlabelled": ("mvsec", "recurrent", ["segments=4"]),
    # Weights do not change, so all scores are of the same weights.
    "ddd17, frozen": ("ddd17", "recurrent", ["segments=3", *STILL, FROZEN]),
    "gen1, frozen": ("gen1", "feedforward", [FROZEN, "head.score_threshold=0.0"]),
    "mvsec, frozen": ("mvsec", "recurrent", ["segments=4", FROZEN]),
}
# Method, data and changes.
OBJECTIVES = {
    "tespec": ("tespec", "1mpx", []),
    "tespec, feedforward": ("tespec", "1mpx", ["recurrent=false"]),
    "cpc": ("tespec", "1mpx", ["objective=cpc"]),
    "ecddp": ("ecddp", "1mpx", []),
    "ecdp": ("ecdp", "ddd17", ["optimisation.peak_lr=1e-4"]),
    "mem-tokenizer": ("mem-tokenizer", "1mpx", []),
    # Without stochastic depth: for sequences, multiple processes drop other branches than one process.
    "mem": ("mem", "1mpx", ["recurrent=true", "segments=3", "sampling=streams", "drop_path=0.0"]),
    "cm3ae": ("cm3ae", "ddd17", []),
    "scaleevent": ("scaleevent", "ddd17", []),
    "moby": ("moby", "objects", []),
    "imagenet": ("imagenet", "objects", []),
}


def compute(case, world, folder, stop=0, **changes):
    """Run a case in a folder, or stop it by SIGTERM after step `stop`, as a scheduler would."""
    register_methods()
    stop_or_not = stopped_after(stop, signal.SIGTERM) if stop else nullcontext()
    with stop_or_not, short_pretrainings(), pytest.MonkeyPatch.context() as patch:
        if "unlabelled" in case:
            choose = LabelledBatches._choose  # of loader, labels, lane and step
            patch.setattr(LabelledBatches, "_choose", lambda *given: choose(*given)[: given[2] < 2])
        if case in TASKS:
            task, arch, own = TASKS[case]
            finetune(cell_spec(world, folder, task, arch, changes=[*FEW, *own], **changes))
        else:
            name, dataset, own = OBJECTIVES[case]
            recipe = pretraining_settings(name, "sample", [*own, *FEW])
            if name == "mem":  # its tokenizer is not trained, since rounding would change the tokens
                first = Mem.upstream_settings(recipe, "mem-tokenizer")
                still = replace(first, optimisation=replace(first.optimisation, peak_lr=1e-15))
                patch.setattr(Mem, "upstream_settings", lambda settings, name: still)
            pretrain(name, recipe, Data(world / dataset, "sample"), 0, setup_in(folder, **changes))


if __name__ == "__main__":
    world, folder, *cases = sys.argv[1:]
    with launched("pytorch", "cpu"):
        for case in cases:
            compute(case, Path(world), Path(folder) / case)
