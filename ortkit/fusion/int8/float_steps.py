"""How a chain of bytes goes on behind float32: it is rounded, or goes on in float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.analysis.quantization import is_op
from ortkit.fusion.int8.chain import Chain, SecondResult
from ortkit.fusion.int8.grids import Array, Grid, channel_grids, dequantized, grid_of
from ortkit.fusion.int8.rounding import find_rounding
from ortkit.fusion.regions.access import access_of
from ortkit.fusion.regions.bodies import is_runtime_own, write_step
from ortkit.fusion.regions.epilogue_ops import EPILOGUE_OPS


def quantize(chain: Chain) -> bool:
    """Take in a QuantizeLinear with one scale."""
    found = find_rounding(chain, chain.value)
    if found is None:
        return False
    chain.go_on(found.nodes, chain.body.quantized(chain.name, found.grid), found.grid)
    return True


def quantize_channels(chain: Chain) -> bool:
    """Take in a QuantizeLinear with a scale for each column, behind which the chain ends.

    The quotient, its rounding and the zero point are written one by one.
    """
    node, scope, body = chain.reader(chain.value), chain.scope, chain.body
    if node is None or not is_op(node, "QuantizeLinear") or node.inputs[0] is not chain.value:
        return False
    if scope.shapes.dtype(node.outputs[0]) != ir.DataType.UINT8:
        return False
    grids = channel_grids(scope, node, chain.columns, chain.matrix.result_axis)
    if grids is None:
        return False
    made = body.writer.op("Div", chain.name, body.new_row("r", grids.scales))
    zero = grids.zero
    if zero is None:
        rounded, zero = body.writer.op("Round", made), 0
        moved = body.new_row("r", grids.zeros.astype(np.float32))
        made = body.writer.op("Add", rounded, moved)
    chain.is_complete = True
    chain.go_on([node], body.quantized(made, Grid(np.float32(1.0), zero)), None)
    return True


def quantize_with_second_result(chain: Chain) -> bool:
    """Take in a QuantizeLinear of what others read too, which is a second result then.

    Residual sums of neural-compressor read float32.
    """
    if chain.second is not None or chain.value.is_graph_output():
        return False
    readers = [use.node for use in chain.value.uses()]
    rounding = [node for node in readers if is_op(node, "QuantizeLinear")]
    if len(readers) < 2 or len(rounding) != 1 or not chain.is_free(rounding[0]):
        return False
    (node,) = rounding
    grid = grid_of(chain.scope, *node.inputs[1:3]) if len(node.inputs) > 2 else None
    if grid is None or chain.scope.shapes.dtype(node.outputs[0]) != ir.DataType.UINT8:
        return False
    chain.second = SecondResult(chain.name, chain.value)
    chain.go_on([node], chain.body.quantized(chain.name, grid), grid)
    return True


def apply_pointwise(chain: Chain) -> bool:
    """Take in a pointwise operator on float32."""
    node = chain.reader(chain.value)
    if node is None or len(node.outputs) != 1 or access_of(node) != "elementwise":
        return False
    if not is_runtime_own(node) and node.op_type not in EPILOGUE_OPS:
        return False
    if not chain.keeps_shape(node) or node.inputs.count(chain.value) != 1:
        return False
    names = [_operand(chain, value) for value in node.inputs]
    if None in names:
        return False
    known = [name or "" for name in names]
    made = write_step(chain.body.writer, node, known, chain.scope.opset())
    chain.go_on([node], made, None)
    return True


def _operand(chain: Chain, value: ir.Value | None) -> str | None:
    """Return the name of a pointwise operator's operand; None if kernels do not take it."""
    if value is None:
        return ""
    if value is chain.value:
        return chain.name
    scope, body = chain.scope, chain.body
    array = scope.array(value, chain.columns)
    if array is None:
        array = _dequantized_row(chain, value)
    if array is not None and array.dtype == np.float32:
        if array.size == 1:
            return body.writer.constant(array.reshape(()))
        return body.new_row("r", array.reshape(-1)) if chain.matrix.is_row(array) else None
    if scope.is_constant(value) or scope.shapes.dtype(value) != ir.DataType.FLOAT:
        return None
    if scope.shapes.shape(value) != scope.shapes.shape(chain.value):
        return None
    wide = dequantized(scope, value)
    if wide is None or scope.is_constant(wide[0]):
        return body.new_input("r", value)
    return body.dequantized(body.new_input("q", wide[0]), wide[1])


def _dequantized_row(chain: Chain, value: ir.Value) -> Array | None:
    """Return a constant of uint8 as float32, as DequantizeLinear makes it."""
    found = dequantized(chain.scope, value)
    numbers = None if found is None else chain.scope.array(found[0], chain.columns)
    if found is None or numbers is None:
        return None
    moved = (numbers.astype(np.int32) - found[1].zero).astype(np.float32)
    return np.asarray(moved * found[1].scale, np.float32)
