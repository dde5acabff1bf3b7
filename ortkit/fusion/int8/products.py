"""Int8 matrix products in a graph, whatever tool wrote them: one value for every way of writing.

Convolutions are such products too: `filters.py` finds them.

MatMul or Gemm of two DequantizeLinear        QDQ format
QLinearMatMul, com.microsoft.QGemm            QOperator format
MatMulInteger, Cast, Mul                      dynamic quantization
com.microsoft.MatMulIntegerToFloat            what ONNX Runtime and `--precision int8` write
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.analysis.quantization import is_op, quantized_axis
from ortkit.fusion.int8.grids import MICROSOFT, Array, Grid, dequantized, grid_of, quotient
from ortkit.fusion.int8.weights import Matrix, Weights
from ortkit.fusion.regions.access import is_read_once, only_reader
from ortkit.fusion.regions.lower import detached_constant
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class IntegerProduct:
    """Int8 dot products, and what they are multiplied by.

    It is a matrix product or, by what `matrix` is, a convolution.

    Args:
        nodes: All of them, in order; DequantizeLinear of operands are not among them.
        x: uint8 [..., K]; of a convolution NCHW.
        zero: What stands for 0 in `x`: a number, one for each column, or a value of one uint8.
        matrix: The other factor.
        scale: float32 [N] or one number: a constant, or a value.
        added: int32 [N], added to the sums; None if nothing is.
        factor: One float32 that a constant scale is multiplied by at run time; None if there is
            none.
        bias: float32 [N], added to what was scaled: a constant, or a value; None if nothing is.
        grid: What the result's numbers stand for, if the product rounds it itself; else it is
            float32.
        is_merged: Whether ONNX Runtime makes one operator of it and a QuantizeLinear after it, and
            so multiplies by one scale.
        given: The float32 that become `x` here, by the grid beside them; None if `x` is read.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    zero: int | Array | ir.Value
    matrix: Weights
    scale: Array | ir.Value
    added: Array | None = None
    factor: ir.Value | None = None
    bias: Array | ir.Value | None = None
    grid: Grid | None = None
    is_merged: bool = False
    given: tuple[ir.Value, Grid] | None = None

    @property
    def source(self) -> ir.Value:
        """What is read: x, or what becomes x."""
        return self.x if self.given is None else self.given[0]

    @property
    def end(self) -> ir.Value:
        """The result."""
        return self.nodes[-1].outputs[0]


def find_product(scope: Scope, node: ir.Node) -> IntegerProduct | None:
    """Return the int8 matrix product of a node; None if it is none that kernels take."""
    find = _FINDERS.get((node.domain, node.op_type))
    found = None if find is None else find(Finder(scope, node))
    return found if found is not None and found.x.producer() is not node else None


@dataclass(frozen=True)
class Finder:
    """One look at a node."""

    scope: Scope
    node: ir.Node

    def input(self, number: int) -> ir.Value | None:
        return self.node.inputs[number] if number < len(self.node.inputs) else None

    def flag(self, name: str) -> bool:
        found = self.node.attributes.get(name)
        return found is not None and bool(found.as_int())

    # ---- ways of writing
    def of_floats(self) -> IntegerProduct | None:
        """MatMul and Gemm of what is dequantized."""
        x = dequantized(self.scope, self.input(0))
        weight = self.dequantized(self.input(1), self.flag("transB"))
        if x is None or weight is None or self.is_scaled():
            return None
        (source, grid), (matrix, scales) = x, weight
        scale = np.asarray(grid.scale * scales, np.float32)
        added, bias, given = None, None, self.input(2) if self.node.op_type == "Gemm" else None
        if given is not None:
            added, bias = self.biases(given, scale, matrix)
            if added is None and bias is None:
                return None
        return self.checked(IntegerProduct(
            (self.node,), source, grid.zero, matrix, scale, added, bias=bias, is_merged=True
        ))  # fmt: skip

    def of_rounded(self) -> IntegerProduct | None:
        """QLinearMatMul."""
        x, zero = self.input(0), grid_of(self.scope, self.input(1), self.input(2))
        result = grid_of(self.scope, self.input(6), self.input(7))
        weight = self.matrix(self.input(3), self.input(5), is_transposed=False)
        scales = self.scales(self.input(4), weight)
        if x is None or zero is None or result is None or weight is None or scales is None:
            return None
        scale = quotient(zero.scale * scales, result.scale)
        return self.checked(IntegerProduct((self.node,), x, zero.zero, weight, scale, grid=result))

    def of_rounded_gemm(self) -> IntegerProduct | None:
        """QGemm of ONNX Runtime, whose bias is int32."""
        x, grid = self.input(0), grid_of(self.scope, self.input(1), self.input(2))
        weight = self.matrix(self.input(3), self.input(5), is_transposed=self.flag("transB"))
        scales = self.scales(self.input(4), weight)
        if x is None or grid is None or weight is None or scales is None or self.is_scaled():
            return None
        added, given = None, self.input(6)
        if given is not None:
            added = self.row(given, weight.sizes[1], np.int32)
            if added is None:
                return None
        scale = np.asarray(grid.scale * scales, np.float32)
        if self.input(7) is None:
            return self.checked(
                IntegerProduct((self.node,), x, grid.zero, weight, scale, added=added)
            )
        result = grid_of(self.scope, self.input(7), self.input(8))
        if result is None:
            return None
        scale = quotient(scale, result.scale)
        return self.checked(
            IntegerProduct((self.node,), x, grid.zero, weight, scale, added=added, grid=result)
        )

    def of_scaled(self) -> IntegerProduct | None:
        """MatMulIntegerToFloat of ONNX Runtime."""
        weight = self.matrix(self.input(1), self.input(5), is_transposed=False)
        scales = self.scales(self.input(3), weight)
        x, factor, zero = self.input(0), self.input(2), self.zero(self.input(4))
        if x is None or factor is None or weight is None or scales is None or zero is None:
            return None
        bias, columns = self.input(6), weight.sizes[1]
        if bias is not None and self.shape(bias) != (columns,):
            return None
        if (step := self.scope.array(factor, 1)) is not None:
            scale = np.asarray(np.float32(step.reshape(())) * scales, np.float32)
            return self.checked(IntegerProduct((self.node,), x, zero, weight, scale, bias=bias))
        if not self.is_one(factor):
            return None
        return self.checked(
            IntegerProduct((self.node,), x, zero, weight, scales, factor=factor, bias=bias)
        )

    def of_integers(self) -> IntegerProduct | None:
        """MatMulInteger, whose result a Cast and a Mul scale."""
        weight = self.matrix(self.input(1), self.input(3), is_transposed=False)
        x, zero = self.input(0), self.zero(self.input(2))
        cast = _reader(self.node.outputs[0], "Cast")
        scaled = None if cast is None else _reader(cast.outputs[0], "Mul")
        if x is None or weight is None or zero is None or cast is None or scaled is None:
            return None
        others = [value for value in scaled.inputs if value is not cast.outputs[0]]
        if len(others) != 1 or others[0] is None:
            return None
        scale = others[0]
        if not self.is_one(scale) and self.shape(scale) != (weight.sizes[1],):
            return None
        if self.shape(scaled.outputs[0]) != self.shape(self.node.outputs[0]):
            return None
        split = self.factored(scale, weight)
        if split is None:
            return self.checked(IntegerProduct((self.node, cast, scaled), x, zero, weight, scale))
        multiplied, factor, scales = split
        nodes = self.node, cast, multiplied, scaled
        return self.checked(IntegerProduct(nodes, x, zero, weight, scales, factor=factor))

    def factored(self, scale: ir.Value, weight: Weights) -> tuple[ir.Node, ir.Value, Array] | None:
        """Return the Mul of one number and constant scales that a product alone reads.

        DynamicQuantizeLinear gives the number.
        """
        node = scale.producer()
        if node is None or (node.domain, node.op_type) != ("", "Mul") or not is_read_once(scale):
            return None
        for factor, constant in (node.inputs, node.inputs[::-1]):
            scales = self.scales(constant, weight)
            if scales is None or factor is None or not self.is_one(factor):
                continue
            if node.graph is self.node.graph and not self.scope.is_constant(factor):
                return node, factor, scales
        return None

    # ---- parts
    def checked(self, product: IntegerProduct) -> IntegerProduct | None:
        """Return a product whose operands are of the types and sizes that kernels take."""
        shape, result = self.shape(product.x), self.shape(product.end)
        if self.dtype(product.x) != ir.DataType.UINT8 or self.scope.is_constant(product.x):
            return None
        if not isinstance(product.scale, ir.Value) and not np.isfinite(product.scale).all():
            return None
        if product.grid is None and self.dtype(product.end) != _FLOAT:
            return None
        if shape is None or result is None or not product.matrix.fits(shape, result):
            return None
        return product

    def is_scaled(self) -> bool:
        """Say whether a Gemm has factors, or a transposed first operand."""
        factors = [self.node.attributes.get(name) for name in ("alpha", "beta")]
        if any(factor is not None and factor.as_float() != 1.0 for factor in factors):
            return True
        return self.flag("transA")

    def dequantized(
        self, value: ir.Value | None, is_transposed: bool
    ) -> tuple[Matrix, Array] | None:
        """Return the matrix of bytes that a factor is dequantized from, and its scales."""
        node = None if value is None else value.producer()
        if node is not None and (node.domain, node.op_type) == ("", "Transpose"):
            perm = node.attributes.get("perm")
            if perm is not None and tuple(perm.as_ints()) != (1, 0):
                return None
            is_transposed, value = not is_transposed, node.inputs[0]
            node = None if value is None else value.producer()
        if node is None or not is_op(node, "DequantizeLinear"):
            return None
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        source = self.folded(node, 2) or node.inputs[0]
        matrix = self.matrix(source, zero, is_transposed=is_transposed)
        scales = self.scales(node.inputs[1], matrix)
        if matrix is None or scales is None:
            return None
        axis, block = quantized_axis(Site(self.scope, node, ""), node)
        if block or (scales.ndim and axis != (0 if is_transposed else 1)):
            return None
        return matrix, scales

    def folded(self, widening: ir.Node, rank: int) -> ir.Value | None:
        """Return the constant that QuantizeLinear in front of DequantizeLinear makes of floats."""
        source = widening.inputs[0]
        node = None if source is None else source.producer()
        if node is None or not is_op(node, "QuantizeLinear") or source is None:
            return None
        array, scale = self.scope.array(node.inputs[0]), self.scope.array(node.inputs[1])
        if array is None or scale is None or array.ndim != rank or array.dtype != np.float32:
            return None
        axis, block = quantized_axis(Site(self.scope, node, ""), node)
        if (
            node.inputs[1:] != widening.inputs[1:]
            or block
            or scale.size not in (1, array.shape[axis])
        ):
            return None
        if not scale.all():
            return None
        along = [1] * rank
        along[axis] = scale.size
        steps = scale.reshape(along)
        dtype = self.dtype(source)
        if dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
            return None
        # Other zero points are refused later.
        least, middle = (-128, 0) if dtype == ir.DataType.INT8 else (0, 128)
        whole = np.clip(np.rint(quotient(array, steps)) + middle, least, least + 255)
        return detached_constant(ir.tensor(whole.astype(dtype.numpy())), f"{source.name}/folded")

    def matrix(
        self, value: ir.Value | None, zero: ir.Value | None, *, is_transposed: bool
    ) -> Matrix | None:
        """Return a matrix of bytes around the middle of their type."""
        middle = self.middle(value, zero, 2)
        return None if value is None or middle is None else Matrix(value, middle, is_transposed)

    def middle(self, value: ir.Value | None, zero: ir.Value | None, rank: int) -> int | None:
        """Return what stands for 0 in a constant of bytes; None if it is not their middle."""
        if value is None or value.const_value is None:
            return None
        if value.graph is not None and not self.scope.is_constant(value):
            return None
        if len(value.const_value.shape) != rank or 0 in value.const_value.shape.numpy():
            return None
        dtype = value.const_value.dtype
        if dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
            return None
        middle = 0 if dtype == ir.DataType.INT8 else 128
        given = np.zeros(1) if zero is None else self.scope.array(zero)
        if given is None or (given.astype(np.int16) != middle).any():
            return None
        return middle

    def scales(self, value: ir.Value | None, matrix: Weights | None) -> Array | None:
        """Return constant scales, one number or one for each column."""
        array = self.scope.array(value)
        if array is None or matrix is None or array.dtype != np.float32:
            return None
        if array.size == 1:
            return array.reshape(())
        return array.reshape(-1) if array.size == matrix.columns else None

    def biases(
        self, value: ir.Value, scale: Array, matrix: Weights
    ) -> tuple[Array | None, Array | None]:
        """Return a constant bias as int32 of the sums' scale; else as float32 of the result.

        It stays float32 where the result does, as NNCF writes what an activation follows.
        """
        whole = self.whole_bias(value, scale, matrix)
        if whole is not None or is_rounded(self.node.outputs[0]):
            return whole, None
        is_row = self.shape(value) == (matrix.columns,)
        return None, self.row(value, matrix.columns, np.float32) if is_row else None

    def whole_bias(self, value: ir.Value, scale: Array, matrix: Weights) -> Array | None:
        """Return a bias in int32, if its scale is that of the sums, or can be.

        ONNX Runtime (1.31.1) itself rounds one in float32 to that scale, where the result is
        rounded.
        """
        columns = matrix.columns
        wanted = np.broadcast_to(scale, (columns,))
        exact = None
        if self.shape(value) == (columns,) and is_rounded(self.node.outputs[0]):
            exact = self.row(value, columns, np.float32)
        if exact is not None:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                whole = np.rint(exact / wanted)
            return whole.astype(np.int32) if (np.abs(whole) < _MOST_WHOLE).all() else None
        node = value.producer()
        if node is None or not is_op(node, "DequantizeLinear"):
            return None
        steps = self.scope.array(node.inputs[1])
        zero = self.scope.array(node.inputs[2]) if len(node.inputs) > 2 else None
        if steps is None or steps.size not in (1, columns) or (zero is not None and zero.any()):
            return None
        # A quantizer may round the product of the two scales once more.
        if not (np.abs(steps.reshape(-1) - wanted) <= np.spacing(wanted)).all():
            return None
        return self.row(node.inputs[0], columns, np.int32)

    def row(self, value: ir.Value | None, columns: int, dtype: type) -> Array | None:
        array = self.scope.array(value, columns)
        if array is None or array.dtype != dtype or array.size != columns:
            return None
        return array.reshape(-1) if array.shape[-1] == columns else None

    def zero(self, value: ir.Value | None) -> int | ir.Value | None:
        """Return a zero point of one uint8: its number, or what gives it."""
        if value is None:
            return 0
        array = self.scope.array(value, 1)
        if array is not None:
            return int(array.reshape(())) if array.dtype == np.uint8 and array.size else None
        return value if self.is_one(value) and not self.scope.is_constant(value) else None

    def is_one(self, value: ir.Value) -> bool:
        shape = self.shape(value)
        return shape is not None and all(size == 1 for size in shape) and len(shape) < 2

    def shape(self, value: ir.Value) -> tuple[object, ...] | None:
        shape = self.scope.shapes.shape(value)
        return None if shape is None else tuple(shape)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        return self.scope.shapes.dtype(value)


_FLOAT = ir.DataType.FLOAT
#: Float32 below it are int32.
_MOST_WHOLE = 2.0**31


def is_rounded(value: ir.Value) -> bool:
    """Say whether QuantizeLinear to one grid alone reads a value, behind a Relu or Clip or not."""
    node = only_reader(value)
    if node is None:
        return False
    if not node.domain and node.op_type in ("Clip", "Relu"):
        return is_rounded(node.outputs[0])
    scale = node.inputs[1] if len(node.inputs) > 1 else None
    is_one = scale is None or scale.shape is None or scale.shape.rank() == 0 or scale.shape == (1,)
    return is_op(node, "QuantizeLinear") and is_one


def _reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """Return the only reader of a value, if it is of this operator."""
    node = only_reader(value)
    return node if node is not None and (node.domain, node.op_type) == ("", op_type) else None


_FINDERS: Mapping[tuple[str, str], Callable[[Finder], IntegerProduct | None]] = {
    ("", "MatMul"): Finder.of_floats,
    ("", "Gemm"): Finder.of_floats,
    ("", "QLinearMatMul"): Finder.of_rounded,
    ("", "MatMulInteger"): Finder.of_integers,
    (MICROSOFT, "QGemm"): Finder.of_rounded_gemm,
    (MICROSOFT, "MatMulIntegerToFloat"): Finder.of_scaled,
}
