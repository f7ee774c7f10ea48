from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from tespec.cli.report import main
from tespec.comparison.records import Record, read_records, write_record
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.report.build import first_seeds, picture, report

VOID = {"meta", "img", "line", "rect", "br"}


class Page(HTMLParser):
    """What a page holds: balanced elements, their attributes, anchors and links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_a_page_has_every_section_and_leads_to_every_run(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(results), "--baseline", "scratch"]) == 0
    text = (results / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    anchors = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    links = {str(attributes["href"])[1:] for attributes in page.all("a")}
    assert links <= anchors
    assert {"segmentation", "gains", "curves", "bars", "predictions", "times", "runs"} <= links
    assert {f"run-{path.stem}" for path in (results / "runs").glob("*.json")} <= anchors
    assert "+4.000" in text
    assert "40.500 ± 0.707" in text
    assert "4 runs" in capsys.readouterr().out


def test_contrasts_have_a_section_and_references_rows_of_their_own(make, tmp_path: Path) -> None:
    records = [make(name, seed=seed) for name in ("scratch", "tespec") for seed in range(2)]
    floor = make("prior", kind="reference", arch="feedforward", metrics={"miou": 12.345})
    text = report([*records, floor], tmp_path)
    sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', text, re.DOTALL))
    assert "TESPEC beats no pre-training" in sections["contrasts"]
    assert "holds on 0, contrary on 0, undecided on 5" in sections["contrasts"]
    assert "Floor: no input" in sections["segmentation"]
    assert "12.345" in sections["segmentation"]
    assert not any("12.345" in sections[name] for name in ("bars", "curves"))


def test_a_measured_number_shows_commands_and_hashes(results: Path) -> None:
    main(["--results", str(results)])
    page = Page((results / "report.html").read_text(encoding="utf-8"))
    (tip,) = {str(each["title"]) for each in page.all("td") if "--method tespec" in (each.get("title") or "")}
    assert tip.count("python benchmarks/run.py --method tespec --task ddd17") == 2
    hashes = [path.stem.rpartition("-")[2] for path in (results / "runs").glob("*-tespec-*.json")]
    assert all(each in tip for each in hashes)
    assert all(each in tip for each in ("seed 0", "seed 1", "data sample 0123456789ab", " UTC"))


def test_long_notes_are_folded_and_short_ones_stand(make, tmp_path: Path) -> None:
    deviation = "a narrow backbone " * 30
    text = report([make(config={"deviations": [deviation]})], tmp_path)
    assert f"<details><summary>Profile sample deviates from the paper: {deviation}.</summary></details>" in text
    assert "<p>DDD17, measured: sample world, profile sample; seed 0.</p>" in text


def test_charts_of_one_task_are_told_apart(make, tmp_path: Path) -> None:
    records = [make(name, data_fingerprint=print_) for name, print_ in (("scratch", "a" * 12), ("tespec", "b" * 12))]
    records.append(make("moby", profile="paper"))
    text = report(records, tmp_path)
    titles = re.findall(r'alt="([^"]*: recordings)"', text)
    told = ("paper", "sample (1)", "sample (2)")
    assert titles == [f"DDD17 on the sample world, {each}, recurrent: recordings" for each in told]


def test_nothing_is_loaded_from_elsewhere(results: Path) -> None:
    main(["--results", str(results)])
    text = (results / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    kinds = Counter(str(each["src"]).partition(",")[0] for each in page.all("img"))
    assert kinds == {"data:image/webp;base64": 2, "data:image/svg+xml;base64": 4}
    assert page.all("link") == []
    assert not re.search(r"(src|href)=\"(https?:)?//|@import|url\(", text)
    (policy,) = (each["content"] for each in page.all("meta") if "http-equiv" in each)
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)
    assert script is not None
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    own, looks = (
        f"'sha256-{base64.b64encode(hashlib.sha256(each[1].encode()).digest()).decode()}'" for each in (script, style)
    )
    assert policy == (
        f"default-src 'none'; img-src data:; style-src {looks}; script-src {own}; base-uri 'none'; form-action 'none'"
    )
    assert not any("style" in attributes for _, attributes in page.elements)


def test_a_strangers_record_is_text_and_nothing_else(hostile: Record, tmp_path: Path) -> None:
    page = Page(report([hostile], tmp_path))
    assert len(page.all("script")) == 1
    assert all(str(each["src"]).startswith("data:image/svg+xml;base64,") for each in page.all("img"))
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert any("document.title='taken'" in text for text in page.text)


def test_pictures_are_scaled_down_and_broken_ones_named(results: Path) -> None:
    broken, *_ = sorted((results / "pictures").iterdir())
    broken.write_bytes(b"no picture")
    main(["--results", str(results)])
    text = (results / "report.html").read_text(encoding="utf-8")
    assert 'width="1200" height="240"' in text
    assert f"{broken.name} cannot be shown" in text


def test_pictures_are_of_the_method_itself_with_all_labels(make, tmp_path: Path) -> None:
    changed = as_facts(pretraining_settings("tespec", "sample", ["objective.mask.ratio=0.0"]))
    weights = {"source": "backbone.safetensors", "sha256": "ff", "recipe": changed}
    own = make("tespec", seed=0, metrics={"miou": 40.0})
    no_picture = make("tespec", seed=0, data_fingerprint="newer data")
    others = [
        make("tespec", config={"label_share": 0.05}),
        make("tespec", weights=weights),
        make("tespec", split="val"),
    ]
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for place, each in enumerate([own, *others, no_picture]):
        written = f"2026-01-0{1 + place}T00:00:00+00:00"
        write_record(each | {"written": written}, tmp_path / "runs")
        if each is not no_picture:
            Image.new("RGB", (8, 8)).save(pictures / f"{each['name']}.png")
    records = read_records(tmp_path / "runs")[0]
    there = [each for each in records if each["name"] != no_picture["name"]]
    assert [each["name"] for each in first_seeds(there)] == [own["name"]]
    assert main(["--results", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("ddd17: Method tespec") == 2  # alt and caption


def test_without_runs_the_published_numbers_stand_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path), "--out", str(tmp_path / "a" / "b.html")]) == 0
    text = (tmp_path / "a" / "b.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "62.774" in text
    assert "nothing was measured yet" in text
    assert "no run in" in capsys.readouterr().err
    assert not any(each.get("id") in ("curves", "bars", "runs") for each in page.all("section"))


def test_what_was_left_out_is_said(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "runs" / "torn.json").write_text('{"schema": 1, "metr')
    assert main(["--results", str(results)]) == 1
    assert "1 file left out" in (results / "report.html").read_text(encoding="utf-8")
    assert "torn.json" in capsys.readouterr().err


def test_a_choice_keeps_others_out(results: Path, make) -> None:
    write_record(make("moby", data="ddd17", profile="paper"), results / "runs")
    main(["--results", str(results), "--data", "ddd17"])
    text = (results / "report.html").read_text(encoding="utf-8")
    assert "--method moby" in text
    assert "--method scratch" not in text
    with pytest.raises(UserError, match="no such evaluation"):
        main(["--results", str(results), "--data", "dsec"])


def test_never_imports_torch(results: Path) -> None:
    code = (
        "import sys; from tespec.cli.report import main; "
        f"main(['--results', {str(results)!r}]); "
        "assert not {'torch', 'mmengine'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_picture_is_a_png_and_no_bomb(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    assert "cannot be shown (UnidentifiedImageError)" in picture(path, "")
    Image.new("1", (10_000, 10_000)).save(path)
    assert "cannot be shown (DecompressionBombWarning)" in picture(path, "")


def test_rows_of_which_nothing_was_measured_are_counted_not_shown(results: Path) -> None:
    main(["--results", str(results)])
    text = (results / "report.html").read_text(encoding="utf-8")
    sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', text, re.DOTALL))
    assert sections["segmentation"].count("left out: nothing was measured there.") == 1
    assert "MoBY" not in sections["segmentation"]
    # Of what nothing was measured at all there is no table.
    assert not {"detection", "depth", "ablations", "facts"} & set(sections)
    assert re.search(r"Only what was measured is shown: 2 rows\. \d\d rows of the paper&#39;s tables have no", text)


def test_a_task_of_ones_own_has_a_section(make, tmp_path: Path) -> None:
    scores = {"error": {"title": "Error", "better": "lower", "unit": "m"}}
    config = {"kind": "flow", "title": "The hall"}
    text = report([make("mine", task="hall", scores=scores, config=config, metrics={"error": 1.5})], tmp_path)
    sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', text, re.DOTALL))
    assert "1.500" in sections["task_hall"]
    assert "Error (m) ↓" in sections["task_hall"]


def test_rows_of_one_method_are_told_apart_by_their_names(make, tmp_path: Path) -> None:
    records = [make("scratch", arch=arch) for arch in ("recurrent", "feedforward")]
    text = report([*records, make("tespec")], tmp_path)
    rows = re.findall(
        r"<tr><td>(.*?)</td>", dict(re.findall(r'<section id="(\w+)">(.*?)</section>', text, re.DOTALL))["segmentation"]
    )
    assert rows == ["No Pre-training, feed-forward", "No Pre-training, recurrent", "TESPEC (Ours)"]


def test_names_and_headings_of_groups_stay_when_a_table_is_moved_sideways(make, tmp_path: Path) -> None:
    text = report([make("mine")], tmp_path)
    assert re.search(r"td:first-child[^{]*{[^}]*position: sticky; left: 0;", text)
    assert re.search(r"tr.heading span {[^}]*position: sticky", text)
    assert re.search(r'<tr class="heading"><td colspan="\d+"><span>Methods added here</span></td></tr>', text)
