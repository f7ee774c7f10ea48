import pytest
from short_runs import setup_in

from tespec.core.errors import UserError
from tespec.core.registry import register_methods
from tespec.pretraining.method import find_method
from tespec.runs.data import Data, settings_of
from tespec.runs.finetune import CellSpec
from tespec.runs.probe import probe


def run(world, folder, task="ddd17", arch="recurrent", **changes):
    register_methods()
    data = Data(world / task, "sample")
    settings, setup = settings_of(data, task, arch), setup_in(folder, **changes)
    return probe(CellSpec("scratch", find_method("scratch"), settings, data, None, 0, setup))


@pytest.mark.parametrize("arch", ["recurrent", pytest.param("feedforward", marks=pytest.mark.slow)])
def test_a_probe_leaves_a_record_that_is_taken_up_again(tiny_world, tmp_path, arch, capsys):
    record = run(tiny_world, tmp_path, arch=arch)
    assert record.kind == "probe"
    assert {"linear_miou", "knn_miou", "linear_pixel_acc"} < set(record.metrics)
    assert run(tiny_world, tmp_path, arch=arch) == record
    assert "complete already" in capsys.readouterr().err
    again = run(tiny_world, tmp_path, arch=arch, overwrite=True)
    assert again.metrics == record.metrics


def test_tasks_without_classes_of_pixels_are_refused(tiny_world, tmp_path):
    with pytest.raises(UserError, match="--probe --task mvsec: probes are only for segmentation; choose ddd17 or dsec"):
        run(tiny_world, tmp_path, task="mvsec")
