"""ECDP: contrast of events with images (Yang, Pan, Liu, "Event Camera Data Pre-training", ICCV 2023).

Events and the image of their moment find each other, and the distributions that both form over the batch are aligned.
There the image network is CLIP's, frozen; here it is trained along, as its weights cannot be shipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, normalize, softmax

from tespec.core.distributed import all_gather_rows
from tespec.core.registry import METHODS
from tespec.core.settings import Augmentation, Count, Decay, FromZero, Optimisation, Positive, Pretraining
from tespec.datasets.images import as_input
from tespec.models.backbone import Backbone
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import info_nce, projector, whole
from tespec.pretraining.method import PairMethod


@dataclass(frozen=True)
class EcdpSettings:
    """Settings of the contrast and of the alignment."""

    hidden: Count  # width of the projectors
    out: Count  # dimensions that are compared
    temperature: Positive  # of the softmax over cosines
    alignment: FromZero  # weight of the alignment


@METHODS.register_module(name="ecdp")
class Ecdp(PairMethod):
    """Events and their image find each other, and their likenesses within the batch agree.

    Args:
        own: its settings.
        backbone: what is pre-trained, on events.
        images: a backbone for the images.
    """

    title = "ECDP"
    group = "Pre-trained on events"
    network_title = "ResNet50"
    network = "resnet"
    architectures = ("feedforward",)
    pretraining_data = "N-ImageNet"
    citation = "Yang, Pan, Liu: Event Camera Data Pre-training, ICCV 2023"
    licence = "not stated (Yan98/Event-Camera-Data-Pre-training)"
    weights = "the ResNet-50 checkpoint of Yan98/Event-Camera-Data-Pre-training"
    summary = "Events and the image of their moment find each other; a feed-forward ResNet-50, there is no Swin."
    loss_is = "contrast of events with images, and back, and alignment of their distributions"
    deviations = (  # from Yan98/Event-Camera-Data-Pre-training, model/hub_model.py
        "ECDP's image network is trained along, instead of being CLIP's, frozen",
        "ECDP's events are seen whole, instead of with half of their patches left out",
        "ECDP's contrast of events with those of another view, its loss on classes and its projection are left out",
        "ECDP's contrast and alignment weigh 1 and 1, instead of 0.2 and 2, and the alignment is not balanced by "
        "Sinkhorn's algorithm",
    )
    # Values: Yan98/Event-Camera-Data-Pre-training, config/ours/pr_vits.yml and its base ours_pretraining_base.yml,
    # which are those of ViT-S: of a ResNet-50 none are published.
    recipe = Pretraining(
        objective=EcdpSettings(hidden=2048, out=256, temperature=0.1, alignment=1.0),
        dataset="ddd17",
        batch_size=1024,  # README.md: 4 nodes of 4 GPUs, 64 pairs on each
        drop_path=0.0,  # model/ours_model/ours_model_pretrain.py
        optimisation=Optimisation(
            optimizer="AdamW",  # trainer/pr_trainer.py
            peak_lr=6.0e-4,  # base_lr 1.5e-4 * 1024 / 256 (trainer/pr_trainer.py)
            schedule="cosine",  # trainer/pr_trainer.py
            start_divisor=1.0e6,  # from 0 there
            end_divisor=1.0e6,  # to 0 there
            steps=375000,  # 300 epochs of ImageNet's 1.28 million
            warmup_steps=50000,  # 40 epochs; warmup_epoch
            # Not clipped: trainer/pr_trainer.py clips where max_grad_norm is set, which it is not.
            weight_decay=Decay(0.03, 0.03, ()),  # all parameters in one group; trainer/pr_trainer.py
        ),
        augmentation=Augmentation(flip=0.5),
        deviations=(
            "ECDP's ResNet-50 is trained by the settings of its ViT-S",
            "ECDP on recordings with frames, from random weights, instead of on N-ImageNet, from those of MoCo v3",
        ),
    )
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sample": {
            "batch_size": 16,
            "segments": 1,
            "optimisation": {"peak_lr": 1.0e-3},
            "objective": {"hidden": 256, "out": 64},
        },
        "small": {"optimisation": {"peak_lr": 1.0e-3}},  # the best of four by validation loss
    }

    def __init__(self, own: EcdpSettings, backbone: Backbone, images: Backbone) -> None:
        super().__init__()
        self.own = own
        self.backbone, self.images = backbone, images
        self.of_events = projector(backbone.channels[-1], own.hidden, own.out)
        self.of_images = projector(images.channels[-1], own.hidden, own.out)

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Losses of a step.

        Args:
            batch: histograms (B, 1, 2 * bins, H, W) and images (B, 1, 1, H, W) uint8.
            state: None.

        Returns:
            "loss", which is "loss_contrast" + alignment * "loss_alignment", and "found", the share of events whose
            image is told from the others; and None.
        """
        temperature = self.own.temperature
        events = all_gather_rows(self.of_events(whole(self.backbone, batch["histograms"])))
        images = all_gather_rows(self.of_images(whole(self.images, as_input(batch["images"]))))
        forth, found = info_nce(events, images, temperature)
        back, _ = info_nce(images, events, temperature)
        aligned = _alignment(events, images.detach(), temperature)
        contrast = (forth + back) / 2
        return {
            "loss": contrast + self.own.alignment * aligned,
            "loss_contrast": contrast,
            "loss_alignment": aligned,
            "found": found,
        }, None


@in_fp32
def _alignment(events: Tensor, images: Tensor, temperature: float) -> Tensor:
    """Divergence of how alike events are to each other from how alike their images are."""
    events, images = normalize(events, dim=1), normalize(images, dim=1)
    of_events, of_images = (_of_others(each @ each.T / temperature) for each in (events, images))
    return kl_div(log_softmax(of_events, dim=1), softmax(of_images, dim=1), reduction="batchmean")


def _of_others(square: Tensor) -> Tensor:
    """(N, N - 1): a square (N, N) without its diagonal."""
    count = len(square)
    # Without its first number, each N + 1 numbers end in one of the diagonal.
    return square.flatten()[1:].view(count - 1, count + 1)[:, :-1].reshape(count, count - 1)
