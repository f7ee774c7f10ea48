"""The interface of every backbone for events: four stages, each with a ConvLSTM behind it or without.

A new kind is a class registered in `BACKBONES`: see docs/extending.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.models.layers import STRIDE, DropPath, compute_dtype, pad_to, with_shared_draws
from tespec.registry import BACKBONES

State = TypeVar("State")
BackboneState = tuple[tuple[Tensor, Tensor], ...]


def reset(state: State, is_first: Tensor) -> State:
    """Zero the lanes that start a sequence; the others keep their state.

    Args:
        state: tensors (B, ...) in nested tuples, or None.
        is_first: (B,) bool.
    """

    def zeroed(part: Tensor) -> Tensor:
        return part.masked_fill(is_first.to(part.device).view(-1, *[1] * (part.ndim - 1)), 0)

    return cast("State", tree_map_only(Tensor, zeroed, state))


def detach(state: State) -> State:
    """The same values, detached from the graph that made them."""
    return cast("State", tree_map_only(Tensor, Tensor.detach, state))


class Backbone(nn.Module, ABC):
    """Four features at strides 4, 8, 16 and 32, with or without memory after each stage.

    A sequence runs stage by stage: each stage takes all segments as one batch, then its ConvLSTM runs over time.

    Args:
        arch: one of `architectures`; "": the first.
        recurrent: whether it has memory; the state of a network without is always None.
        bins: time bins per segment; a histogram has 2 * bins channels.
        img_size: (H, W) in px of the padded input.
        in_channels: of the input, where it is no histogram: 1 or 3 of an image.
        drop_path: rate of stochastic depth in the last block; it rises from 0 block by block.

    Raises:
        UserError: unknown arch, an img_size that is no multiple of 32, or a drop_path that `build` makes nothing of.
    """

    architectures: ClassVar[Sequence[str]] = ()  # names of the sizes it comes in
    stem: ClassVar[str] = ""  # name of the kernel that sees the input's channels
    position_tables: ClassVar[Sequence[str]] = ()  # parts of the names of parameters that stand for positions
    channels_last: ClassVar[bool] = True  # whether the stages take maps (N, h, w, C), else (N, C, h, w)
    channels: tuple[int, ...]  # widths of the four features
    lstms: nn.ModuleList  # one for each stage; none without memory
    recipe: Mapping[str, Any] | None = None  # settings of the training, where the file it was loaded from names them
    recompute: bool = False  # whether the backward pass computes stages again; see `execute`

    def __init__(
        self,
        arch: str = "",
        recurrent: bool = True,
        bins: int = 10,
        img_size: Size = (256, 320),
        in_channels: int | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        arch = arch or self.architectures[0]
        if arch not in self.architectures:
            raise UserError("arch", f"unknown value {arch!r}", f"choose from {', '.join(self.architectures)}")
        if any(side % STRIDE or side <= 0 for side in img_size):
            raise UserError("img_size", f"{tuple(img_size)} is not made of multiples of {STRIDE}", "pad the input")
        self.arch, self.recurrent, self.bins = arch, recurrent, bins
        self.img_size = (int(img_size[0]), int(img_size[1]))
        self.in_channels = in_channels or 2 * bins
        self.build(drop_path)
        self.lstms = nn.ModuleList(ConvLstm(width) for width in self.channels if recurrent)
        with_shared_draws(self)
        if drop_path and not any(isinstance(module, DropPath) for module in self.modules()):
            raise UserError("drop_path", f"{arch} has no stochastic depth (timm's DropPath)", "set it to 0")

    @abstractmethod
    def build(self, drop_path: float) -> None:
        """Make what is before the first stage and the stages, for `arch`, `in_channels` and `img_size`; set `channels`.

        Args:
            drop_path: rate of stochastic depth, as of the class.
        """

    @abstractmethod
    def embed_patches(self, frames: Tensor) -> Tensor:
        """Input (N, h, w, C) of the first stage, of frames (N, in_channels, H, W) of any dtype, `img_size` large."""

    @abstractmethod
    def stage_modules(self) -> list[nn.Module]:
        """The four stages, without their memory."""

    def resize(self, tensors: Mapping[str, Tensor], built_for: Size) -> dict[str, Tensor]:
        """Tensors of such a network, built for an input of (H, W) px, as this one takes them for its `img_size`."""
        return dict(tensors)

    def forward(
        self, histograms: Tensor, state: BackboneState | None = None
    ) -> tuple[list[Tensor], BackboneState | None]:
        """Features of a sequence.

        Args:
            histograms: (B, T, in_channels, H, W) counts of any dtype, `img_size` or smaller.
            state: what an earlier call returned; None starts from zeros.

        Returns:
            four features (B, T, channels[i], h, w) at strides 4, 8, 16 and 32 of `img_size`, and the state: per stage
            hidden and cell (B, channels[i], h, w) float32; None for a feed-forward network.
        """
        return self.encode(self.embed(histograms), state)

    def embed(self, histograms: Tensor) -> Tensor:
        """Input (B, T, h, w, C) of the first stage, of histograms (B, T, in_channels, H, W), padded to `img_size`."""
        patches = self.embed_patches(pad_to(histograms, self.img_size).flatten(0, 1))
        return patches.unflatten(0, histograms.shape[:2])

    def encode(self, tokens: Tensor, state: BackboneState | None = None) -> tuple[list[Tensor], BackboneState | None]:
        """Features and state, as `forward` gives them, of what `embed` gave."""
        lanes, segments = tokens.shape[:2]
        maps = tokens.transpose(0, 1).flatten(0, 1)  # time first: what the recurrence reads at one time is contiguous
        features, states = [], []
        for index, stage in enumerate(self.stage_modules()):
            if not self.channels_last:
                maps = maps.permute(0, 3, 1, 2)
            again = self.recompute and torch.is_grad_enabled()
            maps = checkpoint(stage, maps, use_reentrant=False) if again else stage(maps)
            if not self.channels_last:
                maps = maps.permute(0, 2, 3, 1)
            if self.recurrent:
                if state is None:
                    hidden = cell = torch.zeros(lanes, *maps.shape[1:], device=maps.device)
                else:
                    hidden, cell = (each.permute(0, 2, 3, 1) for each in state[index])
                sequence, hidden, cell = self.lstms[index](maps.unflatten(0, (segments, lanes)), hidden, cell)
                states.append((hidden.permute(0, 3, 1, 2), cell.permute(0, 3, 1, 2)))
                maps = sequence.flatten(0, 1)
            features.append(maps.unflatten(0, (segments, lanes)).permute(1, 0, 4, 2, 3))
        return features, tuple(states) if self.recurrent else None

    @torch.no_grad()
    def step(self, histogram: Tensor, state: BackboneState | None = None) -> tuple[list[Tensor], BackboneState | None]:
        """Features (B, channels[i], h, w) of one segment (B, in_channels, H, W), and the state, without gradients.

        The streaming form of `forward`, for inference: memory does not grow with the number of steps.
        """
        features, state = self(histogram.unsqueeze(1), state)
        return [feature.squeeze(1) for feature in features], state


class ConvLstm(nn.Module):
    """LSTM at every pixel with shared weights; output and hidden state are one.

    Gates are in the order forget, input, output, cell input, and the convolution's input is (map, hidden), as in
    uzh-rpg/RVT, models/layers/rnn.py, without depthwise convolution. A 1x1 convolution is a matrix product per pixel,
    so the maps stay channels last, and the products with the input are taken for all segments at once.

    Args:
        channels: width d of the maps, the hidden state and the cell.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.gates = nn.Conv2d(2 * channels, 4 * channels, kernel_size=1)
        self.step_cell: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lstm_cell  # or the same, compiled

    def forward(self, maps: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over time.

        Args:
            maps: (T, B, h, w, d).
            hidden: (B, h, w, d) after the segment before.
            cell: (B, h, w, d) likewise, float32.

        Returns:
            hidden states (T, B, h, w, d), and hidden and cell (B, h, w, d) after the last segment.
        """
        of_map, of_hidden = self.gates.weight.flatten(1).split(self.channels, dim=1)
        of_hidden = of_hidden.to(compute_dtype(of_hidden))  # once, where autocast would at each segment
        outputs = []
        for from_map in linear(maps, of_map, self.gates.bias):
            hidden, cell = self.step_cell(from_map + linear(hidden, of_hidden), cell)
            outputs.append(hidden)
        return torch.stack(outputs), hidden, cell


def lstm_cell(sums: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden state and cell (..., d) of an LSTM, from the sums (..., 4 d) of its gates and the cell (..., d) before."""
    channels = cell.shape[-1]
    gates, candidate = sums.split((3 * channels, channels), dim=-1)
    forget, write, output = gates.sigmoid().chunk(3, dim=-1)
    cell = forget * cell + write * candidate.tanh()
    return output * cell.tanh(), cell


def build_backbone(
    arch: str, recurrent: bool, bins: int, img_size: Size, in_channels: int | None = None, drop_path: float = 0.0
) -> Backbone:
    """Build a randomly initialised backbone by the name of its architecture; arguments as of `Backbone`.

    Raises:
        UserError: no registered backbone has this architecture, or it does not go with the other arguments.
    """
    known = architectures()
    if arch not in known:
        raise UserError("arch", f"unknown value {arch!r}", f"choose from {', '.join(known)}")
    return known[arch](arch, recurrent, bins, img_size, in_channels, drop_path)


def architectures() -> dict[str, type[Backbone]]:
    """The registered backbones by the names of their architectures, in alphabetical order.

    Raises:
        UserError: two backbones share a name.
    """
    found: dict[str, type[Backbone]] = {}
    for kind in BACKBONES.module_dict.values():
        for name in kind.architectures:
            if found.setdefault(name, kind) is not kind:
                what = f"{name!r} is one of {found[name].__name__}'s as well"
                raise UserError(f"{kind.__name__}.architectures", what, "choose another name")
    return dict(sorted(found.items()))


def execute(model: nn.Module, *, recompute: bool = False, compiled: bool = False, fast: bool = False) -> None:
    """Choose how `model`, and every backbone within it, is computed: it changes results by rounding at most.

    Args:
        model: changed in place.
        recompute: in the backward pass compute a stage again instead of keeping what is inside it: the same gradients
            to the bit, less memory, a third more time.
        compiled: compile stages, and the cells of ConvLSTMs, for their shapes; sums in another order.
        fast: sum in another order where a GPU is faster so: torch's fused attention, and weights of convolutions with
            their channels last; see `tespec.training.device.is_fast`.

    Raises:
        UserError: a backbone with batch normalisation is to be recomputed.
    """
    for backbone in [module for module in model.modules() if isinstance(module, Backbone)]:
        if recompute and any(isinstance(module, _BatchNorm) for module in backbone.modules()):
            what = "the backbone's batch normalisation would see every batch twice"
            raise UserError("--recompute", what, "leave it out")
        backbone.recompute = recompute
        for module in backbone.modules():
            if hasattr(module, "fused_attn"):  # what timm calls it
                cast("Any", module).fused_attn = fast
        if compiled:
            for stage in backbone.stage_modules():
                stage.compile(dynamic=False)
            for lstm in backbone.lstms:
                # One kernel of a segment's pointwise operations, and one of their gradients.
                cast("ConvLstm", lstm).step_cell = torch.compile(lstm_cell)
    if fast:
        # mypy does not know this form of `to`.
        cast("Any", model).to(memory_format=torch.channels_last)


def resized(backbone: Backbone, img_size: Size) -> Backbone:
    """A copy of `backbone` for another input size (H, W) in px, in the same mode and on the same device."""
    copy = build_backbone(backbone.arch, backbone.recurrent, backbone.bins, img_size, backbone.in_channels)
    copy.load_state_dict(copy.resize(backbone.state_dict(), backbone.img_size))
    copy.recipe = backbone.recipe
    parameter = next(backbone.parameters())
    return copy.to(parameter.device, parameter.dtype).train(backbone.training)
