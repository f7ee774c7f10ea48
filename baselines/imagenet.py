"""Supervised ImageNet classification, the usual initialisation.

Liu et al., "Swin Transformer", ICCV 2021. Files named below are those of
microsoft/Swin-Transformer.
"""

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
from tespec.core.settings import (
    Decay,
    Fraction,
    GradientClipping,
    NonNegativeFloat,
    Optimisation,
    Pretraining,
)
from tespec.datasets.images import (
    DEVIATION,
    GREY_DEVIATION,
    GREY_MEAN,
    MEAN,
    ViewTransform,
    normalise,
    seeded,
)
from tespec.models.backbone import Backbone
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import init_linear, pooled
from tespec.pretraining.data import PretrainData
from tespec.pretraining.method import Batch, CropSettings, ImageMethod, Losses, TableRow
from tespec.registry import METHODS

IMAGENET_CLASSES = 1000  # assumed without data
MIXED = 128  # images with the same mixup parameters: the batch of one GPU (get_started.md)


def posterize(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    """Keep the highest bits of each channel.

    Args:
        image: of 8 bits per channel.
        bits: 0 to 8; 0 makes the image black, as Pillow did before it refused 0.
    """
    if bits == 0:
        return image.point([0] * 256 * len(image.getbands()))
    return ImageOps.posterize(image, bits)


@dataclass(frozen=True)
class ImagenetSettings(CropSettings):
    """Settings of the crop and the loss; values from config.py, AUG and LABEL_SMOOTHING."""

    smoothing: Fraction = 0.1  # label smoothing
    augment: str = "rand-m9-mstd0.5-inc1"  # timm's RandAugment
    erasing: Fraction = 0.25  # probability of random erasing
    mixup: NonNegativeFloat = 0.8  # alpha; mixup or cutmix is chosen at random
    cutmix: NonNegativeFloat = 1.0

    def __post_init__(self) -> None:
        try:
            create_transform(self.size, is_training=True, auto_augment=self.augment)
        except (AssertionError, KeyError, ValueError) as error:
            raise UserError(
                "objective.augment",
                f"timm has no augmentation {self.augment!r}",
                "write it as in rand-m9-mstd0.5-inc1",
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
        "CutMix by timm 1.0, whose boxes may have odd sides, instead of 0.4.12, whose sides are "
        "even",
    )
    # Swin-T on ImageNet-1k. Learning rates of config.py are scaled by 1024 / 512 (main.py).
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
            clip=GradientClipping("norm", 5.0),  # config.py, CLIP_GRAD
            # 0.05: config.py. Exempt: optimizer.py, and models/swin_transformer.py,
            # no_weight_decay_keywords.
            weight_decay=Decay(0.05, 0.05, ("vectors", "positions")),
        ),
    )

    def __init__(self, cfg: ImagenetSettings, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.cfg = cfg
        self.backbone = backbone
        self.norm = nn.LayerNorm(backbone.channels[-1])
        self.classifier = nn.Linear(backbone.channels[-1], classes)
        init_linear(self.classifier)  # models/swin_transformer.py, _init_weights

    @classmethod
    def from_data(cls, data: PretrainData) -> Self:
        images = getattr(data, "images", None)
        if images and images.flat:
            raise UserError(
                images.flat[0],
                "holds images outside of folders of classes",
                "sort its images into a folder for each class, or remove it",
            )
        classes = len(images.classes) if images else IMAGENET_CLASSES
        if classes < 2:
            raise UserError(
                data.root,
                f"its images are in {classes} folder",
                "use a folder with one folder of images per class",
            )
        return cls(data.cfg, cls.new_backbone(data), classes)

    @classmethod
    def views(cls, cfg: ImagenetSettings, training: bool = True) -> tuple[ViewTransform]:
        """Return the transform of data/build.py, with timm's RandAugment.

        Args:
            cfg: settings of the method.
            training: False: the central crop without augmentation.
        """
        grey = cfg.channels == 1
        crop = create_transform(
            cfg.size,
            is_training=training,
            scale=cfg.scale,
            color_jitter=0.0,  # not used with RandAugment
            auto_augment=cfg.augment,
            interpolation="bicubic",
            re_prob=cfg.erasing,
            re_mode="pixel",
            crop_pct=224 / 256,
            mean=(GREY_MEAN,) * 3 if grey else MEAN,
            std=(GREY_DEVIATION,) * 3 if grey else DEVIATION,
        )
        for step in crop.transforms:
            for operation in step.ops if isinstance(step, RandAugment) else ():
                if operation.name.startswith("Posterize"):
                    operation.aug_fn = posterize
        return (v2.Compose([crop, v2.Grayscale()]) if grey else crop,)

    def loss(self, batch: Batch, state: None = None) -> tuple[Losses, None]:
        """Classify the images of a batch.

        Returns:
            "loss", and "accuracy", in which a mixed image counts by its larger part; and None.
        """
        images = normalise(batch["views"]).squeeze(1)  # (B, C, H, W)
        targets = batch["labels"]  # (B,), or (B, classes) if images are mixed
        if self.training and (self.cfg.mixup or self.cfg.cutmix):
            images, targets = self.mix(images, targets)
        features, _ = self.backbone(images.unsqueeze(1))
        return self._losses(features[-1], targets), None

    def val_losses(self, batch: Batch, state: None) -> tuple[Losses, None]:
        """Classify the images of a validation batch.

        Returns:
            "loss", and "accuracy" in percent; and None.
        """
        losses, _ = self.loss(batch, None)
        return {"loss": losses["loss"], "accuracy": 100 * losses["accuracy"]}, None

    @in_fp32
    def _losses(self, last_stage: Tensor, targets: Tensor) -> dict[str, Tensor]:
        logits = self.classifier(pooled(last_stage, self.norm))  # (B, classes)
        smoothing = self.cfg.smoothing if self.training else 0.0
        labels = targets
        if targets.dim() > 1:  # of mixed images, already smoothed
            labels = targets.argmax(1)
            smoothing = 0.0
        return {
            "loss": cross_entropy(logits, targets, label_smoothing=smoothing),
            "accuracy": (logits.argmax(1) == labels).float().mean(),
        }

    def mix(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mix neighbouring images and their labels by mixup or cutmix.

        Args:
            images: of this rank (B, C, H, W).
            labels: (B,) int64.

        Returns:
            Mixed images, and the smoothed fraction (B, classes) of each class in them.

        Raises:
            UserError: for an odd number of images.
        """
        cfg = self.cfg
        count = len(labels)
        if count % 2:
            raise UserError(
                "batch_size",
                f"mixup and cutmix need an even batch, and a rank has {count} images",
                "use an even number, or set objective.mixup and objective.cutmix to 0",
            )
        mixup = Mixup(
            cfg.mixup,
            cfg.cutmix,
            label_smoothing=cfg.smoothing,
            num_classes=self.classifier.out_features,
        )
        # groups of MIXED images of the global batch, which ranks may split
        global_batch, rows = shard_slice(count)
        first_group = rows.start // MIXED
        seeds = torch.randint(2**31, (1 + global_batch // MIXED,)).tolist()[first_group:]
        ends = [end - rows.start for end in range(MIXED * (first_group + 1), rows.stop, MIXED)]
        groups = zip(seeds, images.tensor_split(ends), labels.tensor_split(ends), strict=False)
        mixed = []
        for seed, group, group_labels in groups:
            with seeded(seed):
                # timm mixes the first image with the last: this order pairs neighbours
                mixed.append(mixup(pair_order(group), pair_order(group_labels)))
        mixed_images, fractions = zip(*mixed, strict=True)
        return torch.cat(mixed_images), torch.cat(fractions)


def pair_order(rows: Tensor) -> Tensor:
    """Order rows so that neighbours are at the same distance from the first and the last row."""
    return torch.cat([rows[::2], rows[1::2].flip(0)])
