"""MaxPools of images as blocks: of floats, on CPUs also of bytes and of bfloat16."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.analysis.quantization import is_op
from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import TO_NCHW, TO_NHWC, BodyWriter, Described
from ortkit.fusion.conv.finder import BlockFinder
from ortkit.fusion.int8.grids import dequantized, grid_of
from ortkit.fusion.regions.access import only_reader
from ortkit.graph.shapes.conv_window import pool_window_of
from ortkit.rewrite.scope import Scope


class MaxPool(BodyWriter):
    """A MaxPool with what changes its type around it."""

    @staticmethod
    def find(finder: BlockFinder, node: ir.Node) -> Block | None:
        """Return the block of a MaxPool between two values of the same type."""
        scope = finder.scope
        window = pool_window_of(scope.shapes, node)
        source, others = node.inputs[0], node.outputs[1:]
        if window is None or source is None:
            return None
        if any(value.uses() or value.is_graph_output() for value in others):
            return None
        if (found := _bytes(scope, node)) is not None:
            source, output, after = found
            return Block("max_pool", (node,), (window,), (node, *after), source, output)
        epilogue = list[ir.Node]()
        source, before, output = finder.narrowed(source, epilogue, node.outputs[0])
        dtypes = (*finder.dtypes, ir.DataType.BFLOAT16)
        if bool(before) != bool(epilogue) or scope.shapes.dtype(output) not in dtypes:
            return None
        nodes = (*before, node, *epilogue)
        return Block("max_pool", (node,), (window,), nodes, source, output)

    def describe(self) -> Described:
        """Describe a pooling between two values of the same type."""
        block = self.block
        pool, dtype = block.convs[0], self._dtype(block.source)
        wide = self._input("x", self._nhwc(block.source), dtype)
        is_narrow = dtype == "bfloat16" != self.own
        if is_narrow:
            wide = self.writer.op("Cast", wide, to=int(ir.DataType.FLOAT))
        kept = {"ceil_mode": 1} if pool.attributes.get_int("ceil_mode", 0) == 1 else {}
        planar = self.writer.op("Transpose", wide, perm=TO_NCHW)
        attributes = {**block.windows[0].attributes, **kept}
        value = self.writer.op("MaxPool", planar, **attributes)
        result = self.writer.op("Transpose", value, perm=TO_NHWC)
        if is_narrow:
            result = self.writer.op("Cast", result, to=int(ir.DataType.BFLOAT16))
        self._result(result, self._nhwc(block.output), dtype)
        return self._described()


def _bytes(scope: Scope, pool: ir.Node) -> tuple[ir.Value, ir.Value, tuple[ir.Node, ...]] | None:
    """Return the bytes that a pooling reads and makes, and the node that rounds to the same.

    The largest of numbers is the one that the largest byte stands for.
    """
    result, source = pool.outputs[0], pool.inputs[0]
    if source is not None and scope.shapes.dtype(source) == ir.DataType.UINT8:
        return source, result, ()
    wide = dequantized(scope, source)
    node = None if wide is None else only_reader(result)
    if wide is None or node is None or node.graph is not pool.graph:
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if not is_op(node, "QuantizeLinear"):
        return None
    is_bytes = scope.shapes.dtype(node.outputs[0]) == ir.DataType.UINT8
    if not is_bytes or grid_of(scope, node.inputs[1], zero) != wide[1]:
        return None
    return wide[0], node.outputs[0], (node,)
