"""MEM: masked event modelling (Klenk et al., "Masked Event Modeling", WACV 2024).

`mem` masks blocks of patches, in which the backbone predicts the tokens of a frozen tokenizer,
`mem-tokenizer`, which is pre-trained first. Files in comments are those of tum-vision/mem.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from baselines.mem_tokenizer import (
    DEVIATIONS,
    MemTokenizer,
    Tokenizer,
    TokenizerSettings,
    tokenizer_input,
)
from tespec.core.distributed import all_reduce_sum, global_mean
from tespec.core.settings import (
    Augmentation,
    Decay,
    GradientClipping,
    Optimisation,
    PositiveFraction,
    PositiveInt,
    Pretraining,
)
from tespec.models.backbone import Backbone, PatchBackbone, detach, reset
from tespec.models.layers import in_fp32, pad_to, to_device
from tespec.pretraining.masking import MaskPatch, PatchTokens, draw_blocks, grid_size
from tespec.pretraining.method import Batch, EventMethod, Losses, TableRow
from tespec.pretraining.tokens import perplexity, usage
from tespec.pretraining.views import (
    GEOMETRIC,
    PHOTOMETRIC,
    rand_augment,
    random_shifts,
    random_time_flips,
)
from tespec.registry import METHODS
from tespec.weights.files import load_tensors, read_tensors

# Augmentations of counts: the identity in place of those that change 8-bit images.
OPERATIONS = GEOMETRIC + GEOMETRIC[:1] * len(PHOTOMETRIC)


@dataclass(frozen=True)
class MemSettings:
    """Settings of masks, of the features that predict tokens, and of the tokenizer."""

    # fraction of masked patches; configs/nimagenet.conf, num_mask_patches 98 of 14 x 14
    ratio: PositiveFraction = 0.5
    # Minimum area of a block in patches; the maximum is all that is left to mask.
    # mem/run_mem_pretraining.py, min_mask_patches_per_block.
    smallest_block: PositiveInt = 16
    features: Literal["last", "all"] = "last"  # last stage, or sum over all stages
    tokenizer: TokenizerSettings = TokenizerSettings()


class TokenHead(nn.Module):
    """Classify the tokens of selected patches, initialised as in mem/modeling_pretrain.py.

    Args:
        channels: of the backbone's stages.
        unit: side of a patch in px.
        tokens: number of classes.
        features: "last" stage, or the sum over "all" stages.
    """

    def __init__(self, channels: tuple[int, ...], unit: int, tokens: int, features: str) -> None:
        super().__init__()
        self.patch_tokens = PatchTokens(channels, unit, channels[-1], features)
        self.norm = nn.LayerNorm(channels[-1], eps=1e-6)
        self.classifier = nn.Linear(channels[-1], tokens)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                nn.init.trunc_normal_(parameter, std=0.02, a=-0.02, b=0.02)

    @in_fp32
    def forward(self, features: list[Tensor], positions: Tensor) -> Tensor:
        """Compute logits of the tokens at some patches.

        Args:
            features: (B, T, C, H, W) of the four stages.
            positions: (P,) int64, flat indices of patches over frames, rows and columns.

        Returns:
            Logits (P, tokens).
        """
        vectors = self.patch_tokens(features).flatten(0, 1)
        return self.classifier(self.norm(vectors.index_select(0, positions)))


@METHODS.register_module(name="mem")
class Mem(EventMethod):
    """Predict the tokens of masked patches."""

    row = TableRow(
        title="MEM",
        group="Beyond the paper",
        pretraining_data="N-ImageNet",
        citation=MemTokenizer.row.citation,
        licence="not specified (tum-vision/mem)",
        weights="none; tum-vision/mem links to no file; those of its code: docs/weights.md",
        summary=(
            "The backbone predicts tokens of `mem-tokenizer` in masked blocks of patches; "
            "published with a ViT-B."
        ),
    )
    version = 3
    backbone_type = PatchBackbone
    requires = "mem-tokenizer"
    deviations = (
        "MEM's network sees the complete frame, instead of squares of 224 px, and is by default a "
        "Swin, instead of a ViT-B/16",
        "MEM keeps the five geometric ones of RandAugment's 14 operations, which take the nearest "
        "pixel, since its network reads whole counts, as in fine-tuning; eight others, and the "
        "jitter of brightness and saturation, change 8-bit images",
        "MEM predicts all tokens within a position of the last feature (32 px), instead of one per "
        "position of a ViT",
        "MEM masks with a learned patch of pixels before the embedding, "
        "instead of a learned token after it",
        "MEM with memory (recurrent=true) masks the same patches in all segments of a step, "
        "carries the state, and neither reverses time nor applies RandAugment, which would move "
        "what the state remembers",
        "MEM with memory draws a new shift at each step, so the state may be displaced by up "
        "to 16/256 of the side",
    )
    # Feed-forward, as published. Values from the same sources as the tokenizer's.
    recipe = Pretraining(
        objective=MemSettings(),
        dataset="1mpx",
        batch_size=512,  # pt_batch_size
        downsample=MemTokenizer.recipe.downsample,
        drop_path=0.1,  # pt_dropout
        optimisation=Optimisation(
            peak_lr=7.5e-5,  # pt_lr; mem/run_mem_pretraining.py has opt, min_lr and weight_decay
            schedule="cosine_dino",  # mem/utils.py
            start_divisor=1.0e6,  # from 0; mem/utils.py, cosine_scheduler
            end_divisor=7.5,  # to 1e-5
            steps=750_600,  # 300 pt_epochs of ImageNet's 1.28 million images
            warmup_steps=1000,  # pt_warmup_steps
            clip=GradientClipping("norm", 1.0),  # pt_grad_clip
            betas=(0.9, 0.95),  # mem/optim_factory.py, as are the exemptions from decay
            weight_decay=Decay(0.05, 0.05, ("vectors",)),
        ),
        augmentation=Augmentation(flip=0.5),
        deviations=DEVIATIONS,
    )

    def __init__(self, cfg: MemSettings, backbone: Backbone) -> None:
        super().__init__()
        self.cfg = cfg
        self.backbone = backbone
        unit = cfg.tokenizer.unit
        self.tokenizer = Tokenizer(cfg.tokenizer).requires_grad_(False)
        self.mask_patch = MaskPatch(unit, backbone)
        self.head = TokenHead(backbone.channels, unit, cfg.tokenizer.tokens, cfg.features)

    def load_required(self, path: Path) -> None:
        tensors, _ = read_tensors(path)
        load_tensors(self.tokenizer, tensors, path, "use a mem-tokenizer of the same size")

    def loss(self, batch: Batch, state: Any) -> tuple[Losses, Any]:
        """Predict the tokens of masked patches from the visible ones.

        Args:
            batch: "histograms" (B, T, 2 * bins, H, W) uint8 and "is_first" (B,) bool.
            state: recurrent state of the backbone.

        Returns:
            "loss", the mean cross-entropy over masked patches, "accuracy", the accuracy, and the
            "perplexity" of the batch's tokens; and the next state.
        """
        cfg = self.cfg
        tokenizer = cfg.tokenizer
        histograms = batch["histograms"]
        if self.training and self.backbone.recurrent:
            histograms = random_shifts(histograms, tokenizer.shift)
        elif self.training:
            histograms = random_shifts(random_time_flips(histograms), tokenizer.shift)
            histograms = rand_augment(histograms, OPERATIONS, "nearest")
        images = tokenizer_input(histograms.flatten(0, 1), tokenizer.hot, tokenizer.gamma)
        tokens = self.tokenizer.tokens(pad_to(images, self.backbone.img_size))  # (B * T, h, w)

        lanes, segments = histograms.shape[:2]
        rows, columns = grid_size(histograms.shape[-2:], tokenizer.unit)
        blocks = draw_blocks(lanes, rows, columns, cfg.ratio, cfg.smallest_block)
        mask = to_device(blocks, histograms.device)  # (B, rows, columns)
        state = reset(state, batch["is_first"])
        features, state = self.mask_patch.encode(self.backbone, histograms, mask, state)
        # All segments have the same mask; padding is never masked. The positions are computed on
        # the CPU, which would wait for the GPU's result of data-dependent size.
        masked = pad_to(blocks, (tokens.shape[1], tokens.shape[2]))
        masked = masked.repeat_interleave(segments, dim=0)  # (B * T, h, w)
        positions = to_device(masked.flatten().nonzero().squeeze(1), histograms.device)  # (P,)
        logits = self.head(features, positions)  # (P, tokens)
        targets = tokens.flatten().index_select(0, positions)

        error = in_fp32(cross_entropy)(logits, targets, reduction="sum")
        correct = (logits.argmax(1) == targets).sum()
        counts = all_reduce_sum(usage(tokens, tokenizer.tokens))
        return {
            "loss": global_mean(error, len(positions)),
            "accuracy": global_mean(correct, len(positions)),
            "perplexity": perplexity(counts),
        }, detach(state)
