"""Decompose skip norms after matmuls on CUDA into sum and norm before regions are formed.

A kernel for a product can add the residual where it has the result, and one for the next product
can do the norm where it reads its rows; ONNX Runtime's operator for both stands between them. A
pair of which no part went into a region becomes that operator again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.fusion.gemm.cuda import is_product, is_read_once
from ortkit.rewrite.scope import Scope

#: Which inputs are added in addition to the first two, and which are the norm's.
_BIAS = {"SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}
_NORM = {
    "SkipLayerNormalization": "LayerNormalization",
    "SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization",
}
_SUM = 3
#: The default domain has LayerNormalization since.
_SINCE = 17


@dataclass(frozen=True)
class _Split:
    """A skip norm that is gone, and the nodes that are there for it."""

    scope: Scope
    skip: ir.Node
    inputs: tuple[ir.Value | None, ...]
    adds: tuple[ir.Node, ...]
    norm: ir.Node


@contextmanager
def split_skip_norms(
    scopes: Sequence[Scope], wanted: Callable[[Scope, ir.Node], bool]
) -> Iterator[None]:
    """Decompose skip norms after matmuls into sums and norms. On exit unfused ones are restored.

    Args:
        scopes: Whose graphs are looked at.
        wanted: True for a matmul whose kernel may absorb the sum after it.
    """
    splits = [one for scope in scopes for one in _split_all(scope, wanted)]
    try:
        yield
    finally:
        for one in splits:
            _join(one)


def _split_all(scope: Scope, wanted: Callable[[Scope, ir.Node], bool]) -> Iterator[_Split]:
    if not isinstance(scope.root, ir.Graph) or scope.opset() < _SINCE:
        return
    for node in list(scope.root):
        if node.domain != "com.microsoft" or node.op_type not in _BIAS:
            continue
        if any(one.uses() or one.is_graph_output() for one in node.outputs[1:_SUM]):
            continue
        if any(_is_of_product(scope, value, wanted) for value in node.inputs[:2]):
            yield _split(scope, node)


def _is_of_product(
    scope: Scope, value: ir.Value | None, wanted: Callable[[Scope, ir.Node], bool]
) -> bool:
    """Say whether a value is made by a product that may take the sum, which alone reads it."""
    maker = None if value is None or not is_read_once(value) else value.producer()
    return maker is not None and is_product(scope, maker) and wanted(scope, maker)


def _split(scope: Scope, skip: ir.Node) -> _Split:
    """Insert sums and a norm before a skip norm, hand its readers over, and take it out."""
    graph = skip.graph
    assert graph is not None
    inputs = [*skip.inputs, *[None] * 5][:5]
    place = _BIAS[skip.op_type]
    bias = inputs[place]
    factors = inputs[2:place]
    total, adds = _product_first(scope, inputs[0], inputs[1]), list[ir.Node]()
    (value, other) = total
    for term in (bias, other):
        if term is None:
            continue
        (value,) = scope.insert(skip, "Add", [value, term], name=f"{skip.outputs[0].name}/sum")
        made = value.producer()
        assert made is not None
        adds.append(made)
    epsilon = skip.attributes.get("epsilon")
    attributes = {"axis": -1, "epsilon": 1e-12 if epsilon is None else epsilon.as_float()}
    kind = _NORM[skip.op_type]
    while factors and factors[-1] is None:
        factors.pop()
    (normed,) = scope.insert(
        skip, kind, [value, *factors], attributes, name=f"{skip.outputs[0].name}/norm"
    )
    norm = normed.producer()
    assert norm is not None
    _hand_over(scope, skip.outputs[0], normed)
    if len(skip.outputs) > _SUM:
        _hand_over(scope, skip.outputs[_SUM], value)
    read = tuple(skip.inputs)
    graph.remove(skip, safe=True)
    return _Split(scope, skip, read, tuple(adds), norm)


def _product_first(
    scope: Scope, one: ir.Value | None, other: ir.Value | None
) -> tuple[ir.Value, ir.Value]:
    """Return the two terms of a sum, that which a product makes first."""
    assert one is not None
    assert other is not None
    maker = one.producer() if is_read_once(one) else None
    return (one, other) if maker is not None and is_product(scope, maker) else (other, one)


def _join(one: _Split) -> None:
    """Put a skip norm back where all of what stands for it is still in the graph."""
    nodes = (*one.adds, one.norm)
    graph = one.norm.graph
    if graph is None or any(node.graph is not graph for node in nodes):
        return
    scope, skip = one.scope, one.skip
    last = one.adds[-1].outputs[0]
    readers = [use.node for use in last.uses() if use.node is not one.norm]
    is_sum_read = bool(readers) or last.is_graph_output()
    if is_sum_read and len(skip.outputs) <= _SUM:
        return
    for place, value in enumerate(one.inputs):
        skip.replace_input_with(place, value)
    graph.insert_before(one.norm, skip)
    _hand_over(scope, one.norm.outputs[0], skip.outputs[0])
    if len(skip.outputs) > _SUM:
        _hand_over(scope, last, skip.outputs[_SUM], but=one.norm)
    for node in reversed(nodes):
        graph.remove(node, safe=True)


def _hand_over(scope: Scope, old: ir.Value, new: ir.Value, but: ir.Node | None = None) -> None:
    """Let all that reads `old`, but for one node, read `new`, under the same name."""
    graph = None if new.producer() is None else new.producer().graph  # type: ignore[union-attr]
    if old.is_graph_output() and graph is not None:
        for place, value in enumerate(graph.outputs):
            if value is old:
                graph.outputs[place] = new
        new.type, new.shape = old.type, old.shape
    for use in tuple(old.uses()):
        if use.node is not but:
            use.node.replace_input_with(use.idx, new)
    scope.swap_names(old, new)
