"""Split a fused gate-up projection (GLU, SwiGLU) into two matmuls before regions are formed.

The projection (Phi-3, GLM-4, Llama 4) is a matmul, a Split in two halves, and their elementwise
product. As two matmuls both sums stay in the registers of one kernel. A pair that went into no
region becomes one matmul again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.fusion.gemm.cuda import epilogue_chain_of, is_product, is_read_once, is_transposed
from ortkit.fusion.regions.lower import drop_initializer
from ortkit.rewrite.scope import Scope

_HALF_COUNT = 2


@dataclass(frozen=True)
class _SplitGateUp:
    """A removed matmul and Split, their inputs, and the two matmuls in their place."""

    scope: Scope
    whole: ir.Node
    split: ir.Node
    read: tuple[tuple[ir.Value | None, ...], tuple[ir.Value | None, ...]]
    halves: tuple[ir.Node, ir.Node]


@contextmanager
def split_gate_up(
    scopes: Sequence[Scope], wanted: Callable[[Scope, ir.Node], bool]
) -> Iterator[None]:
    """Split gate-up projections into two matmuls. On exit unfused pairs are restored.

    Args:
        scopes: Whose graphs are looked at.
        wanted: True for a matmul that is faster as two in one kernel.
    """
    splits = [one for scope in scopes for one in _split_all(scope, wanted)]
    try:
        yield
    finally:
        for one in splits:
            _restore(one)


def _split_all(scope: Scope, wanted: Callable[[Scope, ir.Node], bool]) -> Iterator[_SplitGateUp]:
    if not isinstance(scope.root, ir.Graph):
        return
    for node in list(scope.root):
        split = _split_consumer(scope, node)
        if split is None or not wanted(scope, node):
            continue
        made = _split(scope, node, split)
        if len(epilogue_chain_of(scope, made.halves[0], set()).products) == _HALF_COUNT:
            yield made
        else:
            _restore(made)


def _split_consumer(scope: Scope, node: ir.Node) -> ir.Node | None:
    """Return the only consumer of a matmul if it is a Split of N into two halves."""
    if not is_product(scope, node) or node.op_type != "MatMul" or is_transposed(node):
        return None
    value = node.outputs[0]
    if not is_read_once(value):
        return None
    split = next(iter(value.uses())).node
    if split.op_type != "Split" or split.domain or split.graph is not node.graph:
        return None
    columns = scope.shapes.shape(value) or ()
    parts = [scope.shapes.shape(one) or () for one in split.outputs]
    if len(parts) != _HALF_COUNT or any(one.is_graph_output() for one in split.outputs):
        return None
    if any(len(part) != len(columns) or part[:-1] != columns[:-1] for part in parts):
        return None
    return split if parts[0][-1] == parts[1][-1] else None


def _split(scope: Scope, whole: ir.Node, split: ir.Node) -> _SplitGateUp:
    graph, (rows, matrix) = whole.graph, whole.inputs
    assert graph is not None
    array = scope.array(matrix)
    assert array is not None
    assert matrix is not None
    made = list[ir.Node]()
    for number, (part, old) in enumerate(
        zip(np.split(array, _HALF_COUNT, axis=-1), split.outputs, strict=True)
    ):
        tensor = ir.tensor(np.ascontiguousarray(part))
        half = scope.initializer(tensor, f"{matrix.name}/half_{number}")
        (new,) = scope.insert(whole, "MatMul", [rows, half], name=f"{old.name}/half")
        _hand_over(scope, old, new)
        maker = new.producer()
        assert maker is not None
        made.append(maker)
    read = tuple(split.inputs), tuple(whole.inputs)
    graph.remove([whole, split], safe=True)
    return _SplitGateUp(scope, whole, split, (read[1], read[0]), (made[0], made[1]))


def _restore(one: _SplitGateUp) -> None:
    """Restore a matmul whose two halves are both still in the graph. Drop values that nothing
    reads."""
    graph = one.halves[0].graph
    constants = [half.inputs[1] for half in one.halves]
    if graph is not None and one.halves[1].graph is graph:
        for node, read in zip((one.whole, one.split), one.read, strict=True):
            for place, value in enumerate(read):
                node.replace_input_with(place, value)
        graph.insert_before(one.halves[0], [one.whole, one.split])
        for half, old in zip(one.halves, one.split.outputs, strict=True):
            _hand_over(one.scope, half.outputs[0], old)
        graph.remove(list(one.halves), safe=True)
    for value in (*constants, one.read[0][1]):
        if value is not None:
            drop_initializer(value)


def _hand_over(scope: Scope, old: ir.Value, new: ir.Value) -> None:
    """Replace all uses of `old` by `new`, under the same name."""
    for use in tuple(old.uses()):
        use.node.replace_input_with(use.idx, new)
    scope.swap_names(old, new)
