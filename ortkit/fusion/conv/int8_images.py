"""What stands between int8 convolutions and is no convolution: means of images, and products.

DequantizeLinear, GlobalAveragePool or ReduceMean, QuantizeLinear    QDQ format
DequantizeLinear twice, Mul, QuantizeLinear                          QDQ format
QLinearGlobalAveragePool, QLinearMul                                 QOperator format

Both are written as ONNX Runtime's operators on bytes, which read NHWC too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from onnx import helper

from ortkit.analysis.quantization import is_op
from ortkit.errors import InternalError
from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import BodyWriter, Described
from ortkit.fusion.conv.finder import PASS, BlockFinder
from ortkit.fusion.conv.nodes import is_global_mean
from ortkit.fusion.int8.grids import MICROSOFT, Grid, dequantized, grid_of
from ortkit.fusion.regions.access import only_reader
from ortkit.refusal import Refused, RefusedError, refusals
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

MEAN, SCALE = "int8_mean", "int8_scale"
#: Steps of the result that the largest number may be away: more than these ONNX Runtime's
#: kernels do not convert.
_MOST_STEPS = 2.0**24
_LARGEST = 255.0
_RANK = 4
_NOT_ROUNDED = "its result is not quantized to one constant grid"
_NO_GRIDS = "an operand is no uint8 of one constant grid"
_Operand: TypeAlias = tuple[ir.Value, Grid]


@dataclass(frozen=True)
class ImageOp:
    """An operator on images of bytes.

    Args:
        kind: `MEAN` or `SCALE`.
        nodes: The operator, and what rounds its result.
        operands: NCHW, the first one uint8 [N, C, H, W].
        output: The result.
        grid: Of the result.
    """

    kind: str
    nodes: tuple[ir.Node, ...]
    operands: tuple[_Operand, ...]
    output: ir.Value
    grid: Grid


class ImagesOfBytes(BodyWriter):
    """Means or products of images of bytes."""

    @staticmethod
    def find(finder: BlockFinder, node: ir.Node) -> Block | None:
        """Return the block of means or products of bytes; refused ones leave a reason."""
        found = _image_op(finder.scope, node)
        if isinstance(found, Refused):
            finder.missed(node, found)
        if not isinstance(found, ImageOp):
            return None
        source, *extras = (value for value, _ in found.operands)
        return Block(
            found.kind, found.nodes[:1], (), found.nodes, source, found.output,
            extras=tuple(extras),
        )  # fmt: skip

    def describe(self) -> Described:
        """Return the signature and constants of a block."""
        found = _image_op(self.scope, self.block.convs[0])
        if not isinstance(found, ImageOp):
            raise InternalError("an operator on images of bytes that is none any more")
        # Images come first among the inputs of a fused node, and constants after them.
        names = [f"x{number}" for number in range(len(found.operands))]
        for name, (value, _) in zip(names, found.operands, strict=True):
            self._input(name, self._nhwc(value), "uint8")
        grids = [*(grid for _, grid in found.operands), found.grid]
        for name, grid in zip((*names, "y"), grids, strict=True):
            self._number(f"{name}s", np.asarray(grid.scale, np.float32))
            self._number(f"{name}z", np.asarray(grid.zero, np.uint8))
        given = [each for name in (*names, "y") for each in (name, f"{name}s", f"{name}z")]
        given.remove("y")
        op_type, more = _OPERATORS[found.kind]
        node = helper.make_node(op_type, given, ["y"], domain=MICROSOFT)
        node.attribute.extend(helper.make_attribute(*item) for item in more.items())
        self.writer.nodes.append(node)
        batch, *sides, channels = self.inputs["x0"].shape
        made = (batch, 1, 1, channels) if found.kind == MEAN else (batch, *sides, channels)
        self._result("y", made, "uint8")
        return self._described()

    def _number(self, name: str, number: np.ndarray) -> None:
        """Add a constant number."""
        self.weights.append(number)
        self._input(name, (), number.dtype.name)


@refusals
def _image_op(scope: Scope, node: ir.Node) -> ImageOp | Refused | None:
    """Return the operator on images of bytes that a node is; None if it is none.

    `Refused` says why one has no kernel.
    """
    finder = _FINDERS.get((node.domain, node.op_type))
    source = node.inputs[0] if node.inputs else None
    if finder is None or source is None or scope.shapes.rank(source) != _RANK:
        return None
    found = finder(Site(scope, node, PASS))
    refused = None if found is None else _refusal(scope, found)
    return found if refused is None else refused


def _mean(site: Site) -> ImageOp | None:
    source = dequantized(site.scope, site.input(0))
    if source is None or not is_global_mean(site, keepdims=None):
        return None
    after, value = list[ir.Node](), site.output
    reader = _only_reader(value)
    if reader is not None and reader.op_type in ("Flatten", "Reshape", "Squeeze"):
        shape = site.scope.shapes.shape(reader.outputs[0])
        if reader.domain or shape is None or reader.inputs[0] is not value:
            raise RefusedError(_NOT_ROUNDED)
        after.append(reader)
        value = reader.outputs[0]
    end = _rounded(site.scope, value)
    if end is None:
        raise RefusedError(_NOT_ROUNDED)
    return ImageOp(
        MEAN, (site.node, *after, end[0]), (source,), end[0].outputs[0], end[1]
    )  # fmt: skip


def _mean_operator(site: Site) -> ImageOp | None:
    source, grid = _given(site, 0), grid_of(site.scope, site.input(3), site.input(4))
    if source is None or grid is None:
        raise RefusedError(_NO_GRIDS)
    if site.int("channels_last", 0):
        raise RefusedError("it is in NHWC already")
    return ImageOp(MEAN, (site.node,), (source,), site.output, grid)


def _scale(site: Site) -> ImageOp | None:
    wide = [dequantized(site.scope, site.input(number)) for number in range(2)]
    if wide == [None, None] or any(map(site.scope.is_constant, filter(None, site.node.inputs))):
        return None
    operands, end = _ordered(site.scope, wide[0], wide[1]), _rounded(site.scope, site.output)
    if end is None:
        raise RefusedError(_NOT_ROUNDED)
    return ImageOp(SCALE, (site.node, end[0]), operands, end[0].outputs[0], end[1])


def _scale_operator(site: Site) -> ImageOp | None:
    operands = _ordered(site.scope, _given(site, 0), _given(site, 3))
    grid = grid_of(site.scope, site.input(6), site.input(7))
    if grid is None:
        raise RefusedError(_NO_GRIDS)
    return ImageOp(SCALE, (site.node,), operands, site.output, grid)


def _given(site: Site, first: int) -> _Operand | None:
    value = site.input(first)
    grid = grid_of(site.scope, site.input(first + 1), site.input(first + 2))
    return None if value is None or grid is None else (value, grid)


def _ordered(scope: Scope, one: _Operand | None, other: _Operand | None) -> tuple[_Operand, ...]:
    """Return both operands, the larger one first."""
    if one is None or other is None:
        raise RefusedError(_NO_GRIDS)
    if one[0] is other[0]:
        raise RefusedError("it multiplies an image by itself")
    shapes = [scope.shapes.shape(each[0]) or () for each in (one, other)]
    is_row = len(shapes[0]) == 4 and tuple(shapes[0][2:]) == (1, 1)
    return (other, one) if is_row else (one, other)


def _rounded(scope: Scope, value: ir.Value) -> tuple[ir.Node, Grid] | None:
    """Return the QuantizeLinear that alone reads a value, and its grid."""
    node = _only_reader(value)
    if node is None or not is_op(node, "QuantizeLinear") or node.inputs[0] is not value:
        return None
    grid = grid_of(scope, node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None)
    return None if grid is None else (node, grid)


def _only_reader(value: ir.Value) -> ir.Node | None:
    """Return the only reader of a value, if it is of the same graph."""
    node, maker = only_reader(value), value.producer()
    return node if node is not None and maker is not None and node.graph is maker.graph else None


def _refusal(scope: Scope, found: ImageOp) -> Refused | None:
    """Say why there is no kernel; None if there is one."""
    shapes = [scope.shapes.shape(value) for value, _ in found.operands]
    made = scope.shapes.shape(found.output)
    values = [*(value for value, _ in found.operands), found.output]
    if any(scope.shapes.dtype(value) != ir.DataType.UINT8 for value in values):
        return Refused("its operands or its result are not uint8")
    if any(scope.is_constant(value) for value, _ in found.operands):
        return Refused("an operand is a constant")
    if made is None or any(shape is None or len(shape) != _RANK for shape in shapes):
        return Refused("its operands are no images")
    batch, channels, height, width = tuple(shapes[0] or ())
    if not all(isinstance(size, int) and size > 0 for size in (channels, height, width)):
        return Refused("its images are of unknown size")
    if (height, width) == (1, 1):
        return Refused("its images are single pixels")
    if not _converts(found):
        return Refused("its grids are so far apart that ONNX Runtime's kernel overflows")
    row, whole = (batch, channels, 1, 1), tuple(shapes[0] or ())
    allowed = [row, (batch, channels)] if found.kind == MEAN else [whole]
    is_like = found.kind == MEAN or tuple(shapes[1] or ()) in (row, whole)
    return None if tuple(made) in allowed and is_like else Refused("its sizes are spread out")


def _converts(found: ImageOp) -> bool:
    """Say whether ONNX Runtime's kernel converts all that may come of the operands' bytes."""
    steps = 1.0 / float(found.grid.scale)
    for _, grid in found.operands:
        steps *= float(grid.scale) * _LARGEST
    scales = [float(grid.scale) for _, grid in found.operands]
    is_normal = found.kind == MEAN or prod(scales) >= float(np.finfo(np.float32).tiny)
    return steps < _MOST_STEPS and is_normal


_OPERATORS: dict[str, tuple[str, dict[str, int]]] = {
    MEAN: ("QLinearGlobalAveragePool", {"channels_last": 1}), SCALE: ("QLinearMul", {}),
}  # fmt: skip
_FINDERS = {
    ("", "GlobalAveragePool"): _mean,
    ("", "ReduceMean"): _mean,
    ("", "Mul"): _scale,
    (MICROSOFT, "QLinearGlobalAveragePool"): _mean_operator,
    (MICROSOFT, "QLinearMul"): _scale_operator,
}
