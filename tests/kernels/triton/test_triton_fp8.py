"""Products of matrices in eight-bit floats on CUDA, and what rounds rows, against their bodies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from fused_model import fused_model, session
from interpreter import Interpreter
from ortkit.custom_ops.triton.gemm.fp8 import Fp8TiledGemm
from ortkit.custom_ops.triton.gemm.gemm_tiles import Tile
from test_triton_attention import stack_bytes

from ortkit.kernels.cuda import SHARED_BYTES
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

FP8 = "float8_e4m3fn"
WIDE = "d = DequantizeLinear<axis = 0> (w, s)  W = Transpose<perm = [1, 0]> (d)"
OTHER = "e = DequantizeLinear<axis = 0> (z, t)  Z = Transpose<perm = [1, 0]> (e)"
#: Rows in eight bits, with a factor a row, and with one for all: 1/64.
BY_ROW = "i = Cast<to = 1> (q)  j = Mul (i, f)  x = Cast<to = 10> (j)"
BY_ONE = "k = Constant<value = float16 {9216}> ()  x = DequantizeLinear (q, k)"
GATED = "u = MatMul (x, W)  v = MatMul (x, Z)  g = Sigmoid (u)  h = Mul (u, g)  y = Mul (h, v)"
#: The same in float32, as `--precision fp8` writes it: what is multiplied, and what is rounded.
BY_NUMBER = """k = Constant<value = float {0.015625}> ()  i = Cast<to = 1> (q)  j = Mul (i, k)
    x = Cast<to = 10> (j)"""
TO_NUMBER = """c1 = Constant<value = float {0.0625}> ()  c2 = Cast<to = 1> (h)  c3 = Div (c2, c1)
    y = Cast<to = 17> (c3)"""
#: A residual sum with a row, and its norm.
SUMMED = """o0 = Add (x, p)  o = Add (o0, n)  h = LayerNormalization<axis = -1> (o, n)"""
#: To eight bits again, divided by 1/16.
NARROW = "c = Constant<value = float16 {11264}> ()  o = Constant<value = float8e4m3fn {0}> ()"
ROUNDED = """a = Cast<to = 1> (x)  b = Abs (a)  c = Constant<value = int64[1] {-1}> ()
    m = ReduceMax<keepdims = 1> (b, c)  l = Constant<value_float = 0.002232142857142857> ()
    p = Mul (m, l)  e = Constant<value_float = 1e-30> ()  f = Max (p, e)  d = Div (a, f)
    q = Cast<to = 17> (d)"""


@dataclass(frozen=True)
class Case:
    """A region by its body.

    Args:
        body: Makes the outputs of the inputs: x and p of rows, q the same in eight bits, o and h
            results of that shape, f a factor for each row, w and z matrices [columns, depth] in
            eight bits, s and t the factors of their columns, n of a row's length, b of the
            columns, r of the result's shape.
        inputs: Their letters.
        rows: Leading dims of x.
        depth: Of a product.
        columns: Of the result.
        outputs: Of the region, and their types.
    """

    body: str
    inputs: str
    rows: tuple[int | str, ...] = (1, 1)
    depth: int = 96
    columns: int = 48
    outputs: tuple[tuple[str, str], ...] = (("y", "float16"),)

    def signature(self) -> RegionSignature:
        """Return the region."""
        shapes: dict[str, tuple[int | str, ...]] = {
            **dict.fromkeys("xpqoh", (*self.rows, self.depth)), "f": (*self.rows, 1),
            **dict.fromkeys("wz", (self.columns, self.depth)), "n": (self.depth,),
            **dict.fromkeys("stb", (self.columns,)),
            **dict.fromkeys("ry", (*self.rows, self.columns)),
        }  # fmt: skip
        types = {**dict.fromkeys("wzq", FP8), "f": "float32"}
        names = [name for name, _ in self.outputs]
        text = (
            f'<opset_import: ["" : 23]> product ({", ".join(self.inputs)}) => '
            f"({', '.join(names)}) {{ {self.body} }}"
        )
        inputs = tuple(
            TensorSpec(item, types.get(item, "float16"), shapes[item]) for item in self.inputs
        )
        outputs = tuple(TensorSpec(one, type_, shapes[one]) for one, type_ in self.outputs)
        return RegionSignature("product", text, inputs, outputs)


PLAIN = Case(f"{WIDE}  y = MatMul (x, W)", "xws")
MANY = Case(f"{BY_ROW}  {WIDE}  y = MatMul (x, W)", "qfws", rows=(2, 37))
ROWS = Case(ROUNDED, "x", rows=(5, 3), outputs=(("f", "float32"), ("q", FP8)))
CASES = {
    "a row": PLAIN,
    "a long row": replace(PLAIN, depth=2064, columns=32),
    "a row with one factor for all columns": replace(
        PLAIN, body=f"k = Constant<value = float16 {{9216}}> ()  {WIDE.replace('s)', 'k)')}"
        "  y = MatMul (x, W)", inputs="xw",
    ),
    "a row in eight bits": Case(f"{BY_ONE}  {WIDE}  y = MatMul (x, W)", "qws"),
    "a row with its norm, gated": Case(
        f"{WIDE}  {OTHER}  x = RMSNormalization<axis = -1> (r0, n)  {GATED}".replace("r0", "q0"),
        "xwsztn",
    ),
    "a row, bias, activation and residual": Case(
        f"{WIDE}  u = MatMul (x, W)  v = Add (u, b)  h = Gelu (v)  y = Add (h, r)", "xwsbr"
    ),
    "a transposed matrix with its bias": Case(
        "d = DequantizeLinear<axis = 0> (w, s)  u = Gemm<transB = 1> (x, d, b)  y = Relu (u)",
        "xwsb", rows=(1,),
    ),
    "few rows": replace(PLAIN, rows=(2, 3), depth=1040, columns=64),
    "few rows, bias and residual": Case(
        f"{WIDE}  u = MatMul (x, W)  v = Add (u, b)  h = Gelu (v)  y = Add (h, r)", "xwsbr",
        rows=(16,),
    ),
    "few rows with their norm": Case(
        f"{WIDE}  a = LayerNormalization<axis = -1> (x, n)  y = MatMul (a, W)", "xwsn", rows=(5,)
    ),
    "few rows with their norm, gated": Case(
        f"{WIDE}  {OTHER}  a = RMSNormalization<axis = -1> (x, n)  {GATED.replace('(x,', '(a,')}",
        "xwsztn", rows=(1, 4), depth=640,
    ),
    "few rows in eight bits": Case(f"{BY_ONE}  {WIDE}  y = MatMul (x, W)", "qws", rows=(9,)),
    "rows with a factor each": MANY,
    "rows with one factor": Case(
        f"{BY_ONE}  {WIDE}  u = MatMul (x, W)  y = Add (u, b)", "qwsb", rows=(70,)
    ),
    "rows with one factor and a zero point": Case(
        "k = Constant<value = float16 {9216}> ()  o = Constant<value = float8e4m3fn {0}> ()"
        f"  x = DequantizeLinear (q, k, o)  {WIDE}  y = MatMul (x, W)", "qws", rows=(21,),
    ),
    "rows that are not known": replace(MANY, rows=("n", 7)),
    "gated rows": Case(f"{BY_ROW}  {WIDE}  {OTHER}  {GATED}", "qfwszt", rows=(65,)),
    "rows for the next product": Case(
        f"{BY_ONE}  {WIDE}  {NARROW}  u = MatMul (x, W)  h = Relu (u)"
        "  y = QuantizeLinear (h, c, o)", "qws", rows=(40,), outputs=(("y", FP8),),
    ),
    "rows are rounded": ROWS,
    "many short rows are rounded": replace(ROWS, rows=("n",), depth=32),
    "rows are rounded behind their norm": replace(
        ROWS, body=f"h = RMSNormalization<axis = -1> (x, n)  {ROUNDED.replace('(x)', '(h)')}",
        inputs="xn", depth=200,
    ),
    "rows for the next product, in float32": Case(
        f"{BY_NUMBER}  {WIDE}  u = MatMul (x, W)  v = Add (u, b)  h = Gelu (v)  {TO_NUMBER}",
        "qwsb", rows=(40,), outputs=(("y", FP8),),
    ),
    "gated rows for the next product, in float32": Case(
        f"{BY_NUMBER}  {WIDE}  {OTHER}  {GATED.replace('y =', 'h0 =').replace(' h ', ' h1 ')}"
        .replace("(h,", "(h1,").replace("h0 =", "h =") + f"  {TO_NUMBER}",
        "qwszt", rows=(33,), outputs=(("y", FP8),),
    ),
    "rows are rounded with one number": Case(
        TO_NUMBER.replace("(h)", "(x)").replace("y =", "q ="), "x", rows=(9,),
        outputs=(("q", FP8),),
    ),
    "rows are rounded behind a sum and its norm": Case(
        f"{SUMMED}  {TO_NUMBER.replace('y =', 'q =')}", "xpn", rows=(5, 3), depth=200,
        outputs=(("o", "float16"), ("h", "float16"), ("q", FP8)),
    ),
    "a norm that others read, with a factor each": Case(
        f"h = RMSNormalization<axis = -1> (x, n)  {ROUNDED.replace('(x)', '(h)')}", "xn",
        rows=("n",), depth=48, outputs=(("q", FP8), ("f", "float32"), ("h", "float16")),
    ),
    "a sum that others read": Case(
        "o = Add (x, p)  h = RMSNormalization<axis = -1> (o, n)"
        f"  {TO_NUMBER.replace('y =', 'q =')}", "xpn", rows=(17,),
        outputs=(("q", FP8), ("o", "float16")),
    ),
    "rows are rounded with one factor": Case(
        f"{NARROW}  h = LayerNormalization<axis = -1> (x, n)  q = QuantizeLinear (h, c, o)",
        "xn", rows=(9,), outputs=(("q", FP8),),
    ),
}  # fmt: skip
CASES["a row with its norm, gated"] = replace(
    CASES["a row with its norm, gated"],
    body=f"{WIDE}  {OTHER}  a = RMSNormalization<axis = -1> (x, n)  {GATED.replace('(x,', '(a,')}",
)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_regions_compute_what_their_bodies_do(name: str, interpreter: Interpreter) -> None:
    signature = CASES[name].signature()
    feeds = feeds_of(signature)
    wants = body_results(signature, feeds)
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    for number, source in enumerate(sources):
        gots = interpreter.run(signature, feeds, number, shift=0 if source.is_aligned else 2)
        for got, want in zip(gots, wants, strict=True):
            close(got, want, f"variant {number}")


@pytest.mark.parametrize("norm", ["RMSNormalization", "LayerNormalization"])
def test_a_norm_of_few_rows_has_room_for_large_elements(
    norm: str, interpreter: Interpreter
) -> None:
    """An element times its scale, before the row is divided, is beyond float16."""
    body = f"{WIDE}  a = {norm}<axis = -1> (x, n)  y = MatMul (a, W)"
    signature = Case(body, "xwsn", rows=(5,), depth=640).signature()
    x, w, s, n = feeds_of(signature)
    x[:, 3], x[1] = 2e4, x[1] * np.float16(1e-4)
    n[:] = 8
    wide = x.astype(np.float64)
    wide -= wide.mean(1, keepdims=True) if norm == "LayerNormalization" else 0.0
    rows = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-5) * 8
    want = rows @ w.astype(np.float64).T * s
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    for number, source in enumerate(sources):
        (got,) = interpreter.run(signature, [x, w, s, n], number, 0 if source.is_aligned else 2)
        np.testing.assert_allclose(got, want, rtol=3e-3, atol=3e-3 * np.abs(want).max())


def close(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """Compare; numbers in eight bits may fall to the neighbour."""
    epsilon = 2**-3 if want.dtype.itemsize == 1 else 2**-8
    got, want = got.astype(np.float64), want.astype(np.float64)
    off = np.abs(got - want) - epsilon * np.maximum(np.abs(want), np.abs(want).max() / 4)
    assert (off <= 0).all(), f"{what}: {np.abs(got - want).max()} of {np.abs(want).max()}"
    assert np.linalg.norm(got - want) <= 0.02 * np.linalg.norm(want), what


def body_results(signature: RegionSignature, feeds: list[np.ndarray]) -> list[np.ndarray]:
    """Run the function's body; eight bits go in and come out as bytes."""
    import onnxruntime as ort

    made = session(fused_model(signature))
    binding = made.io_binding()
    held = []
    for spec, feed in zip(signature.inputs, feeds, strict=True):
        kind = int(17 if spec.dtype == FP8 else {"float16": 10, "float32": 1}[spec.dtype])
        data = feed.view(np.uint8) if spec.dtype == FP8 else feed
        held.append(ort.OrtValue.ortvalue_from_numpy_with_onnx_type(data, kind))
        binding.bind_ortvalue_input(spec.name, held[-1])
    for spec in signature.outputs:
        binding.bind_output(spec.name, "cpu")
    made.run_with_iobinding(binding)
    found = [value.numpy() for value in binding.get_outputs()]
    return [
        item.view(ml_dtypes.float8_e4m3fn) if spec.dtype == FP8 else item
        for item, spec in zip(found, signature.outputs, strict=True)
    ]


def feeds_of(signature: RegionSignature) -> list[np.ndarray]:
    """Return numbers for each input, factors above 0."""
    rng = np.random.default_rng(11)
    feeds = []
    for spec in signature.inputs:
        shape = [6 if isinstance(size, str) else size for size in spec.shape]
        array = rng.standard_normal(shape)
        if spec.name in "stf":
            array = (0.5 + np.abs(array)) / 16
        elif spec.dtype == FP8:
            array = array * 8
        dtype = ml_dtypes.float8_e4m3fn if spec.dtype == FP8 else np.dtype(spec.dtype)
        feeds.append(array.astype(np.float32).astype(dtype))
    return feeds


REFUSED = {
    "many rows in half precision": replace(PLAIN, rows=(2, 9)),
    "no vectors": replace(PLAIN, depth=72),
    "a matrix that lies otherwise": Case(
        "W = DequantizeLinear<axis = 0> (w, s)  y = MatMul (x, W)", "xws", depth=48
    ),
    "a computed row": Case(f"{WIDE}  a = Relu (x)  y = MatMul (a, W)", "xws"),
    "a norm of rows in eight bits": Case(
        f"{BY_ONE}  {WIDE}  a = LayerNormalization<axis = -1> (x, n)  y = MatMul (a, W)", "qwsn"
    ),
    "a zero point": Case(
        "o = Constant<value = float8e4m3fn {56}> ()  k = Constant<value = float16 {9216}> ()"
        "  d = DequantizeLinear (w, k, o)  W = Transpose<perm = [1, 0]> (d)  y = MatMul (x, W)",
        "xw",
    ),
    "three products": Case(
        f"{WIDE}  {OTHER}  u = MatMul (x, W)  v = MatMul (x, Z)  a = MatMul (x, W)"
        "  b = Add (u, v)  y = Add (a, b)", "xwszt",
    ),
    "more operands than there is room for": Case(
        f"{BY_ROW}  {WIDE}  {OTHER}  u = MatMul (x, W)  v = MatMul (x, Z)  a = Add (u, v)"
        "  c = Add (a, b)  y = Add (c, r)", "qfwsztbr", rows=(33,),
    ),
    "rows that are too long": replace(ROWS, depth=16400),
    "a sum of more than two": Case(
        "a = Add (x, p)  o = Add (a, r)  h = RMSNormalization<axis = -1> (o, n)"
        f"  {TO_NUMBER.replace('y =', 'q =')}", "xprn", rows=(17,), columns=96,
        outputs=(("q", FP8),),
    ),
    "rows are rounded, and a further result": Case(
        f"a = Add (x, p)  h = RMSNormalization<axis = -1> (a, n)  o = Relu (h)"
        f"  {TO_NUMBER.replace('y =', 'q =')}", "xpn", rows=(17,),
        outputs=(("q", FP8), ("o", "float16")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    assert isinstance(template_for(REFUSED[name].signature()), Refused)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "depth", "columns"),
    [
        ("a row with its norm, gated", 2048, 5632), ("gated rows", 2048, 5632),
        ("rows that are not known", 768, 3072), ("rows for the next product", 768, 768),
        ("rows are rounded behind their norm", 5632, 0),
    ],
)  # fmt: skip
def test_no_registers_are_spilled(name: str, depth: int, columns: int, tmp_path: Path) -> None:
    signature = replace(CASES[name], depth=depth, columns=columns).signature()
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    for source in sources:
        if source.is_aligned:
            (step,) = source.steps
            made = compile_step(step, 90, tmp_path)
            assert stack_bytes(made.cubin, tmp_path) == 0
            assert made.shared_bytes <= SHARED_BYTES[90]


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "width"),
    [(6304, 3072, 768, 160), (16384, 3072, 768, 128), (6304, 768, 768, 128)],
)
def test_wide_tiles_of_deep_products(rows: int, depth: int, columns: int, width: int) -> None:
    case = replace(CASES["rows with one factor"], rows=(rows,), depth=depth, columns=columns)
    sources = sources_of(case.signature())
    assert not isinstance(sources, Refused)
    boxes = [map_.box for map_ in sources[0].steps[-1].maps]
    # Of a step the rows, the columns and the others of a matrix, then of the result.
    assert boxes[1][0] + (boxes[2][0] if len(boxes) > 4 else 0) == width


@pytest.mark.parametrize("rows", [390, 130])
def test_results_of_wide_tiles(rows: int, interpreter: Interpreter) -> None:
    case = replace(CASES["rows with one factor"], rows=(rows,), depth=128, columns=304)
    signature = case.signature()
    found = template_for(signature)
    assert isinstance(found, Fp8TiledGemm)
    tile = Tile(128, 128, 128, 4, 2, is_separate=True, blocks=3, rest=32)
    feeds = feeds_of(signature)
    (got,) = interpreter.run(signature, feeds, 0, 0, [found.hopper(tile)])
    (want,) = body_results(signature, feeds)
    close(got, want, "y")


def test_rows_are_rounded_on_ada(tmp_path: Path) -> None:
    """Conversions of eight bits are newer there than PTX of CUDA 12.0."""
    sources = sources_of(ROWS.signature())
    assert not isinstance(sources, Refused)
    assert b"\x7fELF" in compile_step(sources[0].steps[0], 89, tmp_path).cubin
