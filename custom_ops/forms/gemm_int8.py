"""An int8 product as a region's body has it: exact sums, then scales and roundings.

    sums = MatMulInteger (x, w, zero)      x uint8 [..., K], w int8 [K, N] unpacked from panels
    sums = ConvInteger (x, w, zero)        x NHWC, transposed to NCHW and back; w [N, C, h, w]
    x may be QuantizeLinear (float32)      of an image in NCHW
    w may be Clip (w, -64, 64)             weights of 7 bits
    sums = Sub (sums, Mul (Cast (z), k))   instead of zero: k int32 [N], sums of columns of w
    sums = Add (sums, c)                   c int32 [N], optional
    y    = Mul (Cast (sums), scale)        float32 [N] or one number; or Mul (factor, scale)

What follows is float32 operators, QuantizeLinear, DequantizeLinear and QLinearAdd, in any order.
Further operands of float32 operators may be bytes, each with a DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NoReturn, TypeAlias

import onnx

from ortkit.kernels.layouts.conv_filters import Sizes
from ortkit.kernels.layouts.int8_panels import NARROW, WIDTH, filter_layout, layout
from ortkit.kernels.prepack import Prepack
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.operators.window import Window
from ortkit.refusal import Refused, RefusedError, needed, refusals

from .body import TO_NCHW, TO_NHWC, Body, integer, integers
from .conv import window_of
from .epilogue import Epilogue, read_steps

MICROSOFT = "com.microsoft"
_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True)
class Grid:
    """uint8 numbers q that stand for (q - zero) scale.

    Args:
        scale: The input of one float32; None for 1.
        zero: The input of one uint8.
    """

    scale: int | None
    zero: int


@dataclass(frozen=True)
class Quantize:
    """float32 becomes uint8: rounded to the nearest, halves to even, and saturated."""

    grid: Grid


@dataclass(frozen=True)
class Dequantize:
    """uint8 becomes float32."""

    grid: Grid


@dataclass(frozen=True)
class AddQuantized:
    """The sum of two uint8, as QLinearAdd of ONNX Runtime rounds it.

    Args:
        other: The number of the input that is added.
        is_row: Whether it has one number a column, else the result's shape.
        is_first: Whether the product is the first operand.
        own: What the product's numbers stand for.
        others: What those of the other operand stand for.
        result: What those of the sum stand for.
    """

    other: int
    is_row: bool
    is_first: bool
    own: Grid
    others: Grid
    result: Grid


@dataclass(frozen=True)
class Floats:
    """Pointwise float32 operators.

    Args:
        epilogue: The operators.
        rows: Which extras have one number a column.
        grids: What the numbers of each extra stand for; None for float32.
    """

    epilogue: Epilogue
    rows: tuple[bool, ...]
    grids: tuple[Grid | None, ...]


@dataclass(frozen=True)
class Lookup:
    """uint8 becomes uint8.

    Args:
        table: The number of the input that has the result for each byte, [256].
    """

    table: int


Stage: TypeAlias = Quantize | Dequantize | AddQuantized | Lookup | Floats


@dataclass(frozen=True)
class Filters:
    """What makes a convolution of a product: where its rows lie in NHWC images of known size.

    Args:
        window: How the filter moves.
        image: Lines and pixels of a line that are read.
        result: Those that are made.
        is_depthwise: Whether each channel has one filter of its own.
        groups: Of channels, each with filters of whole panels; 1 of a depthwise convolution.
        is_planar: Whether the image is NCHW.
    """

    window: Window
    image: tuple[int, int]
    result: tuple[int, int]
    is_depthwise: bool
    groups: int = 1
    is_planar: bool = False


@dataclass(frozen=True)
class Int8Form:
    """One int8 matrix product or convolution; numbers are the region's inputs.

    Args:
        signature: The region's.
        x: uint8 [..., depth].
        zero: One uint8, which stands for 0 in x; None for 0.
        column_sums: int32 [columns], of the weights; None if the kernel adds them up itself, or
            needs none.
        weight: int8 panels, see `ortkit.kernels.layouts.int8_panels`.
        added: int32 [columns], added to the sums; None if nothing is.
        scale: float32 [columns], or one number.
        factor: One float32 that the scale is multiplied by first; None if there is none.
        depth: K; of a convolution the channels that it reads.
        columns: N.
        stages: The stages that follow the sum.
        kept: The stages after which a second result in float32 is written; None if there is none.
        filters: Of a convolution; None for a matrix product.
        is_narrow: Whether weights are cut to -64 .. 64.
        given: What float32 `x` is rounded to first; None if it is uint8.
    """

    signature: RegionSignature
    x: int
    zero: int | None
    column_sums: int | None
    weight: int
    added: int | None
    scale: int
    factor: int | None
    depth: int
    columns: int
    stages: tuple[Stage, ...]
    kept: int | None = None
    filters: Filters | None = None
    is_narrow: bool = False
    given: Grid | None = None

    @property
    def adds_up_weights(self) -> bool:
        """Whether the kernel itself needs sums of columns of the weights."""
        return self.zero is not None and self.column_sums is None

    @property
    def leading(self) -> tuple[Extent, ...]:
        """The sizes of x but for K."""
        return tuple(extent_of(size) for size in self.signature.inputs[self.x].shape[:-1])


#: Of filters [M, C / groups, kh, kw], groups and dilations: how a kernel reads them.
Packing: TypeAlias = Callable[[Sizes, int, tuple[int, int]], Prepack]


@refusals
def read_int8(
    signature: RegionSignature,
    op_type: str,
    packing: Packing = filter_layout,
    *,
    takes_planar: bool = False,
) -> Int8Form | Refused | None:
    """Return the region around a MatMulInteger or ConvInteger; None if it has none.

    Args:
        signature: The region's.
        op_type: Of the two.
        packing: Of filters.
        takes_planar: Whether an image may be NCHW.
    """
    body = Body(signature)
    products = body.nodes(op_type)
    if not products:
        return None
    if len(products) != 1 or len(signature.outputs) > 2:
        return Refused("more than one int8 product, or more than two results")
    return _Reader(body, products[0], packing, takes_planar=takes_planar).read()


class _Reader:
    """Reads one body."""

    def __init__(
        self, body: Body, product: onnx.NodeProto, packing: Packing, *, takes_planar: bool
    ) -> None:
        self.packing, self.takes_planar = packing, takes_planar
        self.body, self.product, self.specs = body, product, body.signature.inputs
        self.nodes: list[onnx.NodeProto] = [
            n for n in body.function.node if n.op_type != "Constant"
        ]
        self.columns, self.shape = 0, body.signature.outputs[0].shape
        self.widened: dict[str, tuple[int, Grid]] = {}
        """Further operands of float32 steps: the inputs of bytes that they are made of."""

    def read(self) -> Int8Form:
        """Return the form.

        Raises:
            RefusedError: It is another one.
        """
        is_matrix = self.product.op_type == "MatMulInteger"
        source, given = self.product.input[0], None
        rounding = self.body.producer(source, "QuantizeLinear")
        if self.takes_planar and not is_matrix and rounding is not None:
            source, given = rounding.input[0], self._grid(*rounding.input[1:3])
        is_planar = self.takes_planar and not is_matrix and source in self.body.inputs
        if not is_matrix and not is_planar:
            source = self.body.transposed(source, TO_NCHW) or ""
        x = self._input(source, "uint8" if given is None else "float32")
        if given is not None and not is_planar:
            _fail("an image in NHWC that is rounded first")
        columns, shape = self.shape[-1:], self.specs[x].shape
        depth = shape[1:2] if is_planar else shape[-1:]
        if not depth or not columns or not isinstance(depth[0], int):
            _fail("an int8 product of unknown sizes")
        if not isinstance(columns[0], int):
            _fail("an int8 product of an unknown number of columns")
        self.columns = columns[0]
        made, filters = self.product.output[0], None
        factor_of_x, is_narrow = self._uncut(self.product.input[1])
        if is_matrix:
            if self.specs[x].shape[:-1] != self.shape[:-1]:
                _fail("an int8 matrix product of other rows than its result has")
            weight = self.body.packed(factor_of_x, layout(depth[0], columns[0]))
        else:
            filters, packing = self._filters(x, depth[0], is_planar=is_planar)
            weight = self.body.packed(factor_of_x, packing)
            made = self._only(made, "Transpose", TO_NHWC).output[0]
        if weight is None or self.specs[weight].dtype != "int8":
            _fail("a matrix of bytes that is not packed")
        made, zero, column_sums = self._zero(made)
        after, added = self._added(made)
        cast = self._only(after, "Cast")
        scaled = self._only(cast.output[0], "Mul")
        scale, factor = self._scales(scaled.input[1])
        for node in self.nodes:
            if node.op_type == "DequantizeLinear" and node.input[0] in self.body.inputs:
                number = self._input(node.input[0], "uint8")
                self.widened[node.output[0]] = number, self._grid(*node.input[1:3])
        stages, kept = self._stages(scaled)
        return Int8Form(
            self.body.signature, x, zero, column_sums, weight, added, scale, factor, depth[0],
            columns[0], stages, kept, filters, is_narrow, given,
        )  # fmt: skip

    def _uncut(self, weight: str) -> tuple[str, bool]:
        """Return weights without the Clip to -64 .. 64, and whether there is one."""
        node = self.body.producer(weight, "Clip")
        if node is None:
            return weight, False
        limits = [self.body.constant(name) for name in node.input[1:]]
        if [None if limit is None else limit.tolist() for limit in limits] != [-NARROW, NARROW]:
            _fail("weights of bytes that are cut elsewhere than at -64 and 64")
        return str(node.input[0]), True

    def _filters(self, x: int, channels: int, *, is_planar: bool) -> tuple[Filters, Prepack]:
        """Return the geometry of a convolution, and how its filters are packed."""
        window = needed(window_of(self.product))
        given = self.specs[x].shape
        sizes = [*(given[2:] if is_planar else given[1:-1]), *self.shape[1:-1]]
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) != 4 or self.specs[x].shape[0] != self.shape[0]:
            _fail("an int8 convolution of images of unknown size")
        if 0 in (*known, channels, *self.shape, *window.kernel):
            _fail("an int8 convolution of nothing")
        if min(window.pads) < 0 or min(*window.strides, *window.dilations) < 1:
            _fail("an int8 convolution with pads that cut")
        groups = integer(self.product, "group", 1)
        is_depthwise = groups != 1 and groups == channels == self.columns
        if groups < 1 or channels % groups or self.columns % groups:
            _fail("an int8 convolution of groups of different sizes")
        if groups > 1 and not is_depthwise and self.columns // groups % WIDTH:
            _fail("an int8 convolution of groups that fill no panels")
        packing = self.packing(
            (self.columns, channels // groups, *window.kernel), groups, window.dilations
        )
        of = Filters(
            window, (known[0], known[1]), (known[2], known[3]), is_depthwise,
            1 if is_depthwise else groups, is_planar,
        )  # fmt: skip
        return of, packing

    def _only(
        self, name: str, op_type: str, perm: tuple[int, ...] | None = None
    ) -> onnx.NodeProto:
        """Return the one reader of a value, a Transpose by `perm` if that is given."""
        readers: list[onnx.NodeProto] = [node for node in self.nodes if name in node.input]
        if len(readers) != 1 or readers[0].op_type != op_type or readers[0].input[0] != name:
            _fail(f"sums of bytes without {op_type}")
        if perm is not None and integers(readers[0], "perm", ()) != perm:
            _fail("sums of bytes in another layout than NHWC")
        return readers[0]

    def _input(self, name: str, dtype: str) -> int:
        number = self.body.inputs.get(name)
        if number is None or self.specs[number].dtype != dtype:
            raise RefusedError(f"an operand of an int8 matrix product that is no {dtype}")
        return number

    def _zero(self, sums: str) -> tuple[str, int | None, int | None]:
        """Return the sums without what the zero point of x takes off, it, and sums of columns."""
        if len(self.product.input) > 3 and self.product.input[3]:
            _fail("a matrix of bytes with zero points")
        if len(self.product.input) > 2 and self.product.input[2]:
            return sums, self._number(self.product.input[2], "uint8"), None
        subtracted = [n for n in self.nodes if n.op_type == "Sub" and n.input[0] == sums]
        if not subtracted:
            return sums, None, None
        (node,) = subtracted
        off = self.body.producer(node.input[1], "Mul")
        wide = None if off is None else self.body.producer(off.input[0], "Cast")
        if off is None or wide is None:
            _fail("what is subtracted from sums of bytes is no zero point by sums of columns")
        zero, sums_of = self._number(wide.input[0], "uint8"), self._input(off.input[1], "int32")
        if self.specs[sums_of].shape != (self.columns,):
            _fail("sums of columns that are no row")
        return node.output[0], zero, sums_of

    def _number(self, name: str, dtype: str) -> int:
        """Return the input of one number."""
        number = self._input(name, dtype)
        if not _is_one(self.specs[number]):
            _fail("several numbers where there should be one")
        return number

    def _added(self, name: str) -> tuple[str, int | None]:
        adds = [n for n in self.nodes if n.op_type == "Add" and n.input[0] == name]
        if not adds:
            return name, None
        number = self._input(adds[0].input[1], "int32")
        if self.specs[number].shape != (self.columns,):
            _fail("what is added to sums of bytes is no row")
        return adds[0].output[0], number

    def _scales(self, name: str) -> tuple[int, int | None]:
        node = self.body.producer(name, "Mul")
        factor = None if node is None else self._number(node.input[0], "float32")
        scale = self._input(name if node is None else node.input[1], "float32")
        if not _is_one(self.specs[scale]) and self.specs[scale].shape != (self.columns,):
            _fail("scales that are not one for each column")
        return scale, factor

    def _stages(self, scaled: onnx.NodeProto) -> tuple[tuple[Stage, ...], int | None]:
        """Return what follows a scaled product, and how many stages a second result has."""
        stages: list[Stage] = []
        second, kept = self.body.function.output[1:], None
        current, pending = scaled.output[0], list[onnx.NodeProto]()
        for node in self.nodes[self.nodes.index(scaled) + 1 :]:
            if node.op_type == "Gather":
                stages.append(self._lookup(node, pending, current))
                current, pending = node.output[0], []
                continue
            if node.output[0] in self.widened:
                continue
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear", "QLinearAdd"):
                pending.append(node)
                continue
            if pending:
                stages.append(self._floats(pending, current))
                current, pending = pending[-1].output[0], []
            if current in second and node.op_type == "QuantizeLinear":
                kept = len(stages)
            stages.append(self._rounding(node, current))
            current = node.output[0]
        if pending:
            stages.append(self._floats(pending, current))
            current = pending[-1].output[0]
        self._check(stages)
        if current != self.body.function.output[0]:
            _fail("a result that is not the last step's")
        if second:
            spec = self.body.signature.outputs[1]
            if kept is None or (spec.dtype, spec.shape) != ("float32", self.shape):
                _fail("a second result that is not what float32 steps make")
        return tuple(stages), kept

    def _check(self, stages: Sequence[Stage]) -> None:
        is_float = True
        for stage in stages:
            if is_float != isinstance(stage, Quantize | Floats):
                _fail("a step on numbers of another type")
            is_float = isinstance(stage, Dequantize | Floats)
        if self.body.signature.outputs[0].dtype != ("float32" if is_float else "uint8"):
            _fail("a result of another type")

    def _rounding(self, node: onnx.NodeProto, current: str) -> Stage:
        if node.op_type == "QLinearAdd":
            return self._sum(node, current)
        if node.input[0] != current:
            _fail("a step that does not follow the one before")
        grid = self._grid(node.input[1], node.input[2] if len(node.input) > 2 else "")
        return Quantize(grid) if node.op_type == "QuantizeLinear" else Dequantize(grid)

    def _sum(self, node: onnx.NodeProto, current: str) -> AddQuantized:
        names = list(node.input)
        is_first = names[0] == current
        if not is_first and names[3] != current:
            _fail("a sum that does not follow the step before")
        own, others = (self._grid(*names[at : at + 2]) for at in ((1, 4) if is_first else (4, 1)))
        number = self._input(names[3] if is_first else names[0], "uint8")
        result = self._grid(names[6], names[7])
        return AddQuantized(number, self._is_row(number), is_first, own, others, result)

    def _lookup(
        self, node: onnx.NodeProto, before: Sequence[onnx.NodeProto], current: str
    ) -> Lookup:
        """Return a table that is read at the places that the numbers are."""
        casts = [item for item in before if item.op_type == "Cast" and item.input[0] == current]
        if len(before) != 1 or not casts or node.input[1] != casts[0].output[0]:
            _fail("a table that is read elsewhere than at the result's numbers")
        table = self._input(node.input[0], "uint8")
        if self.specs[table].shape != (256,) or integer(node, "axis", 0):
            _fail("a table that has no number for each byte")
        return Lookup(table)

    def _grid(self, scale: str, zero: str) -> Grid:
        constant = self.body.constant(scale)
        if constant is not None and constant.size == 1 and constant.reshape(()) == 1.0:
            return Grid(None, self._number(zero, "uint8"))
        return Grid(self._number(scale, "float32"), self._number(zero, "uint8"))

    def _is_row(self, number: int) -> bool:
        shape = self.specs[number].shape
        if shape == self.shape:
            return False
        ones = shape[:-1]
        if shape[-1:] != self.shape[-1:] or len(shape) > len(self.shape) or set(ones) - {1}:
            _fail("an operand that has neither the result's shape nor one number a column")
        return True

    def _floats(self, nodes: Sequence[onnx.NodeProto], start: str) -> Floats:
        made = {start, *(name for node in nodes for name in node.output)}
        extras: dict[str, int] = {}
        grids: dict[int, Grid] = {}
        for name in (name for node in nodes for name in node.input if name not in made):
            number = self.body.inputs.get(name)
            if number is not None and self.specs[number].dtype == "float32":
                extras[name] = number
            elif name in self.widened:
                number, grid = self.widened[name]
                if grids.setdefault(number, grid) != grid:
                    _fail("an operand that stands for two kinds of numbers")
                extras[name] = number
        _, epilogue = needed(read_steps(self.body, nodes, start, extras))
        rows = tuple(map(self._is_row, epilogue.extras))
        if any(number in grids for number in compress(epilogue.extras, rows)):
            _fail("a row of bytes")
        return Floats(epilogue, rows, tuple(map(grids.get, epilogue.extras)))


def _is_one(spec: TensorSpec) -> bool:
    return all(size == 1 for size in spec.shape)


def _fail(reason: str) -> NoReturn:
    raise RefusedError(reason)
