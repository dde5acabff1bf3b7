"""Products with weights in 4 bits on CUDA, against numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from interpreter import Interpreter, numpy_dtype
from ortkit.custom_ops.forms.gemm_nbits_half import NBitsHalf, read_nbits_half
from ortkit.custom_ops.triton.gemm.nbits import LargeM, NBitsGemm
from test_triton_attention import stack_bytes

from ortkit.kernels.cuda import SHARED_BYTES, Product
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.launches import fitting, sizes_of
from ortkit.kernels.triton.source import VariantSource
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused
from ortkit.targets.cuda import ARCHITECTURES

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

#: What the epilogue of the largest tile keeps on the stack, at most.
MOST_STACK = 256
EPSILON = {"float16": 2.0**-9, "bfloat16": 2.0**-6}


@dataclass(frozen=True)
class Case:
    """A region of one product and what follows.

    Args:
        rows: Leading dims of x.
        depth: K.
        columns: N.
        block: Weights with one scale.
        zero: Whether there are zeros.
        tail: What follows: nothing, "bias", "silu", "residual", "gate", "gate and residual". Of a
            gated "pair" there are two matrices; a "pair with biases" adds a row to each product.
        dtype: Of x and the result.
        bits: Of a weight.
    """

    rows: tuple[int | str, ...] = ("batch", "sequence")
    depth: int = 128
    columns: int = 40
    block: int = 32
    zero: bool = False
    tail: str = ""
    dtype: str = "float16"
    bits: int = 4

    def signature(self) -> RegionSignature:
        """Return the region."""
        blocks = self.depth // self.block
        whole = (*self.rows, self.columns)
        specs = {
            "x": TensorSpec("x", self.dtype, (*self.rows, self.depth)),
            "w": TensorSpec("w", "uint8", (self.columns, blocks, self.block * self.bits // 8)),
            "s": TensorSpec("s", self.dtype, (self.columns * blocks,)),
        }
        if self.zero:
            specs["z"] = TensorSpec("z", "uint8", (self.columns * -(-blocks // 2),))
        names = ["x", "w", "s", "z" if self.zero else ""]
        product, tail = "y", ""
        if self.tail.startswith("pair"):
            for name in "wsz"[: 3 if self.zero else 2]:
                specs[f"{name}2"] = replace(specs[name], name=f"{name}2")
            tail = "g = Sigmoid (p)  h = Mul (p, g)  y = Mul (h, q)"
            if self.tail == "pair with biases":
                row = (self.columns,)
                specs |= {name: TensorSpec(name, self.dtype, row) for name in ("b", "b2")}
                tail = "u = Add (p, b)  g = Sigmoid (u)  h = Mul (u, g)  v = Add (q, b2)" + (
                    "  y = Mul (h, v)"
                )
            product = "p"
            others = ["x", *(f"{name}2" if name else "" for name in names[1:])]
            tail = self._product("q", others) + tail
        elif self.tail == "bias":
            specs["b"] = TensorSpec("b", self.dtype, (self.columns,))
            names += ["", "b"]
        elif self.tail == "silu":
            product, tail = "p", "g = Sigmoid (p)  y = Mul (p, g)"
        elif self.tail == "gate and residual":
            specs |= {name: TensorSpec(name, self.dtype, whole) for name in "rq"}
            product, tail = "p", "g = Mul (p, r)  y = Add (g, q)"
        elif self.tail:
            specs["r"] = TensorSpec("r", self.dtype, whole)
            operator = "Add" if self.tail == "residual" else "Mul"
            product, tail = "p", f"y = {operator} (p, r)"
        text = (
            f'<opset_import: ["" : 23, "com.microsoft" : 1]> product_nbits '
            f"({', '.join(specs)}) => (y) {{ {self._product(product, names)} {tail} }}"
        )
        outputs = (TensorSpec("y", self.dtype, whole),)
        return RegionSignature("product_nbits", text, tuple(specs.values()), outputs)

    def _product(self, result: str, names: list[str]) -> str:
        operands = ", ".join(names).rstrip(", ")
        return (
            f"{result} = com.microsoft.MatMulNBits<K: int = {self.depth}, "
            f"N: int = {self.columns}, bits: int = {self.bits}, "
            f"block_size: int = {self.block}> ({operands})  "
        )

    def feeds(self, rows: int) -> list[np.ndarray]:
        """Return numbers for each input."""
        rng = np.random.default_rng(5)
        found = []
        for spec in self.signature().inputs:
            shape = [{"batch": 1, "sequence": rows}.get(item, item) for item in spec.shape]
            if spec.dtype == "uint8":
                found.append(rng.integers(0, 256, shape, np.uint8))
                continue
            values = rng.standard_normal(shape)
            values = (0.5 + np.abs(values)) / 16 if spec.name in ("s", "s2") else values
            found.append(values.astype(numpy_dtype(spec.dtype)))
        return found

    def expected(self, feeds: list[np.ndarray]) -> np.ndarray:
        """Return the result in float64."""
        given = dict(zip([item.name for item in self.signature().inputs], feeds, strict=True))
        value = self._by(given, "")
        if self.tail.startswith("pair"):
            second = self._by(given, "2")
            if "b" in given:
                value, second = (
                    made + given[name].astype(np.float64)
                    for made, name in ((value, "b"), (second, "b2"))
                )
            return value / (1 + np.exp(-value)) * second
        other = given.get("b", given.get("r"))
        if self.tail == "silu":
            return value / (1 + np.exp(-value))
        if other is None:
            return value
        other = other.astype(np.float64)
        if "q" in given:
            return value * other + given["q"].astype(np.float64)
        return value * other if self.tail == "gate" else value + other

    def _by(self, given: dict[str, np.ndarray], end: str) -> np.ndarray:
        """The rows by the matrix whose tensors' names have an end."""
        blocks = self.depth // self.block
        numbers = halves(given[f"w{end}"]).reshape(self.columns, blocks, self.block)
        zero = 8.0
        if self.zero:
            zero = halves(given[f"z{end}"].reshape(self.columns, -1))[..., :blocks, None]
        scale = given[f"s{end}"].astype(np.float64).reshape(self.columns, blocks, 1)
        matrix = ((numbers - zero) * scale).reshape(self.columns, self.depth)
        return given["x"].astype(np.float64) @ matrix.T


def halves(packed: np.ndarray) -> np.ndarray:
    """The numbers of bytes, the low half first; two in place of each along the last axis."""
    both = np.stack([packed & 15, packed >> 4], -1).astype(np.float64)
    return both.reshape(*packed.shape[:-1], -1)


CASES = {
    "blocks of 32": Case(depth=512, columns=32),
    "an odd number of blocks with zeros": Case(depth=96, zero=True, tail="bias"),
    "zeros": Case(depth=512, columns=16, zero=True, tail="gate"),
    "blocks of 64": Case(depth=192, block=64, zero=True, tail="residual"),
    "blocks of 128": Case(depth=640, block=128, tail="silu"),
    "blocks of 256, zeros": Case(depth=768, block=256, zero=True),
    "bfloat16": Case(depth=160, zero=True, tail="silu", dtype="bfloat16"),
    "one row": Case(rows=(1, 1), depth=544, tail="residual"),
    "rows of two axes": Case(rows=(2, "sequence"), columns=16),
    "rows of results that are not aligned": Case(columns=36),
    "two operands as large as the result": Case(columns=264, tail="gate and residual"),
    "pair": Case(depth=160, columns=37, tail="pair"),
    "pair with zeros and biases": Case(depth=192, block=64, zero=True, tail="pair with biases"),
    "pair in bfloat16": Case(depth=96, tail="pair", dtype="bfloat16"),
    "pair of one row": Case(rows=(1, 1), depth=96, zero=True, tail="pair"),
}
#: Rows that each variant takes, where all of them are there.
ROWS = (3, 19, 150, 5)


def variants_of(signature: RegionSignature) -> tuple[VariantSource, ...]:
    """The kernels, also those for what is left to ONNX Runtime."""
    form = read_nbits_half(signature)
    assert isinstance(form, NBitsHalf)
    return NBitsGemm(form).variants()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_products(name: str, interpreter: Interpreter) -> None:
    case = CASES[name]
    signature = case.signature()
    sources = variants_of(signature)
    rows = (1, 1) if case.rows == (1, 1) else ROWS
    if case.dtype == "float16" and case.rows[0] == "batch":
        rows = (1, *rows)
    for number, source in enumerate(sources):
        feeds = case.feeds(rows[number] if number + 1 < len(sources) else 3)
        shift = 0 if source.is_aligned else 2
        (got,) = interpreter.run(signature, feeds, number, shift, sources)
        want = case.expected(feeds)
        off = np.abs(got.astype(np.float64) - want)
        assert off.max() <= EPSILON[case.dtype] * np.abs(want).max(), f"variant {number}"


REFUSED = {
    "8 bits": (Case(bits=8), "4 bits"),
    "blocks of 16": (Case(block=16), "blocks"),
    "float32": (Case(dtype="float32"), "float32"),
    "zeros of one row": (Case(rows=(1, 1), zero=True, dtype="bfloat16"), "zeros"),
    "zeros of any rows": (Case(zero=True, dtype="bfloat16"), "zeros"),
    "few columns of any rows": (Case(columns=2040, dtype="bfloat16"), "few columns"),
    "few columns of one row": (Case(rows=(1, 1), columns=2040, dtype="bfloat16"), "few columns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    case, reason = REFUSED[name]
    found = template_for(case.signature())
    assert isinstance(found, Refused)
    assert reason in found.reason


#: Of one row: chunks of 32 weights that make up no steps, several steps, blocks of more chunks.
OF_ONE_ROW = {
    "one chunk": Case(depth=32, columns=5),
    "an odd number of chunks": Case(depth=1056, columns=9, zero=True, tail="bias"),
    "a step of more warps": Case(depth=8192, columns=6),
    "three steps": Case(depth=12288, columns=6),
    "steps with a rest": Case(depth=4096 + 320, columns=3, block=64, zero=True),
    "blocks of 128": Case(depth=2176, columns=7, block=128, zero=True, tail="silu"),
    "blocks of 256": Case(depth=1024, columns=4, block=256),
    "a deep pair": Case(depth=4096 + 96, columns=5, zero=True, tail="pair with biases"),
}


@pytest.mark.parametrize("name", OF_ONE_ROW)
def test_one_row(name: str, interpreter: Interpreter) -> None:
    case = OF_ONE_ROW[name]
    signature, feeds = case.signature(), case.feeds(1)
    # Outliers, and numbers below the least normal one of half precision.
    feeds[0][..., ::7] *= 4000
    feeds[0][..., 3::11] *= np.float16(1e-6)
    (got,) = interpreter.run(signature, feeds, 0, sources=variants_of(signature))
    want = case.expected(feeds)
    assert np.isfinite(want).all()
    is_small = np.abs(want) < 60_000
    off = np.abs(got.astype(np.float64) - want)[is_small]
    assert off.max() <= 2.0**-11 * np.abs(want[is_small]).max() + 2.0**-25


PACKED = ("blocks of 32", "an odd number of blocks with zeros", "bfloat16")


@pytest.mark.parametrize("tile", range(3))
@pytest.mark.parametrize(
    "name", ["blocks of 32", "an odd number of blocks with zeros", "bfloat16"]
)
def test_tiles_of_packed_weights(name: str, tile: int, interpreter: Interpreter) -> None:
    case, any_, hopper = CASES[name], LargeM(64, 64, 128, 4, 4), LargeM(128, 128, 128, 8, 3)
    signature, feeds = case.signature(), case.feeds(128 if tile == 1 else 70)
    form = read_nbits_half(signature)
    assert isinstance(form, NBitsHalf)
    source = NBitsGemm(form)._variant((any_, replace(any_, is_whole=True), hopper)[tile])
    (got,) = interpreter.run(signature, feeds, 0, sources=[source])
    want = case.expected(feeds)
    off = np.abs(got.astype(np.float64) - want)
    assert off.max() <= EPSILON[case.dtype] * np.abs(want).max()


#: Columns, rows, and whether the matrix is written first.
WRITTEN = (
    (4096, 32, False), (4096, 33, True), (4096, 64, False), (4096, 127, True), (4096, 128, False),
    (4096, 129, True), (4096, 2**17, True), (14336, 33, False), (14336, 127, False),
    (14336, 128, False), (14336, 129, True), (14336, 192, True), (4095, 64, True),
    (1024, 32, False), (1024, 64, True), (128256, 64, False), (128256, 129, True),
)  # fmt: skip


@pytest.mark.parametrize(("columns", "rows", "is_written"), WRITTEN)
def test_for_which_rows_the_matrix_is_written(columns: int, rows: int, is_written: bool) -> None:
    for sizes in (("batch", "sequence"), (1, rows)):
        signature = Case(depth=4096, columns=columns, rows=sizes).signature()
        shapes = [(1, rows, 4096), *(one.shape for one in signature.inputs[1:])]
        for architecture in (80, 90):
            made = [
                item.variant([0] * len(item.steps))
                for item in variants_of(signature)
                if architecture in (item.architectures or ARCHITECTURES)
            ]
            variant = made[fitting(made, sizes_of(signature, shapes))[0]]
            products = [step.product is not None for step in variant.steps]
            assert products == ([False, True] if is_written else [False])


@pytest.mark.parametrize(
    ("tail", "products"), [("silu", [None, 3, None]), ("pair", [None, -2, None, 5, None])]
)
def test_what_cublas_computes_is_what_the_kernel_does(
    tail: str, products: list[int | None]
) -> None:
    case = Case(depth=96, columns=48, tail=tail)
    (source,) = (
        variant for variant in variants_of(case.signature()) if len(variant.steps) == len(products)
    )
    found = [step.product for step in source.variant([0] * len(products)).steps]
    rows = Extent(1, ("s0", "s1"))
    assert found == [
        None if y is None else Product(x=0, weight=-1, y=y, rows=rows, columns=48, depth=96)
        for y in products
    ]


PAIRS = {
    "pair": Case(depth=160, columns=72, tail="pair"),
    "zeros and biases": Case(depth=192, columns=136, block=64, zero=True, tail="pair with biases"),
    "bfloat16": Case(depth=96, columns=64, tail="pair", dtype="bfloat16"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_in_one_kernel_behind_their_matrices(name: str, interpreter: Interpreter) -> None:
    case = PAIRS[name]
    signature = case.signature()
    sources = variants_of(signature)
    pairs = [i for i, source in enumerate(sources) if source.steps[-1].is_gluon]
    assert len(pairs) == 2
    for number, rows in zip(pairs, (130, 5), strict=True):
        assert [map_.tensor for map_ in sources[number].steps[-1].maps][1:3] == [-1, -2]
        feeds = case.feeds(rows)
        (got,) = interpreter.run(signature, feeds, number, 0, sources)
        want = case.expected(feeds)
        off = np.abs(got.astype(np.float64) - want)
        assert off.max() <= EPSILON[case.dtype] * np.abs(want).max()


def test_a_pair_behind_its_norm(interpreter: Interpreter) -> None:
    """The sum before the norm, the norm in scratch memory, and both matrices behind it."""
    case = Case(depth=96, columns=72, tail="pair")
    plain = case.signature()
    width = TensorSpec("c", case.dtype, (case.depth,))
    skip = replace(plain.inputs[0], name="e")
    text = plain.body.replace("(x, ", "(n, ").replace(
        "(n, w, s, w2, s2)", "(x, w, s, w2, s2, e, c)"
    )
    text = text.replace(
        "=> (y) {", "=> (t, y) { t = Add (x, e)  n = RMSNormalization<axis: int = -1> (t, c) "
    )
    total = replace(plain.inputs[0], name="t")
    signature = replace(
        plain, body=text, inputs=(*plain.inputs, skip, width), outputs=(total, *plain.outputs)
    )
    sources = variants_of(signature)
    pairs = [i for i, source in enumerate(sources) if source.steps[-1].is_gluon]
    assert len(pairs) == 2
    for number in (*pairs, pairs[-1] + 1):
        feeds = case.feeds(133)
        rng = np.random.default_rng(3)
        more = rng.standard_normal(feeds[0].shape).astype(np.float16)
        scale = (1 + rng.random(case.depth)).astype(np.float16)
        t, got = interpreter.run(signature, [*feeds, more, scale], number, 0, sources)
        summed = (feeds[0].astype(np.float64) + more).astype(np.float16)
        np.testing.assert_array_equal(t, summed)
        wide = summed.astype(np.float64)
        wide *= scale / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
        want = case.expected([wide.astype(np.float16), *feeds[1:]])
        off = np.abs(got.astype(np.float64) - want)
        assert off.max() <= 2 * EPSILON[case.dtype] * np.abs(want).max()


def test_pairs_whose_rows_begin_elsewhere_are_no_boxes() -> None:
    sources = variants_of(Case(depth=160, columns=37, tail="pair").signature())
    assert not any(step.is_gluon for source in sources for step in source.steps)


@pytest.mark.parametrize(
    ("name", "shape"), [("w", (39, 4, 16)), ("s", (159,)), ("z", (79,)), ("x", (1, 9, 64))]
)
def test_operands_of_other_sizes_are_refused(name: str, shape: tuple[int | str, ...]) -> None:
    signature = Case(rows=(1, 9), zero=True).signature()
    inputs = [
        replace(spec, shape=shape) if spec.name == name else spec for spec in signature.inputs
    ]
    assert not isinstance(template_for(signature), Refused)
    assert isinstance(template_for(replace(signature, inputs=tuple(inputs))), Refused)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("block", [32, 128])
def test_kernels_fit_every_architecture(block: int, arch: int, tmp_path: Path) -> None:
    case = Case(depth=4096, columns=14336, block=block, zero=block == 128, tail="silu")
    for source in variants_of(case.signature()):
        if source.is_aligned and arch in (source.architectures or ARCHITECTURES):
            for step in source.steps:
                made = compile_step(step, arch, tmp_path)
                assert stack_bytes(made.cubin, tmp_path) <= MOST_STACK
                assert made.shared_bytes <= SHARED_BYTES[arch]
