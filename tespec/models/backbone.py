"""Interface of all backbones for events: four stages, each optionally followed by a ConvLSTM.

See docs/extending.md for how to add one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

import torch
from timm.layers import DropPath as TimmDropPath
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from tespec.core.errors import UserError, require
from tespec.core.settings import Size, suggest
from tespec.events.representations import REPRESENTATIONS, empty_pixel
from tespec.models.layers import STRIDE, DropPath, compute_dtype, pad_to, replace_modules
from tespec.registry import BACKBONES

State = TypeVar("State")
# hidden and cell state by stage; None if feed-forward
BackboneState = tuple[tuple[Tensor, Tensor], ...] | None


def reset(state: State, is_first: Tensor) -> State:
    """Zero the state of the lanes that start a sequence.

    Args:
        state: None or nested tuples of (B, ...).
        is_first: (B,) bool, whether a lane starts a sequence.

    Returns:
        The new state; the given one is unchanged.
    """

    def zero_first(part: Tensor) -> Tensor:
        mask = is_first.to(part.device).view(-1, *[1] * (part.ndim - 1))  # (B, 1, ...)
        return part.masked_fill(mask, 0)

    return cast("State", tree_map_only(Tensor, zero_first, state))


def detach(state: State) -> State:
    """Detach all tensors of a state from the autograd graph."""
    return cast("State", tree_map_only(Tensor, Tensor.detach, state))


class Backbone(nn.Module, ABC):
    """Backbone with features at strides 4, 8, 16 and 32, optionally with a ConvLSTM per stage.

    A sequence is processed stage by stage: a stage takes all segments as one batch, then its
    ConvLSTM runs over time.

    Args:
        backbone: one of `sizes`; "": the first.
        recurrent: whether it has ConvLSTMs; the state of a feed-forward network is always None.
        bins: time bins per segment; a histogram has 2 * bins channels.
        img_size: (H, W) in px of the padded input, multiples of 32.
        in_channels: number of input channels; None: 2 * bins. Images have 1 or 3.
        drop_path: rate of stochastic depth in the last block; it rises from 0 block by block.

    Raises:
        UserError: the name is not in `sizes`, the size is not a multiple of 32, or the rate is
            above 0 and the network has no `DropPath`.
    """

    sizes: ClassVar[Sequence[str]] = ()  # names of its sizes
    stem: ClassVar[str] = ""  # name of the weight that is applied to the input's channels
    position_tables: ClassVar[Sequence[str]] = ()  # substrings of the names of position parameters
    # whether the stages take maps (N, h, w, C), else (N, C, h, w)
    channels_last: ClassVar[bool] = True
    # whether a feature, after its ConvLSTM, is the input of the next stage, else the stage's output
    hierarchical: bool = True
    channels: tuple[int, ...]  # widths of the four features
    # settings of the training, if the file it was loaded from contains them
    recipe: Mapping[str, Any] | None = None
    recompute: bool = False  # whether the backward pass recomputes stages; see `execute`
    representation: str = ""  # of events that it takes, as in `Binning`; "": not stated
    new_stem: bool = False  # whether its first convolution is not loaded, but stays random
    empty_pixel: Tensor | None  # (C, 1, 1) input of a pixel without events; None: 0

    def __init__(
        self,
        backbone: str = "",
        recurrent: bool = True,
        bins: int = 10,
        img_size: Size = (256, 320),
        in_channels: int | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.name = backbone or self.sizes[0]
        require(
            self.name in self.sizes,
            "backbone",
            f"unknown value {backbone!r}",
            f"choose from {', '.join(self.sizes)}",
        )
        require(
            all(side > 0 and side % STRIDE == 0 for side in img_size),
            "img_size",
            f"sides of {tuple(img_size)} are not multiples of {STRIDE}",
            "pad the input",
        )
        self.recurrent = recurrent
        self.bins = bins
        self.img_size = (int(img_size[0]), int(img_size[1]))
        self.in_channels = in_channels or 2 * bins
        self.register_buffer("empty_pixel", None, persistent=False)
        self.build(drop_path)
        # one per stage; empty if feed-forward
        self.lstms = nn.ModuleList(ConvLstm(width) for width in self.channels if recurrent)
        replace_modules(self, TimmDropPath, lambda drop: DropPath(drop.drop_prob))
        require(
            not drop_path or any(isinstance(module, DropPath) for module in self.modules()),
            "drop_path",
            f"{self.name} has no stochastic depth (timm's DropPath)",
            "set it to 0",
        )

    @abstractmethod
    def build(self, drop_path: float) -> None:
        """Build stem and stages for `name`, `in_channels` and `img_size`, and set `channels`."""

    @abstractmethod
    def embed_patches(self, frames: Tensor) -> Tensor:
        """Embed frames (N, in_channels, H, W) of any dtype as input (N, h, w, C) of the stages."""

    @abstractmethod
    def stage_modules(self) -> list[nn.Module]:
        """Return the four stages, without their ConvLSTMs."""

    def neck(self, stage: int, output: Tensor) -> Tensor:
        """Convert the output of a stage to its feature, before its ConvLSTM.

        Args:
            stage: index of the stage.
            output: (N, h, w, C), or as a stage that is not `hierarchical` returns it.

        Returns:
            The feature (N, h, w, C); by default the output itself.
        """
        return output

    def resize(self, tensors: Mapping[str, Tensor], built_for: Size) -> dict[str, Tensor]:
        """Adapt the state dict of a network of another input size to this one's `img_size`.

        Args:
            tensors: state dict of a network of the same architecture.
            built_for: its input size (H, W) in px.

        Returns:
            A state dict for this network; by default the same tensors.
        """
        return dict(tensors)

    def forward(
        self, histograms: Tensor, state: BackboneState = None
    ) -> tuple[list[Tensor], BackboneState]:
        """Compute the features of a sequence.

        Args:
            histograms: (B, T, in_channels, H, W), counts of any dtype, `img_size` or smaller.
            state: as returned for the previous segments; None at the start.

        Returns:
            four features (B, T, channels[i], h, w) at strides 4, 8, 16 and 32 of `img_size`, and
            the state, with tensors (B, channels[i], h, w) in float32.
        """
        return self.encode(self.embed(histograms), state)

    def expect(self, representation: str) -> None:
        """State the representation of the input, whose pixels without events fill the padding."""
        self.representation = representation
        if representation in REPRESENTATIONS:
            # Each bin of voxels is a channel.
            pixel = empty_pixel(representation, self.in_channels)
            self.empty_pixel = torch.tensor(pixel[: self.in_channels])

    def embed(self, histograms: Tensor) -> Tensor:
        """Pad and embed histograms (B, T, in_channels, H, W) as stage input (B, T, h, w, C)."""
        if histograms.shape[2] != self.in_channels:
            raise ValueError(
                f"{histograms.shape[2]} channels, but this network takes {self.in_channels}"
            )
        padded = pad_to(histograms, self.img_size, self.empty_pixel)
        frames = padded.flatten(0, 1)  # (B * T, in_channels, *img_size)
        return self.embed_patches(frames).unflatten(0, histograms.shape[:2])

    def encode(
        self, tokens: Tensor, state: BackboneState = None
    ) -> tuple[list[Tensor], BackboneState]:
        """Compute features and state from embedded patches.

        Args:
            tokens: (B, T, h, w, C), as `embed` returns them.
            state: as in `forward`.

        Returns:
            features and state, as `forward` returns them.
        """
        lanes, segments = tokens.shape[:2]
        # time first: the recurrence reads contiguous memory at each time
        maps = tokens.transpose(0, 1).flatten(0, 1)  # (T * B, h, w, C)
        features: list[Tensor] = []
        states: list[tuple[Tensor, Tensor]] = []
        for index, stage in enumerate(self.stage_modules()):
            if not self.channels_last:
                maps = maps.permute(0, 3, 1, 2)  # (T * B, C, h, w)
            recomputes = self.recompute and torch.is_grad_enabled()
            maps = checkpoint(stage, maps, use_reentrant=False) if recomputes else stage(maps)
            if not self.channels_last:
                maps = maps.permute(0, 2, 3, 1)  # (T * B, h, w, C)
            feature = self.neck(index, maps)
            if self.recurrent:
                if state is None:
                    hidden = cell = torch.zeros(lanes, *feature.shape[1:], device=maps.device)
                else:
                    hidden = state[index][0].permute(0, 2, 3, 1)  # (B, h, w, C)
                    cell = state[index][1].permute(0, 2, 3, 1)
                sequence = feature.unflatten(0, (segments, lanes))  # (T, B, h, w, C)
                sequence, hidden, cell = self.lstms[index](sequence, hidden, cell)
                states.append((hidden.permute(0, 3, 1, 2), cell.permute(0, 3, 1, 2)))
                feature = sequence.flatten(0, 1)
            if self.hierarchical:
                maps = feature
            # (B, T, C, h, w)
            features.append(feature.unflatten(0, (segments, lanes)).permute(1, 0, 4, 2, 3))
        return features, tuple(states) if self.recurrent else None

    @torch.no_grad()
    def step(
        self, histogram: Tensor, state: BackboneState = None
    ) -> tuple[list[Tensor], BackboneState]:
        """Compute the features of one segment, without gradients.

        Args:
            histogram: (B, in_channels, H, W) of any dtype, `img_size` or smaller.
            state: as returned for the previous segment; None at the start.

        Returns:
            four features (B, channels[i], h, w), and the state.
        """
        features, state = self(histogram.unsqueeze(1), state)
        return [feature.squeeze(1) for feature in features], state


class PatchBackbone(Backbone):
    """Backbone whose `embed_patches` embeds each square of `patch_size` px by itself.

    Masked methods replace such patches.
    """

    patch_size: int


class ConvLstm(nn.Module):
    """LSTM at every pixel with shared weights; its output is the hidden state.

    Gates are in the order forget, input, output, cell input, and the convolution's input is (map,
    hidden), as in uzh-rpg/RVT, models/layers/rnn.py, without depthwise convolution. A 1x1
    convolution is a matrix product per pixel, so the maps stay channels last, and the products with
    the input are computed for all segments together.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.gates = nn.Conv2d(2 * channels, 4 * channels, kernel_size=1)
        # or the same, compiled
        self.step_cell: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lstm_cell

    def forward(self, maps: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over a sequence of maps.

        Args:
            maps: (T, B, h, w, d).
            hidden: (B, h, w, d), hidden state before the first segment.
            cell: (B, h, w, d) float32, cell state before the first segment.

        Returns:
            the hidden states (T, B, h, w, d), and hidden and cell state after the last segment.
        """
        map_weight, hidden_weight = self.gates.weight.flatten(1).split(self.channels, dim=1)
        # once; autocast would cast at each segment
        hidden_weight = hidden_weight.to(compute_dtype(hidden_weight))
        outputs = []
        for map_gates in linear(maps, map_weight, self.gates.bias):  # (B, h, w, 4 d)
            hidden, cell = self.step_cell(map_gates + linear(hidden, hidden_weight), cell)
            outputs.append(hidden)
        return torch.stack(outputs), hidden, cell


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one step of an LSTM.

    Args:
        gates: (..., 4 d), gates before their nonlinearity.
        cell: (..., d), previous cell state.

    Returns:
        hidden and cell state (..., d).
    """
    channels = cell.shape[-1]
    gates, candidate = gates.split((3 * channels, channels), dim=-1)
    forget, write, output = gates.sigmoid().chunk(3, dim=-1)
    cell = forget * cell + write * candidate.tanh()
    return output * cell.tanh(), cell


def build_backbone(
    backbone: str,
    recurrent: bool,
    bins: int,
    img_size: Size,
    in_channels: int | None = None,
    drop_path: float = 0.0,
) -> Backbone:
    """Build a randomly initialised backbone by the name of its architecture.

    `backbone` is a name such as "swin_tiny"; the other arguments are those of `Backbone`.

    Returns:
        The backbone, in training mode on the default device.

    Raises:
        UserError: the name is not registered, or an argument does not fit the architecture.
    """
    kind = find_backbone(backbone)
    return kind(backbone, recurrent, bins, img_size, in_channels, drop_path)


def find_backbone(name: str) -> type[Backbone]:
    """Return the registered backbone of that name; the message for an unknown one suggests one."""
    registered = backbones()
    require(
        name in registered,
        "backbone",
        f"unknown value {name[:100]!r}",
        suggest(name, registered),
    )
    return registered[name]


def backbones() -> dict[str, type[Backbone]]:
    """Registered backbones by the names of their architectures, in alphabetical order."""
    by_name: dict[str, type[Backbone]] = {}
    for kind in BACKBONES.module_dict.values():
        for name in kind.sizes:
            if by_name.setdefault(name, kind) is not kind:
                raise UserError(
                    f"{kind.__name__}.sizes",
                    f"{name!r} is also a size of {by_name[name].__name__}",
                    "choose another name",
                )
    return dict(sorted(by_name.items()))


def execute(
    model: nn.Module, *, recompute: bool = False, compiled: bool = False, fast: bool = False
) -> None:
    """Choose how every backbone in `model` is computed; results change by rounding at most.

    Args:
        model: changed in place.
        recompute: recompute stages in the backward pass instead of storing their activations:
            bit-identical gradients, less memory, a third more time.
        compiled: compile stages and ConvLSTM cells for their shapes; changes the order of sums.
        fast: use operations that are faster on a GPU but change the order of sums: torch's fused
            attention, and channels-last weights of convolutions; see
            `tespec.runs.setup.Setup.fast`.

    Raises:
        UserError: `recompute` is set and the backbone has batch normalisation.
    """
    for backbone in [module for module in model.modules() if isinstance(module, Backbone)]:
        has_batch_norm = any(isinstance(module, _BatchNorm) for module in backbone.modules())
        require(
            not (recompute and has_batch_norm),
            "--recompute",
            "the backbone's batch normalisation would see every batch twice",
            "omit it",
        )
        backbone.recompute = recompute
        for module in backbone.modules():
            if hasattr(module, "fused_attn"):  # timm's name
                cast("Any", module).fused_attn = fast
        if compiled:
            for stage in backbone.stage_modules():
                stage.compile(dynamic=False)
            for lstm in backbone.lstms:
                # One kernel for a segment's pointwise operations, and one for their gradients.
                cast("ConvLstm", lstm).step_cell = torch.compile(lstm_cell)
    if fast:
        # mypy does not know this form of `to`.
        cast("Any", model).to(memory_format=torch.channels_last)


def resize_backbone(backbone: Backbone, img_size: Size) -> Backbone:
    """Copy a backbone for another input size, in the same mode and on the same device.

    Args:
        backbone: unchanged.
        img_size: (H, W) in px, multiples of 32.

    Returns:
        The copy; its parameters are adapted by `Backbone.resize`.
    """
    copy = build_backbone(
        backbone.name, backbone.recurrent, backbone.bins, img_size, backbone.in_channels
    )
    copy.load_state_dict(copy.resize(backbone.state_dict(), backbone.img_size))
    copy.recipe = backbone.recipe
    copy.expect(backbone.representation)
    parameter = next(backbone.parameters())
    return copy.to(parameter.device, parameter.dtype).train(backbone.training)
