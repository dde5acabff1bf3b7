"""How a chain of bytes goes on behind bytes: sums, tables, and float32 again."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnx import helper

from ortkit.analysis.quantization import is_op
from ortkit.fusion.int8.chain import Chain
from ortkit.fusion.int8.float_steps import apply_pointwise
from ortkit.fusion.int8.grids import MICROSOFT, Grid, dequantized, grid_of
from ortkit.fusion.int8.lookup import Lookup, find_lookup
from ortkit.fusion.int8.rounding import (
    find_rounding,
    is_joined_multiplication,
    is_quantized_product,
)
from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.region import PASS
from ortkit.refusal import Refused
from ortkit.rewrite.site import describe


@dataclass(frozen=True)
class _Sum:
    """A sum of two quantized values.

    Args:
        nodes: What computes it.
        index: Which operand the chain's value is.
        other: The other one.
        grid: What its numbers stand for.
        result: What those of the sum stand for.
    """

    nodes: tuple[ir.Node, ...]
    index: int
    other: ir.Value
    grid: Grid
    result: Grid


def add_quantized(chain: Chain) -> bool:
    """Take in DequantizeLinear, Add and QuantizeLinear, which ONNX Runtime computes as one."""
    wide = _widening(chain)
    add = None if wide is None else chain.reader(wide.outputs[0])
    if wide is None or add is None or (add.domain, add.op_type) != ("", "Add"):
        return False
    rounding = find_rounding(chain, add.outputs[0])
    index = list(add.inputs).index(wide.outputs[0])
    other = dequantized(chain.scope, add.inputs[1 - index])
    if rounding is None or other is None or not chain.keeps_shape(add):
        return False
    return _add(chain, _Sum((wide, add, *rounding.nodes), index, *other, rounding.grid))


def add_by_operator(chain: Chain) -> bool:
    """Take in a QLinearAdd."""
    node, scope = chain.reader(chain.value), chain.scope
    if node is None or (node.domain, node.op_type) != (MICROSOFT, "QLinearAdd"):
        return False
    inputs = list(node.inputs)
    index = 0 if inputs[0] is chain.value else 1
    own = grid_of(scope, *inputs[3 * index + 1 : 3 * index + 3])
    at = 3 * (1 - index)
    grid, source = grid_of(scope, *inputs[at + 1 : at + 3]), inputs[at]
    result = grid_of(scope, *inputs[6:8]) if len(inputs) > 7 else None
    if own != chain.grid or grid is None or source is None or result is None:
        return False
    is_bytes = scope.shapes.dtype(source) == ir.DataType.UINT8
    if not is_bytes or source is chain.value or not chain.keeps_shape(node):
        return False
    return _add(chain, _Sum((node,), index, source, grid, result))


def _add(chain: Chain, found: _Sum) -> bool:
    scope, body, source = chain.scope, chain.body, found.other
    array = scope.array(source, chain.columns)
    if array is not None:
        if not chain.matrix.is_row(array):
            return False
        name = body.new_row("q", array.reshape(-1))
    elif scope.is_constant(source):
        return False
    elif scope.shapes.shape(source) == scope.shapes.shape(chain.value):
        name = body.new_input("q", source)
    else:
        return False
    assert chain.grid is not None
    both = [(chain.name, chain.grid), (name, found.grid)]
    operands: list[str] = []
    for text, grid in both if found.index == 0 else both[::-1]:
        operands += [text, *body.grid(grid)]
    made = f"t{len(body.writer.nodes)}_sum"
    operands += body.grid(found.result)
    body.writer.nodes.append(helper.make_node("QLinearAdd", operands, [made], domain=MICROSOFT))
    chain.go_on(found.nodes, made, found.result)
    return True


def look_up(chain: Chain) -> bool:
    """Take in a function of bytes, as a table."""
    found = find_lookup(chain.scope, chain.value, chain.is_free)
    if isinstance(found, Refused):
        readers = [use.node for use in chain.value.uses()]
        chain.scope.log.miss(PASS, describe(readers[0]), found.reason)
    if not isinstance(found, Lookup):
        return False
    writer, name = chain.body.writer, chain.body.table(found.table)
    index = writer.op("Cast", chain.name, to=int(ir.DataType.INT32))
    chain.go_on(found.nodes, writer.op("Gather", name, index), found.grid)
    return True


def dequantize(chain: Chain) -> bool:
    """Take in a DequantizeLinear and the pointwise operator that follows it."""
    node, grid = _widening(chain), chain.grid
    reader = None if node is None else chain.reader(node.outputs[0])
    if node is None or grid is None or reader is None or access_of(reader) != "elementwise":
        return False
    if is_joined_multiplication(chain, reader):
        return False
    if any(is_quantized_product(value) for value in reader.inputs):
        return False  # what it makes goes on with this one's bytes
    chain.pass_by([node], chain.body.dequantized(chain.name, grid), None)
    if apply_pointwise(chain):
        return True
    chain.go_back(grid)
    return False


def _widening(chain: Chain) -> ir.Node | None:
    """Return the DequantizeLinear with the value's own grid that alone reads it."""
    node = chain.reader(chain.value)
    if node is None or not is_op(node, "DequantizeLinear"):
        return None
    found = dequantized(chain.scope, node.outputs[0])
    return node if found is not None and found[1] == chain.grid else None
