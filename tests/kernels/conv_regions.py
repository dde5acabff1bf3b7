"""Signatures of convolution blocks in NHWC, as `ortkit.fusion.conv.bodies` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from fused_model import tensor

from ortkit.kernels.signature import RegionSignature, TensorSpec

Dim = int | str
#: From {x} to {y}; {n} keeps names apart.
ACTIVATIONS: Mapping[str, str] = {
    "": "{y} = Identity ({x})",
    "silu": "s{n} = Sigmoid ({x})  {y} = Mul ({x}, s{n})",
    "relu6": "l{n} = Constant <value_float = 0.0> ()  h{n} = Constant <value_float = 6.0> ()"
    "  {y} = Clip ({x}, l{n}, h{n})",
    "gelu": "{y} = Gelu ({x})",
    "twice": "s{n} = Sigmoid ({x})  t{n} = Mul ({x}, s{n})  {y} = Add (t{n}, s{n})",
}
HEAD = '<opset_import: ["" : 20]> f'


def unpacked(channels: int, depth: int, kernel: tuple[int, int] = (1, 1)) -> str:
    """The Conv's weight `wc` from the packed one `w`."""
    padded = -(-channels // 16) * 16
    shape = f"{padded}, {depth}, {kernel[0]}, {kernel[1]}"
    text = f"wt = Transpose <perm = [0, 2, 1]> (w)  ws = Constant <value_ints = [{shape}]> ()  "
    if padded == channels:
        return text + "wc = Reshape (wt, ws)"
    return text + (
        "wr = Reshape (wt, ws)  w0 = Constant <value_ints = [0]> ()"
        f"  w1 = Constant <value_ints = [{channels}]> ()  wc = Slice (wr, w0, w1, w0)"
    )


def activated(activation: str, x: str = "c", y: str = "a") -> str:
    return ACTIVATIONS[activation].format(x=x, y=y, n=y)


def window(kernel: int, stride: int, pads: Sequence[int], dilation: int = 1) -> str:
    return (
        f"kernel_shape = [{kernel}, {kernel}], strides = [{stride}, {stride}],"
        f" pads = [{', '.join(map(str, pads))}], dilations = [{dilation}, {dilation}]"
    )


def pointwise(
    pixels: tuple[Dim, Dim, Dim],
    channels: tuple[int, int],
    activation: str = "silu",
    *,
    gate: bool = False,
    residual: bool = False,
) -> RegionSignature:
    """A 1x1 convolution of [*pixels, channels[0]]."""
    before, after = channels
    names = ["x", *(["g"] if gate else []), *(["r"] if residual else []), "w", "b"]
    body = "xt = Transpose <perm = [0, 3, 1, 2]> (x)  "
    if gate:
        body += "gt = Transpose <perm = [0, 3, 1, 2]> (g)  xs = Mul (xt, gt)  "
    body += f"{unpacked(after, before)}  "
    first = "k" if residual else "c"
    body += f"{first} = Conv <kernel_shape = [1, 1]> ({'xs' if gate else 'xt'}, wc, b)  "
    if residual:
        body += "rt = Transpose <perm = [0, 3, 1, 2]> (r)  c = Add (rt, k)  "
    body += f"{activated(activation)}  y = Transpose <perm = [0, 2, 3, 1]> (a)"
    specs = {
        "x": tensor("x", *pixels, before),
        "g": tensor("g", pixels[0], 1, 1, before),
        "r": tensor("r", *pixels, after),
        "w": tensor("w", -(-after // 16), before, 16),
        "b": tensor("b", after),
    }
    return _signature("pointwise_conv", names, body, specs, [tensor("y", *pixels, after)])


def depthwise(
    pixels: tuple[Dim, Dim, Dim],
    channels: int,
    kernel: int,
    stride: int,
    pads: tuple[int, int, int, int],
    activation: str = "silu",
    *,
    means: bool = False,
    dilation: int = 1,
) -> RegionSignature:
    """A depthwise convolution of [*pixels, channels]."""
    reach = dilation * (kernel - 1) + 1
    height, width = (
        size if isinstance(size, str) else (size + low + high - reach) // stride + 1
        for size, low, high in zip(pixels[1:], pads[:2], pads[2:], strict=True)
    )
    body = (
        "xt = Transpose <perm = [0, 3, 1, 2]> (x)  wt = Transpose <perm = [3, 2, 0, 1]> (w)  "
        f"c = Conv <group = {channels}, {window(kernel, stride, pads, dilation)}> (xt, wt, b)  "
        f"{activated(activation)}  y = Transpose <perm = [0, 2, 3, 1]> (a)  "
    )
    outputs = [tensor("y", pixels[0], height, width, channels)]
    if means:
        body += "i = Constant <value_ints = [3]> ()  p = ReduceMean <keepdims = 0> (a, i)  "
        body += "m = Transpose <perm = [0, 2, 1]> (p)"
        outputs.append(tensor("m", pixels[0], height, channels))
    specs = {
        "x": tensor("x", *pixels, channels),
        "w": tensor("w", kernel, kernel, 1, channels),
        "b": tensor("b", channels),
    }
    return _signature("depthwise_conv", ["x", "w", "b"], body, specs, outputs)


def expand_depthwise(
    pixels: tuple[Dim, int, int],
    channels: tuple[int, int],
    kernel: int,
    stride: int,
    pads: tuple[int, int, int, int],
    activation: str = "silu",
    *,
    means: bool = False,
) -> RegionSignature:
    """A 1x1 convolution of [*pixels, channels[0]] and a depthwise one of its result."""
    before, after = channels
    height, width = (
        (size + low + high - kernel) // stride + 1
        for size, low, high in zip(pixels[1:], pads[:2], pads[2:], strict=True)
    )
    names = ["x", "w", "b", "v", "d"]
    body = (
        f"xt = Transpose <perm = [0, 3, 1, 2]> (x)  {unpacked(after, before)}  "
        f"e = Conv <kernel_shape = [1, 1]> (xt, wc, b)  {activated(activation, 'e', 'f')}  "
        "vt = Transpose <perm = [3, 2, 0, 1]> (v)  "
        f"c = Conv <group = {after}, {window(kernel, stride, pads)}> (f, vt, d)  "
        f"{activated(activation)}  y = Transpose <perm = [0, 2, 3, 1]> (a)  "
    )
    outputs = [tensor("y", pixels[0], height, width, after)]
    if means:
        body += "i = Constant <value_ints = [3]> ()  p = ReduceMean <keepdims = 0> (a, i)  "
        body += "m = Transpose <perm = [0, 2, 1]> (p)"
        outputs.append(tensor("m", pixels[0], height, after))
    specs = {
        "x": tensor("x", *pixels, before),
        "w": tensor("w", -(-after // 16), before, 16),
        "b": tensor("b", after),
        "v": tensor("v", kernel, kernel, 1, after),
        "d": tensor("d", after),
    }
    return _signature("expand_depthwise", names, body, specs, outputs)


def stem(
    planes: tuple[Dim, int, Dim, int],
    channels: int,
    kernel: int,
    stride: int,
    pads: tuple[int, int, int, int],
    activation: str = "silu",
) -> RegionSignature:
    """A convolution of NCHW with NHWC result; a height that is named is kept."""
    batch, before, *sides = planes
    height, width = (
        size if isinstance(size, str) else (size + low + high - kernel) // stride + 1
        for size, low, high in zip(sides, pads[:2], pads[2:], strict=True)
    )
    body = (
        f"{unpacked(channels, before, (kernel, kernel))}  "
        f"c = Conv <{window(kernel, stride, pads)}> (x, wc, b)  "
        f"{activated(activation)}  y = Transpose <perm = [0, 2, 3, 1]> (a)"
    )
    specs = {
        "x": tensor("x", *planes),
        "w": tensor("w", -(-channels // 16), before * kernel * kernel, 16),
        "b": tensor("b", channels),
    }
    outputs = [tensor("y", batch, height, width, channels)]
    return _signature("stem_conv", ["x", "w", "b"], body, specs, outputs)


def head(
    pixels: tuple[Dim, Dim, Dim],
    channels: tuple[int, int],
    kernel: int,
    stride: int = 1,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    activation: str = "",
    *,
    gate: bool = False,
    residual: bool = False,
    dilation: int = 1,
    has_bias: bool = True,
) -> RegionSignature:
    """A convolution of [*pixels, channels[0]] to few channels; a height that is named is kept."""
    (before, after), reach = channels, dilation * (kernel - 1) + 1
    height, width = (
        size if isinstance(size, str) else (size + low + high - reach) // stride + 1
        for size, low, high in zip(pixels[1:], pads[:2], pads[2:], strict=True)
    )
    made = (pixels[0], height, width, after)
    first = "k" if residual else "c"
    body = (
        "xt = Transpose <perm = [0, 3, 1, 2]> (x)  wt = Transpose <perm = [0, 3, 1, 2]> (w)  "
        f"{'gt = Transpose <perm = [0, 3, 1, 2]> (g)  xs = Mul (xt, gt)  ' if gate else ''}"
        f"{first} = Conv <{window(kernel, stride, pads, dilation)}> "
        f"({'xs' if gate else 'xt'}, wt{', b' if has_bias else ''})  "
    )
    if residual:
        body += "rt = Transpose <perm = [0, 3, 1, 2]> (r)  c = Add (rt, k)  "
    body += f"{activated(activation)}  y = Transpose <perm = [0, 2, 3, 1]> (a)"
    specs = {
        "x": tensor("x", *pixels, before),
        "g": tensor("g", pixels[0], 1, 1, before),
        "r": tensor("r", *made),
        "w": tensor("w", after, kernel, kernel, before),
        "b": tensor("b", after),
    }
    names = [
        "x",
        *(["g"] if gate else []),
        *(["r"] if residual else []),
        "w",
        *(["b"] if has_bias else []),
    ]
    return _signature("head_conv", names, body, specs, [tensor("y", *made)])


def full(
    pixels: tuple[Dim, Dim, Dim],
    channels: tuple[int, int],
    kernel: int,
    stride: int = 1,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    activation: str = "silu",
    *,
    residual: bool = False,
    dilation: int = 1,
    minimal: bool = False,
    sides: tuple[str, str] | None = None,
) -> RegionSignature:
    """A convolution of [*pixels, channels[0]]; weights as Winograd's kernel has them, or not.

    Of images of unknown sizes both have them by tap. `sides` are the names of the result's height
    and width, where they are other ones.
    """
    before, after = channels
    reach, taps = dilation * (kernel - 1) + 1, kernel * kernel
    height, width = sides or (
        size if isinstance(size, str) else (size + low + high - reach) // stride + 1
        for size, low, high in zip(pixels[1:], pads[:2], pads[2:], strict=True)
    )
    made = (pixels[0], height, width, after)
    weight = unpacked(after, before, (kernel, kernel))
    is_by_tap = not minimal or any(isinstance(size, str) for size in pixels[1:])
    if is_by_tap:
        weight = weight.replace("[0, 2, 1]", "[0, 3, 2, 1]")
    body = f"xt = Transpose <perm = [0, 3, 1, 2]> (x)  {weight}  "
    first = "k" if residual else "c"
    body += f"{first} = Conv <{window(kernel, stride, pads, dilation)}> (xt, wc, b)  "
    if residual:
        body += "rt = Transpose <perm = [0, 3, 1, 2]> (r)  c = Add (rt, k)  "
    body += f"{activated(activation)}  y = Transpose <perm = [0, 2, 3, 1]> (a)"
    depth = (taps, before) if is_by_tap else (before * taps,)
    specs = {
        "x": tensor("x", *pixels, before),
        "r": tensor("r", *made),
        "w": tensor("w", -(-after // 16), *depth, 16),
        "b": tensor("b", after),
    }
    names = ["x", *(["r"] if residual else []), "w", "b"]
    kind = "winograd_conv" if minimal else "conv"
    return _signature(kind, names, body, specs, [tensor("y", *made)])


def squeeze_excite(batch: Dim, rows: Dim, hidden: int, channels: int) -> RegionSignature:
    """From means over rows to a gate."""
    body = (
        "t = Transpose <perm = [0, 2, 1]> (m)  n = Constant <value_ints = [0, 0, -1, 1]> ()  "
        "q = Reshape (t, n)  p = GlobalAveragePool (q)  "
        "k = Conv <kernel_shape = [1, 1]> (p, w1, b1)  s = Sigmoid (k)  a = Mul (k, s)  "
        "wt = Transpose <perm = [3, 2, 0, 1]> (w2)  l = Conv <kernel_shape = [1, 1]> (a, wt, b2)"
        "  g = Sigmoid (l)  y = Transpose <perm = [0, 2, 3, 1]> (g)"
    )
    specs = {
        "m": tensor("m", batch, rows, channels),
        "w1": tensor("w1", hidden, channels, 1, 1),
        "b1": tensor("b1", hidden),
        "w2": tensor("w2", 1, 1, hidden, channels),
        "b2": tensor("b2", channels),
    }
    names = ["m", "w1", "b1", "w2", "b2"]
    return _signature("squeeze_excite", names, body, specs, [tensor("y", batch, 1, 1, channels)])


def _signature(
    kind: str,
    names: Sequence[str],
    body: str,
    specs: Mapping[str, TensorSpec],
    outputs: Sequence[TensorSpec],
) -> RegionSignature:
    results = ", ".join(spec.name for spec in outputs)
    text = f"{HEAD} ({', '.join(names)}) => ({results}) {{ {body} }}"
    return RegionSignature(kind, text, tuple(specs[name] for name in names), tuple(outputs))


def feeds(
    signature: RegionSignature, sizes: Mapping[str, int], seed: int = 0
) -> dict[str, np.ndarray]:
    """Random inputs; weights of a variance that keeps results near 1."""
    rng = np.random.default_rng(seed)
    result = {}
    for spec in signature.inputs:
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
        scale = 1.0
        if spec.name in ("w", "w1", "w2"):
            depth = max(shape)
            if spec.name == "w":
                is_depthwise = signature.name == "depthwise_conv"
                depth = shape[0] if is_depthwise else prod(shape[1:-1])
            scale = 1 / np.sqrt(depth)
        result[spec.name] = (rng.standard_normal(shape) * scale).astype(np.float32)
    return result
