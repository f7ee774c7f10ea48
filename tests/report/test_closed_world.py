from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tespec.comparison.records import Record
from tespec.report.closed_world import BEGIN, END, put_in, results_text

Make = Callable[..., Record]


def test_results_are_contrasts_of_the_records(make: Make) -> None:
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
    assert re.search(r"DDD17 \| mIoU ↑ \| undecided \| over no pre-training \| \+0\.000", text)
    assert text.count("holds on 0") == 9


def test_results_of_older_code_say_so_first(make: Make) -> None:
    old, new = make("scratch"), make("tespec")
    old["code"], new["code"] = "0.1.0+r3", "0.1.0-5f2ab0c1"
    first = results_text([old, new], "it.png").splitlines()[0]
    assert first.startswith("Results of version 0.1.0+r3, before the corrections in CHANGELOG.md; they do not describe")
    assert "Results of version" not in results_text([new], "it.png")


def test_a_page_keeps_what_stands_around_its_results() -> None:
    page = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    written = put_in(page, "new\n")
    assert written == f"above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"
    assert put_in(written, "new\n") == written
    with pytest.raises(ValueError, match="no place for results"):
        put_in("above\nbelow\n", "new")
