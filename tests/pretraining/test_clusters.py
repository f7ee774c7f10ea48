import torch

from tespec.pretraining.clusters import cluster, pool


def test_clusters_find_groups_and_pooling_weighs_within_them():
    torch.manual_seed(0)
    centres = torch.eye(3, 6) * 5
    tokens = torch.stack([centres[[0] * 4 + [1] * 4 + [2] * 4] + 0.1 * torch.randn(12, 6)])
    nearest = cluster(tokens, 3)
    assert [len(set(nearest[0, part].tolist())) for part in (slice(0, 4), slice(4, 8), slice(8, 12))] == [1, 1, 1]
    assert len(set(nearest[0].tolist())) == 3
    pooled, there = pool(tokens, torch.zeros(1, 12), nearest, 3)
    assert there.all()
    torch.testing.assert_close(pooled[0, nearest[0, 0]], tokens[0, :4].mean(0))
    pooled, there = pool(tokens, torch.zeros(1, 12), torch.zeros(1, 12, dtype=torch.long), 2)
    assert there.tolist() == [[True, False]]
    assert torch.isfinite(pooled).all()
