"""Evaluate one node over constants.

Ops that only move data, integer arithmetic and the exactly rounded float ops run in numpy, which
gives ONNX Runtime's own bits. All others run in ONNX Runtime itself, one node at a time, or in
onnx's reference evaluator where no runtime is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

Array = np.ndarray
Inputs = Sequence[Array | None]


class Unsupported(Exception):  # noqa: N818 - a verdict, not an error
    """The node cannot be evaluated here; the message says why."""


def evaluate(node: ir.Node, inputs: Inputs, opset: int) -> list[Array | None]:
    """Return the node's outputs, None for those that are not connected.

    Args:
        node: A node without subgraphs, of the default domain or one that ONNX Runtime knows.
        inputs: One array per input, None where the input is absent.
        opset: Version of the default domain.

    Raises:
        Unsupported: Neither numpy nor a runtime can evaluate it.
    """
    simple = SIMPLE.get(node.op_type) if node.domain == "" and len(node.outputs) == 1 else None
    if simple is not None and all(_is_plain(array) for array in inputs):
        try:
            with np.errstate(all="ignore"):
                result = simple(node, inputs, opset)
        except (ValueError, IndexError, TypeError) as error:
            raise Unsupported(f"numpy refuses it: {error}") from error
        if result is not None:
            return [np.ascontiguousarray(result).reshape(np.shape(result))]
    return _in_runtime(node, inputs, opset)


def _is_plain(array: Array | None) -> bool:
    return array is None or array.dtype.kind in "biuf"


# ---- numpy -------------------------------------------------------------------------------


def _attribute(node: ir.Node, name: str, default: int) -> int:
    found = node.attributes.get(name)
    return default if found is None else found.as_int()


def _need(array: Array | None) -> Array:
    if array is None:
        raise ValueError("a required input is absent")
    return array


def _axes(node: ir.Node, inputs: Inputs) -> tuple[int, ...] | None:
    if len(inputs) > 1 and inputs[1] is not None:
        return tuple(int(axis) for axis in inputs[1].reshape(-1))
    found = node.attributes.get("axes")
    return None if found is None else tuple(found.as_ints())


def _binary(function: Callable[[Array, Array], Array]) -> Callable[..., Array | None]:
    def run(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
        a, b = _need(inputs[0]), _need(inputs[1])
        if opset < 7 or a.dtype != b.dtype:
            return None
        return np.asarray(function(a, b))

    return run


def _unary(function: Callable[[Array], Array]) -> Callable[..., Array | None]:
    def run(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
        x = _need(inputs[0])
        result = np.asarray(function(x))
        return result if result.dtype == x.dtype or result.dtype == np.bool_ else None

    return run


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if (b == 0).any():
        raise ValueError("integer division by zero")
    quotient = np.abs(a) // np.abs(b)
    return np.asarray((quotient * np.sign(a) * np.sign(b)).astype(a.dtype))


def _cast(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    x = _need(inputs[0])
    to = ir.DataType(_attribute(node, "to", 0))
    try:
        dtype = to.numpy()
    except TypeError:
        return None
    if dtype.kind not in "biuf" or (x.dtype.kind == "f" and dtype.kind in "iu"):
        return None
    return x.astype(dtype)


def _reshape(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    if opset < 5:
        return None
    x, target = _need(inputs[0]), [int(size) for size in _need(inputs[1]).reshape(-1)]
    if not _attribute(node, "allowzero", 0):
        target = [x.shape[i] if size == 0 else size for i, size in enumerate(target)]
    return x.reshape(target)


def _transpose(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    perm = node.attributes.get("perm")
    return np.transpose(_need(inputs[0]), None if perm is None else tuple(perm.as_ints()))


def _unsqueeze(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    axes = _axes(node, inputs)
    return None if axes is None else np.expand_dims(_need(inputs[0]), axes)


def _squeeze(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    return np.squeeze(_need(inputs[0]), _axes(node, inputs))


def _concat(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    return np.concatenate([_need(array) for array in inputs], _attribute(node, "axis", 1))


def _gather(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    return np.take(_need(inputs[0]), _need(inputs[1]), axis=_attribute(node, "axis", 0))


def _shape(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    shape = np.array(_need(inputs[0]).shape, np.int64)
    end = node.attributes.get("end")
    return shape[_attribute(node, "start", 0) : None if end is None else end.as_int()]


def _constant_of_shape(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    value = node.attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()
    return np.full(tuple(int(size) for size in _need(inputs[0])), fill.reshape(-1)[0], fill.dtype)


def _expand(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    x, target = _need(inputs[0]), tuple(int(size) for size in _need(inputs[1]))
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, target))


def _slice(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    if opset < 10:
        return None
    x = _need(inputs[0])
    starts, ends = _need(inputs[1]).tolist(), _need(inputs[2]).tolist()
    given = [inputs[i].tolist() if len(inputs) > i and inputs[i] is not None else None for i in (3, 4)]  # type: ignore[union-attr]  # fmt: skip
    axes, steps = given[0] or range(len(starts)), given[1] or [1] * len(starts)
    index: list[slice] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 0 and end < -x.shape[axis]:
            end = None
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _where(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    return np.where(_need(inputs[0]), _need(inputs[1]), _need(inputs[2]))


def _range(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    start, limit, delta = (_need(array).reshape(-1)[0] for array in inputs)
    return np.arange(start, limit, delta, start.dtype) if start.dtype.kind == "i" else None


SIMPLE: Mapping[str, Callable[[ir.Node, Inputs, int], Array | None]] = {
    "Abs": _unary(np.abs),
    "Add": _binary(np.add),
    "And": _binary(np.logical_and),
    "Cast": _cast,
    "Ceil": _unary(np.ceil),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _binary(_divide),
    "Equal": _binary(np.equal),
    "Expand": _expand,
    "Floor": _unary(np.floor),
    "Gather": _gather,
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "Identity": _unary(lambda x: x),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "Mul": _binary(np.multiply),
    "Neg": _unary(np.negative),
    "Not": _unary(np.logical_not),
    "Or": _binary(np.logical_or),
    "Range": _range,
    "Reciprocal": _unary(lambda x: np.ones((), x.dtype) / x),
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _unary(lambda x: np.array(x.size, np.int64)),
    "Slice": _slice,
    "Sqrt": _unary(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(np.subtract),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}


# ---- a runtime -----------------------------------------------------------------------------


def _in_runtime(node: ir.Node, inputs: Inputs, opset: int) -> list[Array | None]:
    model, feeds = _one_node_model(node, inputs, opset)
    try:
        import onnxruntime
    except ImportError:
        return _in_reference(node, model, feeds)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # onnxruntime's exceptions have RuntimeError or ValueError as their only common bases.
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = iter(session.run(None, feeds))
    except (RuntimeError, ValueError) as error:
        raise Unsupported(f"ONNX Runtime cannot evaluate it: {_first_line(error)}") from error
    return [next(results) if value.name else None for value in node.outputs]


def _in_reference(
    node: ir.Node, model: onnx.ModelProto, feeds: dict[str, Array]
) -> list[Array | None]:
    if node.domain != "":
        raise Unsupported("no ONNX Runtime is installed to evaluate it")
    from onnx.reference import ReferenceEvaluator

    try:
        results = iter(ReferenceEvaluator(model).run(None, feeds))
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        raise Unsupported(f"the reference evaluator fails: {_first_line(error)}") from error
    return [np.asarray(next(results)) if value.name else None for value in node.outputs]


def _one_node_model(
    node: ir.Node, inputs: Inputs, opset: int
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    feeds: dict[str, Array] = {}
    infos = []
    names = []
    for i, array in enumerate(inputs):
        if array is None:
            names.append("")
            continue
        names.append(f"x{i}")
        if not _is_plain(array):
            raise Unsupported(f"its input has type {array.dtype}")
        feeds[f"x{i}"] = array
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        infos.append(onnx.helper.make_tensor_value_info(f"x{i}", dtype, array.shape))
    proto = ir.to_proto(node)
    assert isinstance(proto, onnx.NodeProto)
    del proto.input[:], proto.output[:]
    proto.input.extend(names)
    outputs = [f"y{i}" if value.name else "" for i, value in enumerate(node.outputs)]
    proto.output.extend(outputs)
    results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    opsets = [onnx.helper.make_opsetid("", opset)]
    if node.domain:
        opsets.append(onnx.helper.make_opsetid(node.domain, 1))
    graph = onnx.helper.make_graph([proto], "one_node", infos, results)
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)
