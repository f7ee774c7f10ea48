import pytest
import torch
from small_networks import coding, histograms

from tespec.core.errors import UserError


def test_too_few_segments_to_predict_are_refused():
    with pytest.raises(UserError, match=r"objective.ahead: 2 segments do not reach 2 ahead"):
        coding().loss({"histograms": histograms(segments=2), "fresh": torch.ones(3, dtype=torch.bool)}, None)
