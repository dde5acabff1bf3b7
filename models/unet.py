"""A diffusion U-Net: residual blocks with group norms and a time, attention in the middle.

Inputs: sample, float32 [batch, channels, height, width]; timestep, int64 [batch]. Height and
width are multiples of 2^(levels - 1).
Output: noise, float32 like sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from models import attention, layers
from models.builder import ALL, Size, Tape
from models.conv import Conv, bare_conv

SPELLINGS = ("dynamo", "ts", "dynamo23")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are about a ninth of Stable Diffusion's parameters."""

    widths: tuple[int, ...]
    """Channels of each level, from fine to coarse."""
    blocks: int
    heads: int
    groups: int
    channels: int = 4
    epsilon: float = 1e-5

    @property
    def time_width(self) -> int:
        """Width of what is made of the time step."""
        return 4 * self.widths[0]


CONFIGS = {
    "tiny": Config(widths=(16, 32), blocks=1, heads=2, groups=4),
    "full": Config(widths=(128, 256, 384, 512), blocks=2, heads=8, groups=32),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the network; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    dims = ("batch", config.channels, "height", "width")
    sample = b.input("sample", np.float32, *dims)
    time = _time(b, b.input("timestep", np.int64, "batch"), config)
    finest, coarsest = config.widths[0], config.widths[-1]
    x = bare_conv(b, sample, Conv("conv_in", config.channels, finest, 3, gain=0.7))
    x, skips = _down(b, x, time, config)
    x = _residual(b, x, time, "mid_block.resnets.0", coarsest, coarsest, config)
    x = _attention(b, x, "mid_block.attentions.0", coarsest, config)
    x = _residual(b, x, time, "mid_block.resnets.1", coarsest, coarsest, config)
    x = _up(b, x, time, skips, config)
    x = _norm_silu(b, x, "conv_norm_out", finest, config)
    x = bare_conv(b, x, Conv("conv_out", finest, config.channels, 3))
    b.output(x, "noise", np.float32, *dims)
    return b.model()


def _time(b: Tape, step: str, config: Config) -> str:
    """Turn [batch] time steps into [batch, time width]: sines and cosines, then two layers."""
    half = config.widths[0] // 2
    rates = np.exp(-np.log(10000) * np.arange(half) / half).astype(np.float32)
    angle = b.op("Cast", b.unsqueeze(step, 1), to=TensorProto.FLOAT)
    angle = b.op("Mul", angle, b.const(rates[None]))
    waves = b.op("Concat", b.op("Sin", angle), b.op("Cos", angle), axis=-1)
    x = layers.gemm(b, waves, "time_embedding.linear_1", 2 * half, config.time_width)
    with b.scope("time_embedding.act"):
        x = layers.silu(b, x)
    return layers.gemm(b, x, "time_embedding.linear_2", config.time_width, config.time_width)


def _down(b: Tape, x: str, time: str, config: Config) -> tuple[str, list[tuple[str, int]]]:
    """Write the levels from fine to coarse; also return what the way up will join, with
    the channels of each."""
    width = config.widths[0]
    skips = [(x, width)]
    for level, out in enumerate(config.widths):
        for i in range(config.blocks):
            x = _residual(b, x, time, f"down_blocks.{level}.resnets.{i}", width, out, config)
            width = out
            skips.append((x, width))
        if level + 1 < len(config.widths):
            x = bare_conv(b, x, Conv(f"down_blocks.{level}.downsampler", width, width, 3, 2))
            skips.append((x, width))
    return x, skips


def _up(b: Tape, x: str, time: str, skips: list[tuple[str, int]], config: Config) -> str:
    """Write the levels from coarse to fine, each block joined with its counterpart."""
    width = config.widths[-1]
    for level, out in reversed(list(enumerate(config.widths))):
        for i in range(config.blocks + 1):
            skip, more = skips.pop()
            name = f"up_blocks.{level}.resnets.{i}"
            with b.scope(name):
                x = b.op("Concat", x, skip, axis=1)
            x = _residual(b, x, time, name, width + more, out, config)
            width = out
        if level:
            with b.scope(f"up_blocks.{level}.upsampler"):
                x = layers.upsample(b, x)
            x = bare_conv(b, x, Conv(f"up_blocks.{level}.upsampler.conv", width, width, 3))
    return x


def _norm_silu(b: Tape, x: str, name: str, width: int, config: Config) -> str:
    x = layers.group_norm(b, x, name, width, config.groups, config.epsilon)
    with b.scope(f"{name}.nonlinearity"):
        return layers.silu(b, x)


def _residual(
    b: Tape, x: str, time: str, name: str, channels: int, width: int, config: Config
) -> str:
    """Norm, SiLU, convolution, twice, the time added between; around it a shortcut."""
    y = _norm_silu(b, x, f"{name}.norm1", channels, config)
    y = bare_conv(b, y, Conv(f"{name}.conv1", channels, width, 3))
    with b.scope(name):
        active = layers.silu(b, time)
    offset = layers.gemm(b, active, f"{name}.time_emb_proj", config.time_width, width)
    with b.scope(name):
        if b.spelling.has_constant_nodes:
            offset = b.unsqueeze(b.unsqueeze(offset, 2), 3)
        else:
            offset = b.unsqueeze(offset, 2, 3)
        y = b.op("Add", y, offset)
    y = _norm_silu(b, y, f"{name}.norm2", width, config)
    y = bare_conv(b, y, Conv(f"{name}.conv2", width, width, 3, gain=0.5))
    if channels != width:
        x = bare_conv(b, x, Conv(f"{name}.conv_shortcut", channels, width, gain=0.6))
    with b.scope(name):
        return b.op("Add", x, y)


def _attention(b: Tape, x: str, name: str, width: int, config: Config) -> str:
    """Let every pixel read every other."""
    batch, height, wide = (b.dim(x, axis) for axis in (0, 2, 3))
    normed = layers.group_norm(b, x, f"{name}.group_norm", width, config.groups, config.epsilon)
    with b.scope(name):
        tokens = b.transpose(b.reshape(normed, batch, width, -1), 0, 2, 1)
    q, k, v = (
        layers.linear(b, tokens, f"{name}.{part}", width, width)
        for part in ("to_q", "to_k", "to_v")
    )
    head = width // config.heads
    with b.scope(name):
        q, k, v = (b.reshape(part, batch, -1, config.heads, head) for part in (q, k, v))
        query, value = attention.heads_first(b, q), attention.heads_first(b, v)
        keys = attention.transpose_keys(b, k)
        out = attention.attend(b, query, keys, value, head, mask=None, guard=False)
        merged = b.reshape(attention.heads_first(b, out), batch, -1, width)
    out = layers.linear(b, merged, f"{name}.to_out.0", width, width)
    with b.scope(name):
        image = b.reshape(b.transpose(out, 0, 2, 1), batch, width, height, wide)
        return b.op("Add", image, x)
