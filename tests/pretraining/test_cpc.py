"""CPC: the loss is InfoNCE between predictions of the recurrent state and later segments."""

import torch
from loss_cases import CASES
from torch.nn.functional import normalize


def test_the_loss_is_infonce_at_each_number_of_segments_ahead():
    """Eq. 4 of van den Oord et al. (2018), with the declared heads and cosines."""
    model, batch = CASES["cpc"]()
    model.eval()
    torch.manual_seed(1)
    losses, _ = model.loss(batch, None)
    torch.manual_seed(1)
    histograms = batch["histograms"]
    lanes, segments = histograms.shape[:2]
    contexts = model.backbone(histograms)[0][-1]
    total = 0.0
    for ahead in (1, 2):
        queries, keys = [], []
        for lane in range(lanes):
            for segment in range(segments - ahead):
                later = model.backbone(
                    histograms[lane : lane + 1, segment + ahead : segment + ahead + 1]
                )[0][-1][0, 0]
                for row, column in torch.ones(later.shape[1:]).nonzero().tolist():
                    context = contexts[lane, segment, :, row, column]
                    queries.append(model.predict[ahead - 1](context[None])[0].double())
                    keys.append(model.latent(later[:, row, column][None])[0].double())
        drawn = torch.randperm(len(queries))[:32].tolist()
        for one in drawn:
            cosines = torch.stack(
                [normalize(queries[one], dim=0) @ normalize(keys[other], dim=0) for other in drawn]
            )
            total = total - (cosines / 0.02).log_softmax(0)[drawn.index(one)] / len(drawn) / 2
    torch.testing.assert_close(losses["loss"].double(), total, rtol=1e-5, atol=0)
