"""The network that a method requires, such as MEM's tokenizer or a teacher of images."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import tespec.core.compat  # noqa: F401  # before timm

import timm

from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Pretraining
from tespec.pretraining.method import ImageMethod, method_settings, pretrain_method
from tespec.pretraining.teacher import TeacherMethod, is_timm
from tespec.registry import METHODS

OBJECTIVE = "objective."  # prefix of a setting that names the network
# settings of data that two methods which learn from the same recordings have in common
DATA_SETTINGS = ("dataset", "bins", "rule", "window_ms", "downsample", "sensor_px")


class RequiredNetwork(NamedTuple):
    """A network that is pre-trained before the method's own training."""

    name: str  # method here or timm model; "" if the method requires none
    file: str  # its weights, if the user gave them, else ""


def required_network(settings: Pretraining) -> RequiredNetwork:
    """Find the network that the method of the settings requires (`PretrainMethod.requires`).

    Raises:
        UserError: if the setting that names the network, or its file, is wrong.
    """
    requires = pretrain_method(settings).requires
    if not requires.startswith(OBJECTIVE):
        return RequiredNetwork(requires, "")
    key = requires.removeprefix(OBJECTIVE)
    name = settings.objective[key]
    file = settings.objective[f"{key}_weights"]
    method = METHODS.module_dict.get(name, object)
    if not is_timm(name) and not (issubclass(method, ImageMethod) and method.recipe):
        raise UserError(
            f"{requires} {name!r}",
            "is neither a timm network nor a method that learns from images",
            "use a timm network (timm.list_models()), or a method that pre-trains on images",
        )
    if file and not Path(file).is_file():
        raise UserError(
            f"{requires}_weights {file!r}", "no such file", f"set it to the weights of {name}"
        )
    return RequiredNetwork(name, str(Path(file)) if file else "")


def required_settings(settings: Pretraining, name: str) -> Pretraining:
    """Resolve the settings with which the required network is pre-trained.

    Its steps are scaled by the ratio of the method's steps to those of its profile. If both learn
    from the same kind of data, it sees the same data, and its batch size is scaled as well. A
    setting of the method that has the type of the network's settings replaces them.

    Args:
        settings: of the method that requires the network.
        name: of the method that pre-trains it.

    Raises:
        UserError: if `name` is a timm model, which is not pre-trained here.
    """
    if is_timm(name):
        published: Any = timm.get_pretrained_cfg(name)
        source = f"huggingface.co/{published.hf_hub_id or 'timm'}"
        raise UserError(
            f"{OBJECTIVE}teacher_weights",
            "no file is given",
            f"set it to the weights of {name}, from {source}",
        )
    method = pretrain_method(settings)
    recipe = pretraining_settings(name, settings.profile)
    default = pretraining_settings(settings.name, settings.profile)
    scale = settings.optimisation.steps / default.optimisation.steps
    steps = max(1, round(scale * recipe.optimisation.steps))
    warmup_steps = min(int(scale * recipe.optimisation.warmup_steps), steps - 1)
    optimisation = replace(recipe.optimisation, steps=steps, warmup_steps=warmup_steps)
    changes: dict[str, Any] = {}
    if pretrain_method(recipe).data_type is method.data_type:
        batch_size = round(recipe.batch_size * settings.batch_size / default.batch_size)
        changes["batch_size"] = max(1, batch_size)
        optimisation = replace(optimisation, precision=settings.optimisation.precision)
        changes |= {key: getattr(settings, key) for key in DATA_SETTINGS}
    if issubclass(method, TeacherMethod) and method.same_backbone:
        changes["backbone"] = settings.backbone
    settings_type = type(METHODS.module_dict[name].recipe.objective)
    for key, value in vars(method_settings(settings.objective)).items():
        if isinstance(value, settings_type):
            changes["objective"] = {"type": name} | settings.objective[key]
    return replace(recipe, optimisation=optimisation, **changes)
