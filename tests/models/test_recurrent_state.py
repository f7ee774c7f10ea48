import torch

from tespec.models.backbone import detach, reset


def nested_state(requires_grad=False):
    def ones(*shape):
        return torch.ones(3, *shape, requires_grad=requires_grad)

    return (((ones(2, 4, 5), ones(2, 4, 5)), (ones(4, 2, 3), ones(4, 2, 3))), ones(8, 9))


def test_reset_zeroes_the_fresh_lanes_alone():
    (((h, _), (_, c)), image) = reset(nested_state(), torch.tensor([True, False, True]))
    for part in (h, c, image):
        assert part[0].abs().sum() == 0
        assert part[2].abs().sum() == 0
        assert torch.equal(part[1], torch.ones_like(part[1]))


def test_reset_also_removes_values_that_are_not_finite():
    assert reset(torch.tensor([float("nan"), 1.0]), torch.tensor([True, False])).tolist() == [0.0, 1.0]


def test_no_state_stays_no_state():
    assert reset(None, torch.tensor([True])) is None
    assert detach((None, None)) == (None, None)


def test_detach_cuts_every_part():
    (((h, _), (_, c)), image) = detach(nested_state(requires_grad=True))
    assert not any(part.requires_grad for part in (h, c, image))
