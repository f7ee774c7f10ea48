"""Parameters in groups by what the optimizer does with them."""

from __future__ import annotations

from typing import Any

from torch import nn

from tespec.errors import UserError
from tespec.settings import Optimisation

PATCH_EMBED = "patch_embed"


def parameter_groups(model: nn.Module, settings: Optimisation) -> list[dict[str, Any]]:
    """Groups for torch's optimizers, of the parameters that are trained, in the model's order.

    Each holds `lr_share` of the learning rate, and `decays`, whether the weight decay holds for it. "vectors" are those
    of microsoft/Swin-Transformer, optimizer.py: one dimension, or a name that ends with ".bias". "positions" are all
    whose names contain one that a backbone lists as `position_tables`.

    Raises:
        UserError: another learning rate for a patch embedding that the model does not have.
    """
    tables = {name for module in model.modules() for name in getattr(module, "position_tables", ())}
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    embedded = False
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        vector = parameter.dim() <= 1 or name.endswith(".bias")
        position = any(table in name for table in tables)
        exempt = settings.weight_decay.exempt
        decays = not ((vector and "vectors" in exempt) or (position and "positions" in exempt))
        embeds = PATCH_EMBED in name
        embedded |= embeds
        groups.setdefault((decays, settings.patch_embed_lr if embeds else 1.0), []).append(parameter)
    if settings.patch_embed_lr != 1 and not embedded:
        raise UserError("optimisation.patch_embed_lr", "the network has no patch embedding", "set it to 1")
    return [{"params": each, "decays": decays, "lr_share": share} for (decays, share), each in groups.items()]
