"""Make torch, torchvision, timm, mmengine, mmcv-lite, mmdet and mmseg work together.

Import this module before any of them. It changes nothing if the installed wheels are compatible.
Otherwise

* torchvision can be imported with a CPU-only torch (the operators of torchvision's wheel link
  against libtorch_cuda and cannot load, so its import fails at `torchvision::nms`);
* mmcv-lite gets a module `mmcv._ext` with a working `nms`; every other operator raises when it is
  called.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor


def nms(bboxes: Tensor, scores: Tensor, iou_threshold: float, offset: int = 0) -> Tensor:
    """Greedy non-maximum suppression with the signature of `mmcv._ext.nms`.

    Args:
        bboxes: (N, 4) x1, y1, x2 and y2 in px.
        scores: (N,); equal scores keep their order.
        iou_threshold: a box is dropped if its IoU with a better one exceeds it.
        offset: 1 if x2 and y2 are the last pixel inside the box, else 0.

    Returns:
        (M,) int64 indices of the remaining boxes by descending score.
    """
    order = scores.argsort(descending=True, stable=True)
    x1, y1, x2, y2 = bboxes.detach()[order].float().cpu().numpy().T
    areas = (x2 - x1 + offset) * (y2 - y1 + offset)
    candidates = np.arange(len(areas))
    selected = []
    while candidates.size:
        best = candidates[0]
        selected.append(best)
        candidates = candidates[1:]
        width = np.minimum(x2[best], x2[candidates]) - np.maximum(x1[best], x1[candidates]) + offset
        height = (
            np.minimum(y2[best], y2[candidates]) - np.maximum(y1[best], y1[candidates]) + offset
        )
        intersection = width.clip(0) * height.clip(0)
        # two empty boxes give 0 / 0, which counts as no overlap
        with np.errstate(invalid="ignore"):
            iou = intersection / (areas[best] + areas[candidates] - intersection)
        candidates = candidates[~(iou > iou_threshold)]
    return order[torch.as_tensor(np.array(selected, dtype=np.int64), device=order.device)]


def _absent_operator(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):  # `inspect` looks up __file__ and similar names in every module
        raise AttributeError(name)

    def operator(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"mmcv operator {name!r} needs compiled operators, which mmcv-lite lacks; "
            "install mmcv 2.1.0 built with MMCV_WITH_OPS=1 in its place"
        )

    return operator


try:
    importlib.import_module("torchvision")
except RuntimeError as error:
    if "torchvision::" not in str(error) or torch.version.cuda or torch.version.hip:
        raise
    # must stay alive: its schemas are deleted with it
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")

if "mmcv._ext" not in sys.modules and importlib.util.find_spec("mmcv._ext") is None:
    _extension = types.ModuleType("mmcv._ext", "Stand-in for mmcv's compiled operators.")
    _extension.__spec__ = importlib.machinery.ModuleSpec("mmcv._ext", None)
    _extension.nms = nms  # type: ignore[attr-defined]
    _extension.__getattr__ = _absent_operator  # type: ignore[method-assign]
    sys.modules["mmcv._ext"] = _extension
