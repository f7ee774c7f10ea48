"""Methods whose published weights are fine-tuned here, without their pre-training.

Their backbones take the input of the authors, see `tespec weights list`. Files of ECDP, MEM,
ScaleEvent and RVT are given to the methods of these names, with --backbone and --checkpoint.
"""

from tespec.models import EventViT
from tespec.pretraining.method import Method, TableRow
from tespec.registry import METHODS

GROUP = "Beyond the paper"


@METHODS.register_module(name="gep")
class Gep(Method):
    """Fine-tune GEP's event encoder, ViT-S/14 or, with --backbone vit_base_gep, ViT-B/14."""

    row = TableRow(
        title="GEP",
        group=GROUP,
        backbone="ViT-S/14",
        pretraining_data="DSEC",
        citation="Cao et al.: Generative Event Pretraining, CVPR 2026 Findings",
        licence="GPL-3.0 (uzh-rpg/generative_event_pretraining)",
        weights="event encoder of uzh-rpg/generative_event_pretraining",
        summary="Event encoder, started from DINOv2, aligned with images and trained to predict.",
    )
    network = "vit_small_gep"
    backbone_type = EventViT


@METHODS.register_module(name="eventpretrain")
class EventPretrain(Method):
    """Fine-tune EventPretrain's ViT-S/16."""

    row = TableRow(
        title="EventPretrain",
        group=GROUP,
        backbone="ViT-S/16",
        pretraining_data="EF-ImageNet",
        citation="Zhu et al.: Revealing Latent Information, ACM MM 2025",
        weights="ViT-S of BIT-Vision/EventPretrain",
        summary="Masked reconstruction and contrast with images' CLIP features.",
    )
    network = "vit_small_eventpretrain"
    backbone_type = EventViT


@METHODS.register_module(name="depthanyevent")
class DepthAnyEvent(Method):
    """Fine-tune DepthAnyEvent's encoder, with --new-stem, since its input is not published."""

    row = TableRow(
        title="DepthAnyEvent",
        group=GROUP,
        backbone="ViT-S/14",
        pretraining_data="EventScape",
        citation="Bartolomei et al.: Depth AnyEvent, ICCV 2025",
        weights="encoder of DepthAnyEvent",
        summary="Depth Anything's encoder, distilled for events; trained on depth labels.",
    )
    network = "vit_small_depthanyevent"
    backbone_type = EventViT
