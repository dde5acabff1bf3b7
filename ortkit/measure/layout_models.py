"""One node in each layout and type, as a model of its own that takes and gives what it did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortkit.measure.layout_cases import Attribute, LayoutCase

#: To channels last and back.
_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
_OPSET, _IR_VERSION = 22, 10
_CODES = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}  # fmt: skip
_NUMPY: Mapping[str, Any] = {
    "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
}  # fmt: skip
_QUANTIZED = 0.01


@dataclass(frozen=True)
class LayoutVariant:
    """One way to run the node."""

    layout: str
    dtype: str
    by: str
    """`onnxruntime` or `ortkit`."""
    model: onnx.ModelProto
    ops: tuple[str, ...]
    """What does the work in the trace; everything else is conversion."""
    element: str
    """The type that the work must read in the trace, else there is no kernel of that type."""
    needs: str = ""
    """An op that is in the trace if the layout was taken."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    transposed: str = ""
    """The layout, if ONNX Runtime itself put Transposes around the node."""


def feeds_of(case: LayoutCase) -> dict[str, np.ndarray]:
    """Return what is no weight, made up: `x`, and what else the node reads."""
    return {
        _name(index): _random(case.inputs[index], index)
        for index, constant in enumerate(case.constant)
        if not constant
    }


def float_variants(case: LayoutCase, on_cuda: bool) -> Iterator[LayoutVariant]:
    """Yield the node as ONNX Runtime may run it in floating point, its own layout first."""
    own = "NCHW" if case.op == "Conv" else "row-major"
    # Up to "extended" ONNX Runtime leaves convolutions in their layout.
    plain = _float(case, own, case.dtype, settings={"optimizations": "extended"})
    yield plain
    if case.op == "Conv" and on_cuda:
        nhwc = {"target": [["CUDAExecutionProvider", {"prefer_nhwc": "1"}]]}
        yield replace(plain, layout="NHWC", settings=nhwc, needs="Transpose")
    elif case.op == "Conv" and case.dtype == "float32":
        yield replace(plain, layout="NCHWc", settings={}, needs="ReorderOutput")
    elif case.op != "Conv" and not on_cuda and case.constant[1]:
        unpacked = {"config": {"session.disable_prepacking": "1"}}
        yield replace(plain, layout="row-major, not packed", settings=unpacked)
    for dtype in ("float16", "bfloat16", "float32"):
        if dtype != case.dtype:
            yield _float(case, own, dtype)


def _float(
    case: LayoutCase, layout: str, dtype: str, settings: Mapping[str, Any] | None = None
) -> LayoutVariant:
    return LayoutVariant(
        layout=layout,
        dtype=dtype,
        by="onnxruntime",
        model=_written(case, dtype),
        ops=(case.op, f"Fused{case.op}"),
        element=dtype,
        settings=settings or {},
    )


def nhwc_variant(case: LayoutCase) -> LayoutVariant | None:
    """Return a Conv with channels last by ONNX Runtime's own operator; None if it is no such."""
    if case.op != "Conv" or not is_image(case):
        return None
    nodes = [
        _transposed("x", "x_last", _LAST),
        _node("NhwcFusedConv", ["x_last", *_names(case)[1:]], "y_last", case.attributes,
              domain="com.microsoft"),
        _transposed("y_last", "y", _FIRST),
    ]  # fmt: skip
    return LayoutVariant(
        "NHWC", case.dtype, "onnxruntime", _model(case, nodes, case.dtype), ("NhwcFusedConv",),
        case.dtype,
    )  # fmt: skip


def int8_variant(case: LayoutCase) -> LayoutVariant | None:
    """Return the node on 8-bit integers, None where ONNX Runtime has no such operator."""
    if not case.constant[1] or not _is_plain_product(case):
        return None
    shape = case.inputs[1][1]
    if case.op == "Gemm" and dict(case.attributes).get("transB"):
        shape = shape[::-1]
    random = np.random.default_rng(1)
    weight = random.integers(-100, 100, shape, dtype=np.int8)
    extra = [
        numpy_helper.from_array(np.array(_QUANTIZED, np.float32), "scale"),
        numpy_helper.from_array(np.array(128, np.uint8), "zero"),
        numpy_helper.from_array(np.array(0, np.int8), "zero_weight"),
        numpy_helper.from_array(weight, "weight"),
    ]
    quantized = ["quantized", "scale", "zero", "weight", "scale", "zero_weight", "scale", "zero"]
    is_conv = case.op == "Conv"
    op = "QLinearConv" if is_conv else "QLinearMatMul"
    attributes = case.attributes if is_conv else ()
    source, cast = "x", []
    if case.dtype != "float32":
        cast = [helper.make_node("Cast", ["x"], ["x_float"], to=TensorProto.FLOAT)]
        source = "x_float"
    nodes = [
        *cast,
        helper.make_node("QuantizeLinear", [source, "scale", "zero"], ["quantized"]),
        _node(op, quantized, "result", attributes),
        helper.make_node("DequantizeLinear", ["result", "scale", "zero"], ["y"]),
    ]
    own = "NCHW" if is_conv else "row-major"
    model = _wrapped(nodes, _inputs(case), extra)
    last = "NHWC" if is_conv else ""
    return LayoutVariant(own, "int8", "onnxruntime", model, (op,), "uint8", transposed=last)


def kernel_variant(case: LayoutCase, made: Any, weights: Mapping[str, tuple[int, ...]],
                   *, is_planar: bool) -> LayoutVariant:  # fmt: skip
    """Return the node with a kernel of ours, channels last.

    Args:
        case: A Conv.
        made: The region's signature.
        weights: Shapes of its inputs in addition to `x`.
        is_planar: Whether it reads channels first.
    """
    function = made.function()
    function.domain, function.name = "ortkit.fused", made.op_type
    random = np.random.default_rng(2)
    extra = [
        numpy_helper.from_array(random.random(shape, np.float32), name)
        for name, shape in weights.items()
    ]
    first = [] if is_planar else [_transposed("x", "x_last", _LAST)]
    inputs = ["x" if is_planar else "x_last", *weights]
    nodes = [
        *first,
        helper.make_node(made.op_type, inputs, ["y_last"], domain="ortkit.fused"),
        _transposed("y_last", "y", _FIRST),
    ]
    model = _wrapped(nodes, _inputs(case), extra, functions=[function])
    return LayoutVariant("NHWC", "float32", "ortkit", model, (made.op_type,), "float32")


def is_image(case: LayoutCase) -> bool:
    """Say whether the data are [batch, channels, height, width]."""
    return len(case.inputs[0][1]) == 4


def _is_plain_product(case: LayoutCase) -> bool:
    if case.op == "Conv":
        return True
    given = dict(case.attributes)
    return len(case.inputs[1][1]) == 2 and not given.get("transA")


def _written(case: LayoutCase, dtype: str) -> onnx.ModelProto:
    """Return the node in a type, with casts around it if that is not its own."""
    if dtype == case.dtype:
        return _model(case, [_node(case.op, _names(case), "y", case.attributes)], dtype)
    casts, names = [], []
    for name, constant in zip(_names(case), case.constant, strict=True):
        if not constant:
            casts.append(helper.make_node("Cast", [name], [f"{name}_cast"], to=_CODES[dtype]))
        names.append(name if constant else f"{name}_cast")
    nodes = [
        *casts,
        _node(case.op, names, "y_cast", case.attributes),
        helper.make_node("Cast", ["y_cast"], ["y"], to=_CODES[case.dtype]),
    ]
    return _model(case, nodes, dtype)


def _model(case: LayoutCase, nodes: Sequence[onnx.NodeProto], dtype: str) -> onnx.ModelProto:
    weights = [
        _tensor(_name(index), _random(case.inputs[index], index), dtype)
        for index, constant in enumerate(case.constant)
        if constant
    ]
    return _wrapped(nodes, _inputs(case), weights)


def _wrapped(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto],
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    outputs = [helper.make_empty_tensor_value_info("y")]
    domains = {"": _OPSET, "com.microsoft": 1, "ortkit.fused": 1}
    if functions:  # a function's opset is its model's
        domains[""] = functions[0].opset_import[0].version
    used = {"", *(node.domain for node in nodes)}
    return helper.make_model(
        helper.make_graph(nodes, "node", inputs, outputs, weights),
        ir_version=_IR_VERSION,
        opset_imports=[
            helper.make_opsetid(name, domains[name]) for name in domains if name in used
        ],
        functions=functions,
    )


def _inputs(case: LayoutCase) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(
            _name(index), _CODES[case.inputs[index][0]], case.inputs[index][1]
        )
        for index, constant in enumerate(case.constant)
        if not constant
    ]


def _names(case: LayoutCase) -> list[str]:
    return [_name(index) for index in range(len(case.inputs))]


def _name(index: int) -> str:
    return "x" if index == 0 else f"x{index}"


def _node(
    op: str,
    inputs: Sequence[str],
    output: str,
    attributes: Iterable[tuple[str, Attribute]],
    domain: str = "",
) -> onnx.NodeProto:
    made = helper.make_node(op, inputs, [output], domain=domain)
    made.attribute.extend(helper.make_attribute(name, value) for name, value in attributes)
    return made


def _transposed(source: str, result: str, order: Sequence[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [result], perm=list(order))


def _tensor(name: str, array: np.ndarray, dtype: str) -> onnx.TensorProto:
    content = array.astype(_NUMPY[dtype]).tobytes()
    return helper.make_tensor(name, _CODES[dtype], array.shape, content, raw=True)


def _random(spec: tuple[str, tuple[int, ...]], seed: int) -> np.ndarray:
    """Return numbers around 0, weights small enough that sums stay near 1."""
    dtype, dims = spec
    scale = 1.0 if seed == 0 else 1.0 / max(1.0, float(prod(dims[1:]))) ** 0.5
    made = np.random.default_rng(seed).standard_normal(dims, np.float32) * np.float32(scale)
    return np.asarray(made).astype(_NUMPY[dtype])
