"""What follows an int8 product or convolution, written as the body of its region.

The chain goes on while one node alone reads a value: biases, activations and residuals in float32,
QuantizeLinear and DequantizeLinear, and sums of quantized numbers. It may end after each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.analysis.quantization import is_op
from ortkit.fusion.int8.grids import (
    MICROSOFT,
    Array,
    Grid,
    channel_grids,
    dequantized,
    grid_of,
    quotient,
)
from ortkit.fusion.int8.lookup import Lookup, find_lookup
from ortkit.fusion.int8.products import IntegerProduct, find_product
from ortkit.fusion.regions.access import access_of, is_read_once
from ortkit.fusion.regions.anchors import Choices, around
from ortkit.fusion.regions.bodies import is_runtime_own, write_step
from ortkit.fusion.regions.describe import tensor_spec
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.epilogue_ops import EPILOGUE_OPS
from ortkit.fusion.regions.lower import detached_constant
from ortkit.fusion.regions.region import PASS, FusedRegion
from ortkit.fusion.regions.search import Search
from ortkit.fusion.regions.sizes import equal_sizes
from ortkit.graph.symbolic.dims import Size
from ortkit.kernels.anchor import Anchor
from ortkit.kernels.layouts.int8_panels import NARROW
from ortkit.kernels.node_writer import NodeWriter
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe
from ortkit.targets.cpu import has_bf16

KIND = "int8_product"
#: Longest chain that is tried.
_LONGEST = 24
#: The opset from which on Clip takes bytes.
_CLIPS_BYTES = 12


@dataclass(frozen=True)
class Kept:
    """A value in float32 that is read beside the bytes that it becomes.

    Args:
        name: In the body.
        value: In the graph.
    """

    name: str
    value: ir.Value


@dataclass(frozen=True)
class End:
    """Where a chain may end.

    Args:
        nodes: The graph's that it computes.
        written: How many nodes of the body there are.
        name: Of the result in the body.
        value: The result.
        kept: A second result; None if there is none.
    """

    nodes: tuple[ir.Node, ...]
    written: int
    name: str
    value: ir.Value
    kept: Kept | None = None


class Around(Protocol):
    """What a chain is looked for with: a `Search`, or as much of one."""

    scope: Scope

    @property
    def taken(self) -> Collection[ir.Node]:
        """Nodes of other regions."""
        ...

    def constant(self, key: Hashable, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Return the constant that `key` stands for."""
        ...


@dataclass
class Chain:
    """The body of a region in the making.

    Args:
        search: Whose graph it is in.
        product: What it begins with.
        kind: Of the region.
    """

    search: Around
    product: IntegerProduct
    kind: str = KIND
    writer: NodeWriter = field(default_factory=NodeWriter)
    inputs: dict[str, ir.Value] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Write the product, and all that follows it."""
        self.nodes = list(self.product.nodes)
        self.value = self.product.end
        self.name = self._product()
        self.grid = self.product.grid
        self.is_over = False
        self.kept: Kept | None = None
        self._end()
        while len(self.nodes) < _LONGEST and not self.is_over and self._step():
            self._end()

    @property
    def scope(self) -> Scope:
        """The graph's."""
        return self.search.scope

    def region(self, end: End) -> tuple[FusedRegion, RegionSignature]:
        """Return the region that ends somewhere, and its signature."""
        nodes = self.writer.nodes[: end.written]
        read = {name for node in nodes for name in node.input}
        inputs = {name: value for name, value in self.inputs.items() if name in read}
        function = onnx.FunctionProto(
            name=self.kind, domain=DOMAIN, input=list(inputs), output=[end.name]
        )
        results = [end.value]
        if end.kept is not None:
            function.output.append(end.kept.name)
            results.append(end.kept.value)
        function.node.extend(nodes)
        function.opset_import.append(helper.make_opsetid("", self.scope.opset()))
        if any(node.domain == MICROSOFT for node in nodes):
            function.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
        equal = equal_sizes(self.scope, end.nodes)
        specs = tuple(self._spec(one, equal) for one in inputs.values())
        made = tuple(self._spec(value, equal) for value in results)
        signature = RegionSignature(self.kind, body_text(function), specs, made)
        region = FusedRegion(self.kind, end.nodes, tuple(inputs.values()), tuple(results))
        return region, signature

    def _spec(self, value: ir.Value, equal: Mapping[Size, Size]) -> TensorSpec:
        """Return what a signature says of a value; constants lie as they do everywhere."""
        spec = tensor_spec(self.scope, value, equal)
        if value.const_value is not None:
            return spec
        sizes = self.product.matrix.lie(spec.shape)
        return replace(spec, shape=tuple(s for s in sizes if isinstance(s, int | str)))

    # ---- the product
    def _product(self) -> str:
        w, one = self.writer, self.product
        matrix = one.matrix
        panels = self.search.constant(matrix, f"{matrix.value.name}/panels", matrix.tensor())
        x, packed = self._input("x", one.x), self._input("w", panels)
        cast = w.op("Cast", self._sums(x, self._weights(packed)), to=int(ir.DataType.FLOAT))
        scale, rounding = one.scale, self._rounding(one.end) if one.is_merged else None
        if rounding is not None and not isinstance(scale, ir.Value):
            scale = quotient(scale, rounding[1].scale)
            if not np.isfinite(scale).all():
                scale, rounding = one.scale, None
        name = self._input("s", scale) if isinstance(scale, ir.Value) else self._row("s", scale)
        if one.factor is not None:
            name = w.op("Mul", self._input("f", one.factor), name)
        scaled = w.op("Mul", cast, name)
        if one.bias is not None:
            if isinstance(one.bias, ir.Value):
                name = self._input("b", one.bias)
            else:
                name = self._row("b", one.bias)
            scaled = w.op("Add", scaled, name)
        if one.grid is not None:
            return self._quantized(scaled, Grid(np.float32(1.0), one.grid.zero))
        if rounding is not None:
            nodes, grid = rounding
            self.product = _rounded(one, nodes, grid)
            self.nodes += nodes
            self.value = nodes[-1].outputs[0]
            return self._quantized(scaled, Grid(np.float32(1.0), grid.zero))
        return scaled

    def _weights(self, packed: str) -> str:
        """Write what the product reads of panels; kernels without VNNI are told of 7 bits."""
        w, matrix = self.writer, self.product.matrix
        unpacked = matrix.unpacked(w, packed)
        if not self._tells_of_narrow() or not matrix.is_narrow():
            return unpacked
        limits = [w.constant(np.int8(number)) for number in (-NARROW, NARROW)]
        return w.op("Clip", unpacked, *limits)

    def _tells_of_narrow(self) -> bool:
        target = self.scope.target
        if not target.traits.is_host or self.scope.opset() < _CLIPS_BYTES:
            return False
        return self.product.matrix.can_be_narrow and not has_bf16(target.resolved().level)

    def _sums(self, x: str, weights: str) -> str:
        """Write the exact sums; what zero points of x take off is known but for these."""
        w, one = self.writer, self.product
        matrix, given = one.matrix, one.zero
        if not isinstance(given, ir.Value) and not matrix.has_zeros_around:
            sums = matrix.sums(w, x, weights, "")
            if not np.any(given) and one.added is None:
                return sums
            return w.op("Add", sums, self._row("c", matrix.offsets(given, one.added)))
        assert not isinstance(given, np.ndarray)
        if isinstance(given, int):
            sums = matrix.sums(w, x, weights, self._number(np.uint8(given)))
        elif matrix.has_zeros_around:
            sums = matrix.sums(w, x, weights, self._input("z", given))
        else:
            zero = w.op("Cast", self._input("z", given), to=int(ir.DataType.INT32))
            key, held = (matrix, "column sums"), f"{matrix.value.name}/column_sums"
            columns = self.search.constant(key, held, matrix.column_sums())
            off = w.op("Mul", zero, self._input("k", columns))
            sums = w.op("Sub", matrix.sums(w, x, weights, ""), off)
        return sums if one.added is None else w.op("Add", sums, self._row("c", one.added))

    # ---- what follows
    def _step(self) -> bool:
        """Go on by one step; False if that is not possible."""
        if self.grid is None:
            return self._round() or self._round_channels() or self._go_on_in_floats()
        return self._add_rounded() or self._add_operator() or self._look_up() or self._widen()

    def _round(self) -> bool:
        found = self._rounding(self.value)
        if found is None:
            return False
        nodes, grid = found
        self._go_on(nodes, self._quantized(self.name, grid), grid)
        return True

    def _rounding(self, value: ir.Value) -> tuple[list[ir.Node], Grid] | None:
        """Return the QuantizeLinear to uint8 that alone reads a value, with its grid.

        Relu and Clip in front of it are left out, as ONNX Runtime does, where the ends of the grid
        cut off as much. They are among the nodes.
        """
        node = self._reader(value)
        if node is not None and not node.domain and node.op_type in ("Clip", "Relu"):
            found = self._rounding(node.outputs[0]) if node.inputs[0] is value else None
            if found is None or not _is_cut_off(self.scope, node, found[1]):
                return None
            return [node, *found[0]], found[1]
        if node is None or not is_op(node, "QuantizeLinear") or node.inputs[0] is not value:
            return None
        grid = grid_of(
            self.scope, node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        )
        is_bytes = self.scope.shapes.dtype(node.outputs[0]) == ir.DataType.UINT8
        return ([node], grid) if grid is not None and is_bytes else None

    def _round_channels(self) -> bool:
        """Take in a QuantizeLinear with a scale for each column, behind which the chain ends.

        The quotient, its rounding and the zero point are written one by one.
        """
        node = self._reader(self.value)
        if node is None or not is_op(node, "QuantizeLinear") or node.inputs[0] is not self.value:
            return False
        if self.scope.shapes.dtype(node.outputs[0]) != ir.DataType.UINT8:
            return False
        grids = channel_grids(self.scope, node, self._columns, self.product.matrix.result_axis)
        if grids is None:
            return False
        number = len(self.inputs)
        made = self.writer.op("Div", self.name, self._row(f"r{number}", grids.scales))
        zero = grids.zero
        if zero is None:
            rounded, zero = self.writer.op("Round", made), 0
            moved = self._row(f"r{number + 1}", grids.zeros.astype(np.float32))
            made = self.writer.op("Add", rounded, moved)
        self._go_on([node], self._quantized(made, Grid(np.float32(1.0), zero)), None)
        self.is_over = True
        return True

    def _go_on_in_floats(self) -> bool:
        return self._pointwise()

    def _pointwise(self) -> bool:
        """Take in a pointwise operator on float32."""
        node = self._reader(self.value)
        if node is None or len(node.outputs) != 1 or access_of(node) != "elementwise":
            return False
        if not is_runtime_own(node) and node.op_type not in EPILOGUE_OPS:
            return False
        if not self._keeps_shape(node) or node.inputs.count(self.value) != 1:
            return False
        names = [self._operand(value) for value in node.inputs]
        if None in names:
            return False
        known = [name or "" for name in names]
        made = write_step(self.writer, node, known, self.scope.opset())
        self._go_on([node], made, None)
        return True

    def _operand(self, value: ir.Value | None) -> str | None:
        """Return the name of a pointwise operator's operand; None if kernels do not take it."""
        if value is None:
            return ""
        if value is self.value:
            return self.name
        array = self.scope.array(value, self._columns)
        if array is None:
            array = self._dequantized_row(value)
        if array is not None and array.dtype == np.float32:
            if array.size == 1:
                return self.writer.constant(array.reshape(()))
            is_row = self.product.matrix.is_row(array)
            return self._row(f"r{len(self.inputs)}", array.reshape(-1)) if is_row else None
        if self.scope.is_constant(value) or self.scope.shapes.dtype(value) != ir.DataType.FLOAT:
            return None
        if self.scope.shapes.shape(value) != self.scope.shapes.shape(self.value):
            return None
        wide = dequantized(self.scope, value)
        if wide is None or self.scope.is_constant(wide[0]):
            return self._input(f"r{len(self.inputs)}", value)
        number = self._input(f"q{len(self.inputs)}", wide[0])
        return self.writer.op("DequantizeLinear", number, *self._grid(wide[1]))

    def _dequantized_row(self, value: ir.Value) -> Array | None:
        """Return a constant of uint8 as float32, as DequantizeLinear makes it."""
        found = dequantized(self.scope, value)
        numbers = None if found is None else self.scope.array(found[0], self._columns)
        if found is None or numbers is None:
            return None
        moved = (numbers.astype(np.int32) - found[1].zero).astype(np.float32)
        return np.asarray(moved * found[1].scale, np.float32)

    def _add_rounded(self) -> bool:
        """Take in DequantizeLinear, Add and QuantizeLinear, which ONNX Runtime computes as one."""
        wide = self._widening()
        add = None if wide is None else self._reader(wide.outputs[0])
        if wide is None or add is None or (add.domain, add.op_type) != ("", "Add"):
            return False
        rounding = self._rounding(add.outputs[0])
        place = list(add.inputs).index(wide.outputs[0])
        other = dequantized(self.scope, add.inputs[1 - place])
        if rounding is None or other is None or not self._keeps_shape(add):
            return False
        return self._add([wide, add, *rounding[0]], place, other, rounding[1])

    def _add_operator(self) -> bool:
        """Take in a QLinearAdd."""
        node = self._reader(self.value)
        if node is None or (node.domain, node.op_type) != (MICROSOFT, "QLinearAdd"):
            return False
        inputs = list(node.inputs)
        place = 0 if inputs[0] is self.value else 1
        own = grid_of(self.scope, *inputs[3 * place + 1 : 3 * place + 3])
        at = 3 * (1 - place)
        grid, source = grid_of(self.scope, *inputs[at + 1 : at + 3]), inputs[at]
        result = grid_of(self.scope, *inputs[6:8]) if len(inputs) > 7 else None
        if own != self.grid or grid is None or source is None or result is None:
            return False
        is_bytes = self.scope.shapes.dtype(source) == ir.DataType.UINT8
        if not is_bytes or source is self.value or not self._keeps_shape(node):
            return False
        return self._add([node], place, (source, grid), result)

    def _add(
        self, nodes: list[ir.Node], place: int, other: tuple[ir.Value, Grid], result: Grid
    ) -> bool:
        source, grid = other
        array = self.scope.array(source, self._columns)
        if array is not None:
            if not self.product.matrix.is_row(array):
                return False
            name = self._row(f"q{len(self.inputs)}", array.reshape(-1))
        elif self.scope.is_constant(source):
            return False
        elif self.scope.shapes.shape(source) == self.scope.shapes.shape(self.value):
            name = self._input(f"q{len(self.inputs)}", source)
        else:
            return False
        assert self.grid is not None
        grids = [self.grid, grid] if place == 0 else [grid, self.grid]
        names = [self.name, name] if place == 0 else [name, self.name]
        operands: list[str] = []
        for one, of in zip(names, grids, strict=True):
            operands += [one, *self._grid(of)]
        made = f"t{len(self.writer.nodes)}_sum"
        operands += self._grid(result)
        self.writer.nodes.append(
            helper.make_node("QLinearAdd", operands, [made], domain=MICROSOFT)
        )
        self._go_on(nodes, made, result)
        return True

    def _look_up(self) -> bool:
        """Take in a function of bytes, as a table."""
        found = find_lookup(self.scope, self.value, self._is_free)
        if isinstance(found, Refused):
            readers = [use.node for use in self.value.uses()]
            self.scope.log.miss(PASS, describe(readers[0]), found.reason)
        if not isinstance(found, Lookup):
            return False
        key = "table", found.table.tobytes()
        held = f"{self.product.end.name}/table{len(self.inputs)}"
        name = f"l{len(self.inputs)}"
        self.inputs[name] = self.search.constant(key, held, ir.tensor(found.table.copy()))
        place = self.writer.op("Cast", self.name, to=int(ir.DataType.INT32))
        made = self.writer.op("Gather", name, place)
        self._go_on(list(found.nodes), made, found.grid)
        return True

    def _widening(self) -> ir.Node | None:
        """Return the DequantizeLinear with the value's own grid that alone reads it."""
        node = self._reader(self.value)
        if node is None or not is_op(node, "DequantizeLinear"):
            return None
        found = dequantized(self.scope, node.outputs[0])
        return node if found is not None and found[1] == self.grid else None

    def _widen(self) -> bool:
        """Take in a DequantizeLinear that a pointwise operator follows."""
        node = self._widening()
        if node is None:
            return False
        assert self.grid is not None
        reader = self._reader(node.outputs[0])
        if reader is None or access_of(reader) != "elementwise" or self._is_merged_product(reader):
            return False
        if any(_is_quantized_product(value) for value in reader.inputs):
            return False  # what it makes goes on with this one's bytes
        before = self.value, self.name, self.grid, len(self.nodes), len(self.writer.nodes)
        made = self.writer.op("DequantizeLinear", self.name, *self._grid(self.grid))
        self._go_on([node], made, None)
        if self._pointwise():
            return True
        self.value, self.name, self.grid = before[:3]
        del self.nodes[before[3] :], self.writer.nodes[before[4] :]
        return False

    def _is_merged_product(self, node: ir.Node) -> bool:
        """Say whether ONNX Runtime multiplies bytes, with one scale for both and the result.

        It rounds otherwise than DequantizeLinear, Mul and QuantizeLinear do one by one.
        """
        if (node.domain, node.op_type) != ("", "Mul") or self._rounding(node.outputs[0]) is None:
            return False
        return all(dequantized(self.scope, value) is not None for value in node.inputs)

    # ---- parts
    def _reader(self, value: ir.Value) -> ir.Node | None:
        """Return the only reader of a value, if a region may take it in."""
        if not is_read_once(value):
            return None
        node = next(iter(value.uses())).node
        return node if self._is_free(node) else None

    def _is_free(self, node: ir.Node) -> bool:
        """Say whether a region may take in a node."""
        return node not in self.search.taken and node.graph is self.product.nodes[0].graph

    def _keeps_shape(self, node: ir.Node) -> bool:
        shape = self.scope.shapes.shape(node.outputs[0])
        return shape is not None and shape == self.scope.shapes.shape(self.value)

    @property
    def _columns(self) -> int:
        return self.product.matrix.columns

    def _go_on(self, nodes: list[ir.Node], name: str, grid: Grid | None) -> None:
        self.nodes += nodes
        self.value, self.name, self.grid = nodes[-1].outputs[0], name, grid

    def _end(self) -> None:
        self.ends.append(
            End(tuple(self.nodes), len(self.writer.nodes), self.name, self.value, self.kept)
        )

    def _quantized(self, name: str, grid: Grid) -> str:
        return self.writer.op("QuantizeLinear", name, *self._grid(grid))

    def _grid(self, grid: Grid) -> tuple[str, str]:
        is_one = grid.scale == 1.0
        scale = self.writer.number(1.0) if is_one else self._number(grid.scale)
        return scale, self._number(np.uint8(grid.zero))

    def _number(self, number: np.generic) -> str:
        """Return an input of one number; equal ones are not joined, so that layers are alike."""
        key = number.dtype.name, number.tobytes()
        held = f"{number.dtype.name}_{number.tobytes().hex()}"
        name = f"n{len(self.inputs)}"
        self.inputs[name] = self.search.constant(key, held, ir.tensor(number))
        return name

    def _input(self, name: str, value: ir.Value) -> str:
        for known, other in self.inputs.items():
            if other is value:
                return known
        self.inputs[name] = value
        return name

    def _row(self, name: str, row: Array | ir.TensorProtocol) -> str:
        tensor = ir.tensor(np.ascontiguousarray(row)) if isinstance(row, np.ndarray) else row
        self.inputs[name] = detached_constant(tensor, f"{self.product.end.name}/{name}")
        return name


def _is_cut_off(scope: Scope, node: ir.Node, grid: Grid) -> bool:
    """Say whether the ends of a grid cut off what a Relu or Clip does."""
    if node.op_type == "Relu":
        return grid.zero == 0
    lowest = float(np.float32(0 - grid.zero) * grid.scale)
    highest = float(np.float32(255 - grid.zero) * grid.scale)
    limits = [scope.array(value, 1) for value in node.inputs[1:]]
    if len(limits) != 2 or any(one is None or one.size != 1 for one in limits):
        return False
    low, high = (float(one.reshape(())) for one in limits if one is not None)
    return low <= lowest and high >= highest


def _is_quantized_product(value: ir.Value | None) -> bool:
    """Say whether one node alone reads a float32 product in QDQ format."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type not in ("Conv", "Gemm", "MatMul"):
        return False
    sources = [None if one is None else one.producer() for one in node.inputs[:2]]
    return is_read_once(node.outputs[0]) and all(is_op(s, "DequantizeLinear") for s in sources)


def _rounded(one: IntegerProduct, nodes: list[ir.Node], grid: Grid) -> IntegerProduct:
    """Return a product with the QuantizeLinear that follows it."""
    return IntegerProduct(
        (*one.nodes, *nodes), one.x, one.zero, one.matrix, one.added, one.scale, one.factor,
        one.bias, nodes[-1].outputs[0], grid,
    )  # fmt: skip


#: Shorter chains that are tried where a kernel does not take the longest.
_TRIED = 4


def regions(search: Search, anchor: Anchor) -> Iterator[Candidate]:
    """Yield a candidate for each int8 matrix product of one graph."""
    return around(search, anchor, partial(_regions, search))


def _regions(search: Search, node: ir.Node) -> Choices | Refused | None:
    """Return the regions around an int8 matrix product; None for other nodes."""
    product = find_product(search.scope, node)
    if product is None or not search.taken.isdisjoint(product.nodes):
        return None
    chain = Chain(search, product)
    return product.nodes, map(chain.region, chain.ends[::-1][:_TRIED])
