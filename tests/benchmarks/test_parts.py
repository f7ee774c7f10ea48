"""Where the FLOPs of a training step are."""

import pytest

from benchmarks import parts
from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.runs.cost import estimate_training
from tespec.runs.setup import Setup

SIZE = (96, 160)


def estimate(name):
    if name == "tespec":
        return estimate_training(pretraining_settings(name, "sample"), SIZE)
    return estimate_training(finetuning_settings(name, "recurrent", "sample"), SIZE)


@pytest.mark.parametrize("name", ["tespec", "ddd17"])
def test_parts_add_up_to_the_cost_of_a_step(name):
    counted = parts.parts_of(estimate(name))
    total = sum(part.flops for part in counted.values())
    assert total == estimate(name).cost(Setup(deterministic=False)).flops


def test_backward_operations_belong_to_the_part_of_their_forward_ones():
    training = estimate("tespec")
    settings = training.settings
    tokens = settings.batch_size * settings.segments * (SIZE[0] // 4) * (SIZE[1] // 4)
    counted = parts.parts_of(training)
    channels = 24
    blocks = 2
    # Two linear layers of 4 C, forward, and backward for inputs and weights.
    assert counted["swin.layers.0.mlp"].flops == blocks * 3 * 2 * 8 * channels**2 * tokens
    assert {"swin.patch_embed.proj", "lstms.3", "decoder", parts.ROOT} < {*counted}


def test_the_table_names_what_limits_each_part(capsys):
    assert parts.print_parts("ddd17", profile="sample") == 0
    head, *rows, total = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["part", "operations", "GFLOP", "GB"]
    assert {row.split()[-1] for row in rows} <= {"compute", "memory", "launch"}
    assert total.startswith("sum ")
