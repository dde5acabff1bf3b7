"""Which input says what is padding, and what masks hold where it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.graph.symbolic.dims import names
from ortkit.graph.walk import subgraphs
from ortkit.ops.attention.mask_values import Facts
from ortkit.ops.padding.tokens import FIRST, Grid, Tokens, step_of
from ortkit.rewrite.scope import Scope

#: Nodes that a mask is computed by.
_LARGEST = 120
#: Sizes that masks are computed at: a window or a table of positions shows at one of them.
_LENGTHS = (2, 7, 40, 300)


@dataclass(frozen=True)
class Flag:
    """A token is padding where `value` is `padding`.

    Args:
        value: [samples, positions]
        padding: A number of its type.
        grid: Its shape.
    """

    value: ir.Value
    padding: float
    grid: Grid


def cone_of(scope: Scope, value: ir.Value) -> list[ir.Node]:
    """Return the nodes of one graph that compute `value`, in order; empty if too many."""
    found: dict[ir.Node, None] = {}
    begun: set[ir.Node] = set()
    stack: list[tuple[ir.Value, bool]] = [(value, False)]
    while stack:
        current, is_done = stack.pop()
        node = current.producer()
        if node is None or node in found or scope.is_constant(current):
            continue
        if is_done:
            found[node] = None
            continue
        if node in begun:
            continue
        begun.add(node)
        if len(begun) > _LARGEST or any(True for _ in subgraphs(node)):
            return []
        stack.append((current, True))
        if _is_size(scope, node):
            continue
        stack += [(each, False) for each in node.inputs if each is not None]
    return list(found)


def flags_of(scope: Scope, mask: ir.Value, grid: Grid) -> Iterator[Flag]:
    """Yield what may say which keys a mask leaves out: inputs first, then what is made of them."""
    cone = cone_of(scope, mask)
    read = dict.fromkeys(value for node in cone for value in node.inputs if value is not None)
    made = dict.fromkeys(value for node in cone for value in node.outputs)
    inputs = [value for value in (*read, mask) if value.is_graph_input()]
    for value in dict.fromkeys((*inputs, *made)):
        dtype = scope.shapes.dtype(value)
        if scope.shapes.shape(value) != grid.sizes or dtype is None:
            continue
        if scope.is_constant(value) or dtype.numpy().kind not in "biuf":
            continue
        for number in _numbers(scope, cone, dtype):
            yield Flag(value, number, grid)


def _numbers(scope: Scope, cone: Sequence[ir.Node], dtype: ir.DataType) -> list[float]:
    """Return what may stand for padding: 0, 1, and what a mask's computation compares with."""
    found = [0.0, 1.0]
    if dtype.numpy().kind in "iu":
        for node in cone:
            arrays = (scope.array(value, 1) for value in node.inputs)
            numbers = (a for a in arrays if a is not None and a.size == 1 and a.dtype.kind in "iu")
            found += [float(number.reshape(())) for number in numbers]
    return list(dict.fromkeys(found))


def _is_size(scope: Scope, node: ir.Node) -> bool:
    is_shape = node.op_type in ("Shape", "Size") and not node.domain
    return is_shape or scope.shapes.contents(node.outputs[0]) is not None


def tokens_by(scope: Scope, flag: Flag, value: ir.Value) -> Tokens | None:
    """Return where tokens are in a value that is computed from a flag, token by token.

    None where some token may depend on the flag of another one.
    """
    known, mixed = {flag.value: FIRST}, set[ir.Value]()
    for node in cone_of(scope, value):
        if flag.value in node.outputs or _is_size(scope, node):
            continue
        step = step_of(scope, node, known, flag.grid)
        if any(each in mixed for each in node.inputs):
            mixed.update(node.outputs)
        elif step is not None:
            known.update(zip(node.outputs, step.outputs, strict=False))
        elif any(each in known for each in node.inputs):
            mixed.update(node.outputs)
    return known.get(value)


def where_padding(scope: Scope, flag: Flag, value: ir.Value) -> Iterator[np.ndarray | None]:
    """Yield what a value holds if all tokens are padding, at several sizes; None if unknown."""
    dtype = scope.shapes.dtype(flag.value)
    assert dtype is not None, "a flag has a type"
    free = sorted({name for size in flag.grid.sizes for name in names(size)})
    for length in _LENGTHS if free else (0,):
        sizes = {name: length + shift for shift, name in enumerate(free)}
        facts = Facts(scope)
        shape = [facts.size(size, sizes) for size in flag.grid.sizes]
        if None in shape:
            yield None
            return
        full = np.full([size or 0 for size in shape], flag.padding, dtype.numpy())
        yield Facts(scope, {flag.value: full}).at(value, sizes)
