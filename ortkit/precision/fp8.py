"""Products in fp8 on CUDA: which gain, and what they become.

Before:
    y = MatMul(x, W)                                                     # float16
After, of a few rows:
    y = MatMul(x, Transpose(DequantizeLinear(W8, s)))                    # W8: [n, k], s: [n]
After, of many rows:
    f = Max(ReduceMax(Abs(x)) / 448, least), q = Cast(x / f, FLOAT8E4M3FN)   # float32
    y = MatMul(Cast(Cast(q) * f), Transpose(DequantizeLinear(W8, s)))

After, of many rows whose magnitudes have a limit (`magnitudes.py`):
    q = Cast(x / f, FLOAT8E4M3FN), y = MatMul(Cast(Cast(q) * f), Transpose(...))    # f: a number

Regions make one kernel of each product (`ortkit/fusion/gemm/cuda_fp8.py`). What rounds x with one
factor is a part of the product before, or of attention, else a kernel of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.graph.batch.cut import Cut, cut_batch
from ortkit.graph.constants import constant_array, is_constant
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.opsets.raising import raise_opset
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.tuning.gemm_times import SMALL_M_MAX, fp8_ns, half_ns, rounding_ns
from ortkit.precision.budget import Choice, Trial, order_of
from ortkit.precision.building import Builder
from ortkit.precision.candidates import Chosen, Measured
from ortkit.precision.data import Data, gather, gather_few
from ortkit.precision.fp8_matrix import LARGEST, Fp8Matrix, quantize_fp8
from ortkit.precision.gains import Gain
from ortkit.precision.lowering import CpuLowering, CpuRequest
from ortkit.precision.magnitudes import Magnitude, magnitudes
from ortkit.precision.products import PASS, Product
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.site import describe
from ortkit.runtime.timing.variants import Variant
from ortkit.verify.inputs.batch_rows import FewRows, few_rows

#: DequantizeLinear has had fp8 since then; axes are an input.
_OPSET = 19
_FLOAT, _FP8 = ir.DataType.FLOAT, ir.DataType.FLOAT8E4M3FN
_HALF_DTYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
#: Beyond that numbers in half precision are infinite.
_FINITE = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3e38}
#: Factors of rows are no smaller.
_LEAST = 1e-30
#: Depth and columns are multiples of this, so that rows begin at 16 bytes.
_MULTIPLE = 16
#: The part of its time that a product has to save.
_GAIN = 0.1
#: Rounding the rows and the matrix of a product to 4 bits makes sums larger by 1.13 at most, and
#: the factor itself is rounded.
_MARGIN = 1.15
#: How many times their usual size rows with one factor may be. There are 2^15 between the largest
#: and the smallest number of 4 bits. Attention over thousands of keys makes values 2^5 smaller.
_MOST_SPREAD = 512.0


@dataclass(frozen=True, eq=False)
class Fp8Product:
    """A product whose matrix has eight bits, and whose rows have them if there are many."""

    product: Product
    rows: int
    factor: float | None = None
    """Of all rows, where their magnitudes have a limit; None where each has one."""

    @property
    def is_narrow(self) -> bool:
        """Whether the rows have eight bits, too."""
        return self.rows > SMALL_M_MAX

    @property
    def name(self) -> str:
        """What reports call it."""
        return "fp8" if self.is_narrow else "fp8-weights"

    def emit(self, build: Builder, matrix: Fp8Matrix | None = None) -> ir.Value:
        """Make the matrix in eight bits, and return it as the product reads it."""
        product = self.product
        matrix = matrix or quantize_fp8(product.array())
        dtype = product.weight.dtype
        assert dtype is not None
        name = f"{product.weight.name}/fp8"
        constants = [
            build.constant(matrix.numbers, name),
            build.constant(matrix.factors.astype(dtype.numpy()), f"{name}/factors"),
        ]
        wide = build.one("DequantizeLinear", constants, f"{name}/wide", {"axis": 0}, dtype=dtype)
        if product.is_transposed:
            return wide
        return build.one("Transpose", [wide], f"{name}/back", {"perm": [1, 0]}, dtype=dtype)


def rounded_rows(build: Builder, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Make rows in eight bits with a factor for each, and return what they are worth."""
    name = f"{x.name}/fp8"
    wide = build.one("Cast", [x], f"{name}/float", {"to": int(_FLOAT)})
    size = build.one("Abs", [wide], f"{name}/size")
    axes = build.sizes([-1], f"{name}/axes")
    top = build.one("ReduceMax", [size, axes], f"{name}/top", {"keepdims": 1})
    part = build.constant(np.array(1 / LARGEST, np.float32), f"{name}/part")
    least = build.constant(np.array(_LEAST, np.float32), f"{name}/least")
    scaled = build.one("Mul", [top, part], f"{name}/scaled")
    factor = build.one("Max", [scaled, least], f"{name}/factor")
    return _rounded(build, wide, factor, name, dtype)


def rounded_whole(build: Builder, x: ir.Value, factor: float, dtype: ir.DataType) -> ir.Value:
    """Make rows in eight bits with one factor, and return what they are worth."""
    name = f"{x.name}/fp8"
    # ONNX Runtime 1.31.1 moves QuantizeLinear before operators that have no such type.
    by = build.constant(np.array(factor, np.float32), f"{name}/factor")
    wide = build.one("Cast", [x], f"{name}/float", {"to": int(_FLOAT)})
    return _rounded(build, wide, by, name, dtype)


def _rounded(
    build: Builder, wide: ir.Value, factor: ir.Value, name: str, dtype: ir.DataType
) -> ir.Value:
    """Return what numbers of float32 are worth in eight bits with a factor."""
    ratio = build.one("Div", [wide, factor], f"{name}/ratio")
    narrow = build.one("Cast", [ratio], name, {"to": int(_FP8)}, dtype=_FP8)
    again = build.one("Cast", [narrow], f"{name}/wide", {"to": int(_FLOAT)})
    worth = build.one("Mul", [again, factor], f"{name}/worth")
    return build.one("Cast", [worth], f"{name}/half", {"to": int(dtype)}, dtype=dtype)


def factor_of(magnitude: Magnitude | None, dtype: ir.DataType) -> float | None:
    """Return one factor for all rows of a type, or None where each row needs its own."""
    if magnitude is None or magnitude.spread > _MOST_SPREAD:
        return None
    limit = _MARGIN * magnitude.limit
    if limit > _FINITE[dtype]:
        return None
    # With powers of two layers have kernels in common, and eight bits lose nothing by them.
    return max(2.0 ** math.ceil(math.log2(limit / LARGEST)), _LEAST)


class Fp8Lowering(CpuLowering):
    """Lowers the products of every attempt at one model for CUDA; times are predicted."""

    def __init__(
        self, original: Path, request: CpuRequest, folder: Path, progress: Callable[[str], None]
    ) -> None:
        super().__init__(original, request, folder, progress)
        self._matrices: dict[tuple[ir.Value, bool], Fp8Matrix] = {}
        """Of the model that is being lowered."""

    def _choose(self, model: ir.Model) -> Chosen:
        found = self._gathered()
        if isinstance(found, str):
            self._notes.append(f"nothing is lowered, as it cannot be measured: {found}")
            return Chosen()
        if model.opset_imports.get("", 0) < _OPSET and (why := raise_opset(model, _OPSET)):
            self._notes.append(f"nothing is lowered: opset {_OPSET} is needed, and {why}")
            return Chosen()
        self.data = found
        self._notes.append("times are predicted, from products that were measured on an H100")
        measured = self._worth(model)
        order = order_of([Trial(one.harm, one.saved_us) for one in measured])
        flags = tuple(index in order for index in range(len(measured)))
        # The harm of one alone is not measured: all round alike, and what saves least goes first.
        kept = [Measured(item.form, item.own_error, math.nan, item.gain) for item in measured]
        return Chosen(tuple(kept), Choice(flags, order, ()))

    def _gathered(self) -> Data | str:
        """Return the input sets to judge on: of a few rows where a run of all takes long."""
        request = self.request
        few = few_rows(open_model(self.original))
        if isinstance(few, FewRows):
            found = gather_few(
                few, self.folder / "data", inputs=request.inputs, original=self.original,
                samples=request.samples,
            )  # fmt: skip
            if isinstance(found, Data):
                return found
        return self._all_gathered()

    def _all_gathered(self) -> Data | str:
        request = self.request
        return gather(
            self.original, self.folder / "all", inputs=request.inputs, calibrate=None,
            samples=request.samples, shapes=request.shapes,
        )  # fmt: skip

    def measure(self, candidate: Path, library: Path | None) -> float:
        """Return the error of a candidate's worst output, on a few rows if they stand for all."""
        data = self.data
        if data is None or data.few is None:
            return super().measure(candidate, library)
        cut = cut_batch(open_model(candidate), data.few.cut.rows)
        if isinstance(cut, Cut):
            self._original_file = self._saved(data.few.cut, "original")
            return super().measure(self._saved(cut, "candidate"), None)
        self._notes.append(f"errors were measured with all rows: {cut.reason}")
        found = self._all_gathered()
        if isinstance(found, str):
            self._notes.append(f"accuracy was not measured: {found}")
            return math.inf
        self.data, self._runner, self._original_file = found, None, self.original
        return super().measure(candidate, library)

    def _saved(self, cut: Cut, name: str) -> Path:
        path = self.folder / f"few-{name}.onnx"
        save_model(cut.model, path, external_data=True, is_temporary=True)
        return path

    def _worth(self, model: ir.Model) -> list[Measured]:
        """Return the products that gain, with their matrices' errors in the place of harm."""
        shapes = Shapes.infer(model)
        products = {item.key: item for item in self._products(model, shapes, self._refused)}
        readers: dict[ir.Value, int] = {}
        for one in products.values():
            readers[one.x] = readers.get(one.x, 0) + 1
        known = magnitudes(model, shapes, readers)
        found = []
        for product in products.values():
            dtype = product.weight.dtype
            assert dtype is not None
            factor = factor_of(known.get(product.x), dtype)
            gain = _gain(shapes, product, 0 if factor else readers[product.x])
            if isinstance(gain, str):
                self._refused.miss(PASS, describe(product.node), gain, (product.key,))
                continue
            rows = _rows(shapes, product)
            assert rows is not None
            error = self._matrix(product).error
            found.append(Measured(Fp8Product(product, rows, factor), error, error, gain))
        return found

    def _matrix(self, product: Product) -> Fp8Matrix:
        """Return a product's matrix in eight bits, made once for each weight of a model."""
        key = (product.weight, product.is_transposed)
        if key not in self._matrices:
            self._matrices[key] = quantize_fp8(product.array())
        return self._matrices[key]

    def _products(self, model: ir.Model, shapes: Shapes, log: RewriteLog) -> tuple[Product, ...]:
        """Return the products of rows and constant matrices in half precision."""
        found = []
        for node in model.graph:
            if node.op_type not in ("MatMul", "Gemm") or node.domain:
                continue
            made = _read(model, shapes, node)
            if isinstance(made, Product):
                found.append(made)
            else:
                outputs = tuple(value.name or "" for value in node.outputs)
                log.miss(PASS, describe(node), made, outputs)
        return tuple(found)

    def lower(self, model: ir.Model, log: RewriteLog) -> None:
        """Lower what was chosen; the first model is the one that is chosen on.

        Raises:
            UserError: The user's data do not fit the model.
        """
        if self.chosen is None:
            self.chosen = self._choose(model)
        log.misses |= self._refused.misses
        build, narrow = Builder(model), dict[ir.Value, ir.Value]()
        for form in self._claimed(model, log):
            assert isinstance(form, Fp8Product)
            node, x = form.product.node, form.product.x
            if form.is_narrow and x not in narrow:
                dtype = form.product.weight.dtype
                assert dtype is not None
                narrow[x] = (
                    rounded_rows(build, x, dtype)
                    if form.factor is None
                    else rounded_whole(build, x, form.factor, dtype)
                )
                build.insert_after(model.graph, x)
            matrix = form.emit(build, self._matrix(form.product))
            model.graph.insert_before(node, build.take())
            if form.is_narrow:
                node.replace_input_with(0, narrow[x])
            node.replace_input_with(1, matrix)
        self._matrices.clear()  # the model has those that are needed

    def return_unfused(self, model: ir.Model) -> bool:
        """Return products that became no kernel: as nodes they only cost."""
        wanted = self._lowered()
        found = [
            node.outputs[0].name or ""
            for node in model.graph
            if node.op_type in ("MatMul", "Gemm") and node.outputs[0].name in wanted
        ]
        self.returned |= dict.fromkeys(found, "no kernel of ours computes it where it stands")
        return bool(found)

    def pays(self, lowered: Variant, plain: Variant) -> bool:  # noqa: ARG002
        """Times are not measured for CUDA: they were predicted for each product."""
        return True


def _read(model: ir.Model, shapes: Shapes, node: ir.Node) -> Product | str:
    """Return a node as a product in half precision, or why it is none."""
    x, weight = node.inputs[0], node.inputs[1]
    if x is None or weight is None or not is_constant(weight, model):
        return "its weight is no constant"
    if shapes.dtype(x) not in _HALF_DTYPES or weight.dtype not in _HALF_DTYPES:
        return "it is not in half precision"
    array = constant_array(weight)
    if array is None or array.ndim != 2 or array.size == 0:
        return "its weight is no matrix"
    if not np.isfinite(array).all():
        return "its weight holds what is no number"
    if any(size % _MULTIPLE for size in array.shape):
        return f"its weight is {list(array.shape)}, no multiples of {_MULTIPLE}"
    for name, usual in (("alpha", 1.0), ("beta", 1.0), ("transA", 0)):
        given = node.attributes.get(name)
        if given is not None and given.value != usual:
            return "it scales what it computes, or transposes its rows"
    output = node.outputs[0]
    return Product(node, "product", x, weight, None, node, output.name or "")


def _rows(shapes: Shapes, product: Product) -> int | None:
    """Return the rows of a product; None where they are not known."""
    shape: Sequence[object] = (shapes.shape(product.x) or (None,))[:-1]
    sizes = [size for size in shape if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(shape) and sizes else None


def _gain(shapes: Shapes, product: Product, readers: int) -> Gain | str:
    """Return what a product takes before and after, or why it does not gain.

    Args:
        shapes: Shapes of the model's values.
        product: It.
        readers: Products that multiply the same rows, which are rounded once; 0 where what makes
            the rows rounds them.
    """
    rows = _rows(shapes, product)
    if rows is None:
        return "how many rows it multiplies is not known"
    depth, columns = product.array().shape
    rounding = rounding_ns(rows * depth) / readers if readers and rows > SMALL_M_MAX else 0.0
    gain = Gain(
        half_ns(rows, depth, columns) / 1e3, (fp8_ns(rows, depth, columns) + rounding) / 1e3
    )
    if gain.saved_us < _GAIN * gain.float_us:
        return f"{rows} rows of [{depth}, {columns}] are predicted to be no faster in fp8"
    return gain
