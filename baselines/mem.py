"""MEM: masked event modelling (Klenk et al., "Masked Event Modeling", WACV 2024).

In a first phase a tokenizer learns to draw an image of the events from a grid of tokens, each one of a codebook's. In
the second one it stays as it is: patches of the histograms are hidden in blocks, and the backbone has to name the
tokens there. ConvLSTMs carry their state from step to step, so that they may remember what is hidden.

How this differs from the publication stands under `deviations`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, log_softmax, pixel_shuffle, softmax

from tespec.core.distributed import all_reduce_sum, global_mean, shard_slice
from tespec.core.errors import UserError
from tespec.core.progress import say
from tespec.core.registry import METHODS
from tespec.core.settings import (
    Augmentation,
    Clip,
    Count,
    Decay,
    Depth,
    Downsample,
    FromZero,
    Mask,
    Optimisation,
    Positive,
    Pretraining,
    Share,
)
from tespec.models.backbone import BackboneState, detach, reset
from tespec.models.event_swin import PATCH, EventSwin
from tespec.models.layers import crop, in_fp32, pad_to, padded_size, sent
from tespec.pretraining.data import PretrainData
from tespec.pretraining.masking import MaskPatch, check_mask_unit, replace_hidden
from tespec.pretraining.method import SEED, EventMethod
from tespec.pretraining.views import random_crops


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of the tokenizer and of the phase that trains it.

    Raises:
        UserError: a share that leaves one of the phases without a step.
    """

    share: Share  # of the steps, the first ones, that train it
    peak_lr: Positive
    end_divisor: Positive  # its learning rate falls evenly to peak_lr / end_divisor
    clip_norm: Positive  # of its gradients
    crop: Count  # px; side of the squares it learns from
    tokens: Annotated[int, Field(strict=True, ge=2)]  # in the codebook
    width: Count  # dimensions of a token's vector
    hidden: Count  # channels of its convolutions
    blocks: Depth  # residual blocks, as many in the encoder as in the decoder
    hot: Positive  # counts that lie so many deviations above the frame's mean are those of hot pixels
    gamma: Positive  # counts are raised to it once the greatest of a frame is 1; below 1, few events show more
    temperature: tuple[Positive, Positive]  # of the softmax over tokens, at the phase's start and end
    kl_weight: FromZero  # of the divergence from using all tokens alike, a mean over places in nats

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            what = f"{self.share:g} leaves one of the two phases without a step"
            raise UserError("objective.tokenizer.share", what, "give a number between 0 and 1")


@dataclass(frozen=True)
class MemSettings:
    """Settings of what is hidden, and of what is named there from which features.

    Raises:
        UserError: a mask unit that tokens of a Swin do not fill, or a crop that is not made of whole ones.
    """

    mask: Mask  # the unit is a token's side as well
    smallest_block: Count  # units; areas of blocks lie between this and all that is hidden
    features: Literal["last", "all"]  # of the last stage, or of all stages
    tokenizer: TokenizerSettings

    def __post_init__(self) -> None:
        check_mask_unit(self.mask)
        unit, side = self.mask.unit, self.tokenizer.crop
        if side % unit:
            what = f"{side} px is not made of whole tokens of {unit} px"
            raise UserError("objective.tokenizer.crop", what, f"choose a multiple of {unit}")


STRIDES = tuple(PATCH << stage for stage in range(4))  # px; of the stages
ASPECT = 0.3  # of a block, its least height over width, and the other way round (mem/masking_generator.py, min_aspect)
BLOCKS = 32  # drawn for each mask; far more than are needed to hide half of it
TOKENIZE, MODEL = range(2)


@in_fp32
def event_image(histograms: Tensor, hot: float, gamma: float) -> Tensor:
    """What the tokenizer sees (N, 2, H, W) float32: events of each polarity over the frame's greatest count, 0 to 1.

    Pixels with far more events than the others count as zero (tum-vision/mem, mem/transforms.py).

    Args:
        histograms: (N, 2 * bins, H, W) counts.
        hot: deviations above the frame's mean from which a pixel is hot.
        gamma: power that the shares of the greatest count are raised to.
    """
    counts = histograms.unflatten(1, (2, -1)).sum(2, dtype=torch.float32)
    variance, mean = torch.var_mean(counts, (1, 2, 3), keepdim=True)
    counts = torch.where(counts > mean + hot * variance.sqrt(), 0.0, counts)
    return (counts / counts.amax((1, 2, 3), keepdim=True).clamp(min=1)).pow(gamma)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, maps: Tensor) -> Tensor:
        out: Tensor = maps + self.layers(maps)
        return out


class Tokenizer(nn.Module):
    """A discrete autoencoder of event images (N, 2, H, W), whose sides are multiples of `unit`.

    Args:
        own: its settings.
        unit: side in px of the patch that a token stands for, a power of two.
    """

    def __init__(self, own: TokenizerSettings, unit: int) -> None:
        super().__init__()
        halvings, hidden = unit.bit_length() - 1, own.hidden
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for level in range(halvings):
            down += [nn.Conv2d(hidden if level else 2, hidden, 4, stride=2, padding=1), nn.ReLU()]
            up += [nn.ConvTranspose2d(hidden, hidden, 4, stride=2, padding=1), nn.ReLU()]
        inner, outer = ([_Residual(hidden) for _ in range(own.blocks)] for _ in range(2))
        self.encoder = nn.Sequential(*down, *inner, nn.Conv2d(hidden, own.tokens, 1))
        self.decoder = nn.Sequential(nn.Conv2d(own.width, hidden, 1), *outer, *up, nn.Conv2d(hidden, 2, 1))
        self.codebook = nn.Parameter(torch.randn(own.tokens, own.width))

    @torch.no_grad()
    def tokens(self, images: Tensor) -> Tensor:
        """The token (N, h, w) int64 of each patch."""
        logits: Tensor = self.encoder(images)
        return logits.argmax(1)

    def draw(self, tokens: Tensor) -> Tensor:
        """Images of tokens (N, h, w)."""
        out: Tensor = self.decoder(self.codebook[tokens].permute(0, 3, 1, 2))
        return out


@in_fp32
def mixed_tokens(logits: Tensor, noise: Tensor, temperature: Tensor, codebook: Tensor) -> Tensor:
    """Vectors (N, D, h, w) of tokens drawn by logits (N, K, h, w), softly, so that a gradient flows (Gumbel)."""
    return torch.einsum("nkhw,kd->ndhw", softmax((logits + noise) / temperature, 1), codebook)


def gumbel_noise(logits: Tensor) -> Tensor:
    """Noise for the logits (N, ...) of each image, drawn for those of all processes, of which each keeps its own."""
    everything, own = shard_slice(len(logits))
    kept = []
    for row in range(everything):
        drawn = torch.empty(logits.shape[1:], device=logits.device).exponential_()
        if own.start <= row < own.stop:
            kept.append(drawn)
    return -torch.stack(kept).clamp(min=torch.finfo(torch.float32).tiny).log()


@in_fp32
def divergence(logits: Tensor) -> Tensor:
    """This rank's share of the mean divergence, in nats, of logits (N, K, h, w) from the uniform distribution."""
    told = log_softmax(logits, 1)
    from_uniform = (told.exp() * told).sum(1) + math.log(logits.shape[1])
    return global_mean(from_uniform.sum(), from_uniform.numel())


@in_fp32
def squared_error(drawn: Tensor, images: Tensor) -> Tensor:
    """This rank's share of the mean squared error."""
    error = (crop(drawn, (images.shape[-2], images.shape[-1])) - images).square()
    return global_mean(error.sum(), error.numel())


def perplexity(counts: Tensor) -> Tensor:
    """How many tokens are in use, given how often each one is (K,): the exponential of their entropy."""
    shares = counts / counts.sum().clamp(min=1)
    return torch.special.entr(shares).sum().exp()


def usage(tokens: Tensor, count: int) -> Tensor:
    """How often each of `count` tokens is there (count,) float32; asks the device for nothing."""
    ones = torch.ones(tokens.numel(), device=tokens.device)
    return torch.zeros(count, device=tokens.device).index_add(0, tokens.flatten(), ones)


def hidden_units(lanes: int, rows: int, columns: int, ratio: float, smallest: int) -> Tensor:
    """Units that blocks hide, drawn for the lanes of all processes: (lanes, hidden) int64, row after row; on the CPU.

    Blocks are rectangles of random area and aspect. They are laid one after the other until
    round(ratio * rows * columns) units are hidden, but at least one; the last one is cut.

    Args:
        lanes: of this process.
        rows: units from top to bottom.
        columns: units from left to right.
        ratio: share of units to hide.
        smallest: least area of a block in units.
    """
    hidden = max(1, round(ratio * rows * columns))
    everything, own = shard_slice(lanes)
    size, shape, down, right = torch.rand(everything, BLOCKS, 4)[own].double().unbind(-1)
    least = min(smallest, hidden)
    area, aspect = least + size * (hidden - least), ((1 - 2 * shape) * math.log(ASPECT)).exp()
    height = (area * aspect).sqrt().round().clamp(1, rows)
    width = (area / aspect).sqrt().round().clamp(1, columns)
    vertical = _inside((down * (rows - height + 1)).floor(), height, rows)
    horizontal = _inside((right * (columns - width + 1)).floor(), width, columns)
    covered = vertical.unsqueeze(-1) & horizontal.unsqueeze(-2)
    order = torch.arange(BLOCKS, dtype=torch.uint8).view(-1, 1, 1)
    first = torch.where(covered, order, BLOCKS).amin(1).flatten(1)  # block that hides a unit, BLOCKS where none does
    return first.argsort(dim=1, stable=True)[:, :hidden]


def _inside(first: Tensor, length: Tensor, count: int) -> Tensor:
    """Which of `count` places lie in spans (...): (..., count) bool."""
    places = torch.arange(count)
    return (places >= first.unsqueeze(-1)) & (places < (first + length).unsqueeze(-1))


class TokenHead(nn.Module):
    """Logits of the tokens at some patches, of the features of one stage or of all, which are summed.

    Args:
        channels: widths of the four features.
        unit: stride of the tokens in px.
        tokens: number of them.
        of: "last" or "all" stages.
    """

    def __init__(self, channels: tuple[int, ...], unit: int, tokens: int, of: str) -> None:
        super().__init__()
        self.unit = unit
        self.first = 0 if of == "all" else len(channels) - 1
        width = channels[-1]
        self.laterals = nn.ModuleList(
            nn.Conv2d(channels[stage], width * max(1, STRIDES[stage] // unit) ** 2, 1)
            for stage in range(self.first, len(channels))
        )
        self.norm = nn.LayerNorm(width)
        self.name = nn.Linear(width, tokens)

    @in_fp32
    def forward(self, features: list[Tensor], places: Tensor) -> Tensor:
        """Logits (B, T, P, tokens) at places (B, P), which count the patches row after row."""
        segments = features[-1].shape[1]
        total: Any = 0
        for lateral, stride, each in zip(self.laterals, STRIDES[self.first :], features[self.first :], strict=True):
            maps = each.flatten(0, 1)
            if stride < self.unit:
                maps = avg_pool2d(maps, self.unit // stride)
            maps = lateral(maps)
            total = total + (pixel_shuffle(maps, stride // self.unit) if stride > self.unit else maps)
        vectors = total.unflatten(0, (-1, segments)).flatten(3).transpose(2, 3)
        chosen = vectors.gather(2, _at(places, vectors))
        logits: Tensor = self.name(self.norm(chosen))
        return logits


def _at(places: Tensor, vectors: Tensor) -> Tensor:
    """Places (B, P) as indices (B, T, P, C) into vectors (B, T, all, C)."""
    return places.view(len(places), 1, -1, 1).expand(-1, vectors.shape[1], -1, vectors.shape[-1])


COLLAPSED = 2.0  # tokens in use, on validation data


@METHODS.register_module(name="mem")
class Mem(EventMethod):
    """The tokenizer's loss in the first phase, the backbone's in the second one.

    Args:
        own: its settings.
        backbone: what is pre-trained.
    """

    title = "MEM"
    group = "Beyond the paper"
    pretraining_data = "N-ImageNet"
    citation = "Klenk, Bonello, Koestler, Araslanov, Cremers: Masked Event Modeling, WACV 2024"
    licence = "not stated (tum-vision/mem)"
    weights = "none; tum-vision/mem links to no file, and what its code writes is a ViT-B/16"
    summary = (
        "A tokenizer learns to draw event images, then a network names its tokens where patches are hidden in blocks; "
        "published with a ViT-B."
    )
    loss_is = "cross-entropy in nats of the tokens at hidden patches, those of the tokenizer as it is after its phase"
    masks_patches = True
    deviations = (  # from tum-vision/mem
        "MEM's network is a Swin that sees 10 bins for each polarity, instead of a ViT-B/16 that sees one; its tokens "
        "are of the sum over the bins, as published",
        "MEM names all tokens that lie within a place of the Swin's last stage, instead of one at each place of a ViT",
        "MEM hides pixels by a learned patch of pixels before they are embedded, instead of by a learned token after "
        "it",
        "MEM's blocks keep their range of areas until half of the patches is hidden, where the last one is cut; "
        "published, they shrink with what is left to hide, and a mask may end short of it",
        "MEM's tokenizer sees squares of the frame; published, the whole frame resized to 224 px",
        "MEM's temperature falls over the whole first phase by a constant factor a step; published, faster and faster "
        "within its first epochs",
        "in memory (recurrent true) MEM hides the same patches in all segments of a step, and carries the state",
    )
    # MEM's own pre-training, feed-forward on events. Values: tum-vision/mem, configs/nimagenet.conf unless another file
    # is named beside them.
    recipe = Pretraining(
        objective=MemSettings(
            mask=Mask(16, 0.5),  # num_layers 4: 2 ** 4 px; num_mask_patches 98 of 14 x 14
            smallest_block=16,  # mem/run_mem_pretraining.py, min_mask_patches_per_block
            features="last",
            tokenizer=TokenizerSettings(
                share=0.31,  # of the steps: 100 epochs of batches of 384, then 300 epochs of batches of 512
                peak_lr=5.0e-4,  # vae_lr
                end_divisor=1.1,  # vae_lr_decay 0.999, in each of 100 epochs (eventvae/train_vae.py)
                clip_norm=0.01,  # vae_grad_clip
                crop=224,  # px; input_H, input_W
                tokens=8192,  # num_tokens
                width=32,  # emb_dim
                hidden=384,  # vae_hidden_dim
                blocks=3,  # vae_num_resnet_blocks
                hot=10.0,  # hotpix_num_stds
                gamma=1.0,  # gammatrafo 0
                temperature=(1.0, 0.5),  # eventvae/train_vae.py, starting_temp and temp_min
                kl_weight=7.5e-6,  # vae_kl_loss_weight 1e-10 for the sum over a batch of 384 images of 196 tokens
            ),
        ),
        dataset="1mpx",
        batch_size=512,  # pt_batch_size
        downsample=Downsample("auto", "nearest", 640),
        drop_path=0.1,  # pt_dropout
        optimisation=Optimisation(
            optimizer="AdamW",  # mem/run_mem_pretraining.py, opt
            peak_lr=7.5e-5,  # pt_lr
            schedule="cosine",  # mem/run_mem_pretraining.py
            start_divisor=1.0e6,  # from 0; mem/utils.py, cosine_scheduler
            end_divisor=7.5,  # to 1e-5; mem/run_mem_pretraining.py, min_lr
            steps=100000,  # this project's, of both phases together
            warmup_steps=1000,  # pt_warmup_steps
            clip=Clip("norm", 1.0),  # pt_grad_clip
            # mem/run_mem_pretraining.py, weight_decay; exempt: mem/optim_factory.py. The tokenizer has none, as
            # eventvae/train_vae.py trains it by Adam.
            weight_decay=Decay(0.05, 0.05, ("vectors",)),
        ),
        augmentation=Augmentation(flip=0.5),
        deviations=(
            "MEM on any recordings instead of N-ImageNet, in windows of 50 ms, for a number of steps of this project, "
            "of which its tokenizer takes a share; under the profiles sample and small the backbone has the other half",
            "MEM's only augmentation is flipping; published, events are shifted too, and their images altered by "
            "RandAugment and jitter of brightness and saturation",
            "MEM's optimizer has moments of 0.9 and 0.999 instead of 0.9 and 0.95",
            "MEM's tokenizer is trained on batches as large as the backbone's instead of 384",
        ),
    )
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sample": {
            "batch_size": 16,
            "segments": 1,
            "optimisation": {"peak_lr": 1.0e-3},
            "objective": {
                "mask": {"unit": 8},
                "features": "all",
                # A gamma that MEM's code offers. With tokens of 16 px and counts as they are, the tokenizer learns
                # nothing in hundreds of steps; 32 clusters of patches of 8 px draw 65 % of their squares, with a
                # perplexity of 6.
                "tokenizer": {
                    "share": 0.5,
                    "peak_lr": 5.0e-3,
                    "crop": 48,
                    "tokens": 32,
                    "width": 16,
                    "hidden": 32,
                    "blocks": 1,
                    "gamma": 0.5,
                    "temperature": [1.0, 0.3],
                },
            },
        },
        "small": {"optimisation": {"peak_lr": 5.0e-4}},  # the best of four by validation loss
    }
    share: Tensor

    def __init__(self, own: MemSettings, backbone: EventSwin) -> None:
        super().__init__()
        self.own = own
        self.backbone = backbone
        self.tokenizer = Tokenizer(own.tokenizer, own.mask.unit)
        self.mask_patch = MaskPatch(own.mask.unit, backbone.in_channels)
        self.head = TokenHead(backbone.channels, own.mask.unit, own.tokenizer.tokens, own.features)
        self.phase = MODEL
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))

    def phases(self, whole: Optimisation) -> tuple[Optimisation, Optimisation]:
        """Settings of both phases; the backbone has the recipe's."""
        own, decay = self.own.tokenizer, replace(whole.weight_decay, start=0.0, end=0.0)
        first = min(max(1, round(own.share * whole.steps)), whole.steps - 1)
        rate: dict[str, Any] = {"peak_lr": own.peak_lr, "end_divisor": own.end_divisor, "schedule": "linear"}
        limit = Clip("norm", own.clip_norm)
        tokenize = replace(whole, **rate, steps=first, warmup_steps=0, clip=limit, weight_decay=decay)
        return tokenize, replace(whole, steps=whole.steps - first)

    def begin(self, phase: int) -> None:
        """Train the tokenizer, or all the rest."""
        self.phase = phase
        for name, part in self.named_children():
            part.requires_grad_((name == "tokenizer") == (phase == TOKENIZE))

    def after_step(self, share: float) -> None:
        """Note that `share` of the training is done."""
        self.share.fill_(share)

    def loss(
        self, batch: dict[str, Tensor], state: BackboneState | None
    ) -> tuple[dict[str, Tensor], BackboneState | None]:
        """Losses of a step; crops, noise and masks are drawn from torch's generator.

        Args:
            batch: histograms (B, T, 2 * bins, H, W) and fresh (B,) bool.
            state: what the step before returned, None at the start.

        Returns:
            In the first phase "loss", which is "loss_drawn", the squared error of the images, and the weighted
            divergence; in the second one "loss", the cross-entropy of the hidden tokens, and "found", the share of them
            that is named right. In both "perplexity", how many tokens the batch is made of; and the detached state.
        """
        if self.phase == TOKENIZE:
            return self._tokenizer_loss(batch["histograms"]), None
        return self._token_loss(batch["histograms"], reset(state, batch["fresh"]))

    def images(self, histograms: Tensor) -> Tensor:
        """Event images (B, T, 2, H, W) of histograms (B, T, 2 * bins, H, W)."""
        own = self.own.tokenizer
        return event_image(histograms.flatten(0, 1), own.hot, own.gamma).unflatten(0, histograms.shape[:2])

    def tokens(self, images: Tensor) -> Tensor:
        """Tokens (B, T, h, w) of event images (B, T, 2, H, W), filled up to the size that the backbone sees."""
        return self.tokenizer.tokens(pad_to(images, self.backbone.img_size).flatten(0, 1)).unflatten(
            0, images.shape[:2]
        )

    def _perplexity(self, tokens: Tensor) -> Tensor:
        """Of the tokens of all ranks."""
        return perplexity(all_reduce_sum(usage(tokens, self.own.tokenizer.tokens)))

    def _tokenizer_loss(self, histograms: Tensor) -> dict[str, Tensor]:
        own = self.own.tokenizer
        images = random_crops(self.images(histograms), own.crop).flatten(0, 1)
        filled = pad_to(images, padded_size(images.shape[-2], images.shape[-1], self.own.mask.unit))
        logits = self.tokenizer.encoder(filled)
        start, end = own.temperature
        temperature = start * (end / start) ** (self.share / own.share).clamp(max=1.0).float()
        vectors = mixed_tokens(logits, gumbel_noise(logits), temperature, self.tokenizer.codebook)
        drawn = squared_error(self.tokenizer.decoder(vectors), images)
        return {
            "loss": drawn + own.kl_weight * divergence(logits),
            "loss_drawn": drawn,
            "perplexity": self._perplexity(logits.argmax(1)),
        }

    def _token_loss(
        self, histograms: Tensor, state: BackboneState | None
    ) -> tuple[dict[str, Tensor], BackboneState | None]:
        own, unit = self.own, self.own.mask.unit
        tokens = self.tokens(self.images(histograms))
        rows, columns = (-(-side // unit) for side in histograms.shape[-2:])
        units = hidden_units(len(histograms), rows, columns, own.mask.ratio, own.smallest_block)
        mask = torch.zeros(len(units), rows * columns, dtype=torch.bool).scatter_(1, units, True)
        mask = sent(mask.view(-1, rows, columns), histograms.device)
        # What fills the frame up to the backbone's size is never hidden.
        places = sent(units // columns * tokens.shape[-1] + units % columns, histograms.device)
        hidden = self.backbone.embed_patches(self.mask_patch())
        features, state = self.backbone.encode(replace_hidden(self.backbone.embed(histograms), mask, hidden), state)
        logits = self.head(features, places)
        wanted = tokens.flatten(2).gather(2, places.unsqueeze(1).expand(-1, tokens.shape[1], -1))
        missed = in_fp32(cross_entropy)(logits.flatten(0, 2), wanted.flatten(), reduction="sum")
        losses = {
            "loss": global_mean(missed, wanted.numel()),
            "found": (logits.detach().argmax(-1) == wanted).float().mean(),
            "perplexity": self._perplexity(tokens),
        }
        return losses, detach(state)

    @classmethod
    def from_settings(cls, own: MemSettings, settings: Pretraining, data: PretrainData) -> Self:
        """The method with a randomly initialised backbone.

        Raises:
            UserError: the training is too short for two phases.
        """
        if settings.optimisation.steps < 2:
            raise UserError("optimisation.steps", "1 is too few for two phases", "give 2 or more")
        return super().from_settings(own, settings, data)

    def protocol(self, data: PretrainData) -> dict[str, str]:
        """What the validation metrics mean, in words."""
        tokens = self.own.tokenizer.tokens
        return super().protocol(data) | {
            "found": f"share of hidden tokens that are named right, of {tokens:,}; guessing gets {1 / tokens:.3g}",
            "commonest": "share of the most frequent token, which naming it everywhere gets about right",
            "perplexity": "exponential of the entropy of all tokens on data held out: how many are in use",
            "tokens_used": "share of the codebook that is there at least once",
            "drawn_error": "squared error of the images drawn from tokens, over that of drawing nothing",
        }

    @torch.no_grad()
    def validate(self, data: PretrainData, device: torch.device) -> dict[str, float]:
        """Loss and feature metrics, and what the tokens are worth."""
        metrics = super().validate(data, device)
        counts = torch.zeros(self.own.tokenizer.tokens, device=device)
        found = error = energy = 0.0
        state: Any = None
        batches = 0
        for batch in data.val_batches(device):
            torch.manual_seed(SEED + batches)  # the same masks as for the loss
            losses, state = self.loss(batch, state)
            images = self.images(batch["histograms"])
            tokens = self.tokens(images)
            drawn = crop(self.tokenizer.draw(tokens.flatten(0, 1)).float(), data.size)
            counts += usage(tokens, len(counts))
            found += losses["found"].item()
            error += (drawn - images.flatten(0, 1)).square().sum().item()
            energy += images.square().sum().item()
            batches += 1
        in_use = perplexity(counts).item()
        if in_use < COLLAPSED:
            say(f"the tokenizer collapsed: {in_use:.2f} of {len(counts):,} tokens are in use on data held out")
        return metrics | {
            "found": found / max(batches, 1),
            "commonest": (counts.max() / counts.sum().clamp(min=1)).item(),
            "perplexity": in_use,
            "tokens_used": (counts > 0).float().mean().item(),
            "drawn_error": error / max(energy, 1e-12),
        }
