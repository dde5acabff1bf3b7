"""Matrix products in bfloat16 with sums in float32: how their weights lie, and what they mean.

A weight is packed once, when a model is optimized, into strips of 16 columns in which two
neighbouring rows lie side by side: what `vdpbf16ps` and the AMX tiles read. The packed form is the
only one in the model, at half the bytes of float32; a function body takes it apart again with
standard operators, which ONNX Runtime folds where it has no kernel for the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from ortkit.kernels.layouts.conv_filters import Sizes
from ortkit.kernels.prepack import Prepack
from ortkit.kernels.signature import RegionSignature, TensorSpec

#: Columns of a strip.
STRIP = 16
#: Rows of a weight come in groups of this many: what one AMX tile takes.
DEPTH = 32


def layout(depth: int, columns: int) -> Prepack:
    """Return how a weight [depth, columns] lies, [V, D / 2, 16, 2]."""
    strips, pairs = -(-columns // STRIP), -(-depth // DEPTH) * DEPTH // 2
    whole = pairs * 2, strips * STRIP
    return Prepack((strips, pairs, STRIP, 2), (1, 3, 0, 2), whole, (depth, columns), "bfloat16")


def pack_weight(weight: np.ndarray) -> np.ndarray:
    """Return a weight as the kernels read it.

    Args:
        weight: float32 [K, N].

    Returns:
        bfloat16 [V, D / 2, 16, 2], V = ceil(N / 16), D = K rounded up to a multiple of 32:
        element [v, d, c, j] is weight[2 d + j, 16 v + c], rounded to nearest even; 0 outside.

    Raises:
        ValueError: The weight is no matrix.
    """
    if weight.ndim != 2:
        raise ValueError(f"a weight of rank {weight.ndim}, not 2")
    return np.ascontiguousarray(layout(*weight.shape).pack(weight))


def filter_layout(filters: Sizes) -> Prepack:
    """Return how a convolution's filter [M, C, kh, kw] lies: as the weight [kh kw C, M]."""
    columns, depth, *kernel = filters
    matrix = layout(depth * prod(kernel), columns)
    steps = ("Reshape", (*kernel, depth, columns)), ("Transpose", (3, 2, 0, 1))
    return replace(matrix, then=steps)


def pack_filter(weight: np.ndarray) -> np.ndarray:
    """Return the filter of a convolution, float32 [M, C, kh, kw], as the kernels read it.

    It is the weight [kh kw C, M] that the im2col rows are multiplied with.

    Raises:
        ValueError: The filter has not four axes.
    """
    if weight.ndim != 4:
        raise ValueError(f"a filter of rank {weight.ndim}, not 4")
    columns, depth, height, width = weight.shape
    packing = filter_layout((columns, depth, height, width))
    return np.ascontiguousarray(packing.pack(weight))


def unpack_weight(packed: np.ndarray, depth: int, columns: int) -> np.ndarray:
    """Return the float32 [depth, columns] that a packed weight stands for."""
    strips, pairs, _, _ = packed.shape
    whole = packed.astype(np.float32).transpose(1, 3, 0, 2).reshape(pairs * 2, strips * STRIP)
    return whole[:depth, :columns]


def unpack_text(packed: str, result: str, depth: int, columns: int) -> str:
    """Return the lines of a function body that do what `unpack_weight` does.

    Args:
        packed: The function's input.
        result: The float32 [depth, columns] to make; other values are called `<result>_...`.
        depth: K.
        columns: N.
    """
    found, lines = layout(depth, columns), list[str]()

    def op(role: str, op_type: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> str:
        name = result if role == found.last_role else f"{result}_{role}"
        text = ", ".join(f"{key} = {value}" for key, value in attributes.items())
        lines.append(f"{name} = {op_type}{f' <{text}>' if text else ''} ({', '.join(inputs)})")
        return name

    found.write(
        packed, op, lambda role, numbers: op(role, "Constant", (), {"value_ints": [*numbers]})
    )
    return "  ".join(lines)


@dataclass(frozen=True)
class Geometry:
    """Of a convolution of NHWC images.

    Args:
        image: Height and width.
        channels: Of the image.
        kernel: Height and width of the filter.
        strides: Vertical and horizontal.
        pads: Top, left, bottom, right.
        dilations: Vertical and horizontal.
    """

    image: tuple[int, int]
    channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)

    def text(self) -> str:
        """Return the attributes of the Conv."""
        names = ("kernel_shape", "strides", "pads", "dilations")
        values = (self.kernel, self.strides, self.pads, self.dilations)
        return ", ".join(f"{name} = {[*value]}" for name, value in zip(names, values, strict=True))


@dataclass(frozen=True)
class Product:
    """epilogue(A W + bias + ...) for `signature_of`.

    Args:
        rows: The leading dims of A.
        depth: K.
        columns: N.
        source: The type of A: "bfloat16", or "float32" which is rounded first.
        results: The type of each output; all are the same value.
        bias: Whether a float32 [N] is added.
        activation: Lines of the body from the value `s` to `t`, or "" for none.
        residual: The type of a tensor of the output's shape that is added last, or "" for none.
        geometry: Of a convolution, whose rows are [batch, height, width] of the result and whose
            depth is kh kw C; its A is bfloat16.
        gate: Whether pixels [batch, height, width, K] are multiplied by a float32 [batch, 1, 1, K]
            before they are rounded.
        opset: The model's.
    """

    rows: tuple[int | str, ...]
    depth: int
    columns: int
    source: str = "bfloat16"
    results: Sequence[str] = ("float32",)
    bias: bool = False
    activation: str = ""
    residual: str = ""
    geometry: Geometry | None = None
    gate: bool = False
    opset: int = 20


def signature_of(product: Product) -> RegionSignature:
    """Return the region of a product; inputs: A, packed weight, bias, residual, gate."""
    p = product
    inputs = [
        TensorSpec("a", p.source, _left_shape(p)),
        TensorSpec("w", "bfloat16", layout(p.depth, p.columns).shape),
    ]
    lines = _left_lines(p)
    lines += [unpack_text("w", "wf", p.depth, p.columns), _product_text(p)]
    value = "p"
    if p.bias:
        inputs.append(TensorSpec("b", "float32", (p.columns,)))
        lines.append("s = Add (p, b)")
        value = "s"
    if p.activation:
        lines += [*([] if p.bias else ["s = Identity (p)"]), p.activation]
        value = "t"
    if p.residual:
        inputs.append(TensorSpec("r", p.residual, (*p.rows, p.columns)))
        if p.residual == "bfloat16":
            lines.append("rf = Cast <to = 1> (r)")
        lines.append(f"u = Add ({value}, {'rf' if p.residual == 'bfloat16' else 'r'})")
        value = "u"
    if p.gate:
        inputs.append(TensorSpec("g", "float32", (*p.rows[:1], 1, 1, p.depth)))
    outputs = [TensorSpec(f"y{i}", kind, (*p.rows, p.columns)) for i, kind in enumerate(p.results)]
    for output in outputs:
        op = "Cast <to = 16>" if output.dtype == "bfloat16" else "Identity"
        lines.append(f"{output.name} = {op} ({value})")
    read, made = (", ".join(spec.name for spec in specs) for specs in (inputs, outputs))
    head = f'<opset_import: ["" : {p.opset}]> f ({read}) => ({made})'
    text = f"{head} {{ {'  '.join(lines)} }}"
    return RegionSignature("bf16_product", text, tuple(inputs), tuple(outputs))


def _left_shape(product: Product) -> tuple[int | str, ...]:
    geometry = product.geometry
    if geometry is None:
        return (*product.rows, product.depth)
    return (product.rows[0], *geometry.image, geometry.channels)


def _left_lines(product: Product) -> list[str]:
    """Return the lines that make the float32 `af` of A and its gate."""
    lines, value, is_wide = [], "a", product.source == "float32"
    if product.gate:
        if not is_wide:
            lines, value = ["aw = Cast <to = 1> (a)"], "aw"
        lines.append(f"ag = Mul ({value}, g)")
        value, is_wide = "ag", True
    if is_wide:
        lines.append(f"ar = Cast <to = 16> ({value})")
        value = "ar"
    return [*lines, f"af = Cast <to = 1> ({value})"]


def _product_text(product: Product) -> str:
    """Return the lines that make `p` of `af` and `wf`."""
    geometry = product.geometry
    if geometry is None:
        return "p = MatMul (af, wf)"
    shape = [*geometry.kernel, geometry.channels, product.columns]
    lines = [
        f"w_shape = Constant <value_ints = {shape}> ()",
        "w_filter = Reshape (wf, w_shape)",
        "w_conv = Transpose <perm = [3, 2, 0, 1]> (w_filter)",
        "a_conv = Transpose <perm = [0, 3, 1, 2]> (af)",
        f"p_conv = Conv <{geometry.text()}> (a_conv, w_conv)",
        "p = Transpose <perm = [0, 2, 3, 1]> (p_conv)",
    ]
    return "  ".join(lines)


def rounded(values: np.ndarray) -> Any:
    """Return float32 values rounded to bfloat16."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)
