"""CM3AE: masked autoencoders of frames and events, and of both (Wu et al., ACM MM 2025).

Files in comments are those of Event-AHU/CM3AE.
"""

import math
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from baselines import COUNTS
from tespec.core.distributed import all_gather_rows, shard_slice
from tespec.core.errors import UserError
from tespec.core.settings import (
    Decay,
    Depth,
    Fraction,
    GradientClipping,
    Mask,
    NonNegativeFloat,
    Optimisation,
    PositiveFloat,
    PositiveInt,
    Pretraining,
)
from tespec.datasets.images import GREY_DEVIATION, GREY_MEAN
from tespec.models.backbone import Backbone, PatchBackbone
from tespec.models.layers import to_device
from tespec.pretraining.contrast import info_nce
from tespec.pretraining.mae import Fusion, MaskedDecoder, masked_mse
from tespec.pretraining.masking import grid_size
from tespec.pretraining.method import Batch, Losses, PairMethod, PretrainData, TableRow
from tespec.pretraining.views import random_resized_crops
from tespec.registry import METHODS


@dataclass(frozen=True)
class Cm3aeSettings:
    """Settings of masks, decoders, contrast and loss weights (those of `CM3AELoss`)."""

    mask: Mask = Mask(16, 0.75)  # of both inputs; patch_size and mask_ratio
    heads: PositiveInt = 4  # of the fusion attention; models/mae.py, num_heads_att
    features: Literal["last", "all"] = "last"  # to decode: last stage, or sum over all stages
    blocks: Depth = 8  # of a decoder; models/mae.py, decoder_depth
    decoder_heads: PositiveInt = 16  # models/mae.py, decoder_num_heads
    # Width of the decoders, and so of the contrast's embeddings; models/mae.py, decoder_embed_dim.
    out: Annotated[int, Field(strict=True, gt=0, multiple_of=4)] = 512
    # pairs that are contrasted with each other; batch_size_per_gpu
    contrast_pairs: Annotated[int, Field(strict=True, ge=2)] = 128
    # initial, learned factor of the cosines; models/mae.py
    logit_scale: PositiveFloat = math.log(1 / 0.07)
    # minimum and maximum fraction of the frame's area in a crop
    scale: tuple[Fraction, Fraction] = (0.2, 1.0)
    frame_weight: NonNegativeFloat = 4.0  # frame reconstructed from itself
    events_weight: NonNegativeFloat = 0.5  # events reconstructed from themselves
    fused_weight: NonNegativeFloat = 0.5  # frame reconstructed from fused features
    contrast_weight: NonNegativeFloat = 0.1

    def visible(self, patches: int) -> int:
        """Number of visible patches among `patches`."""
        return int(patches * (1 - self.mask.ratio))


@METHODS.register_module(name="cm3ae")
class Cm3ae(PairMethod):
    """Reconstruct events and frame from their visible patches, and the frame from fused features.

    A contrast matches the events with their frame.
    """

    row = TableRow(
        title="CM3AE",
        group="Beyond the paper",
        pretraining_data="REV2M",
        citation=(
            "Wu et al.: CM3AE: A Unified RGB Frame and Event-Voxel/-Frame Pre-training Framework, "
            "ACM MM 2025"
        ),
        licence="unknown (Event-AHU/CM3AE)",
        weights=("the checkpoint of Event-AHU/CM3AE, a plain ViT-B/16, which cannot be loaded"),
        summary=(
            "Reconstructs masked patches of events and frame, and contrasts both; ConvLSTMs are "
            "randomly initialised."
        ),
    )
    version = 4
    backbone_type = PatchBackbone
    deviations = (  # from Event-AHU/CM3AE, models/mae.py
        "CM3AE's voxels are omitted, as are the frame reconstruction and the contrastive loss that "
        "use them: the code that extracts their features is not published",
        "CM3AE's encoders are by default Swins, have their own initialisation, and see a learned "
        "patch where the published ViTs drop patches",
        f"CM3AE's {COUNTS}, and the target is a binary map per polarity, instead of an image of "
        "both",
        "CM3AE's decoders read tokens of 16 px from each position of the last feature (32 px), "
        "and no class token",
        "CM3AE's fusion joins all tokens of the last stage, which show masked and visible patches "
        "at once, instead of the frame's visible tokens and half of the events', and its output "
        "stays at the frame's positions, where the published code decodes it at the events'",
        "CM3AE's sine-cosine positions are added before the fusion, instead of at the encoders' "
        "input",
    )
    # Values from Event-AHU/CM3AE, main.py, unless another file is named; 4 GPUs as in the command
    # of README.md.
    recipe = Pretraining(
        objective=Cm3aeSettings(),
        dataset="ddd17",
        batch_size=512,  # batch_size_per_gpu 128
        drop_path=0.0,  # the model is built without main.py's 0.1
        optimisation=Optimisation(
            peak_lr=4.0e-4,  # lr 2e-4 * 512 / 256
            schedule="cosine_dino",  # utils.py
            start_divisor=1.0e6,  # from 0; utils.py
            end_divisor=400,  # to min_lr 1e-6
            steps=990400,  # 200 epochs of 2,535,759 pairs (README.md)
            warmup_steps=49520,  # 10 epochs
            # utils.py, clip_gradients: each parameter separately
            clip=GradientClipping("parameter", 3.0),
            weight_decay=Decay(0.04, 0.4, ("vectors",)),  # utils.py, get_params_groups
        ),
        deviations=(
            "CM3AE is trained on recordings with grey frames, instead of REV2M's pairs in colour; "
            "crops are resized to the frame's size, instead of squares of 224 px",
        ),
    )

    def __init__(self, cfg: Cm3aeSettings, backbone: Backbone, image_backbone: Backbone) -> None:
        super().__init__()
        self.cfg = cfg
        self.backbone = backbone
        self.image_backbone = image_backbone
        channels = backbone.channels[-1]
        for name, width in {"heads": channels, "decoder_heads": cfg.out}.items():
            heads = getattr(cfg, name)
            if width % heads:
                raise UserError(
                    f"objective.{name}",
                    f"{heads} does not divide the width of {width}",
                    "set it to a divisor",
                )
        self.fusion = Fusion(channels, cfg.heads, backbone.img_size)
        decoder = partial(
            MaskedDecoder,
            unit=cfg.mask.unit,
            features=cfg.features,
            width=cfg.out,
            depth=cfg.blocks,
            heads=cfg.decoder_heads,
        )
        self.event_decoder = decoder(backbone, planes=2)
        self.frame_decoder = decoder(image_backbone, planes=1)
        self.logit_scale = nn.Parameter(torch.tensor(cfg.logit_scale))

    @classmethod
    def from_data(cls, data: PretrainData) -> "Cm3ae":
        patches = math.prod(grid_size(data.size, data.cfg.mask.unit))
        visible = data.cfg.visible(patches)
        if not 0 < visible < patches:
            missing = "masked" if visible else "visible"
            raise UserError(
                "objective.mask.ratio",
                f"{data.cfg.mask.ratio:g} leaves none of {patches} patches {missing}",
                f"choose from {1 / patches:.3g} to {1 - 1 / patches:.3g}",
            )
        return super().from_data(data)

    def loss(self, batch: Batch, state: None = None) -> tuple[Losses, None]:
        """Reconstruct the masked patches of events and frame, and contrast the two.

        Args:
            batch: "histograms" (B, 1, 2 * bins, H, W) and "images" (B, 1, 1, H, W), both uint8.
            state: unused.

        Returns:
            "loss", the weighted sum of the four others, and "accuracy", that of the contrast.
        """
        cfg = self.cfg
        unit = cfg.mask.unit
        histograms = batch["histograms"]
        images = torch.cat([event_frame(histograms), batch["images"]], 2)  # (B, 1, 3, H, W) uint8
        if self.training:
            crops = random_resized_crops(torch.cat([histograms, images], 2), cfg.scale)
            histograms, images = crops.split([histograms.shape[2], 3], 2)
        images = (images.float().round() / 255 - GREY_MEAN) / GREY_DEVIATION
        event_target, frame = images.split([2, 1], 2)
        event_mask, frame_mask = self._masks(histograms)  # (B, rows, cols)

        event_features = self.event_decoder.encode(self.backbone, histograms, event_mask)
        frame_features = self.frame_decoder.encode(self.image_backbone, frame, frame_mask)
        fused = self.fusion(frame_features[-1], event_features[-1])
        pred_events, event_embeddings = self.event_decoder(event_features)
        pred_frame, frame_embeddings = self.frame_decoder(frame_features)
        pred_fused, _ = self.frame_decoder([*frame_features[:-1], fused])

        loss_events = masked_mse(pred_events, event_target, event_mask, unit)
        loss_frame = masked_mse(pred_frame, frame, frame_mask, unit)
        loss_fused = masked_mse(pred_fused, frame, frame_mask, unit)
        loss_contrast, accuracy = grouped_contrast(
            all_gather_rows(event_embeddings),
            all_gather_rows(frame_embeddings),
            self.logit_scale,
            cfg.contrast_pairs,
        )
        loss = (
            cfg.frame_weight * loss_frame
            + cfg.events_weight * loss_events
            + cfg.fused_weight * loss_fused
            + cfg.contrast_weight * loss_contrast
        )
        return {
            "loss": loss,
            "loss_frame": loss_frame,
            "loss_events": loss_events,
            "loss_fused": loss_fused,
            "loss_contrast": loss_contrast,
            "accuracy": accuracy,
        }, None

    def _masks(self, histograms: Tensor) -> list[Tensor]:
        """Draw masks (B, rows, cols) bool of events and of frames, on the CPU."""
        rows, cols = grid_size(histograms.shape[-2:], self.cfg.mask.unit)
        total, local = shard_slice(len(histograms))
        draws = torch.rand(2, total, rows * cols)[:, local]
        masks = draw_masks(draws, self.cfg.visible(rows * cols))
        return [to_device(mask.unflatten(1, (rows, cols)), histograms.device) for mask in masks]


def draw_masks(draws: Tensor, visible: int) -> tuple[Tensor, Tensor]:
    """Convert uniform draws to masks of events and of frames.

    Half of the visible event patches are masked in the frame, as long as it has others to show:
    there the events hold information that the frame lacks.

    Args:
        draws: (2, B, N) from 0 to 1.
        visible: number of visible patches of either input.

    Returns:
        The masks of events and of frames, (B, N) bool, True at masked patches.
    """
    event_rank = draws[0].argsort(1).argsort(1)
    only_events = event_rank < visible // 2
    frame_rank = (draws[1] + only_events).argsort(1).argsort(1)
    return event_rank >= visible, frame_rank >= visible


def event_frame(histograms: Tensor) -> Tensor:
    """Mark pixels with events of either polarity: (B, 1, 2, H, W) uint8, 255 with and 0 without."""
    return (histograms.unflatten(2, (2, -1)).amax(3) > 0).to(torch.uint8) * 255


def grouped_contrast(
    events: Tensor, frames: Tensor, scale: Tensor, group_size: int
) -> tuple[Tensor, Tensor]:
    """Contrast events with frames in both directions within groups of pairs (mae.py, ClipLoss).

    Args:
        events: embeddings (N, D) of all ranks' events.
        frames: embeddings (N, D) of their frames.
        scale: factor of the cosines.
        group_size: approximate number of pairs of a group: a GPU's in the published training.

    Returns:
        The mean cross-entropy, and the accuracy of the matches.
    """
    groups = max(1, round(len(events) / group_size))
    results = []
    for one, other in zip(events.chunk(groups), frames.chunk(groups), strict=True):
        results += [info_nce(one, other, 1 / scale), info_nce(other, one, 1 / scale)]
    losses, accuracies = zip(*results, strict=True)
    return torch.stack(losses).mean(), torch.stack(accuracies).mean()
