"""ONNX Runtime's own ops in standard ops, for the bodies of fused nodes.

A body runs wherever there is no kernel library, also in other runtimes. Where the opset has an op
for the whole, it stays whole: ONNX Runtime runs it fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.kernels.node_writer import NodeWriter

GELU_SINCE, RMS_NORM_SINCE, AXES_INPUT_SINCE, LAYER_NORM_SINCE = 20, 23, 18, 17
#: What ONNX Runtime's skip norms add where no epsilon is given, and what ONNX's norms do.
SKIP_EPSILON, EPSILON = 1e-12, 1e-5
QUICK_ALPHA = 1.702
_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Call:
    """A node to write: its inputs and outputs by their names in the body.

    Args:
        inputs: Empty names are absent ones.
        outputs: Empty names are not read.
        attributes: By name, numbers only.
        dtype: Of the first input.
        opset: The default domain's version.
        axis: The first axis that a norm is computed over, counted from the last one.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, float]
    dtype: np.dtype
    opset: int
    axis: int = -1


def _cast(w: NodeWriter, x: str, dtype: np.dtype) -> str:
    return w.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(dtype))


def _gelu(w: NodeWriter, call: Call, x: str, *, tanh: bool) -> None:
    y = call.outputs[0]
    if call.opset >= GELU_SINCE:
        w.named(y, "Gelu", x, approximate="tanh" if tanh else "none")
    elif tanh:
        # Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
        rate = float(np.sqrt(2 / np.pi))
        bent = w.op("Mul", w.op("Mul", x, x), w.number(rate * 0.044715))
        inner = w.op("Mul", x, w.op("Add", bent, w.number(rate)))
        shifted = w.op("Add", w.op("Tanh", inner), w.number(1))
        w.named(y, "Mul", w.op("Mul", x, w.number(0.5)), shifted)
    else:
        scaled = w.op("Div", x, w.number(float(np.sqrt(2))))
        shifted = w.op("Add", w.op("Erf", scaled), w.number(1))
        w.named(y, "Mul", w.op("Mul", x, w.number(0.5)), shifted)


def _biased(w: NodeWriter, call: Call) -> str:
    return w.op("Add", *call.inputs) if len(call.inputs) > 1 and call.inputs[1] else call.inputs[0]


def _erf_gelu(w: NodeWriter, call: Call) -> None:
    _gelu(w, call, _biased(w, call), tanh=False)


def _tanh_gelu(w: NodeWriter, call: Call) -> None:
    _gelu(w, call, _biased(w, call), tanh=True)


def _quick_gelu(w: NodeWriter, call: Call) -> None:
    x, alpha = call.inputs[0], call.attributes.get("alpha", QUICK_ALPHA)
    scaled = x if alpha == 1 else w.op("Mul", x, w.number(alpha))
    w.named(call.outputs[0], "Mul", x, w.op("Sigmoid", scaled))


def _rms_norm(w: NodeWriter, call: Call, x: str, scale: str, epsilon: float) -> None:
    if call.opset >= RMS_NORM_SINCE:
        w.named(call.outputs[0], "RMSNormalization", x, scale, axis=-1, epsilon=epsilon)
        return
    # With Pow and Div, as ONNX Runtime knows it again, and not in half precision: it would take
    # the epsilon for 1e-5, and in other runtimes squares overflow.
    is_narrow = call.dtype.itemsize < _FLOAT.itemsize
    wide, wide_type = (_cast(w, x, _FLOAT), _FLOAT) if is_narrow else (x, call.dtype)
    square = w.op("Pow", wide, w.number(2, wide_type))
    if call.opset >= AXES_INPUT_SINCE:
        mean = w.op("ReduceMean", square, w.integers(-1), keepdims=1)
    else:
        mean = w.op("ReduceMean", square, axes=[-1], keepdims=1)
    root = w.op("Sqrt", w.op("Add", mean, w.number(epsilon, wide_type)))
    normal = w.op("Div", wide, root)
    w.named(call.outputs[0], "Mul", _cast(w, normal, call.dtype) if is_narrow else normal, scale)


def _simplified_norm(w: NodeWriter, call: Call) -> None:
    x, scale = call.inputs[:2]
    _rms_norm(w, call, x, scale, call.attributes.get("epsilon", EPSILON))


def _skip_sum(w: NodeWriter, call: Call, bias: int) -> str:
    """Write the sum of a skip norm, which is its fourth output."""
    wanted = call.outputs[3] if len(call.outputs) > 3 else ""
    terms = [call.inputs[0], call.inputs[1], *call.inputs[bias : bias + 1]]
    terms = [term for term in terms if term]
    total = terms[0]
    for index, term in enumerate(terms[1:], start=2):
        total = w.named(wanted if index == len(terms) else "", "Add", total, term)
    return total


def _skip_layer_norm(w: NodeWriter, call: Call) -> None:
    scale, bias = [*call.inputs, "", ""][2:4]
    epsilon = call.attributes.get("epsilon", SKIP_EPSILON)
    total = _skip_sum(w, call, bias=4)
    if call.opset < LAYER_NORM_SINCE:
        _written_layer_norm(w, call, total, scale, bias, epsilon)
        return
    scale_and_bias = [name for name in (scale, bias) if name]
    w.named(
        call.outputs[0],
        "LayerNormalization",
        total,
        *scale_and_bias,
        axis=-1,
        epsilon=epsilon,
    )


def _layer_norm(w: NodeWriter, call: Call) -> None:
    x, scale, bias = [*call.inputs, ""][:3]
    epsilon = call.attributes.get("epsilon", EPSILON)
    _written_layer_norm(w, call, x, scale, bias, epsilon)


def _written_layer_norm(
    w: NodeWriter, call: Call, x: str, scale: str, bias: str, epsilon: float
) -> None:
    """Write a norm for opsets that have none, in float32 at least, as ONNX Runtime knows it again.

    ONNX Runtime (1.31.1) has the op in the default domain of these opsets, too, but crashes where
    a function holds it.
    """
    is_narrow = call.dtype.itemsize < _FLOAT.itemsize
    wide, wide_type = (_cast(w, x, _FLOAT), _FLOAT) if is_narrow else (x, call.dtype)
    axes = tuple(range(call.axis, 0))
    centered = w.op("Sub", wide, w.op("ReduceMean", wide, axes=axes, keepdims=1))
    square = w.op("Pow", centered, w.number(2, wide_type))
    variance = w.op("ReduceMean", square, axes=axes, keepdims=1)
    root = w.op("Sqrt", w.op("Add", variance, w.number(epsilon, wide_type)))
    normal = w.op("Div", centered, root)
    scaled = _cast(w, normal, call.dtype) if is_narrow else normal
    w.named("" if bias else call.outputs[0], "Mul", scaled, scale)
    if bias:
        w.named(call.outputs[0], "Add", w.nodes[-1].output[0], bias)


def _skip_rms_norm(w: NodeWriter, call: Call) -> None:
    total = _skip_sum(w, call, bias=3)
    epsilon = call.attributes.get("epsilon", SKIP_EPSILON)
    _rms_norm(w, call, total, call.inputs[2], epsilon)


_WRITTEN: dict[tuple[str, str], Callable[[NodeWriter, Call], None]] = {
    ("com.microsoft", "BiasGelu"): _erf_gelu,
    ("com.microsoft", "FastGelu"): _tanh_gelu,
    ("com.microsoft", "Gelu"): _erf_gelu,
    ("com.microsoft", "QuickGelu"): _quick_gelu,
    ("com.microsoft", "SkipLayerNormalization"): _skip_layer_norm,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_rms_norm,
    ("", "SimplifiedLayerNormalization"): _simplified_norm,
}
#: Ops of ONNX that ONNX Runtime has in older opsets, too: the version that they come with.
_EARLY: dict[tuple[str, str], tuple[int, Callable[[NodeWriter, Call], None]]] = {
    ("", "LayerNormalization"): (LAYER_NORM_SINCE, _layer_norm),
}


def is_runtime_own(node: ir.Node) -> bool:
    """Say whether the node's op is ONNX Runtime's own and has a form in standard ops."""
    return (node.domain, node.op_type) in _WRITTEN


def needs_standard_form(node: ir.Node, opset: int) -> bool:
    """Say whether the default domain of this version has no such op, but a form of it."""
    early = _EARLY.get((node.domain, node.op_type))
    return is_runtime_own(node) or (early is not None and opset < early[0])


def standard_form(node: ir.Node, call: Call) -> list[onnx.NodeProto]:
    """Return nodes of standard ops that compute what `node` does; see `needs_standard_form`."""
    writer = NodeWriter(f"{next(filter(None, call.outputs))}_", call.dtype)
    kind = node.domain, node.op_type
    write = _WRITTEN[kind] if kind in _WRITTEN else _EARLY[kind][1]
    write(writer, call)
    return writer.nodes


def write_step(writer: NodeWriter, node: ir.Node, inputs: Sequence[str], opset: int) -> str:
    """Add a pointwise node in standard ops, and return its result.

    Args:
        writer: Of the body.
        node: The graph's.
        inputs: What it reads in the body, empty for what is absent.
        opset: The default domain's version.
    """
    if not is_runtime_own(node):
        attributes = {name: each.value for name, each in node.attributes.items()}
        return writer.op(node.op_type, *inputs, **attributes)
    numbers = {name: each.as_float() for name, each in node.attributes.items()}
    made = f"s{len(writer.nodes)}"
    call = Call(tuple(inputs), (made,), numbers, writer.dtype, opset)
    writer.nodes += standard_form(node, call)
    return made
