import pytest
from loss_cases import CASES

from tespec.core.errors import UserError


def test_too_few_segments_to_predict_are_refused():
    model, batch = CASES["cpc"]()
    with pytest.raises(UserError, match=r"objective.ahead: 2 segments do not reach 2 ahead"):
        model.loss(batch | {"histograms": batch["histograms"][:, :2]}, None)
