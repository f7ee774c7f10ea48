from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tespec.comparison.records import Record
from tespec.paths import REPOSITORY
from tespec.report.reproduction_text import BEGIN, END, put_in, results_text, short_text

Make = Callable[..., Record]


def test_results_are_claims_references_and_tables_of_the_records(make: Make) -> None:
    records = [
        make(name, arch=arch, seed=seed)
        for name in ("scratch", "tespec")
        for arch in ("recurrent", "feedforward")
        for seed in range(2)
    ]
    records.append(make("prior", kind="reference", arch="feedforward", metrics={"miou": 12.345}))
    text = results_text(records, "pictures/it.png")
    assert "8 fine-tunings, 1 references" in text
    assert "](pictures/it.png)" in text
    assert "12.345" in text
    assert re.search(r"TESPEC beats no pre-training.*undecided", text)


def test_the_short_form_has_figure_verdicts_and_the_papers_metrics_alone(make: Make) -> None:
    records = [make(name, seed=seed) for name in ("scratch", "tespec") for seed in range(2)]
    text = short_text(records, "pictures/it.png", "docs/it.md")
    assert "](pictures/it.png)" in text
    assert "](docs/it.md)" in text
    assert "seeds 0, 1" in text
    assert re.search(r"TESPEC beats no pre-training.*undecided", text)
    header = next(line for line in text.splitlines() if line.startswith("| Method"))
    assert header.count("mIoU") == 1
    assert "moving" not in header
    assert "profile" not in text


def test_a_page_keeps_what_stands_around_its_results() -> None:
    page = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    written = put_in(page, "new\n")
    assert written == f"above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"
    assert put_in(written, "new\n") == written
    with pytest.raises(ValueError, match="no place for results"):
        put_in("above\nbelow\n", "new")


@pytest.mark.parametrize("name", ["docs/reproduction.md", "README.md"])
def test_the_pages_of_the_reproduction_have_a_place_for_results(name: str) -> None:
    page = (REPOSITORY / name).read_text(encoding="utf-8")
    assert "new" in put_in(page, "new")
