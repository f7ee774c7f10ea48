"""ECDP's objective, in what can be had without its image network: contrast of events with the image of their moment."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, normalize, softmax

from tespec.models.backbone import Backbone
from tespec.models.precision import in_fp32
from tespec.pretraining.contrast import info_nce
from tespec.pretraining.heads import pooled, projector
from tespec.processes import of_all_rows


class ImageContrast(nn.Module):
    """Events and their image find each other, and their likenesses within the batch agree.

    After Yang, Pan, Liu, "Event Camera Data Pre-training" (ICCV 2023): an event-image contrast, and an alignment of
    the distributions that events and images form over the batch. There the image network is CLIP's, frozen; here it is
    trained along, as its weights cannot be shipped.

    Args:
        backbone: what is pre-trained, on events.
        images: a backbone for the images.
        hidden: width of the projectors.
        out: dimensions that are compared.
        temperature: of the softmax over cosines.
        alignment: weight of the alignment.
    """

    def __init__(
        self, backbone: Backbone, images: Backbone, hidden: int, out: int, temperature: float, alignment: float
    ) -> None:
        super().__init__()
        self.backbone, self.images = backbone, images
        self.of_events = projector(backbone.channels[-1], hidden, out)
        self.of_images = projector(images.channels[-1], hidden, out)
        self.temperature, self.alignment = temperature, alignment

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Losses of a step.

        Args:
            batch: histograms (B, 1, 2 * bins, H, W) and images (B, 1, 1, H, W) float32.
            state: None.

        Returns:
            "loss", which is "loss_contrast" + alignment * "loss_alignment", and "found", the share of events whose
            image is told from the others; and None.
        """
        events, _ = of_all_rows(self.of_events(_whole(self.backbone, batch["histograms"])))
        images, _ = of_all_rows(self.of_images(_whole(self.images, batch["images"])))
        forth, found = info_nce(events, images, self.temperature)
        back, _ = info_nce(images, events, self.temperature)
        aligned = _alignment(events, images.detach(), self.temperature)
        contrast = (forth + back) / 2
        return {
            "loss": contrast + self.alignment * aligned,
            "loss_contrast": contrast,
            "loss_alignment": aligned,
            "found": found,
        }, None


@in_fp32
def _alignment(events: Tensor, images: Tensor, temperature: float) -> Tensor:
    """Divergence of how alike events are to each other from how alike their images are."""
    events, images = normalize(events, dim=1), normalize(images, dim=1)
    others = ~torch.eye(len(events), dtype=torch.bool, device=events.device)
    of_events = (events @ events.T / temperature)[others].view(len(events), -1)
    of_images = (images @ images.T / temperature)[others].view(len(events), -1)
    return kl_div(log_softmax(of_events, dim=1), softmax(of_images, dim=1), reduction="batchmean")


def _whole(backbone: Backbone, frames: Tensor) -> Tensor:
    features, _ = backbone(frames)
    return pooled(features[-1])
