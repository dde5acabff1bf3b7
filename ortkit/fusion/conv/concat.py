"""Concats of images along their channels as blocks: in NHWC each pixel's channels are joined."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import TO_NHWC, BodyWriter, Described
from ortkit.fusion.conv.finder import BlockFinder
from ortkit.rewrite.scope import Scope


def find(finder: BlockFinder, node: ir.Node) -> Block | None:
    """Return the block of a Concat of float32 images along their channels.

    Their other sizes are equal in every run: the kernel does not compare them.
    """
    scope = finder.scope
    images = [value for value in node.inputs if value is not None]
    shapes = [finder.sizes(value) for value in images]
    if len(images) < 2 or any(len(shape) != 4 for shape in shapes):
        return None
    if node.attributes.get_int("axis", 0) % 4 != 1:
        return None
    if any(scope.shapes.dtype(value) != ir.DataType.FLOAT for value in images):
        return None
    if any(scope.is_constant(value) for value in images):
        return None
    if len({(shape[0], *shape[2:]) for shape in shapes}) != 1:
        return None
    if not all(isinstance(shape[1], int) and shape[1] > 0 for shape in shapes):
        return None
    return Block(
        "concat", (node,), (), (node,), images[0], node.outputs[0], extras=tuple(images[1:])
    )


def describe(scope: Scope, block: Block) -> Described:
    """Return the signature of a block."""
    return _Writer(scope, block).concat()


class _Writer(BodyWriter):
    def concat(self) -> Described:
        """Describe a Concat along channels."""
        images = [self._operand(value) for value in self.block.operands]
        result = self.writer.op("Concat", *images, axis=1)
        nhwc = self.writer.op("Transpose", result, perm=TO_NHWC)
        self._result(nhwc, self._nhwc(self.block.output))
        return self._described()
