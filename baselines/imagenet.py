"""Supervised ImageNet classification, the usual initialisation (Liu et al., "Swin Transformer", ICCV 2021)."""

from typing import Any

import tespec.core.compat  # noqa: F401  # before timm and torchvision

import torch
from PIL import Image, ImageOps
from pydantic.dataclasses import dataclass
from timm.data import Mixup, create_transform
from timm.data.auto_augment import RandAugment
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.transforms import v2
from typing_extensions import Self

from tespec.core.distributed import shard_slice
from tespec.core.errors import UserError
from tespec.core.settings import Clip, Decay, NonNegativeFloat, Optimisation, Pretraining, Share
from tespec.datasets.images import (
    DEVIATION,
    GREY_DEVIATION,
    GREY_MEAN,
    MEAN,
    ViewOf,
    as_input,
    seeded,
)
from tespec.models.backbone import Backbone
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import pooled
from tespec.pretraining.data import PretrainData
from tespec.pretraining.method import ImageMethod, TableRow, ViewSettings
from tespec.registry import METHODS

IMAGENET_CLASSES = 1000  # assumed without data
MIXED = 128  # images with the same mixup parameters: the batch of one GPU (get_started.md)


def posterized(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    """Posterise to `bits` (0 to 8) per channel; 0 makes the image black, as Pillow did before it refused 0."""
    return (
        ImageOps.posterize(image, bits) if bits else image.point([0] * 256 * len(image.getbands()))
    )


@dataclass(frozen=True)
class ImagenetSettings(ViewSettings):
    """Settings of the view and the loss; values from config.py, AUG and LABEL_SMOOTHING."""

    smoothing: Share = 0.1  # label smoothing
    augment: str = "rand-m9-mstd0.5-inc1"  # timm's RandAugment
    erasing: Share = 0.25  # probability of random erasing
    mixup: NonNegativeFloat = 0.8  # alpha; mixup or cutmix is chosen at random
    cutmix: NonNegativeFloat = 1.0

    def __post_init__(self) -> None:
        try:
            create_transform(self.size, is_training=True, auto_augment=self.augment)
        except (AssertionError, KeyError, ValueError) as error:
            what = f"timm has no augmentation {self.augment!r}"
            raise UserError(
                "objective.augment", what, "write it as in rand-m9-mstd0.5-inc1"
            ) from error


@METHODS.register_module(name="imagenet")
class Imagenet(ImageMethod):
    """Classify images with a linear layer on the mean of the normalised last stage."""

    row = TableRow(
        title="RGB Supervised",
        group="Pre-trained on images",
        pretraining_data="ImageNet-1k",
        citation="Liu et al.: Swin Transformer, ICCV 2021",
        licence="MIT (microsoft/Swin-Transformer)",
        weights=(
            "swin_tiny_patch4_window7_224.pth of microsoft/Swin-Transformer, or timm's "
            "swin_tiny_patch4_window7_224.ms_in1k"
        ),
        summary=(
            "Image classification; the patch embedding is repeated over the bins, ConvLSTMs are "
            "randomly initialised."
        ),
    )
    version = 3
    deviations = (
        "CutMix by timm 1.0, whose boxes may have odd sides, instead of 0.4.12, whose sides are even",
    )
    # Swin-T on ImageNet-1k. Values from microsoft/Swin-Transformer, the file named next to each;
    # learning rates of its config.py are scaled by 1024 / 512 (main.py).
    recipe = Pretraining(
        objective=ImagenetSettings(),
        dataset="objects",
        batch_size=1024,  # get_started.md: 8 GPUs, 128 images on each
        drop_path=0.2,  # configs/swin_tiny_patch4_window7_224.yaml
        optimisation=Optimisation(
            peak_lr=1.0e-3,  # config.py, BASE_LR; as AdamW
            schedule="cosine_swin",
            start_divisor=1000,  # from 1e-6; config.py, WARMUP_LR
            end_divisor=100,  # to 1e-5; config.py, MIN_LR
            steps=375_300,  # 300 epochs of 1,251 complete batches; config.py
            warmup_steps=25_020,  # 20 epochs; config.py
            clip=Clip("norm", 5.0),  # config.py, CLIP_GRAD
            # 0.05: config.py. Exempt: optimizer.py, and models/swin_transformer.py,
            # no_weight_decay_keywords.
            weight_decay=Decay(0.05, 0.05, ("vectors", "positions")),
        ),
    )

    def __init__(self, own: ImagenetSettings, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.own, self.backbone = own, backbone
        self.norm = nn.LayerNorm(backbone.channels[-1])
        self.classify = nn.Linear(backbone.channels[-1], classes)
        # models/swin_transformer.py, _init_weights
        nn.init.trunc_normal_(self.classify.weight, std=0.02)
        nn.init.zeros_(self.classify.bias)

    @classmethod
    def views(cls, own: ImagenetSettings, training: bool = True) -> tuple[ViewOf]:
        """The view of data/build.py; validation images are centre-cropped without randomness."""
        grey = own.channels == 1
        view = create_transform(
            own.size,
            is_training=training,
            scale=own.scale,
            color_jitter=0.0,  # not used with RandAugment
            auto_augment=own.augment,
            interpolation="bicubic",
            re_prob=own.erasing,
            re_mode="pixel",
            crop_pct=224 / 256,
            mean=(GREY_MEAN,) * 3 if grey else MEAN,
            std=(GREY_DEVIATION,) * 3 if grey else DEVIATION,
        )
        for step in view.transforms:
            for operation in step.ops if isinstance(step, RandAugment) else ():
                if operation.name.startswith("Posterize"):
                    operation.aug_fn = posterized
        return (v2.Compose([view, v2.Grayscale()]) if grey else view,)

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Return "loss", and "accuracy", the share of correct images; a mixed image counts by its larger part."""
        views, wanted = as_input(batch["views"]).squeeze(1), batch["labels"]
        if self.training and (self.own.mixup or self.own.cutmix):
            views, wanted = self._mixed(views, wanted)
        features, _ = self.backbone(views.unsqueeze(1))
        return self._losses(features[-1], wanted), None

    @in_fp32
    def _losses(self, last: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        """Loss and accuracy for labels (B,), smoothed in training, or class shares (B, classes), which already are."""
        logits, is_mixed = self.classify(pooled(last, self.norm)), wanted.dim() > 1
        loss = cross_entropy(
            logits,
            wanted,
            label_smoothing=self.own.smoothing if self.training and not is_mixed else 0.0,
        )
        right = logits.argmax(1) == (wanted.argmax(1) if is_mixed else wanted)
        return {"loss": loss, "accuracy": right.float().mean()}

    def _mixed(self, views: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mix neighbouring views and their labels by mixup or cutmix; raise `UserError` for an odd number."""
        own, count = self.own, len(labels)
        if count % 2:
            what = f"mixup and cutmix need an even batch, and a rank has {count} images"
            raise UserError(
                "batch_size",
                what,
                "use an even number, or set objective.mixup and objective.cutmix to 0",
            )
        whole, here = shard_slice(count)
        seeds = torch.randint(2**31, (1 + whole // MIXED,)).tolist()[here.start // MIXED :]
        mix = Mixup(
            own.mixup,
            own.cutmix,
            label_smoothing=own.smoothing,
            num_classes=self.classify.out_features,
        )
        cuts = [
            row - here.start for row in range(MIXED * (here.start // MIXED + 1), here.stop, MIXED)
        ]
        mixed = []
        for seed, *some in zip(
            seeds, views.tensor_split(cuts), labels.tensor_split(cuts), strict=False
        ):
            with seeded(seed):
                # timm mixes the first image with the last, and so on: this order pairs neighbours.
                mixed.append(mix(*(torch.cat([each[::2], each[1::2].flip(0)]) for each in some)))
        return torch.cat([each for each, _ in mixed]), torch.cat([each for _, each in mixed])

    @classmethod
    def from_settings(cls, own: Any, settings: Pretraining, data: PretrainData) -> Self:
        images = getattr(data, "images", None)
        if images and images.flat:
            remedy = "sort its images into a folder for each class, or remove it"
            raise UserError(images.flat[0], "holds images outside of folders of classes", remedy)
        classes = len(images.classes) if images else IMAGENET_CLASSES
        if classes < 2:
            remedy = "use a folder with one folder of images per class"
            raise UserError(data.root, f"its images are in {classes} folder", remedy)
        return cls(own, cls.new_backbone(settings, data), classes)

    def val_losses(self, batch: dict[str, Tensor], state: None) -> tuple[dict[str, Tensor], None]:
        """Loss, and accuracy in percent."""
        losses, _ = self.loss(batch, None)
        return {"loss": losses["loss"], "accuracy": 100 * losses["accuracy"]}, None
