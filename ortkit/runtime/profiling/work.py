"""How much a node's call computes and moves, from the shapes that the trace shows.

ONNX Runtime packs constant weights for its kernels when a session is made; they are then no
inputs in the trace; the model fills them in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortkit.graph.analysis.cost import node_bytes
from ortkit.graph.analysis.flops import UnknownCostError, node_flops
from ortkit.runtime.profiling.body_flops import BodyFlops
from ortkit.runtime.profiling.call_work import CallWork
from ortkit.runtime.profiling.trace.events import NodeSignature, TensorShape

_NAMES = {"float32": "FLOAT", "float64": "DOUBLE"}
#: More inputs than that are not tried out in all orders.
_MOST_SKIPS = 4096


def call_work(
    signature: NodeSignature, node: ir.Node, bodies: BodyFlops | None = None
) -> CallWork | None:
    """Work out one call; None: the node and what the trace shows do not go together.

    Args:
        signature: What the trace says.
        node: The node of the graph that ran.
        bodies: Counts for the model's own functions.
    """
    matched = matched_inputs(node, signature.inputs)
    if matched is None:
        return None
    seen = _Seen(matched)
    outputs = [value for value in node.outputs if value.name]
    if len(outputs) == len(signature.outputs):
        seen.tensors.update(zip(outputs, signature.outputs, strict=True))
    weights = [
        value
        for value in node.inputs
        if value is not None and value in matched and _constant(value) is not None
    ]
    inputs = tuple(
        seen.tensors[value] for value in node.inputs if value is not None and value in matched
    )
    flops = _known(node_flops, node, seen)
    if flops is None and bodies is not None:
        flops = bodies.of(
            node, [None if value is None else seen.typed(value) for value in node.inputs]
        )
    return CallWork(
        flops,
        _known(node_bytes, node, seen),
        sum(tensor_bytes(seen.tensors[fromkey]) for fromkey in dict.fromkeys(weights)),
        _dtype(inputs or signature.outputs),
        inputs,
    )


def matched_inputs(
    node: ir.Node, shown: Sequence[TensorShape]
) -> dict[ir.Value, TensorShape] | None:
    """Say which tensor is which input; those of packed weights are the model's own.

    None: they do not go together.
    """
    present = [value for value in node.inputs if value is not None and _is_tensor(value)]
    skips = len(present) - len(shown)
    weights = [at for at, value in enumerate(present) if _constant(value) is not None]
    if skips < 0 or skips > len(weights) or math.comb(len(weights), skips) > _MOST_SKIPS:
        return None
    for left_out in _choices(weights, skips):
        kept = [value for at, value in enumerate(present) if at not in left_out]
        pairs = list(zip(kept, shown, strict=True))
        if all(_constant(value) in (None, tensor) for value, tensor in pairs):
            found = dict(pairs)
            for at in left_out:
                if (constant := _constant(present[at])) is not None:
                    found[present[at]] = constant
            return found
    return None


def _choices(items: Sequence[int], count: int) -> Sequence[frozenset[int]]:
    from itertools import combinations

    return [frozenset(combination) for combination in combinations(items, count)]


class _Seen:
    """Shapes and types as a run has shown them."""

    def __init__(self, tensors: Mapping[ir.Value, TensorShape]) -> None:
        self.tensors = dict(tensors)

    def shape(self, value: ir.Value, /) -> Sequence[int] | None:
        known = self.tensors.get(value)
        return None if known is None else known[1]

    def typed(self, value: ir.Value) -> tuple[ir.DataType, tuple[int, ...]] | None:
        known = self.tensors.get(value)
        return None if known is None else (_data_type(known[0]), tuple(known[1]))

    def dtype(self, value: ir.Value, /) -> ir.DataType | None:
        known = self.tensors.get(value)
        return None if known is None else _data_type(known[0])


def _known(rule: object, node: ir.Node, seen: _Seen) -> int | None:
    try:
        found = rule(node, seen)  # type: ignore[operator]
    except UnknownCostError:
        return None
    return found if isinstance(found, int) else None


def _is_tensor(value: ir.Value) -> bool:
    return not isinstance(value.type, ir.SequenceType | ir.OptionalType)


def _constant(value: ir.Value) -> TensorShape | None:
    """Return type and shape of an initializer."""
    if not value.is_initializer() or value.const_value is None:
        return None
    tensor = value.const_value
    name = tensor.dtype.name
    known = {of: numpy for numpy, of in _NAMES.items()}.get(name, name.lower())
    return known, tuple(int(dim) for dim in tensor.shape.numpy())


def _data_type(dtype: str) -> ir.DataType:
    name = _NAMES.get(dtype, dtype.upper())
    return ir.DataType[name] if name in ir.DataType.__members__ else ir.DataType.UNDEFINED


def tensor_bytes(tensor: TensorShape) -> int:
    """Return the bytes of a tensor, 0 for strings and types that are not known."""
    dtype = _data_type(tensor[0])
    if dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return 0
    return math.prod(tensor[1]) * dtype.bitwidth // 8


def _dtype(tensors: Sequence[TensorShape]) -> str:
    return tensors[0][0] if tensors else ""
