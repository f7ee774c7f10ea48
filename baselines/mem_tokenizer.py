"""MEM's tokenizer: a discrete autoencoder of event images (Klenk et al., WACV 2024).

It reconstructs an image of the events from a grid of codebook tokens, by a Gumbel softmax. Files in
comments are those of tum-vision/mem.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from baselines import COUNTS
from tespec.core.distributed import all_reduce_sum, global_mean
from tespec.core.progress import log
from tespec.core.settings import (
    Augmentation,
    Depth,
    Downsample,
    Fraction,
    GradientClipping,
    NonNegativeFloat,
    Optimisation,
    PositiveFloat,
    PositiveInt,
    Pretraining,
)
from tespec.models.layers import crop, in_fp32, pad_to, padded_size
from tespec.pretraining.method import Batch, EventMethod, Losses, PretrainData, TableRow
from tespec.pretraining.tokens import gumbel_noise, mixed_tokens, perplexity, usage
from tespec.pretraining.views import (
    GEOMETRIC,
    PHOTOMETRIC,
    rand_augment,
    random_crops,
    random_shifts,
    random_time_flips,
)
from tespec.registry import METHODS

EPOCHS = 100  # vae_epochs of configs/nimagenet.conf
ANNEALING = 1e-6 * 333_600 / EPOCHS  # anneal_rate times the steps of an epoch; train_vae.py
COLLAPSED = 2.0  # a lower perplexity on validation data means that the tokenizer collapsed


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of the tokenizer and its loss; unless noted, from configs/nimagenet.conf."""

    unit: Literal[4, 8, 16, 32] = 16  # px; side of a token's patch; num_layers 4: 2 ** 4
    crop: PositiveInt = 224  # px; side of the training crops; input_H, input_W
    tokens: Annotated[int, Field(strict=True, ge=2)] = 8192  # codebook size; num_tokens
    width: PositiveInt = 32  # embedding width of a token; emb_dim
    hidden: PositiveInt = 384  # channels of the convolutions; vae_hidden_dim
    blocks: Depth = 3  # residual blocks in encoder and decoder, each; vae_num_resnet_blocks
    # standard deviations above the frame's mean that make a pixel hot; hotpix_num_stds
    hot: PositiveFloat = 10.0
    # exponent of normalised counts; below 1 amplifies low counts; gammatrafo 0
    gamma: PositiveFloat = 1.0
    # maximum shift as a fraction of the shorter side; mem/datasets.py, frames of 256 px
    shift: Fraction = 8 / 256
    # Of the softmax over tokens, initial and minimum; eventvae/train_vae.py, starting_temp and
    # temp_min.
    temperature: tuple[PositiveFloat, PositiveFloat] = (1.0, 0.5)
    # Of the KL divergence from uniform token use, averaged over places, in nats. vae_kl_loss_weight
    # is for the sum over 384 images of 196 tokens.
    kl_weight: NonNegativeFloat = 1e-10 * 384 * 196


@in_fp32
def tokenizer_input(histograms: Tensor, hot: float, gamma: float) -> Tensor:
    """Convert histograms to images: positive counts, zeros (the unused time surface), negative.

    Args:
        histograms: (N, 2 * bins, H, W).
        hot: standard deviations above the frame's mean from which a pixel is hot; pixels that are
            hot in one polarity are cleared in both (mem/transforms.py).
        gamma: exponent of the counts, which are divided by the frame's maximum.

    Returns:
        Images (N, 3, H, W) float32 from 0 to 1.
    """
    counts = histograms.unflatten(1, (2, -1)).sum(2, dtype=torch.float32)  # (N, 2, H, W)
    variance, mean = torch.var_mean(counts, (1, 2, 3), keepdim=True)
    is_hot = (counts > mean + hot * variance.sqrt()).any(1, keepdim=True)
    counts = torch.where(is_hot, 0.0, counts)
    maximum = counts.amax((1, 2, 3), keepdim=True).clamp(min=1)
    negative, positive = (counts / maximum).pow(gamma).unbind(1)
    return torch.stack([positive, torch.zeros_like(positive), negative], 1)


class _Residual(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, maps: Tensor) -> Tensor:
        return maps + super().forward(maps)


class Tokenizer(nn.Module):
    """Discrete autoencoder of images (N, 3, H, W), padded to multiples of `cfg.unit` px."""

    in_channels = 3

    def __init__(self, cfg: TokenizerSettings) -> None:
        super().__init__()
        self.unit = cfg.unit
        hidden = cfg.hidden
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for level in range(cfg.unit.bit_length() - 1):
            channels = hidden if level else self.in_channels
            down += [nn.Conv2d(channels, hidden, 4, stride=2, padding=1), nn.ReLU()]
            up += [nn.ConvTranspose2d(hidden, hidden, 4, stride=2, padding=1), nn.ReLU()]
        encoder_blocks = [_Residual(hidden) for _ in range(cfg.blocks)]
        decoder_blocks = [_Residual(hidden) for _ in range(cfg.blocks)]
        self.encoder = nn.Sequential(*down, *encoder_blocks, nn.Conv2d(hidden, cfg.tokens, 1))
        self.decoder = nn.Sequential(
            nn.Conv2d(cfg.width, hidden, 1),
            *decoder_blocks,
            *up,
            nn.Conv2d(hidden, self.in_channels, 1),
        )
        self.codebook = nn.Parameter(torch.randn(cfg.tokens, cfg.width))

    def logits(self, images: Tensor) -> Tensor:
        """Compute logits (N, tokens, h, w) of the tokens of all patches."""
        height, width = images.shape[-2:]
        return self.encoder(pad_to(images, padded_size(height, width, self.unit)))

    @torch.no_grad()
    def tokens(self, images: Tensor) -> Tensor:
        """Return the most likely token (N, h, w) int64 of all patches."""
        return self.logits(images).argmax(1)


@in_fp32
def tokenizer_losses(
    reconstruction: Tensor, images: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the reconstruction error and the divergence from uniform token use.

    Args:
        reconstruction: (N, 3, H', W'), at least as large as the images.
        images: (N, 3, H, W).
        logits: (N, K, h, w) of the tokens.

    Returns:
        The mean squared error of pixels, and the mean KL divergence in nats.
    """
    errors = (crop(reconstruction, images.shape[-2:]) - images).square()
    log_probs = log_softmax(logits, 1)
    divergence = (log_probs.exp() * log_probs).sum(1) + math.log(logits.shape[1])  # (N, h, w)
    error = global_mean(errors.sum(), errors.numel())
    return error, global_mean(divergence.sum(), divergence.numel())


DEVIATIONS = (  # from tum-vision/mem, also for the tokenizer
    "MEM is trained on any recordings in 50 ms windows, instead of on 30,000 events of "
    "N-ImageNet in 256 px frames",
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
    recipe = Pretraining(
        objective=TokenizerSettings(),
        dataset="1mpx",
        batch_size=384,  # vae_batch_size
        downsample=Downsample("auto", "nearest", 640),
        optimisation=Optimisation(
            optimizer="Adam",  # eventvae/train_vae.py, without weight decay and warm-up
            peak_lr=5.0e-4,  # vae_lr
            schedule="exponential",
            end_divisor=0.999**-100,  # vae_lr_decay in each of 100 epochs
            steps=333_600,  # 100 vae_epochs of ImageNet's 1.28 million images
            clip=GradientClipping("norm", 0.01),  # vae_grad_clip
        ),
        augmentation=Augmentation(flip=0.5),  # mem/datasets.py, Aug_FlipEvsAlongX
        deviations=(
            *DEVIATIONS,
            "the tokenizer's learning rate falls evenly with the steps, instead of once an epoch",
        ),
    )
    backbone: Any
    progress: Tensor

    def __init__(self, cfg: TokenizerSettings) -> None:
        super().__init__()
        self.cfg = cfg
        self.backbone = Tokenizer(cfg)
        self.register_buffer("progress", torch.zeros((), dtype=torch.float64))

    @classmethod
    def from_data(cls, data: PretrainData) -> "MemTokenizer":
        return cls(data.cfg)

    def after_step(self, progress: float) -> None:
        self.progress.fill_(progress)  # of the temperature

    def loss(self, batch: Batch, state: None) -> tuple[Losses, None]:
        """Reconstruct augmented images of events from their tokens.

        Args:
            batch: "histograms" (B, T, 2 * bins, H, W) uint8.
            state: unused.

        Returns:
            "loss", which is "loss_drawn", the reconstruction error, and the weighted divergence;
            and the "perplexity" of the batch's tokens.
        """
        cfg = self.cfg
        histograms = batch["histograms"]
        if self.training:
            histograms = random_shifts(random_time_flips(histograms), cfg.shift)
        crops = random_crops(histograms, cfg.crop).flatten(0, 1)
        images = tokenizer_input(crops, cfg.hot, cfg.gamma)  # (B * T, 3, H, W)
        if self.training:
            pixels = (255 * images).to(torch.uint8)
            images = rand_augment(pixels, GEOMETRIC + PHOTOMETRIC, "bilinear") / 255
        logits = self.backbone.logits(images)  # (B * T, tokens, h, w)
        noise = gumbel_noise(logits)
        vectors = mixed_tokens(logits, noise, self._temperature, self.backbone.codebook)
        error, divergence = tokenizer_losses(self.backbone.decoder(vectors), images, logits)
        counts = all_reduce_sum(usage(logits.argmax(1), cfg.tokens))
        loss = error + cfg.kl_weight * divergence
        return {"loss": loss, "loss_drawn": error, "perplexity": perplexity(counts)}, None

    @property
    def _temperature(self) -> Tensor:
        """Temperature of the epoch: times exp(-anneal_rate * step) after its first step.

        As in train_vae.py.
        """
        start, minimum = self.cfg.temperature
        epoch = (EPOCHS * self.progress).ceil() - 1
        annealing = (-ANNEALING * epoch * (epoch + 1) / 2).exp()
        return (start * annealing).clamp(min=minimum).float()

    def val_losses(self, batch: Batch, state: None) -> tuple[Losses, None]:
        """Return the loss and, per lane, the tokens' usage, reconstruction error and energy."""
        cfg = self.cfg
        histograms = batch["histograms"]
        losses, _ = self.loss(batch, None)
        images = tokenizer_input(histograms.flatten(0, 1), cfg.hot, cfg.gamma)
        tokens = self.backbone.tokens(images)
        vectors = self.backbone.codebook[tokens].permute(0, 3, 1, 2)
        reconstruction = crop(self.backbone.decoder(vectors), images.shape[-2:])
        lanes = len(histograms)
        return {
            "loss": losses["loss"],
            "usage": usage(tokens, cfg.tokens) / lanes,
            "error": (reconstruction - images).square().sum() / lanes,
            "energy": images.square().sum() / lanes,
        }, None

    def val_metrics(self, means: Mapping[str, Tensor]) -> dict[str, float]:
        """Return mean loss, perplexity of all tokens and relative reconstruction error."""
        in_use = perplexity(means["usage"]).item()
        if in_use < COLLAPSED:
            log(
                f"the tokenizer collapsed: {in_use:.2f} of {self.cfg.tokens:,} tokens are in use "
                "on validation data"
            )
        return {
            "loss": means["loss"].item(),
            "perplexity": in_use,
            "drawn_error": (means["error"] / means["energy"].clamp(min=1e-12)).item(),
        }
