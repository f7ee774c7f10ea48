"""Supervised classification of images: where weights like ImageNet's come from."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tespec.models.backbone import Backbone


class Classification(nn.Module):
    """Cross-entropy of a linear layer on the mean of the last stage.

    Args:
        backbone: what is pre-trained.
        classes: number of classes.
        smoothing: share of the label that is spread over all classes.
    """

    draws_alike = True  # of what stochastic depth draws for the whole batch, each process takes its own

    def __init__(self, backbone: Backbone, classes: int, smoothing: float) -> None:
        super().__init__()
        self.backbone = backbone
        self.norm = nn.LayerNorm(backbone.channels[-1])
        self.classify = nn.Linear(backbone.channels[-1], classes)
        self.smoothing = smoothing

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Losses of a step.

        Args:
            batch: views (B, 1, C, H, W) float32 and labels (B,) int64.
            state: None.

        Returns:
            "loss", and "accuracy", the share of images that is right; and None.
        """
        features, _ = self.backbone(batch["views"])
        logits = self.classify(self.norm(features[-1].squeeze(1).flatten(2).mean(2)))
        loss = cross_entropy(logits.float(), batch["labels"], label_smoothing=self.smoothing)
        right = (logits.argmax(1) == batch["labels"]).float().mean()
        return {"loss": loss, "accuracy": right.detach()}, None
