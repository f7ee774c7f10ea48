import re
from pathlib import Path

import pytest
import yaml

from tespec.comparison.audit import cell, contradictions, gains, render_audit, shown
from tespec.comparison.published import PAPER
from tespec.core.errors import UserError

TABLES = "".join(path.read_text() for path in sorted((Path(__file__).parent / "data").glob("tab-*.tex")))
SECTIONS = {
    "Sec. 4.2": "Object detection",
    "Sec. 4.3": "Semantic segmentation",
    "Appendix A.1": "reconstruction target",
}

# Sentences of the paper with the gains they name, in the order of claims.yaml.
TEXT = [
    (r"substantial improvement of $3.1\%$ and $5.2\%$ in mAP on Gen1 and 1Mpx", [3.1, 5.2]),
    (r"surpasses ECDDP by $2.0\%$ and $0.6\%$ on both datasets", [2.0, 0.6]),
    (r"$1.524\%$ higher mIoU on DSEC and $2.275\%$  higher mIoU on DDD17", [1.524, 2.275]),
    (r"For mAcc, we are $0.992\%$ higher on DSEC", [0.992]),
    (r"a gain of $10.499\%$ in mIoU and $9.138\%$ in mAcc on DSEC", [10.499, 9.138]),
    (r"and $9.376\%$ in mIoU and $6.105\%$ in mAcc on DDD17", [9.376, 6.105]),
    (r"improvements of $1.352\%$ in mIoU and $2.691\%$ in mAcc", [1.352, 2.691]),
]


def test_the_gains_are_those_of_the_text():
    named = [float(number) for sentence, _ in TEXT for number in re.findall(r"\$(\d+\.\d+)\\%", sentence)]
    assert named == [gain for _, gains in TEXT for gain in gains] == [each.gain for each in gains()]


def test_one_gain_is_not_that_of_the_table():
    wrong = [each for each in gains() if not each.agrees]
    assert [(each.gain, each.found) for each in wrong] == [(10.499, 8.499)]
    text = render_audit()
    assert "dsec miou, 10.499: DISAGREES: the tables give 8.499" in text
    assert "\n12 of 13 gains agree with the tables\n" in text


def test_cells_by_place():
    assert cell("segmentation/ecddp†/feedforward/dsec/miou") == 61.25
    assert cell("segmentation/ecddp‡/feedforward/dsec/miou") == 59.142
    assert cell("ablation/masking/0%/mean_class_acc") == 62.982
    for place in ("segmentation/ecddp‡/feedforward/ddd17/miou", "ablation/masking/1%/miou"):
        with pytest.raises(UserError, match="there is no published number"):
            cell(place)


def test_gains_name_the_sections_they_stand_in():
    for each in gains():
        section, title = each.where.split(", ")
        assert SECTIONS[section] == title


def test_contradictions_have_two_places_and_the_numbers_of_the_papers_tables():
    every, places = contradictions(), yaml.safe_load((PAPER / "contradictions.yaml").read_text(encoding="utf-8"))
    assert len(every) == len(places) == 17
    for each, facts in zip(every, places, strict=True):
        assert each.where
        assert each.there
        assert (each.where, each.says) != (each.there, each.against)
        assert "{" not in each.says + each.against
        for place in facts["cells"]:
            number = shown(place)
            assert number in each.against
            # What a table prints as 0.87 is 0.870 here.
            assert any(text in TABLES for text in (number, number.rstrip("0"))), number


def test_what_is_said_of_the_numbers_is_so():
    of = {(each.where, each.there.partition('"')[2].rstrip('"')): each.against for each in contradictions()}

    def numbers(where, there):
        return [float(found) for found in re.findall(r"\d+\.\d+", of[where, there])]

    assert round(sum(numbers("Sec. 4.2, results", "Size of backbones and task-specific heads"))) == 47
    better, worse, *ddd17 = numbers("Sec. 4.3, results", "Semantic segmentation results")
    assert (better, worse) == (61.25, 62.912)
    for task in ("dsec", "ddd17"):
        feedforward, recurrent = "segmentation/ecddp†/feedforward", "segmentation/ecddp/recurrent"
        assert cell(f"{feedforward}/{task}/miou") > cell(f"{recurrent}/{task}/miou")
    assert ddd17 == [cell("segmentation/ecddp†/feedforward/ddd17/miou")]
    assert round(cell("segmentation/tespec/recurrent/dsec/miou") - better, 3) == 1.524
    assert round(cell("segmentation/tespec/recurrent/ddd17/miou") - worse, 3) == 2.275
    pairs = numbers("Sec. 4.4, results", "Monocular depth estimation results")
    ours, theirs = pairs[1::2], pairs[::2]
    assert [one > other for one, other in zip(theirs, ours, strict=True)] == [True, True, True, False, False]
    with pytest.raises(UserError, match="there is no published number"):
        cell("depth/pcdepth†/recurrent/mvsec/abs")
    assert cell("ablation/masking/0%/miou") > cell("segmentation/scratch/recurrent/dsec/miou")
    assert [int(shown(f"facts/runtime_pretraining/Runtime/{name}")[:-1]) for name in ("ECDP", "TESPEC")] == [45, 135]


def test_the_audit_prints_every_contradiction():
    text = render_audit()
    for each in contradictions():
        assert f"{each.where}: {each.says}; {each.there}: {each.against}\n" in text
