"""Our own convolution kernels with channels last, for one Conv at given sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ortkit.errors import KernelError, MissingDependencyError
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.measure.layout_cases import LayoutCase
from ortkit.measure.layout_models import is_image
from ortkit.targets.target import Target

_LANES = 16
#: More channels than these are no first layer's.
_FEW = 4


@dataclass(frozen=True)
class OwnKernel:
    """A kernel and what its node reads in addition to the data."""

    signature: RegionSignature
    weights: dict[str, tuple[int, ...]]
    is_planar: bool
    """Whether it reads channels first."""
    library: Path


def own_kernel(case: LayoutCase, path: Path) -> OwnKernel | str:
    """Compile our kernel for a Conv, or say why there is none.

    Args:
        case: Any.
        path: Of the library to write.
    """
    found = _signature(case)
    if isinstance(found, str):
        return found
    signature, weights, is_planar = found
    try:
        built = build_library([signature], Target(), path)
    except (KernelError, MissingDependencyError) as error:
        return error.problem
    if built.refused:
        return f"no kernel: {built.refused[0][1]}"
    if built.library is None:
        return "no kernel was made"
    return OwnKernel(signature, weights, is_planar, path)


def _signature(
    case: LayoutCase,
) -> tuple[RegionSignature, dict[str, tuple[int, ...]], bool] | str:
    if case.op != "Conv" or not is_image(case) or case.dtype != "float32":
        return "no kernel: only for convolutions of float32 images"
    if not all(case.constant[1:]):
        return "no kernel: the weight is computed"
    given = dict(case.attributes)
    batch, before, height, width = case.inputs[0][1]
    after, depth, *kernel = case.inputs[1][1]
    groups, strides = given.get("group", 1), given.get("strides", (1, 1))
    pads, dilations = given.get("pads", (0, 0, 0, 0)), given.get("dilations", (1, 1))
    assert isinstance(strides, tuple) and isinstance(pads, tuple) and isinstance(dilations, tuple)
    sides = [
        (size + pads[axis] + pads[axis + 2] - dilations[axis] * (kernel[axis] - 1) - 1)
        // strides[axis]
        + 1
        for axis, size in enumerate((height, width))
    ]
    window = (
        f"kernel_shape = {kernel}, strides = {list(strides)}, pads = {list(pads)}, "
        f"dilations = {list(dilations)}"
    )
    last = (batch, height, width, before)
    result = TensorSpec("y", "float32", (batch, *sides, after))
    vectors = -(-after // _LANES)
    if groups == before == after and depth == 1:
        shapes = {"w": (*kernel, 1, after), "b": (after,)}
        body = (
            "xt = Transpose <perm = [0, 3, 1, 2]> (x)  wt = Transpose <perm = [3, 2, 0, 1]> (w)  "
            f"c = Conv <group = {groups}, {window}> (xt, wt, b)"
        )
        return _made("depthwise_conv", last, shapes, body, result), shapes, False
    if groups != 1:
        return "no kernel: groups of several channels"
    shapes = {"w": (vectors, before * kernel[0] * kernel[1], _LANES), "b": (after,)}
    unpacked = _unpacked(after, before, kernel)
    if kernel == [1, 1] and strides == (1, 1) and not any(pads):
        body = (
            f"xt = Transpose <perm = [0, 3, 1, 2]> (x)  {unpacked}  "
            "c = Conv <kernel_shape = [1, 1]> (xt, wc, b)"
        )
        return _made("pointwise_conv", last, shapes, body, result), shapes, False
    if before <= _FEW:
        body = f"{unpacked}  c = Conv <{window}> (x, wc, b)"
        planes = (batch, before, height, width)
        return _made("stem_conv", planes, shapes, body, result), shapes, True
    return "no kernel: neither 1x1 nor depthwise nor of few channels"


def _made(
    name: str,
    data: tuple[int, ...],
    shapes: dict[str, tuple[int, ...]],
    body: str,
    result: TensorSpec,
) -> RegionSignature:
    text = (
        f'<opset_import: ["" : 20]> f (x, w, b) => (y) {{ {body}  '
        "y = Transpose <perm = [0, 2, 3, 1]> (c) }"
    )
    inputs = [TensorSpec("x", "float32", data)]
    inputs += [TensorSpec(key, "float32", shape) for key, shape in shapes.items()]
    return RegionSignature(name, text, tuple(inputs), (result,))


def _unpacked(channels: int, depth: int, kernel: list[int]) -> str:
    """Return the steps from the packed weight `w` to the Conv's `wc`."""
    padded = -(-channels // _LANES) * _LANES
    shape = f"{padded}, {depth}, {kernel[0]}, {kernel[1]}"
    text = f"wt = Transpose <perm = [0, 2, 1]> (w)  ws = Constant <value_ints = [{shape}]> ()  "
    if padded == channels:
        return text + "wc = Reshape (wt, ws)"
    return text + (
        "wr = Reshape (wt, ws)  w0 = Constant <value_ints = [0]> ()  "
        f"w1 = Constant <value_ints = [{channels}]> ()  wc = Slice (wr, w0, w1, w0)"
    )
