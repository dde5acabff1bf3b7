"""Biases of convolutions on CUDA: nodes of their own while regions are looked for.

ONNX Runtime adds the bias of a convolution by a kernel of its own there (its option
`fuse_conv_bias` is off), and what follows by another: 46 of the 150 launches of a MobileNetV3 in
float16, a quarter of its time (1.31.1 on an H100, 2026-11). As a node it can be a part of a
region; where it becomes none, it goes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.lower import drop_initializer
from ortkit.fusion.regions.members import is_reshape
from ortkit.rewrite.scope import Scope

_BIAS = 2
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass(frozen=True)
class _Split:
    """A convolution without its bias, and the Add that has it now."""

    scope: Scope
    conv: ir.Node
    add: ir.Node
    bias: ir.Value


@contextmanager
def split_biases(
    scopes: Sequence[Scope], excluded: frozenset[ir.Node] = frozenset()
) -> Iterator[None]:
    """Give biases nodes of their own; at the end those that are still there go back.

    Args:
        scopes: Whose graphs are looked at.
        excluded: Convolutions that have kernels, biases and all.
    """
    splits = [one for scope in scopes for one in _split_all(scope, excluded)]
    try:
        yield
    finally:
        for one in splits:
            _join(one)


def _split_all(scope: Scope, excluded: frozenset[ir.Node]) -> Iterator[_Split]:
    if not isinstance(scope.root, ir.Graph):
        return
    for node in list(scope.root):
        if node in excluded:
            continue
        if node.op_type in ("Conv", "ConvTranspose") and not node.domain:
            bias = _bias(scope, node)
            if bias is not None and _pays(scope, node):
                yield _split(scope, node, bias)


def _bias(scope: Scope, conv: ir.Node) -> ir.Value | None:
    if len(conv.inputs) <= _BIAS or not scope.is_constant(conv.inputs[_BIAS]):
        return None
    return conv.inputs[_BIAS]


def _pays(scope: Scope, conv: ir.Node) -> bool:
    """Say whether something that can be in a region reads the result, and nothing else does."""
    value = conv.outputs[0]
    shapes = scope.shapes
    if value.is_graph_output() or shapes.shape(value) is None or shapes.dtype(value) not in _TYPES:
        return False
    readers = {use.node for use in value.uses()}
    if any(access_of(reader) is None or is_reshape(reader) for reader in readers):
        return False
    if shapes.dtype(value) == ir.DataType.FLOAT and len(readers) == 1:
        # For float32 alone it has a kernel with bias and Relu, or a sum and Relu.
        (reader,) = readers
        ends = {use.node.op_type for use in reader.outputs[0].uses()}
        return reader.op_type != "Relu" and not (reader.op_type == "Add" and ends == {"Relu"})
    return bool(readers)


def _split(scope: Scope, conv: ir.Node, bias: ir.Value) -> _Split:
    product, graph = conv.outputs[0], conv.graph
    assert graph is not None
    array = scope.array(bias)
    assert array is not None
    rank = len(scope.shapes.shape(product) or ())
    column = np.reshape(array, (-1, *[1] * (rank - 2)))
    shift = scope.constant(column, f"{bias.name}/column", conv)
    (biased,) = scope.insert(conv, "Add", [product, shift], name=f"{product.name}/product")
    add = biased.producer()
    assert add is not None
    conv.resize_inputs(_BIAS)
    graph.remove(conv)
    graph.insert_before(add, conv)
    _hand_over(scope, product, biased, add)
    return _Split(scope, conv, add, bias)


def _join(one: _Split) -> None:
    """Give the convolution its bias back if the Add is still there, and alone reads from it."""
    add, product = one.add, one.conv.outputs[0]
    if add.graph is None or {use.node for use in product.uses()} != {add}:
        drop_initializer(one.bias)
        return
    one.conv.resize_inputs(_BIAS + 1)
    one.conv.replace_input_with(_BIAS, one.bias)
    shift = add.inputs[1]
    _hand_over(one.scope, add.outputs[0], product, add)
    add.graph.remove(add, safe=True)
    if shift is not None:
        drop_initializer(shift)


def _hand_over(scope: Scope, old: ir.Value, new: ir.Value, add: ir.Node) -> None:
    """Let all that reads `old`, but for `add`, read `new`, under the same name."""
    for use in tuple(old.uses()):
        if use.node is not add:
            use.node.replace_input_with(use.idx, new)
    scope.swap_names(old, new)
