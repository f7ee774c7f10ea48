"""Stand-ins for published weights files: their keys and shapes, random values; and Swin as Microsoft wrote it."""

import torch
from torch import nn
from torch.nn.functional import softmax

WINDOW = 7


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table = nn.Parameter(0.5 * torch.randn((2 * WINDOW - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij")).flatten(1)
        offset = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0) + WINDOW - 1
        self.register_buffer("relative_position_index", offset[..., 0] * (2 * WINDOW - 1) + offset[..., 1])
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, windows, mask):
        count, places, width = windows.shape
        q, k, v = self.qkv(windows).view(count, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        bias = self.relative_position_bias_table[self.relative_position_index.flatten()]
        scores = scores + bias.view(places, places, -1).permute(2, 0, 1)
        if mask is not None:
            scores = scores.masked_fill(mask.repeat(count // len(mask), 1, 1).unsqueeze(1), -100.0)
        return self.proj((softmax(scores, -1) @ v).transpose(1, 2).reshape(count, places, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(nn.functional.gelu(self.fc1(x)))


def cut(maps):
    """(N, H, W, C) as windows."""
    n, h, w, c = maps.shape
    return maps.view(n, h // WINDOW, WINDOW, w // WINDOW, WINDOW, c).transpose(2, 3).reshape(-1, WINDOW**2, c)


def joined(windows, n, h, w):
    return windows.view(n, h // WINDOW, w // WINDOW, WINDOW, WINDOW, -1).transpose(2, 3).reshape(n, h, w, -1)


class Block(nn.Module):
    def __init__(self, width, heads, side, shifted):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, heads), Mlp(width)
        self.shift = WINDOW // 2 if shifted and side > WINDOW else 0
        mask = None
        if self.shift:
            regions = torch.zeros(1, side, side, 1)
            parts = (slice(0, -WINDOW), slice(-WINDOW, -self.shift), slice(-self.shift, None))
            for number, (rows, columns) in enumerate((rows, columns) for rows in parts for columns in parts):
                regions[:, rows, columns] = number
            of_window = cut(regions).squeeze(-1)
            mask = of_window[:, :, None] != of_window[:, None, :]
        self.register_buffer("attn_mask", mask)

    def forward(self, maps):
        n, h, w, _ = maps.shape
        seen = torch.roll(self.norm1(maps), (-self.shift, -self.shift), (1, 2))
        seen = joined(self.attn(cut(seen), self.attn_mask), n, h, w)
        maps = maps + torch.roll(seen, (self.shift, self.shift), (1, 2))
        return maps + self.mlp(self.norm2(maps))


class Merging(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, maps):
        corners = (maps[:, 0::2, 0::2], maps[:, 1::2, 0::2], maps[:, 0::2, 1::2], maps[:, 1::2, 1::2])
        return self.reduction(self.norm(torch.cat(corners, -1)))


class Layer(nn.Module):
    """Blocks, then the downsampling that leads to the next layer."""

    def __init__(self, width, depth, heads, side, last):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, side, number % 2) for number in range(depth))
        self.downsample = None if last else Merging(width)


class PatchEmbed(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.proj, self.norm = nn.Conv2d(channels, width, 4, 4), nn.LayerNorm(width)


class MicrosoftSwin(nn.Module):
    """Names as in microsoft/Swin-Transformer."""

    def __init__(self, width=24, depths=(2, 2, 2, 2), heads=(1, 2, 4, 8), channels=3, side=224, classes=5):
        super().__init__()
        self.patch_embed = PatchEmbed(channels, width)
        self.layers = nn.ModuleList(
            Layer(width << i, depths[i], heads[i], side // 4 >> i, last=i == 3) for i in range(4)
        )
        self.norm, self.head = nn.LayerNorm(8 * width), nn.Linear(8 * width, classes)

    def forward(self, images):
        """Output of each layer before its downsampling, (N, C, h, w)."""
        maps = self.patch_embed.norm(self.patch_embed.proj(images).permute(0, 2, 3, 1))
        features = []
        for layer in self.layers:
            for block in layer.blocks:
                maps = block(maps)
            features.append(maps.permute(0, 3, 1, 2))
            maps = maps if layer.downsample is None else layer.downsample(maps)
        return features


TINY = {"width": 96, "depths": (2, 2, 6, 2), "heads": (3, 6, 12, 24)}


def swin(channels=3, seed=0, **size):
    torch.manual_seed(seed)
    return MicrosoftSwin(channels=channels, **size).eval()


def microsoft(model):
    return {"model": dict(model.state_dict())}


def timm_new(model, dots=True):
    """Downsampling at the start of the next stage, no buffers; underscores where features alone are asked for."""
    renamed = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("relative_position_index", "attn_mask")):
            continue
        parts = name.split(".")
        if parts[0] == "layers" and parts[2] == "downsample":
            parts[1] = str(int(parts[1]) + 1)
        name = ".".join(parts)
        if not dots:
            if name.startswith(("norm.", "head.")):
                continue
            name = name.replace("layers.", "layers_", 1)
        renamed[name.replace("head.", "head.fc.")] = tensor
    return renamed


def moby(model):
    slow = swin(seed=9)
    tensors = {f"encoder.{name}": each for name, each in model.state_dict().items() if not name.startswith("head.")}
    tensors |= {f"encoder_k.{name}": each for name, each in slow.state_dict().items()}
    extra = ("projector.linear_hidden.0.weight", "projector_k.linear_hidden.0.weight", "predictor.linear_out.weight")
    return {"model": tensors | {name: torch.randn(4, 4) for name in extra} | {"queue1": torch.randn(8, 16)}}


def ecddp(teacher):
    student = swin(channels=6, seed=9)
    tensors = {}
    for name, network in (("teacher", teacher), ("student", student)):
        for key, tensor in network.state_dict().items():
            if key.startswith(("norm.", "head.")):
                continue
            tensors[f"{name}.backbone.{key}"] = tensor
        for number in range(4):
            tensors[f"{name}.backbone.norm{number}.weight"] = torch.ones(24 << number)
        tensors[f"{name}.head.mlp.0.weight"] = torch.randn(4, 4)
    return {"model": tensors, "epoch": 300}


def released(model, width=24):
    """TESPEC's checkpoint: timm's features-only names, and one 1x1 convolution per ConvLSTM."""
    tensors = {f"model.encoder.pure_backbone.{name}": each for name, each in timm_new(model, dots=False).items()}
    for stage in range(4):
        d = width << stage
        tensors[f"model.encoder.lstm_blocks.{stage}.conv1x1.weight"] = 0.1 * torch.randn(4 * d, 2 * d, 1, 1)
        tensors[f"model.encoder.lstm_blocks.{stage}.conv1x1.bias"] = 0.1 * torch.randn(4 * d)
    tensors["model.decoder.proj.weight"] = torch.randn(4, 4)
    return {"state_dict": tensors, "epoch": 3}
