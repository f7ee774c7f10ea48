"""Optimizer, its parameter groups and schedules, and gradient clipping."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tespec.core.errors import UserError
from tespec.core.settings import GradientClipping, Optimisation

PATCH_EMBED = "patch_embed"
# biases, and what timm's ViTs exempt from weight decay
VECTORS = (".bias", ".pos_embed", ".cls_token", ".reg_token")


def build_optimizer(model: nn.Module, settings: Optimisation) -> torch.optim.Optimizer:
    """Build the fused optimizer, which accepts `found_inf`; on the meta device, the unfused one.

    Args:
        model: network with the trained parameters.
        settings: name of a class of `torch.optim`, rates, betas and weight decay.
    """
    fused = not any(parameter.is_meta for parameter in model.parameters())
    optimizer_class = getattr(torch.optim, settings.optimizer)
    groups = parameter_groups(model, settings)
    return optimizer_class(groups, lr=settings.peak_lr, betas=settings.betas, fused=fused)


def learning_rate(settings: Optimisation, step: int) -> float:
    """Compute the learning rate of a step: linear warm-up to the peak, then decay by the schedule.

    With "linear", "exponential" and "cosine", the rate starts at `peak_lr / start_divisor` (c1),
    peaks after the warm-up and ends, at the last step, at `peak_lr / end_divisor` (c2); see the
    paper, appendix "Implementation Settings". Other schedules count steps as their publications do:

    - "cosine_dino": facebookresearch/dino, utils.py, cosine_scheduler (copied by MEM and CM3AE)
    - "cosine_moco": facebookresearch/moco-v3, main_moco.py, adjust_learning_rate (ECDP, ECDDP)
    - "cosine_swin": microsoft/Swin-Transformer, lr_scheduler.py and main.py
    - "cosine_moby": SwinTransformer/Transformer-SSL, lr_scheduler.py and moby_main.py

    Args:
        settings: peak, divisors, numbers of steps and the name of the schedule.
        step: number of optimizer steps already done.

    Returns:
        The learning rate, which parameter groups multiply by their `lr_share`.
    """
    peak = settings.peak_lr
    start = peak / settings.start_divisor
    end = peak / settings.end_divisor
    warmup = min(settings.warmup_steps, settings.steps)
    if settings.schedule in ("cosine_swin", "cosine_moby"):
        step = max(0, step - 1)  # the rate of a step is set after it, so that the next one uses it
    if step < warmup:
        rise = warmup - 1 if settings.schedule == "cosine_dino" else warmup
        return start + (peak - start) * step / max(1, rise)
    first = 0 if settings.schedule == "cosine_moby" else warmup
    counts_last = settings.schedule in ("linear", "exponential", "cosine")
    last = settings.steps - 1 if counts_last else settings.steps
    fall = (step - first) / max(1, last - first)
    if settings.schedule == "exponential":
        return peak * settings.end_divisor**-fall
    if settings.schedule != "linear":
        fall = (1 - math.cos(math.pi * fall)) / 2
    return peak + (end - peak) * fall


def weight_decay(settings: Optimisation, step: int) -> float:
    """Compute the weight decay of a step: half a cosine over the complete training.

    The warm-up is included, as in Yan98/Event-Camera-Data-Dense-Pre-training,
    trainer/pretrain_trainer.py; constant if both ends are equal.

    Args:
        settings: first and last weight decay, and the number of steps.
        step: number of optimizer steps already done.
    """
    decay = settings.weight_decay
    cosine = (1 + math.cos(math.pi * step / settings.steps)) / 2
    return decay.end + (decay.start - decay.end) * cosine


def parameter_groups(model: nn.Module, settings: Optimisation) -> list[dict[str, Any]]:
    """Split the trained parameters into groups for torch's optimizers, in the model's order.

    Exempt from weight decay can be "vectors", as in microsoft/Swin-Transformer, optimizer.py (one
    dimension, or a name ending in one of `VECTORS`), "later_vectors" (the same without the patch
    embedding's), and "positions" (a name containing one of a backbone's `position_tables`).

    Args:
        model: network.
        settings: exemptions from weight decay, and the learning rate of the patch embedding.

    Returns:
        Groups with `params`, `lr_share`, the factor on the learning rate, and `decays`, whether
        weight decay applies.

    Raises:
        UserError: the settings change the rate of a patch embedding that the network lacks.
    """
    tables = {name for module in model.modules() for name in getattr(module, "position_tables", ())}
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if settings.patch_embed_lr != 1 and not any(PATCH_EMBED in name for name in trained):
        what = "the network has no patch embedding"
        raise UserError("optimisation.patch_embed_lr", what, "set it to 1")
    exempt = settings.weight_decay.exempt
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        vector = parameter.dim() == 1 or name.endswith(VECTORS)
        stem = PATCH_EMBED in name
        position = any(table in name for table in tables)
        kinds = {"vectors": vector, "later_vectors": vector and not stem, "positions": position}
        decays = not any(kinds[kind] for kind in exempt)
        lr_scale = settings.patch_embed_lr if stem else 1.0
        groups.setdefault((decays, lr_scale), []).append(parameter)
    return [
        {"params": parameters, "decays": decays, "lr_share": lr_scale}
        for (decays, lr_scale), parameters in groups.items()
    ]


def clip(parameters: Sequence[nn.Parameter], rule: GradientClipping) -> None:
    """Clip gradients in place, without waiting for the device.

    Args:
        parameters: trained parameters.
        rule: by the norm of all gradients, by the norm of each, or by value; and the limit.
    """
    if rule.at is None:
        return
    if rule.by == "norm":
        clip_grad_norm_(parameters, rule.at)
    elif rule.by == "parameter":
        for parameter in parameters:
            clip_grad_norm_(parameter, rule.at)
    elif rule.by == "value":
        clip_grad_value_(parameters, rule.at)
