"""ResNet-50 in torchvision's naming, which timm shares: ECDP's weights, and ImageNet's.

ECDP (Yan98/Event-Camera-Data-Pre-training) saves under the key `checkpoint`.
"""

from __future__ import annotations

import torch

from tespec.weights.convert.source import RESNET_STEM, Renamed, Source, Tensors, grouped

CLASSIFIER = "fc."
LAST = "layer4.2.conv3.weight"  # the deepest convolution of the 50 layers; ResNet-18 and -34 have none
COUNTER = "num_batches_tracked"


def rename_resnet(tensors: Tensors, where: object) -> Renamed:
    """The convolutions and norms as `resnet.*`; the classifier is left out.

    Files from before torch 0.4.1 hold no counters of batches; they count as 0, as torch has it.
    """
    kept = {f"resnet.{name}": tensor for name, tensor in tensors.items() if not name.startswith(CLASSIFIER)}
    for name in list(kept):
        if name.endswith("running_mean"):
            kept.setdefault(name.replace("running_mean", COUNTER), torch.zeros((), dtype=torch.int64))
    return kept, grouped(name for name in tensors if name.startswith(CLASSIFIER))


def _fits(tensors: Tensors) -> bool:
    return LAST in tensors and "conv1.weight" in tensors


RESNET = Source(
    "resnet50", "ResNet-50 in the naming of torchvision", _fits, rename_resnet, RESNET_STEM, (224, 224), False
)
