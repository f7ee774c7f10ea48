import torch

from tespec.pretraining.clusters import AttentionPool, cluster


def test_clusters_find_groups_and_those_that_lose_all_tokens_stay_empty():
    torch.manual_seed(0)
    centres = torch.eye(3, 6) * 5
    tokens = torch.stack([centres[[0] * 4 + [1] * 4 + [2] * 4] + 0.1 * torch.randn(12, 6)])
    members = cluster(tokens, torch.tensor([[0, 4, 8]]))
    assert members[0].tolist() == [[number // 4 == group for number in range(12)] for group in range(3)]
    members = cluster(tokens[:, :4].repeat(1, 2, 1), torch.tensor([[0, 4]]))  # two starts are one token
    assert members.sum(2).tolist() == [[8, 0]]


def test_pooling_is_attention_of_each_vector_to_itself_and_its_tokens():
    torch.manual_seed(0)
    pool, maps = AttentionPool(64).double(), torch.randn(2, 64, 6, 6).double()
    members = torch.rand(2, 3, 36) < 0.3
    members[:, 2] = False
    found = pool(maps, members)
    for lane in range(2):
        tokens = (maps[lane] + pool.positions[0]).flatten(1).T
        for number in range(3):
            vector = pool.vector[0, 0]
            for layer in pool.layers:
                seen = layer.norm1(torch.stack([vector, *tokens[members[lane, number]]]))
                heads = []
                for own in range(2):
                    part = slice(32 * own, 32 * own + 32)
                    keys, values = layer.key(seen)[:, part], layer.value(seen)[:, part]
                    weights = (keys @ layer.query(seen[0])[part] / 32**0.5).softmax(0)
                    heads.append(weights @ values)
                vector = vector + layer.project(torch.cat(heads))
                vector = vector + layer.mlp(layer.norm2(vector))
            torch.testing.assert_close(found[lane, number], pool.norm(vector))
    everything = torch.ones(2, 1, 36, dtype=torch.bool)
    torch.testing.assert_close(pool(maps), pool(maps, everything))
