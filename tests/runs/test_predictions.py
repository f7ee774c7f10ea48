"""Saved predictions score as the network did; those of others are checked file by file."""

import json
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from made_records import cell
from PIL import Image
from short_runs import cell_spec, setup_in

import tespec.datasets
from tespec.cli.main import main
from tespec.comparison.cell import recipe_of
from tespec.comparison.records import read_records
from tespec.core.boxes import make_boxes
from tespec.core.config import as_facts
from tespec.core.errors import UserError
from tespec.runs.data import Data
from tespec.runs.finetune import prepare_run
from tespec.runs.predictions import save_predictions
from tespec.tasks import base, predictions
from tespec.tasks.play import play
from tespec.weights.files import read_tensors, write_weights

CPU = torch.device("cpu")
# facts of a record's initial weights that its tables mark
SEEN = {"seen": {"labels": "the training split"}, "doubt": "second-hand", "stem": "new"}
CASES = [("ddd17", "recurrent", []), ("gen1", "feedforward", [])]
CASES += [("mvsec", "feedforward", ["label_fraction=0.5"])]
SLOW = [
    ("ddd17", "feedforward", ["test_time_augmentation=flip"]),
    ("gen1", "recurrent", ["head.min_diagonal=20.0"]),
]
SLOW += [("mvsec", "recurrent", ["sampling=random"])]


def network_of(world, folder, name, arch, changes):
    """Weights of an untrained network as a run writes them, the run, and the network's scores."""
    spec = cell_spec(world, folder, name, arch, changes=changes, profile="smoke", seed=3)
    run, task, model = prepare_run("evaluation", spec)
    recipe = as_facts(run.settings) | {
        "histograms": asdict(task.histogram_spec),
        "run": recipe_of(run.cell, run.seed)
        | {"data_fingerprint": run.data_fingerprint, "weights": dict(run.start) | SEEN},
    }
    write_weights(folder / "model.safetensors", model.state_dict(), recipe)
    return folder / "model.safetensors", run, task.evaluate(model, CPU)


def near_truth(*args, **options):
    """Play with boxes near those of the labels, since an untrained network finds none."""
    for window in play(*args, **options):
        rng = np.random.default_rng([window.position, *window.recording.name.encode()])
        corners = window.label.corners + 4 * rng.random(window.label.corners.shape)
        boxes = make_boxes(corners, window.label.label, rng.random(len(corners)))
        yield window._replace(output=boxes)


def interrupted(*args, **options):
    """Play one window, then stop as by Ctrl-C."""
    yield next(play(*args, **options))
    raise KeyboardInterrupt


def score(folder, task, data, results, *more):
    """Exit code of the command, and its records."""
    words = ["run", "--score", folder, "--task", task, "--data", data, "--results"]
    words += [results / "results", "--runs", results / "runs", "--device", "cpu", *more]
    code = main([str(word) for word in words])
    return code, read_records(results / "results")[0] if code == 0 else []


@pytest.mark.parametrize(
    ("name", "arch", "changes"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_saved_predictions_have_the_scores_of_the_evaluation_to_the_last_digit(
    tiny_world, tmp_path, name, arch, changes, monkeypatch
):
    if name == "gen1":
        monkeypatch.setattr(base, "play", near_truth)
    weights, run, scorer = network_of(tiny_world, tmp_path, name, arch, changes)
    folder = tmp_path / "first"
    data = Data(tiny_world / name, "sample")
    saved = save_predictions(weights, data, folder / "out", setup_in(tmp_path))
    assert [path.name for path in folder.iterdir()] == ["out"]  # nothing temporary remains
    assert saved == scorer.overall().metrics()
    assert len({*saved.values()}) > 1
    shutil.move(folder / "out", tmp_path / "sent")
    code, (record,) = score(tmp_path / "sent", name, tiny_world / name, tmp_path / "other")
    assert (code, record.metrics) == (0, saved)
    for kind in ("recording", "group"):
        scores = {key: scores.metrics() for key, scores in scorer.by(kind).items()}
        assert getattr(record, f"{kind}s") == scores
    assert record.cell == replace(run.cell, kind="predictions", backbone="", start="")
    assert (record.seed, record.data_fingerprint) == (3, run.data_fingerprint)
    assert record.weights.sha256 == record.start_sha256 != ""
    assert record.weights.marks == ["labels seen", "new stem", "second-hand"]


def write_perfect(world, name, folder, *, millimetres=False):
    """Write the labels as predictions, as docs/running.md describes the files."""
    # the profile's, since small boxes of the published protocol are larger than the sample world's
    options = {"protocol": {"min_diagonal": 12.0, "min_side": 4.0}} if name == "gen1" else {}
    kind = getattr(tespec.datasets, name.capitalize())
    for frame in kind(world / name, "test", window_ms=50, **options):
        (folder / frame.name).mkdir(parents=True, exist_ok=True)
        file = folder / frame.name / str(frame.time)
        height, width = frame.events.shape[1:]
        if name == "ddd17":
            mask = np.where(frame.label == 255, 0, frame.label)
            Image.fromarray(mask.astype(np.uint8)).save(f"{file}.png")
        elif name == "gen1":
            boxes = []
            for (left, top, right, bottom), label in zip(
                frame.label.corners.tolist(), frame.label.label.tolist(), strict=True
            ):
                box = [left, top, right - left, bottom - top]
                entry = {"image_id": frame.time, "category_id": label, "bbox": box, "score": 0.5}
                boxes.append(entry)
            (folder / f"{file}.json").write_text(json.dumps(boxes))
        elif millimetres:
            depth = np.nan_to_num(1000 * frame.label, nan=1.0)
            Image.fromarray(np.clip(depth, 1, 65535).astype(np.uint16)).save(f"{file}.png")
        else:
            np.savez(f"{file}.npz", depth=np.nan_to_num(frame.label, nan=1.0))
    named = {"kind": "predictions", "method": "mynet", "task": name, "data": "sample"}
    named |= {"profile": "sample", "arch": "feedforward"}
    facts = {"title": "MyNet", "licence": "MIT"}
    described = {"cell": named, "facts": facts, "height": height, "width": width}
    (folder / "predictions.json").write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("name", "millimetres", "expected"),
    [
        ("ddd17", False, {"pixel_acc": 100.0}),
        ("gen1", False, {"map": 100.0}),
        ("mvsec", False, {"delta_1": 1.0, "abs": 0.0}),
        ("mvsec", True, {"abs_30": pytest.approx(0.0005, rel=0.1)}),  # millimetres are cut off
    ],
)
def test_predictions_of_a_script_that_knows_only_the_format_are_scored(
    tiny_world, tmp_path, name, millimetres, expected, capsys
):
    write_perfect(tiny_world, name, tmp_path / "mine", millimetres=millimetres)
    code, (record,) = score(tmp_path / "mine", name, tiny_world / name, tmp_path)
    assert code == 0
    assert {metric: record.metrics[metric] for metric in expected} == expected
    assert (record.cell.kind, record.cell.network) == ("predictions", "-")
    assert (record.facts["title"], record.facts["licence"]) == ("MyNet", "MIT")
    assert capsys.readouterr().out.startswith(f"mynet on {name} (feedforward, data: sample): ")


def edited(path, change):
    """Change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def depth_of(path, values):
    np.savez(path, depth=values)


def image_of(path, values):
    Image.fromarray(values).save(path.with_suffix(".png"))


def first_box(**changes):
    return lambda path: path.write_text(json.dumps([BOX | {"image_id": int(path.stem)} | changes]))


BOX = {"category_id": 1, "bbox": [3, 4, 5, 6], "score": 0.5}
PIXELS = np.ones((64, 96), np.uint8)
METRES = np.ones((64, 80), np.float32)
# changes of the first prediction of a complete folder, and the error
FILES = [
    ("ddd17", lambda path: path.unlink(), "{path}: is missing; predict every label"),
    (
        "ddd17",
        lambda path: shutil.copy(path, path.with_name("17.png")),
        "/17.png: is not named RECORDING/",
    ),
    ("ddd17", lambda path: shutil.copytree(path.parent, path.parents[1] / "dir9"), "/dir9/"),
    ("ddd17", lambda path: path.rename(path.with_suffix(".npy")), ".npy: is not named REC"),
    ("ddd17", lambda path: path.write_bytes(b"PNG"), ".png: not a readable PNG; copy it again"),
    ("ddd17", lambda path: image_of(path, PIXELS + 5), "{path}: 6,144 pixels are invalid, such as"),
    ("ddd17", lambda path: image_of(path, PIXELS[1:]), "{path}: holds uint8 of shape (63, 96); gi"),
    ("ddd17", lambda path: image_of(path, PIXELS.astype(np.uint16)), "holds uint16 of shape"),
    ("mvsec", lambda path: image_of(path, PIXELS), ": predicts the same label as "),
    ("mvsec", lambda path: depth_of(path, METRES * np.nan), "pixels are invalid, such as nan; gi"),
    ("mvsec", lambda path: depth_of(path, -METRES), "pixels are invalid, such as -1; give every"),
    ("mvsec", lambda path: depth_of(path, METRES.astype(float)), "holds float64 of shape (64, 80)"),
    ("mvsec", lambda path: depth_of(path, METRES.T), "holds float32 of shape (80, 64); give float"),
    ("mvsec", lambda path: np.savez(path, metres=METRES), "{path}: lacks one of the arrays depth"),
    ("gen1", lambda path: path.write_text("{}"), "{path}: content: Input should be a valid array"),
    ("gen1", first_box(category_id=9), "{path}: has a box of image "),
    ("gen1", first_box(image_id=7), "{path}: has a box of image 7 and category 1; give image_id "),
    ("gen1", first_box(bbox=[3, 4, -5, 6]), "{path}: 0.bbox.2: Input should be greater than or e"),
    ("gen1", first_box(bbox=[3, 4, 5]), "{path}: 0.bbox.3: Field required; see docs/"),
    ("gen1", first_box(score=float("nan")), "{path}: 0.score: Input should be"),
]


@pytest.fixture(scope="module")
def perfect(tiny_world, tmp_path_factory):
    """Folders of complete predictions by task."""
    folder = tmp_path_factory.mktemp("perfect")
    for name in ("ddd17", "gen1", "mvsec"):
        write_perfect(tiny_world, name, folder / name)
    return folder


@pytest.mark.parametrize(("name", "change", "message"), FILES)
def test_a_wrong_file_is_refused_in_one_line_and_nothing_is_written(
    perfect, tiny_world, tmp_path, name, change, message, capsys
):
    folder = shutil.copytree(perfect / name, tmp_path / "copy")
    path = min(folder.glob("*/*"))
    change(path)
    assert score(folder, name, tiny_world / name, tmp_path) == (2, [])
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message.format(path=path) in line
    assert [entry.name for entry in tmp_path.iterdir()] == ["copy"]


def changed(**settings):
    return lambda facts: facts["cell"].update(overrides=settings)


DESCRIPTIONS = [
    (lambda facts: facts["cell"].update(task="dsec"), "json, cell.task: is dsec, but ddd17 is sc"),
    (lambda facts: facts["cell"].update(data="ddd17"), "cell.data: is ddd17, but sample is scored"),
    (
        lambda facts: facts["cell"].update(split="val"),
        "/dir2/1020000.png: is not named RECORDING/TIME.png after",
    ),
    (lambda facts: facts["cell"].pop("method"), "json: cell.method: Field required; see "),
    (lambda facts: facts["cell"].update(method="a/b"), "json: cell.method: String should match pa"),
    (lambda facts: facts["cell"].update(label_fraction=0), "cell.label_fraction: Input should be "),
    (lambda facts: facts["cell"].update(kind="evaluation"), "json, cell.kind: is evaluation, but "),
    (changed(bogus=3), "--set bogus=3: unknown setting 'bogus'"),
    (changed(test_time_augmentation="rotate"), "'rotate' is not supported for segmentation; choo"),
    (lambda facts: facts.update(height=65), "height, width: is (65, 96), but (64, 96) is scored"),
    (lambda facts: facts.update(classes=["road"]), "classes: is ('road',), but ('flat', 'backgr"),
    (lambda facts: facts.update(data_fingerprint="x"), "data_fingerprint: is x, but "),
    (lambda facts: facts.update(seeds=[1]), "json: seeds: Unexpected keyword argument; see "),
    (lambda facts: facts.pop("facts"), "predictions.json: facts: Field required; see docs"),
]


@pytest.mark.parametrize(("change", "message"), DESCRIPTIONS)
def test_predictions_of_something_else_are_refused(
    perfect, tiny_world, tmp_path, change, message, capsys
):
    folder = shutil.copytree(perfect / "ddd17", tmp_path / "copy")
    edited(folder / "predictions.json", change)
    assert score(folder, "ddd17", tiny_world / "ddd17", tmp_path) == (2, [])
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["copy"]


def test_control_characters_of_a_name_do_not_reach_the_terminal(
    perfect, tiny_world, tmp_path, capsys
):
    folder = shutil.copytree(perfect / "gen1", tmp_path / "copy")
    edited(folder / "predictions.json", lambda facts: facts["cell"].update(method="\x9b2J\u202e"))
    assert score(folder, "gen1", tiny_world / "gen1", tmp_path)[0] == 0
    assert capsys.readouterr().out.startswith(r"\x9b2J\u202e on gen1 ")


def test_changed_predictions_have_another_record_and_equal_ones_the_same(
    perfect, tiny_world, tmp_path, capsys
):
    folder = shutil.copytree(perfect / "ddd17", tmp_path / "copy")
    edited(
        folder / "predictions.json",
        changed(
            test_time_augmentation="flip", accumulate=2, bins=10, **{"optimisation.peak_lr": 1e-5}
        ),
    )
    _, (first,) = score(folder, "ddd17", tiny_world / "ddd17", tmp_path)
    assert "test-time augmentation: flip" in first.protocol["scored"]
    others = {"accumulate": 2, "optimisation.peak_lr": 1e-5}  # without the default 10 bins
    assert first.cell.overrides == {"test_time_augmentation": "flip"} | others
    assert score(folder, "ddd17", tiny_world / "ddd17", tmp_path) == (0, [first])
    assert "is already complete" in capsys.readouterr().err
    image_of(min(folder.glob("*/*.png")), PIXELS)
    _, records = score(folder, "ddd17", tiny_world / "ddd17", tmp_path)
    assert len(records) == 2
    assert len({record.metrics["miou"] for record in records}) == 2


@pytest.mark.parametrize("kind", ["detection", "depth"])
def test_files_hold_predictions_without_rounding(tmp_path, kind):
    rng = np.random.default_rng(0)
    form = predictions.prediction_format(kind)
    path = tmp_path / f"123456789{form.suffixes[0]}"
    if kind == "depth":
        written = np.float32(10) ** rng.uniform(-8, 3, (4, 6)).astype(np.float32)
    else:
        corners = rng.uniform(-99, 999, (400, 4)).astype(np.float32)
        corners[:, 2:] = np.maximum(corners[:, :2], corners[:, 2:])
        written = make_boxes(corners, rng.integers(0, 3, 400), rng.random(400))
    form.write(path, written)
    read = form.read(path, (4, 6), 3)
    for part, expected in zip(read, written, strict=True):
        assert part.dtype == expected.dtype
        np.testing.assert_array_equal(part, expected)


def test_a_folder_that_exists_is_kept(tmp_path):
    weights = tmp_path / "model.safetensors"
    write_weights(weights, {"a": torch.zeros(1)}, {"run": recipe_of(cell(), 0)})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "predictions.json").touch()
    (tmp_path / "link").symlink_to(tmp_path / "old")
    setup = setup_in(tmp_path, overwrite=True)
    for name in ("out", "link"):
        with pytest.raises(UserError, match=f"{name}: already exists; choose a new folder"):
            save_predictions(weights, None, tmp_path / name, setup)
    write_weights(weights, {"a": torch.zeros(1)}, {})
    with pytest.raises(UserError, match="does not name the run that trained it"):
        save_predictions(weights, None, tmp_path / "new", setup)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("facts", [{"weights": "x"}, {"weights": {"stem": "x"}}, {"seed": -1}])
def test_a_damaged_recipe_is_refused_before_the_evaluation(tiny_world, tmp_path, facts):
    weights, *_ = network_of(tiny_world, tmp_path, "ddd17", "feedforward", [])
    tensors, recipe = read_tensors(weights)
    write_weights(weights, tensors, recipe | {"run": recipe["run"] | facts})
    data = Data(tiny_world / "ddd17", "sample")
    with pytest.raises(UserError, match="its recipe is damaged; copy the file again"):
        save_predictions(weights, data, tmp_path / "new" / "out", setup_in(tmp_path))
    assert not (tmp_path / "new").exists()


def test_an_interrupted_evaluation_leaves_no_folder(tiny_world, tmp_path, monkeypatch):
    weights, *_ = network_of(tiny_world, tmp_path, "ddd17", "feedforward", [])
    monkeypatch.setattr(base, "play", interrupted)
    data = Data(tiny_world / "ddd17", "sample")
    with pytest.raises(KeyboardInterrupt):
        save_predictions(weights, data, tmp_path / "new" / "out", setup_in(tmp_path))
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.slow
def test_the_commands_save_what_their_record_scores(tiny_world, tmp_path, capsys):
    of_run = ["--results", tmp_path / "results", "--runs", tmp_path / "runs", "--device", "cpu"]
    words = ["run", "--method", "scratch", "--task", "ddd17", "--profile", "smoke", *of_run]
    words += ["--data", tiny_world / "ddd17", "--save-predictions"]
    for more in ([], [], ["--overwrite"]):
        assert main([str(word) for word in [*words, *more]]) == 0
    (record,), _ = read_records(tmp_path / "results")
    assert "--save-predictions" not in record.command
    folder = tmp_path / "runs" / record.name / "predictions"
    assert capsys.readouterr().out.splitlines()[-1] == f"predictions: {folder}"
    again = ["run", "--model", folder.with_name("model.safetensors"), "--save-predictions"]
    again += ["--out", tmp_path / "again", "--data", tiny_world / "ddd17", *of_run]
    assert main([str(word) for word in again]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"predictions: {tmp_path / 'again'}"
    saved, again = (
        {path.relative_to(place): path.read_bytes() for path in place.rglob("*.*")}
        for place in (folder, tmp_path / "again")
    )
    assert saved == again
    _, (scored,) = score(folder, "ddd17", tiny_world / "ddd17", tmp_path / "other")
    for part in ("metrics", "classes", "recordings"):
        assert getattr(scored, part) == getattr(record, part)
    words.remove("--save-predictions")
    assert main([str(word) for word in [*words, "--overwrite"]]) == 0
    assert not folder.exists()  # they were of other weights
