import re

import pytest

from tespec.comparison.audit import cell, claims, render_audit
from tespec.errors import UserError

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


def test_the_claims_are_those_of_the_text():
    named = [float(number) for sentence, _ in TEXT for number in re.findall(r"\$(\d+\.\d+)\\%", sentence)]
    assert named == [gain for _, gains in TEXT for gain in gains] == [claim.gain for claim in claims()]


def test_one_gain_is_not_that_of_the_table():
    wrong = [claim for claim in claims() if not claim.holds]
    assert [(claim.gain, claim.found) for claim in wrong] == [(10.499, 8.499)]
    text = render_audit()
    assert "dsec miou, 10.499: DOES NOT HOLD: the tables give 8.499" in text
    assert text.endswith("12 of 13 claims hold\n")


def test_cells_by_place():
    assert cell("segmentation/ecddp†/feedforward/dsec/miou") == 61.25
    assert cell("segmentation/ecddp‡/feedforward/dsec/miou") == 59.142
    assert cell("ablation/masking/0%/mean_class_acc") == 62.982
    for place in ("segmentation/ecddp‡/feedforward/ddd17/miou", "ablation/masking/1%/miou"):
        with pytest.raises(UserError, match="there is no published number"):
            cell(place)
