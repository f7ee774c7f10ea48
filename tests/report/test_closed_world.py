"""The page of the closed world: written from records, and silent on what was not run."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tespec.cli.main import main
from tespec.comparison.archive import ARCHIVE
from tespec.comparison.collected import Collected, collect, pack
from tespec.comparison.identity import package_code
from tespec.comparison.records import Record, write_record
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.report.closed_world import (
    BEGIN,
    END,
    NOT_RUN,
    SHARED,
    commands_text,
    figures,
    page_text,
    points_table,
    put_in,
)

Make = Callable[..., Record]
SECTIONS = (
    *("Controls", "Budgets", "Pre-trainings", "Memory", "Scores", "Gains over no pre-training", "Few labels"),
    *("Ablations", "Claims", "What was run"),
)


def config(arch: str, steps: int = 400, **changes: object) -> dict[str, object]:
    own = {"batch_size": 4, "segments": 4, "labels_per_chunk": 2, "window_ms": None, "protocol": {}}
    if arch == "feedforward":
        own |= {"batch_size": 8, "segments": 1, "window_ms": 100.0}
    return {"arch": arch, "optimisation": {"steps": steps, "peak_lr": 1e-3, "warmup_steps": 10}} | own | changes


def pretrained(make: Make, kind: str, seed: int, peak_lr: float = 1e-3, loss: float = 0.8) -> Record:
    points = [
        {"seconds": 0.05 * step, "moving": 1.0 + 1 / step, "moving_knowing_nothing": 2.0, "moving_count": 9.0}
        for step in range(1, 61)
    ]
    objective = {"type": "masked_reconstruction", "target": {"kind": kind}}
    return make(
        "tespec", seed, kind="pretraining", metrics={"loss_masked_carried": loss, "last_stage_rank": 12.0},
        config={"objective": objective, "segments": 4, "optimisation": {"steps": 400, "peak_lr": peak_lr}},
        curves={"since_zeroed": points, "last_stage": [{"step": 1, "rank": 10.0}, {"step": 2, "rank": 12.0}]},
    )  # fmt: skip


@pytest.fixture
def collected(make: Make) -> Collected:
    """All that a comparison is made of, but for ablations."""
    architectures = "recurrent", "feedforward"
    records = [
        make(name, seed, 40.0 + seed + 2 * (name == "tespec"), arch=arch, config=config(arch),
             groups={"moving": {"miou": 45.0}, "standing": {"miou": 35.0 + seed}})
        for name in ("scratch", "tespec") for arch in architectures for seed in range(2)
    ]  # fmt: skip
    records += [make("scratch", seed, 21.0 + seed, config=config("recurrent", label_share=0.05)) for seed in range(2)]
    for split in ("test", "val"):
        facts = {"arch": "feedforward", "config": config("feedforward"), "metrics": {"miou": 12.345}}
        records.append(make("prior", kind="reference", split=split, **facts))
    records += [
        make(name, seed, 60.0 - seed / 2 if name == "labels" else 40.0 + seed, arch=arch, config=config(arch),
             split="val")
        for name in ("scratch", "labels") for arch in architectures for seed in range(3)
    ]  # fmt: skip
    records += [pretrained(make, "intensity", seed) for seed in range(2)]
    curves = [
        make("scratch", seed, 20.0 + steps / 100 + seed, arch=arch, config=config(arch, steps), split="val")
        for arch in architectures for steps in (200, 400) for seed in range(2)
    ]  # fmt: skip
    rates = [pretrained(make, "intensity", 0, rate, rate * 100) for rate in (1e-3, 5e-4)]
    return Collected(tuple(records), (), tuple(curves), tuple(rates))


def section(text: str, heading: str) -> str:
    return text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0].strip()


def test_without_records_each_section_says_that_nothing_was_run() -> None:
    text = page_text(Collected(), "x")
    assert tuple(re.findall("^## (.*)$", text, re.MULTILINE)) == SECTIONS
    assert {section(text, heading) for heading in SECTIONS} == {NOT_RUN}
    assert figures(Collected()) == {}


def test_curves_on_two_data_are_not_held_against_each_other(collected: Collected) -> None:
    def moved(records: tuple[Record, ...]) -> tuple[Record, ...]:
        return tuple(
            each | {"data_fingerprint": "other"} if (each["arch"], each["split"]) == ("recurrent", "val") else each
            for each in records
        )

    there = replace(collected, records=moved(collected.records), curves=moved(collected.curves))
    said = section(page_text(there, "x"), "Budgets")
    assert "| DDD17 | mIoU ↑ | not measured on the same data | - | - |" in said
    assert " labels | " not in said


def test_each_section_is_written_from_its_records(collected: Collected) -> None:
    text = page_text(collected, "pictures")
    found = {heading: section(text, heading) for heading in SECTIONS}
    assert [heading for heading, each in found.items() if each == NOT_RUN] == ["Ablations"]
    assert "labels of other streets against none: **passed 2**." in found["Controls"]
    assert found["Controls"].index("passed 2") < found["Controls"].index("| Task |")
    assert "| DDD17 | recurrent | 0.001 | 200 400 | 200 |" in found["Budgets"]
    # As many labels: 8 a step of both; as many clips: 4 and 8. At 400 steps stand the three seeds of the controls, at
    # 200 two of the curves; their variances 1 and 0.5 are pooled.
    assert "| 3,200 labels | 41.000 ± 0.527 | 41.000 ± 0.527 |" in found["Budgets"]
    assert "| 1,600 clips | 41.000 ± 0.527 | 22.500 ± 0.645 |" in found["Budgets"]
    assert "| 41.000 ± 0.527 | - | 3 | - | 400 |" in found["Budgets"]
    assert "](pictures/tables/curves.md)" in found["Budgets"]
    assert "| 0.001, 0.0005 | 0.001, 0.0005 | 0.0005 | 12.0 |" in found["Pre-trainings"]
    assert "| 2 of 2 | 12.0 | - | 0.8000 |" in found["Pre-trainings"]
    assert "| intensity, Eq. 7 | 0.760 |" in found["Memory"]
    rows = found["Scores"].replace("*", "").replace("§", "").splitlines()
    (row,) = [row for row in rows if row.startswith("| TESPEC (Ours) | Yes |")]
    assert "| 42.500 ± 0.707 | 45.000 ± 0.000 | 35.500 ± 0.707 | 2 |" in row
    assert [row for row in rows if row.startswith("| Floor: no input |") and "| 12.345 |" in row]
    assert found["Gains over no pre-training"].startswith("Methods, networks and tasks: **")
    assert "](pictures/tables/against_scratch.md)" in found["Gains over no pre-training"]
    assert "| 21.500 ± 0.707§ | 40.500 ± 0.707§ |" in found["Few labels"]
    assert found["Claims"].startswith("Claims on tasks: **")
    assert "Not run yet: " in found["Claims"]
    assert "by code 0.1.0+" in found["What was run"]
    assert "--seed 0 --results again --runs again/runs" in found["What was run"]
    for name in ("learning_curves", "memory", "comparison", "few_labels"):
        assert text.count(f"](pictures/{name}.png)") == 1
    assert len(text.splitlines()) < 150


def test_every_point_of_the_learning_curves_has_a_row(collected: Collected) -> None:
    table = points_table(collected)
    assert table is not None
    assert [[cell.text for cell in row.cells][2:5] for row in table.rows] == [
        [arch, "0.001", steps] for arch in ("recurrent", "feedforward") for steps in ("200", "400")
    ]
    assert points_table(Collected(rates=collected.rates)) is None


def test_one_seed_cannot_be_clear_of_the_floor(collected: Collected, make: Make) -> None:
    floor = make("prior", kind="reference", split="val", arch="feedforward", metrics={"miou": 12.0},
                 config=config("feedforward"))  # fmt: skip
    curves = [*collected.curves, floor]
    assert "| 0.001 | 200 400 | 200 |" in section(page_text(Collected(curves=tuple(curves)), "x"), "Budgets")
    alone = [each for each in curves if each["seed"] == 0]
    assert "| 0.001 | 200 400 | one seed |" in section(page_text(Collected(curves=tuple(alone)), "x"), "Budgets")


def test_seeds_that_start_from_one_pretraining_say_what_their_spread_is_of(collected: Collected) -> None:
    recipe = as_facts(pretraining_settings("tespec", "small"))

    def text(weights: Callable[[int], str]) -> str:
        records = [
            Record(**(each | {"weights": {"sha256": weights(each["seed"]), "recipe": recipe}}))  # type: ignore[typeddict-item]
            if each["kind"] == "evaluation" and each["method_name"] in ("tespec", "labels") else each
            for each in collected.records
        ]  # fmt: skip
        return page_text(replace(collected, records=tuple(records)), "x")

    for heading in ("Controls", "Scores", "Claims"):
        assert SHARED in section(text(lambda seed: "ab"), heading)
    assert SHARED not in text(lambda seed: f"ab{seed}")


def test_controls_that_failed_say_what_follows(collected: Collected) -> None:
    worse = [
        Record(**(each | {"metrics": {"miou": 30.0 - each["seed"] / 2}}))  # type: ignore[typeddict-item]
        if each["method_name"] == "labels" else each
        for each in collected.records
    ]  # fmt: skip
    text = section(page_text(replace(collected, records=tuple(worse)), "x"), "Controls")
    assert "these budgets did not show a pre-training at work.**" in text


def test_figures_are_drawn_of_what_there_is(collected: Collected, tmp_path: Path) -> None:
    drawn = figures(collected)
    assert set(drawn) == {"learning_curves.png", "memory.png", "comparison.png", "few_labels.png", "segmentation.png"}
    assert set(figures(replace(collected, curves=()))) == set(drawn)  # the controls alone are a curve, too
    compared = tuple(each for each in collected.records if each["split"] == "test")
    assert set(figures(Collected(compared))) == set(drawn) - {"learning_curves.png"}
    for name, draw in drawn.items():
        draw(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000


def test_every_command_is_named(collected: Collected) -> None:
    lines = commands_text(collected).splitlines()
    assert len(lines) == 2 * len([*collected.records, *collected.curves, *collected.rates])
    assert re.fullmatch(r"# evaluation-scratch-ddd17-recurrent-s0-\S+, miou 40", lines[0])
    assert lines[1] == "python benchmarks/run.py --method scratch --task ddd17 --seed 0"


def test_the_page_of_today_says_what_its_archive_holds() -> None:
    page = (REPOSITORY / "docs" / "closed_world.md").read_text(encoding="utf-8")
    text = page_text(collect(REPOSITORY / "results" / "sample-small"), "../results/sample-small")
    if (REPOSITORY / "results" / "sample-small" / ARCHIVE).is_file():
        assert BEGIN in page
    else:
        assert put_in(page, page_text(Collected(), "../results/sample-small")) == page
    assert tuple(re.findall("^## (.*)$", text, re.MULTILINE)) == SECTIONS


def test_the_number_to_repeat_is_of_today_s_code_or_says_its_revision(make: Make) -> None:
    old, new = make("scratch", miou=41.5), make("tespec", miou=42.5)
    for record in (old, new):
        record["environment"]["revision"] = 20 * "ab"
    old["id"], new["id"] = "4b858b6e65cc-437410d7", f"4b858b6e65cc-{package_code()}"
    said = section(page_text(Collected((old, new)), "x"), "What was run")
    assert "--method tespec --task ddd17 --seed 0 --results again" in said
    exact = "to the digit on [the same kind of processor](runs.md#on-what-a-repetition-is-exact)."
    assert said.endswith(f"It gives miou 42.5, {exact}")
    said = section(page_text(Collected((old,)), "x"), "What was run")
    assert "--method scratch --task ddd17 --seed 0 --results again" in said
    assert said.endswith(f"It gives miou 41.5 at revision abababababab, {exact}")


def test_the_number_to_repeat_is_the_quickest_that_needs_no_pre_training(make: Make) -> None:
    tespec, slow, quick = make("tespec"), make("scratch"), make("scratch", seed=1)
    tespec["time"]["total"], slow["time"]["total"], quick["time"]["total"] = 1.0, 3.0, 2.0
    said = section(page_text(Collected((tespec, slow, quick)), "x"), "What was run")
    assert "--method scratch --task ddd17 --seed 1 --results again" in said


def test_results_of_older_code_say_so_first(make: Make) -> None:
    old, new = make("scratch"), make("tespec")
    old["code"], new["code"] = "0.1.0+r3", "0.1.0-5f2ab0c1"
    first = page_text(Collected((old, new)), "x").splitlines()[0]
    assert first.startswith("Results of version 0.1.0+r3, before the corrections in CHANGELOG.md; they do not describe")
    assert "Results of version" not in page_text(Collected((new,)), "x")


def test_what_a_stranger_wrote_stays_text(hostile: Record) -> None:
    text = page_text(Collected((hostile,)), "x")
    assert not [line for line in text.splitlines() if "|" in line and re.search(r"(?<!\\)<", line)]


def test_a_page_keeps_what_stands_around_its_results() -> None:
    page = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    written = put_in(page, "new\n")
    assert written == f"above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"
    assert put_in(written, "new\n") == written
    with pytest.raises(ValueError, match="no place for results"):
        put_in("above\nbelow\n", "new")


def write(collected: Collected, results: Path) -> None:
    """The records where a plan and those that prepare it leave them."""
    folders = {results: collected.records}
    for name in ("curves", "rates"):
        folders[results / name] = getattr(collected, name)
    for folder, records in folders.items():
        for record in records:
            write_record(record, folder / "runs")


def test_the_archive_gives_all_records_again(collected: Collected, tmp_path: Path) -> None:
    write(collected, tmp_path / "a")
    found = collect(tmp_path / "a")
    assert {record["name"] for record in found.curves} == {record["name"] for record in collected.curves}
    archive = pack(found, tmp_path / "b")
    with zipfile.ZipFile(archive) as file:
        assert {name.rpartition("runs/")[0] for name in file.namelist()} == {"", "curves/", "rates/"}
    assert collect(tmp_path / "b") == found
    assert pack(collect(tmp_path / "b"), tmp_path / "c").read_bytes() == archive.read_bytes()
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(UserError, match="is not replaced, for it is damaged"):
        pack(found, tmp_path / "b")


def test_one_command_writes_the_page_figures_and_archive(
    collected: Collected, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("world: {size: tiny}\nprofile: sample\n")
    (tmp_path / "page.md").write_text(f"above\n{BEGIN}\n{END}\n")
    results, out = tmp_path / "results", tmp_path / "out"
    called = ["plan", str(tmp_path / "mine.yaml"), "--results", str(results), "--publish", str(out)]
    assert main([*called, "--page", str(tmp_path / "page.md")]) == 2
    assert "holds no record of this plan's profile" in capsys.readouterr().err
    # An archive of other records that cannot be read stays, and nothing is written beside it.
    out.mkdir()
    (out / ARCHIVE).write_bytes(b"PK")
    write(replace(collected, records=(), rates=()), results)
    assert main([*called, "--page", str(tmp_path / "page.md")]) == 2
    assert "is not replaced, for it is damaged" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == [ARCHIVE]
    (out / ARCHIVE).unlink()
    only_curves = replace(collected, records=(), rates=())
    write(only_curves, results)
    assert main([*called, "--page", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "](out/learning_curves.png)" in page
    assert page.count(NOT_RUN) == len(SECTIONS) - 2
    assert {path.name for path in out.iterdir()} == {"learning_curves.png", "commands.txt", "tables", ARCHIVE}
    assert (out / "tables" / "curves.md").exists()
    assert f"Written: {out / ARCHIVE}" in capsys.readouterr().out
