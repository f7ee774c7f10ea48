import shutil

import pytest
from short_runs import setup_in, short_pretrainings, stopped_after

from tespec.comparison.records import read_records
from tespec.core.config import pretraining_settings
from tespec.core.files import sha256_of
from tespec.registry import register_methods
from tespec.runs.data import Data
from tespec.runs.pretrain import pretrain

CHANGES = ["optimisation.steps=6", "optimisation.warmup_steps=2", "batch_size=2", "segments=3"]
SETTINGS = pretraining_settings("tespec", "sample", CHANGES)


def run(world, folder, **changes):
    register_methods()
    with short_pretrainings():
        return pretrain("tespec", SETTINGS, Data(world / "1mpx", "sample"), 0, setup_in(folder, **changes))


@pytest.fixture(scope="module")
def straight(tiny_world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    return folder, run(tiny_world, folder)


def test_leaves_weights_and_a_record_with_the_features_of_every_stage(straight):
    (folder, result), record = straight, straight[1].record
    assert read_records(folder / "results") == ([record], [])
    assert record.data == "sample"
    assert record.config["deviations"]
    assert record.weights["sha256"] == sha256_of(result.weights)
    assert [point["step"] for point in record.curve] == [1, 2, 3, 4, 5, 6]
    assert list(record.groups) == [f"stage {number}" for number in range(1, 5)]
    assert all(set(each) == {"std", "rank"} and min(each.values()) > 0 for each in record.groups.values())
    assert list(result.weights.parent.iterdir()) == [result.weights]


def test_workers_and_a_stop_change_nothing(straight, tiny_world, tmp_path):
    with stopped_after(4), pytest.raises(KeyboardInterrupt, match="stopped after step 4"):
        run(tiny_world, tmp_path, workers=2)
    assert not list((tmp_path / "results").glob("runs/*"))
    resumed = run(tiny_world, tmp_path).record
    for part in ("id", "name", "weights", "metrics", "groups", "curve"):
        assert getattr(resumed, part) == getattr(straight[1].record, part), part


def test_a_result_is_taken_up_unless_its_weights_are_not_those_of_the_record(straight, tiny_world, tmp_path, capsys):
    folder = shutil.copytree(straight[0], tmp_path / "copied")
    assert run(tiny_world, folder).record == straight[1].record
    assert "is already complete; --overwrite recomputes it" in capsys.readouterr().err
    (path,) = folder.glob("runs/*/backbone.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert run(tiny_world, folder).weights.read_bytes() == whole
    assert "does not match its recorded hash; recomputing" in capsys.readouterr().err
