import subprocess
import sys

from tespec.core.paths import REPOSITORY

SAMPLE = REPOSITORY / "results" / "sample"
ENDS = (".csv", "_long.csv", ".tex", ".md", ".html")


def test_prints_and_writes_the_tables_of_the_committed_results_without_torch(tmp_path):
    code = f"""if True:
        import sys
        from tespec.cli.main import main
        main(["tables", "--results", {str(SAMPLE)!r}, "--out", "out-1.0"])
        assert not {{"torch", "mmengine", "timm", "scipy.stats"}} & set(sys.modules)"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        env={"PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "utf-8"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "28.35 ± 0.89 (8)" in done.stdout
    assert "ESS" not in done.stdout  # not measured
    assert (
        done.stdout.splitlines()[-1]
        == "Written: 55 files in out-1.0; their notes explain marks and brackets"
    )
    made = {path.name for path in (tmp_path / "out-1.0").iterdir()}
    assert {
        f"{name}{end}"
        for name in ("segmentation", "depth", "detection", "ablation_masking")
        for end in ENDS
    } < made


def test_measured_tables_have_no_published_number(call, tmp_path):
    places = ("--results", SAMPLE, "--out", tmp_path / "out")
    code, out, _ = call("tables", *places, "--measured", "--where", "method=tespec")
    assert (code, "published" in out) == (0, False)
    name = "segmentation_measured_method-tespec.csv"
    assert (tmp_path / "out" / name).read_text().splitlines()[1:] == [
        ',TESPEC,swin_micro,no,"1Mpx (sample world, study)",28.44 ± 0.64 (8),42.21 ± 0.49 (8)',
        ',TESPEC,swin_micro,yes,"1Mpx (sample world, study)",24.65 ± 2.72 (8),38.73 ± 3.36 (8)',
    ]
    assert not [*(tmp_path / "out").glob("ablation_steps*")]
    # Another selection has other files, and says which are not its own.
    code, out, _ = call("tables", *places, "--only", "segmentation", "--measured")
    assert (tmp_path / "out" / "segmentation_measured.csv").is_file()
    assert "Not of this command: 5 files there, such as segmentation_measured_method-tespec" in out


def test_filters_and_levels(call, tmp_path):
    options = (
        "--only",
        "segmentation",
        "--measured",
        "--where",
        "frames=*ing",
        "--where",
        "data=sample",
    )
    places = ("--results", SAMPLE, "--out", tmp_path)
    code, out, _ = call("tables", *places, *options, "--where", "seed=0", "--by", "frames")
    assert (code, "moving" in out, "(1)" in out, "(8)" in out) == (0, True, True, False)


def test_gains_are_one_table(call, tmp_path):
    code, out, _ = call(
        "tables", "--results", SAMPLE, "--out", tmp_path / "out", "--gains", "scratch"
    )
    assert (code, "+0.079" in out) == (0, True)  # ECDP's, over no pre-training of its network
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"gains_scratch{end}" for end in ENDS
    }


def test_evaluations_are_ranked_or_the_missing_one_is_named(call, tmp_path):
    code, out, _ = call("tables", "--results", SAMPLE, "--rank", "full,frozen")
    assert (code, "against frozen: tau-b 0." in out, "nan" in out) == (0, True, False)
    assert (
        "resnet_micro, feedforward (sample, study, full) against frozen: fewer than 3 meth" in out
    )
    code, _, err = call("tables", "--results", SAMPLE, "--rank", "full,5 % of labels")
    assert (code, "no network has both evaluations; there are: frozen, full" in err) == (2, True)
    code, _, err = call("tables", "--results", tmp_path, "--rank", "full,frozen")
    assert (code, "no main metric over all frames; evaluate a method with" in err) == (2, True)


def test_a_damaged_record_is_named_and_left_out(call, tmp_path):
    torn = tmp_path / "runs" / "torn.json"
    torn.parent.mkdir()
    torn.write_text("{")
    code, _, err = call("tables", "--results", tmp_path)
    assert (code, "contains no readable record" in err) == (2, True)
    assert err.startswith(f"skipped: {torn}: not a record")
    (tmp_path / "records.jsonl.gz").write_bytes((SAMPLE / "records.jsonl.gz").read_bytes())
    code, out, err = call("tables", "--results", tmp_path)
    assert (code, err.count("skipped"), "28.35 ± 0.89 (8)" in out) == (1, 1, True)
    notes = (tmp_path / "tables" / "segmentation.md").read_text()
    assert "Skipped 1 damaged records" in notes
    assert "torn.json" in notes


def test_without_records_the_published_numbers_are_written(call, tmp_path):
    code, out, _ = call("tables", "--results", tmp_path)
    assert (code, out.startswith("Object detection"), "62.774" in out) == (0, True, True)
    assert "No results for ablation_masking" in out
    assert "62.774" in (tmp_path / "tables" / "segmentation.md").read_text()
