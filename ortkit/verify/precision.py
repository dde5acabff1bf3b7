"""In how coarse a float type a value was computed, which its own type does not say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import nodes_below, roots, subgraphs

_D = ir.DataType
#: From fine to coarse: a result is no better than the coarsest value on the way to it.
_ORDER = (_D.DOUBLE, _D.FLOAT, _D.FLOAT16, _D.BFLOAT16)
_LEVELS = {dtype: level for level, dtype in enumerate(_ORDER, 1)}


def coarser_origins(model: ir.Model) -> dict[str, str]:
    """Return values by name that are computed from a coarser float type than their own.

    Constants do not count: a float16 weight that is cast to float32 is exact. A model whose
    inputs and outputs are float32 may compute in float16 all the same.

    Returns:
        The coarsest type on the way to each, as numpy and ml_dtypes name it.
    """
    if len(_float_types(model)) < 2:
        return {}
    shapes = Shapes.infer(model)
    levels = {value: _LEVELS.get(value.dtype or _D.UNDEFINED, 0) for value in _given(model.graph)}
    found: dict[str, str] = {}
    for node in model.graph:
        inside = [inner for body in subgraphs(node) for inner in nodes_below(body)]
        read = [levels[v] for each in (node, *inside) for v in each.inputs if v in levels]
        if not read:
            continue  # it is constant
        made = [_level(shapes, v) for each in (node, *inside) for v in each.outputs]
        called = model.functions.get(node.op_identifier())
        casts = [] if called is None else [_LEVELS.get(t, 0) for t in _cast_types(called)]
        level = max([*read, *made, *casts])
        for value in node.outputs:
            levels[value] = level
            if 0 < _level(shapes, value) < level:
                found[value.name or ""] = _ORDER[level - 1].numpy().name
    return found


def coarsest_type(model: ir.Model) -> str:
    """Return the coarsest type in which a model has values: a half, or `int8` if it quantizes.

    Returns:
        Its name as numpy and ml_dtypes have it; empty for float32 and finer ones.
    """
    if any(is_quantizing(node) for root in roots(model) for node in nodes_below(root)):
        return "int8"
    halves = [dtype for dtype in _ORDER[2:] if dtype in _float_types(model)]
    return halves[-1].numpy().name if halves else ""


def is_quantizing(node: ir.Node) -> bool:
    """Say whether a node rounds a float to 8 bits or fewer, or computes in such."""
    return node.domain in _QUANTIZING_DOMAINS and (
        node.op_type.startswith(_QUANTIZING_STARTS) or node.op_type in _QUANTIZING
    )


#: Operators of ONNX and of ONNX Runtime, by name and by the start of their name.
_QUANTIZING_DOMAINS = ("", "com.microsoft")
_QUANTIZING_STARTS = ("QuantizeLinear", "DynamicQuantize", "QLinear", "QGemm", "QAttention")
_QUANTIZING = frozenset({"MatMulInteger", "ConvInteger", "MatMulIntegerToFloat", "MatMulNBits"})


def _given(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (value for value in graph.inputs if not value.is_initializer())


def _level(shapes: Shapes, value: ir.Value) -> int:
    return _LEVELS.get(shapes.dtype(value) or _D.UNDEFINED, 0)


def _float_types(model: ir.Model) -> set[ir.DataType]:
    """Return the float types that the model's inputs, constants and casts name."""
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    found = {value.dtype for value in values if value.dtype is not None}
    for root in roots(model):
        found.update(_cast_types(root))
    return found & _LEVELS.keys()


def _cast_types(root: ir.Graph | ir.Function) -> Iterable[ir.DataType]:
    for node in nodes_below(root):
        attributes: Mapping[str, ir.Attr] = node.attributes
        for attribute in attributes.values():
            if attribute.is_ref():
                continue
            if attribute.name in ("to", "dtype") and attribute.type == ir.AttributeType.INT:
                with suppress(ValueError):  # a type that does not exist
                    yield ir.DataType(attribute.as_int())
            elif attribute.type == ir.AttributeType.TENSOR:
                yield attribute.as_tensor().dtype
