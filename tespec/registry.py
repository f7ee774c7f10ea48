"""The registries through which parts of the harness are found by name.

`METHODS`, `TASKS`, `OBJECTIVES` and `BACKBONES` belong to this project alone. The others are children of mmengine's, so
that `MODELS.build(dict(type="mmseg.UPerHead", ...))` finds the OpenMMLab heads.
"""

from __future__ import annotations

from mmengine.registry import DATASETS as ROOT_DATASETS
from mmengine.registry import HOOKS as ROOT_HOOKS
from mmengine.registry import METRICS as ROOT_METRICS
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import Registry

METHODS = Registry("method", scope="tespec")
TASKS = Registry("task", scope="tespec")
OBJECTIVES = Registry("objective", scope="tespec")
BACKBONES = Registry("backbone", scope="tespec")
MODELS = Registry("model", parent=ROOT_MODELS, scope="tespec")
DATASETS = Registry("dataset", parent=ROOT_DATASETS, scope="tespec")
METRICS = Registry("metric", parent=ROOT_METRICS, scope="tespec")
HOOKS = Registry("hook", parent=ROOT_HOOKS, scope="tespec")
