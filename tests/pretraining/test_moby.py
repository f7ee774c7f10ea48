import torch
from small_networks import momentum_contrast, views


def test_the_queue_keeps_the_newest_keys_in_training_alone():
    model, batch = momentum_contrast(queue=6), {"views": views()}
    before = model.queues.clone()
    model.eval().loss(batch, None)
    assert torch.equal(model.queues, before)
    model.train()
    for _ in range(2):
        model.loss(batch, None)
    assert int(model.place) == 8 % 6
    assert not torch.equal(model.queues[:, :2], before[:, :2])
    torch.testing.assert_close(model.queues.norm(dim=-1), torch.ones(2, 6))
