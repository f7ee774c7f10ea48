"""MEM: masked event modelling (Klenk et al., "Masked Event Modeling", WACV 2024).

`mem-tokenizer`, a discrete autoencoder, is pre-trained first: it reconstructs an image of the
events from a grid of codebook tokens. `mem` masks blocks of patches, where the backbone predicts
the frozen tokenizer's tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tespec.core.compat  # noqa: F401  # before timm and torchvision

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, pad, softmax
from torchvision.transforms.v2 import InterpolationMode, functional
from typing_extensions import Self

from baselines import COUNTS
from tespec.core import settings as cfg
from tespec.core.distributed import all_reduce_sum, global_mean, shard_slice
from tespec.core.progress import say
from tespec.models.backbone import Backbone, detach, reset
from tespec.models.layers import crop, in_fp32, pad_to, padded_size, sent
from tespec.pretraining.data import PretrainData
from tespec.pretraining.masking import MaskPatch, PatchTokens, draw_blocks
from tespec.pretraining.method import EventMethod, TableRow
from tespec.pretraining.views import random_crops, random_shifts, random_time_flips
from tespec.registry import METHODS
from tespec.weights.files import read_weights


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of the tokenizer and its loss; values from configs/nimagenet.conf unless another file is named."""

    unit: Literal[4, 8, 16, 32] = 16  # px; side of a token's patch; num_layers 4: 2 ** 4
    crop: cfg.PositiveInt = 224  # px; side of the training crops; input_H, input_W
    tokens: Annotated[int, Field(strict=True, ge=2)] = 8192  # codebook size; num_tokens
    width: cfg.PositiveInt = 32  # embedding width of a token; emb_dim
    hidden: cfg.PositiveInt = 384  # channels of the convolutions; vae_hidden_dim
    blocks: cfg.Depth = 3  # residual blocks in encoder and decoder, each; vae_num_resnet_blocks
    # standard deviations above the frame's mean that make a pixel hot; hotpix_num_stds
    hot: cfg.PositiveFloat = 10.0
    # exponent of normalised counts; below 1 amplifies low counts; gammatrafo 0
    gamma: cfg.PositiveFloat = 1.0
    # maximum shift as a share of the shorter side; mem/datasets.py, frames of 256 px
    shift: cfg.Share = 8 / 256
    # Of the softmax over tokens, initial and minimum; eventvae/train_vae.py, starting_temp and
    # temp_min.
    temperature: tuple[cfg.PositiveFloat, cfg.PositiveFloat] = (1.0, 0.5)
    # Of the KL divergence from uniform token use, averaged over places, in nats. vae_kl_loss_weight
    # is for the sum over 384 images of 196 tokens.
    kl_weight: cfg.NonNegativeFloat = 1e-10 * 384 * 196


@dataclass(frozen=True)
class MemSettings:
    """Settings of masks, of the features that predict tokens, and of the tokenizer."""

    # share of masked patches; configs/nimagenet.conf, num_mask_patches 98 of 14 x 14
    ratio: cfg.SomeShare = 0.5
    # Minimum area of a block in patches; the maximum is all that is left to mask.
    # mem/run_mem_pretraining.py, min_mask_patches_per_block.
    smallest_block: cfg.PositiveInt = 16
    features: Literal["last", "all"] = "last"  # last stage, or sum over all stages
    tokenizer: TokenizerSettings = TokenizerSettings()


EPOCHS = 100  # vae_epochs of configs/nimagenet.conf
# eventvae/train_vae.py: anneal_rate times the steps of an epoch
ANNEALING = 1e-6 * 333_600 / EPOCHS
COLLAPSED = 2.0  # a lower perplexity on validation data means that the tokenizer collapsed


@in_fp32
def tokenizer_input(histograms: Tensor, hot: float, gamma: float) -> Tensor:
    """Convert histograms (N, 2 * bins, H, W) to tokenizer inputs (N, 3, H, W) float32 from 0 to 1.

    The planes are positive counts, zeros (the unused time surface) and negative counts, divided by
    the frame's maximum. Pixels `hot` in one polarity are cleared in both (mem/transforms.py).
    """
    counts = histograms.unflatten(1, (2, -1)).sum(2, dtype=torch.float32)
    variance, mean = torch.var_mean(counts, (1, 2, 3), keepdim=True)
    is_hot = (counts > mean + hot * variance.sqrt()).any(1, keepdim=True)
    counts = torch.where(is_hot, 0.0, counts)
    most = counts.amax((1, 2, 3), keepdim=True).clamp(min=1)
    negative, positive = (counts / most).pow(gamma).unbind(1)
    return torch.stack([positive, torch.zeros_like(positive), negative], 1)


def _affine(
    image: Tensor,
    how: InterpolationMode,
    move: Sequence[int] = (0, 0),
    shear: Sequence[float] = (0, 0),
) -> Tensor:
    return functional.affine(image, 0, list(move), 1, list(shear), how)


Operation = Callable[[Tensor, float, InterpolationMode], Tensor]
# Of mem/transforms.py, EventRandAugment, in its order: on images (..., H, W), at levels from -1 to
# 1.
GEOMETRIC: list[Operation] = [
    lambda image, level, how: image,
    lambda image, level, how: _affine(image, how, shear=[math.degrees(0.3 * level), 0]),
    lambda image, level, how: _affine(image, how, shear=[0, math.degrees(0.3 * level)]),
    lambda image, level, how: _affine(image, how, [int(FARTHEST * image.shape[-1] * level), 0]),
    lambda image, level, how: _affine(image, how, [0, int(FARTHEST * image.shape[-2] * level)]),
    lambda image, level, how: functional.rotate(image, 30 * level, how),
]
# Of 8-bit images of three planes.
PHOTOMETRIC: list[Operation] = [
    lambda image, level, how: functional.adjust_brightness(image, 1 + 0.9 * level),
    lambda image, level, how: functional.adjust_saturation(image, 1 + 0.9 * level),
    lambda image, level, how: functional.adjust_contrast(image, 1 + 0.9 * level),
    lambda image, level, how: functional.adjust_sharpness(image, 1 + 0.9 * level),
    lambda image, level, how: functional.posterize(image, 8 - round(4 * abs(level))),
    lambda image, level, how: functional.solarize(image, 255 * (1 - abs(level))),
    lambda image, level, how: functional.autocontrast(image),
    lambda image, level, how: functional.equalize(image),
]
FARTHEST = 150 / 331  # of a translation, as a share of the side
BINS = 30  # steps between a level of 0 and of 1
STRONGEST = 20  # bin of the strongest operation that is drawn


@in_fp32  # the products of affine transforms would round positions
def rand_augment(lanes: Tensor, operations: Sequence[Operation], how: InterpolationMode) -> Tensor:
    """Apply two random operations, each at a random level, to each lane (EventRandAugment).

    Args:
        lanes: uint8 (N, ..., H, W); a lane's frames are transformed alike.
        operations: of which each is drawn equally often.
        how: interpolation of geometric operations.
    """
    everything, own = shard_slice(len(lanes))
    for _ in range(2):
        chosen = torch.randint(len(operations), (everything,))[own].tolist()
        signs = 2 * torch.randint(2, (everything,)) - 1
        levels = (signs * torch.randint(STRONGEST + 1, (everything,)) / BINS)[own].tolist()
        drawn = zip(lanes, chosen, levels, strict=True)
        lanes = torch.stack([operations[number](lane, level, how) for lane, number, level in drawn])
    return lanes


class _Residual(nn.Sequential):
    def __init__(self, width: int) -> None:
        one, two = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        super().__init__(one, nn.ReLU(), two, nn.ReLU(), nn.Conv2d(width, width, 1))

    def forward(self, maps: Tensor) -> Tensor:
        return maps + super().forward(maps)


class Tokenizer(nn.Module):
    """Discrete autoencoder of event images (N, 3, H, W) whose sides are multiples of the settings' `unit`."""

    in_channels = 3

    def __init__(self, own: TokenizerSettings) -> None:
        super().__init__()
        hidden = own.hidden
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for level in range(own.unit.bit_length() - 1):
            down += [
                nn.Conv2d(hidden if level else self.in_channels, hidden, 4, stride=2, padding=1),
                nn.ReLU(),
            ]
            up += [nn.ConvTranspose2d(hidden, hidden, 4, stride=2, padding=1), nn.ReLU()]
        inner, outer = ([_Residual(hidden) for _ in range(own.blocks)] for _ in range(2))
        self.encoder = nn.Sequential(*down, *inner, nn.Conv2d(hidden, own.tokens, 1))
        self.decoder = nn.Sequential(
            nn.Conv2d(own.width, hidden, 1), *outer, *up, nn.Conv2d(hidden, self.in_channels, 1)
        )
        self.codebook = nn.Parameter(torch.randn(own.tokens, own.width))

    @torch.no_grad()
    def tokens(self, images: Tensor) -> Tensor:
        """Most likely token (N, h, w) int64 of each patch."""
        return self.encoder(images).argmax(1)


@in_fp32
def mixed_tokens(logits: Tensor, noise: Tensor, temperature: Tensor, codebook: Tensor) -> Tensor:
    """Gumbel-softmax over logits (N, K, h, w): soft mixtures (N, D, h, w) of codebook vectors (K, D)."""
    return torch.einsum("nkhw,kd->ndhw", softmax((logits + noise) / temperature, 1), codebook)


def gumbel_noise(logits: Tensor) -> Tensor:
    """Gumbel noise for logits (N, ...); each process draws for the complete batch and keeps its own images."""
    everything, own = shard_slice(len(logits))
    kept = []
    for row in range(everything):
        drawn = torch.empty(logits.shape[1:], device=logits.device).exponential_()
        if own.start <= row < own.stop:
            kept.append(drawn)
    return -torch.stack(kept).clamp(min=torch.finfo(torch.float32).tiny).log()


@in_fp32
def tokenizer_losses(drawn: Tensor, images: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's shares of two means for images (N, 3, H, W) that are drawn from tokens with logits (N, K, h, w).

    They are the squared error of pixels, and the KL divergence in nats from uniform token use.
    """
    error = (crop(drawn, (images.shape[-2], images.shape[-1])) - images).square()
    by_log = log_softmax(logits, 1)
    divergence = (by_log.exp() * by_log).sum(1) + math.log(logits.shape[1])
    return global_mean(error.sum(), error.numel()), global_mean(
        divergence.sum(), divergence.numel()
    )


def usage(tokens: Tensor, count: int) -> Tensor:
    """Number of occurrences (count,) float32 of each of `count` tokens."""
    # Torch's `bincount` reads the values, so the CPU would wait for the GPU.
    ones = torch.ones(tokens.numel(), device=tokens.device)
    return torch.zeros(count, device=tokens.device).index_add(0, tokens.flatten(), ones)


def perplexity(used: Tensor) -> Tensor:
    """Effective number of tokens in use: the exponential of the entropy of their counts `used`."""
    return torch.special.entr(used / used.sum().clamp(min=1)).sum().exp()


class TokenHead(nn.Module):
    """Logits of tokens of `unit` px at selected patches, started as in mem/modeling_pretrain.py."""

    def __init__(self, channels: tuple[int, ...], unit: int, tokens: int, features: str) -> None:
        super().__init__()
        self.patch_tokens = PatchTokens(channels, unit, channels[-1], features)
        self.norm = nn.LayerNorm(channels[-1], eps=1e-6)
        self.name = nn.Linear(channels[-1], tokens)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                nn.init.trunc_normal_(parameter, std=0.02, a=-0.02, b=0.02)

    @in_fp32
    def forward(self, features: list[Tensor], places: Tensor) -> Tensor:
        """Logits (P, tokens) at places (P,), flat indices of patches over frames, rows and columns."""
        vectors = self.patch_tokens(features).flatten(0, 1)
        return self.name(self.norm(vectors.index_select(0, places)))


DEVIATIONS = (  # from tum-vision/mem, also for the tokenizer
    "MEM is trained on any recordings in 50 ms windows, instead of on 30,000 events of N-ImageNet in 256 px frames",
    f"MEM's {COUNTS}",
)


@METHODS.register_module(name="mem-tokenizer")
class MemTokenizer(EventMethod):
    """Discrete autoencoder whose tokens MEM predicts."""

    row = TableRow(
        title="MEM's tokenizer",
        citation="Klenk, Bonello, Koestler, Araslanov, Cremers: Masked Event Modeling, WACV 2024",
        summary=(
            "Reconstructs event images from tokens. Not a table row: pre-trained and used by `mem`."
        ),
    )
    version = 2
    architectures = ()
    unused = ("drop_path", "recurrent", "backbone")
    # Values from tum-vision/mem, configs/nimagenet.conf, unless another file is named.
    recipe = cfg.Pretraining(
        objective=TokenizerSettings(),
        dataset="1mpx",
        batch_size=384,  # vae_batch_size
        downsample=cfg.Downsample("auto", "nearest", 640),
        optimisation=cfg.Optimisation(
            optimizer="Adam",  # eventvae/train_vae.py, without weight decay and warm-up
            peak_lr=5.0e-4,  # vae_lr
            schedule="exponential",
            end_divisor=0.999**-100,  # vae_lr_decay in each of 100 epochs
            steps=333_600,  # 100 vae_epochs of ImageNet's 1.28 million images
            clip=cfg.Clip("norm", 0.01),  # vae_grad_clip
        ),
        augmentation=cfg.Augmentation(flip=0.5),  # mem/datasets.py, Aug_FlipEvsAlongX
        deviations=(
            *DEVIATIONS,
            "the tokenizer's learning rate falls evenly with the steps, instead of once an epoch",
        ),
    )
    backbone: Any
    share: Tensor

    def __init__(self, own: TokenizerSettings) -> None:
        super().__init__()
        self.own, self.backbone = own, Tokenizer(own)
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))

    @classmethod
    def from_settings(
        cls, own: TokenizerSettings, settings: cfg.Pretraining, data: PretrainData
    ) -> Self:
        return cls(own)

    def after_step(self, share: float) -> None:
        """Store the completed share of training, which sets the temperature."""
        self.share.fill_(share)

    def loss(self, batch: dict[str, Tensor], state: None) -> tuple[dict[str, Tensor], None]:
        """Return "loss", the sum of "loss_drawn" and the weighted divergence, and the batch's "perplexity"."""
        own, histograms = self.own, batch["histograms"]
        if self.training:
            histograms = random_shifts(random_time_flips(histograms), own.shift)
        images = tokenizer_input(
            random_crops(histograms, own.crop).flatten(0, 1), own.hot, own.gamma
        )
        if self.training:
            bytes_ = (255 * images).to(torch.uint8)
            images = rand_augment(bytes_, GEOMETRIC + PHOTOMETRIC, InterpolationMode.BILINEAR) / 255
        logits = self.backbone.encoder(
            pad_to(images, padded_size(images.shape[-2], images.shape[-1], own.unit))
        )
        vectors = mixed_tokens(
            logits, gumbel_noise(logits), self._temperature, self.backbone.codebook
        )
        drawn, divergence = tokenizer_losses(self.backbone.decoder(vectors), images, logits)
        used = all_reduce_sum(usage(logits.argmax(1), own.tokens))
        return {
            "loss": drawn + own.kl_weight * divergence,
            "loss_drawn": drawn,
            "perplexity": perplexity(used),
        }, None

    @property
    def _temperature(self) -> Tensor:
        """Temperature, times exp(-anneal_rate * step) after an epoch's first step (train_vae.py)."""
        (start, least), epoch = self.own.temperature, (EPOCHS * self.share).ceil() - 1
        return (start * (-ANNEALING * epoch * (epoch + 1) / 2).exp()).clamp(min=least).float()

    def val_losses(self, batch: dict[str, Tensor], state: None) -> tuple[dict[str, Tensor], None]:
        """Return the loss and, for each lane, the tokens' usage, reconstruction error and energy."""
        cfg = self.own
        losses, _ = self.loss(batch, None)
        histograms = batch["histograms"]
        images = tokenizer_input(histograms.flatten(0, 1), cfg.hot, cfg.gamma)
        size = (images.shape[-2], images.shape[-1])
        tokens = self.backbone.tokens(pad_to(images, padded_size(*size, cfg.unit)))
        vectors = self.backbone.codebook[tokens].permute(0, 3, 1, 2)
        reconstruction = crop(self.backbone.decoder(vectors), size)
        totals = {
            "usage": usage(tokens, cfg.tokens),
            "error": (reconstruction - images).square().sum(),
            "energy": images.square().sum(),
        }
        lanes = len(histograms)
        return {"loss": losses["loss"]} | {name: totals[name] / lanes for name in totals}, None

    def val_metrics(self, means: Mapping[str, Tensor]) -> dict[str, float]:
        """Return mean loss, perplexity of all tokens and relative reconstruction error."""
        in_use = perplexity(means["usage"]).item()
        if in_use < COLLAPSED:
            used = f"{in_use:.2f} of {self.own.tokens:,} tokens are in use on validation data"
            say(f"the tokenizer collapsed: {used}")
        drawn_error = means["error"] / means["energy"].clamp(min=1e-12)
        return {
            "loss": means["loss"].item(),
            "perplexity": in_use,
            "drawn_error": drawn_error.item(),
        }


@METHODS.register_module(name="mem")
class Mem(EventMethod):
    """Predict the tokens of masked patches."""

    row = TableRow(
        title="MEM",
        group="Beyond the paper",
        pretraining_data="N-ImageNet",
        citation=MemTokenizer.row.citation,
        licence="not specified (tum-vision/mem)",
        weights="none; tum-vision/mem links to no file, and its code writes a ViT-B/16",
        summary=(
            "The backbone predicts tokens of `mem-tokenizer` in masked blocks of patches; "
            "published with a ViT-B."
        ),
    )
    version = 3
    masks_patches = True
    requires = "mem-tokenizer"
    deviations = (
        "MEM's network is a Swin on the complete frame, instead of a ViT-B/16 on squares of 224 px",
        "MEM keeps the five geometric ones of RandAugment's 14 operations, which take the nearest "
        "pixel, since its network reads whole counts, as in fine-tuning; eight others, and the "
        "jitter of brightness and saturation, change 8-bit images",
        "MEM predicts all tokens within a position of the Swin's last stage, instead of one per position of a ViT",
        "MEM masks with a learned patch of pixels before the embedding, instead of a learned token after it",
        "MEM with memory (recurrent=true) masks the same patches in all segments of a step, carries the state, and "
        "neither reverses time nor applies RandAugment, which would move what the state remembers",
        "MEM with memory draws a new shift at each step, so the state may be displaced by up to 16/256 of the side",
    )
    # Feed-forward, as published. Values from the same sources as the tokenizer's.
    recipe = cfg.Pretraining(
        objective=MemSettings(),
        dataset="1mpx",
        batch_size=512,  # pt_batch_size
        downsample=MemTokenizer.recipe.downsample,
        drop_path=0.1,  # pt_dropout
        optimisation=cfg.Optimisation(
            peak_lr=7.5e-5,  # pt_lr; mem/run_mem_pretraining.py has opt, min_lr and weight_decay
            schedule="cosine_dino",  # mem/utils.py
            start_divisor=1.0e6,  # from 0; mem/utils.py, cosine_scheduler
            end_divisor=7.5,  # to 1e-5
            steps=750_600,  # 300 pt_epochs of ImageNet's 1.28 million images
            warmup_steps=1000,  # pt_warmup_steps
            clip=cfg.Clip("norm", 1.0),  # pt_grad_clip
            betas=(0.9, 0.95),  # mem/optim_factory.py, as are the exemptions from decay
            weight_decay=cfg.Decay(0.05, 0.05, ("vectors",)),
        ),
        augmentation=cfg.Augmentation(flip=0.5),
        deviations=DEVIATIONS,
    )

    def __init__(self, own: MemSettings, backbone: Backbone) -> None:
        super().__init__()
        self.own, self.backbone = own, backbone
        self.tokenizer = Tokenizer(own.tokenizer).requires_grad_(False)
        self.mask_patch = MaskPatch(own.tokenizer.unit, backbone.in_channels)
        self.head = TokenHead(
            backbone.channels, own.tokenizer.unit, own.tokenizer.tokens, own.features
        )

    def load_required(self, path: Path) -> None:
        self.tokenizer.load_state_dict(read_weights(path)[0])

    def loss(self, batch: dict[str, Tensor], state: Any) -> tuple[dict[str, Tensor], Any]:
        """Return "loss", "found", the share of masked tokens predicted correctly, and the batch's "perplexity"."""
        own, tokenizer, histograms = self.own, self.own.tokenizer, batch["histograms"]
        if self.training:
            memory = self.backbone.recurrent
            played = histograms if memory else random_time_flips(histograms)
            histograms = random_shifts(played, tokenizer.shift)
            if not memory:
                operations = GEOMETRIC + GEOMETRIC[:1] * len(PHOTOMETRIC)
                histograms = rand_augment(histograms, operations, InterpolationMode.NEAREST)
        images = tokenizer_input(histograms.flatten(0, 1), tokenizer.hot, tokenizer.gamma)
        tokens = self.tokenizer.tokens(pad_to(images, self.backbone.img_size))
        rows, columns = (-(-side // tokenizer.unit) for side in histograms.shape[-2:])
        blocks = draw_blocks(len(histograms), rows, columns, own.ratio, own.smallest_block)
        mask, state = sent(blocks, histograms.device), reset(state, batch["fresh"])
        features, state = self.mask_patch.encode(self.backbone, histograms, mask, state)
        # Computed on the CPU, which would wait for the GPU's data-dependent size. Padding is never
        # masked.
        masked = pad(blocks, (0, tokens.shape[2] - columns, 0, tokens.shape[1] - rows))
        masked = masked.repeat_interleave(histograms.shape[1], dim=0)  # the same in all segments
        places = sent(masked.flatten().nonzero().squeeze(1), histograms.device)
        logits, wanted = self.head(features, places), tokens.flatten().index_select(0, places)
        missed = in_fp32(cross_entropy)(logits, wanted, reduction="sum")
        found = (logits.detach().argmax(1) == wanted).sum()
        used = perplexity(all_reduce_sum(usage(tokens, tokenizer.tokens)))
        losses = {
            "loss": global_mean(missed, len(places)),
            "found": global_mean(found, len(places)),
        }
        return losses | {"perplexity": used}, detach(state)
