"""Supervised classification of images: where weights like ImageNet's come from."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tespec.models.backbone import Backbone
from tespec.models.precision import in_fp32
from tespec.pretraining.heads import pooled


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
        return self._losses(features[-1], batch["labels"]), None

    @in_fp32
    def _losses(self, last: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.classify(self.norm(pooled(last)))
        loss = cross_entropy(logits, labels, label_smoothing=self.smoothing)
        return {"loss": loss, "accuracy": (logits.argmax(1) == labels).float().mean().detach()}
