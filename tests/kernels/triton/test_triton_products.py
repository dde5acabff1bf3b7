"""Products with constant matrices on CUDA, interpreted, against their function bodies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, random_input, session
from interpreter import Interpreter, numpy_dtype
from test_triton_compile import assert_fits

from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused

#: RMSNormalization as opsets before 23 have it.
OLD_NORM = """p = Constant<value = float16 {16384}> ()  a = Constant<value = int64[1] {-1}> ()
    e = Constant<value = float16 {20}> ()  q = Pow (x, p)  m = ReduceMean<keepdims = 1> (q, a)
    s = Add (m, e)  r = Sqrt (s)  d = Div (x, r)  n = Mul (d, g)"""
GATED = "u = MatMul (n, W)  v = MatMul (n, Z)  s = Sigmoid (u)  t = Mul (u, s)  y = Mul (t, v)"


@dataclass(frozen=True)
class Case:
    """A region by its body.

    Args:
        body: Makes y of the inputs: x of rows, w and z (matrices [columns, depth], W and Z
            turned), a and d (matrices [depth, columns]), g and h of a row's length, b and c of the
            columns, r, q and p of y's shape.
        inputs: Their letters.
        rows: Leading dims of x.
        depth: Of a product.
        columns: Of the result.
        opset: Of the body.
    """

    body: str
    inputs: str
    rows: tuple[int | str, ...] = (1, 1)
    depth: int = 72
    columns: int = 40
    opset: int = 23

    def signature(self, dtype: str = "float16") -> RegionSignature:
        """Return the region."""
        shapes: dict[str, tuple[int | str, ...]] = {
            "x": (*self.rows, self.depth),
            **dict.fromkeys("wz", (self.columns, self.depth)),
            **dict.fromkeys("ad", (self.depth, self.columns)),
            "g": (self.depth,), "h": (self.depth,),
            "b": (self.columns,), "c": (1, self.columns),
            **dict.fromkeys("rqp", (*self.rows, self.columns)),
        }  # fmt: skip
        turns = [
            f"{name.upper()} = Transpose<perm = [1, 0]> ({name})  "
            for name in "wz"
            if name.upper() in self.body
        ]
        text = (
            f'<opset_import: ["" : {self.opset}]> product ({", ".join(self.inputs)}) => (y) '
            f"{{ {''.join(turns)} {self.body} }}"
        )
        specs = tuple(TensorSpec(name, dtype, shapes[name]) for name in self.inputs)
        return RegionSignature("product", text, specs, (TensorSpec("y", dtype, shapes["r"]),))


PLAIN = Case("y = MatMul (x, W)", "xw")
CASES = {
    "nothing else": PLAIN,
    "one axis more": replace(PLAIN, rows=(1, 1, 1)),
    "a long row": replace(PLAIN, depth=5000, columns=24),
    "many columns": replace(PLAIN, columns=2568),
    "a bias, GELU and a residual": Case(
        "u = MatMul (x, W)  v = Add (b, u)  t = Gelu (v)  y = Add (r, t)", "xwbr"
    ),
    "four operands": Case(
        "u = MatMul (x, W)  v = Add (u, b)  s = Mul (v, c)  t = Add (s, r)  y = Sub (q, t)",
        "xwbcrq",
    ),
    "a transposed matrix with its bias": Case(
        "u = Gemm<transB = 1> (x, w, b)  y = Relu (u)", "xwb", rows=(1,)
    ),
    "a Gemm that adds one number": Case(
        "o = Constant<value = float16 {15360}> ()  y = Gemm<transB = 1> (x, w, o)", "xw", rows=(1,)
    ),
    "a row and a transposed matrix": Case(
        "u = Gemm<transB = 1> (x, w)  y = Tanh (u)", "xw", rows=(1,)
    ),
    "gated": Case(GATED.replace("n,", "x,"), "xwz"),
    "a norm, gated": Case(f"n = RMSNormalization<axis = -1> (x, g)  {GATED}", "xgwz"),
    "a norm of an old opset": Case(
        f"{OLD_NORM}  y = MatMul (n, W)", "xgw", opset=18
    ),
    "a layer's norm": Case(
        "n = LayerNormalization<axis = -1, epsilon = 0.001> (x, g, h)  u = MatMul (n, W)"
        "  y = Add (u, b)", "xghwb",
    ),
    "a layer's norm without shift": Case(
        "n = LayerNormalization (x, g)  y = MatMul (n, W)", "xgw"
    ),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_regions_compute_what_their_bodies_do(name: str, interpreter: Interpreter) -> None:
    signature = CASES[name].signature()
    feeds = feeds_of(signature)
    names = [spec.name for spec in signature.inputs]
    (want,) = session(fused_model(signature)).run(None, dict(zip(names, feeds, strict=True)))
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    assert [source.is_aligned for source in sources] == [True, False]
    for number, source in enumerate(sources):
        (got,) = interpreter.run(signature, feeds, number, shift=0 if source.is_aligned else 2)
        largest = np.abs(want.astype(np.float64)).max()
        error = np.abs(got.astype(np.float64) - want).max()
        assert error <= 4 * 2**-11 * max(largest, 1), f"variant {number}: {error} of {largest}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("columns", [768, 2048, 4096])
@pytest.mark.parametrize("name", ["nothing else", "a norm, gated", "a layer's norm"])
def test_no_registers_are_spilled(name: str, columns: int, tmp_path: Path) -> None:
    signature = replace(CASES[name], depth=2048, columns=columns).signature()
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    (step,) = sources[0].steps
    assert_fits(compile_step(step, 90, tmp_path), tmp_path, name)


@pytest.mark.parametrize("name", ["a norm, gated", "a bias, GELU and a residual"])
def test_bfloat16(name: str, interpreter: Interpreter) -> None:
    signature = CASES[name].signature("bfloat16")
    narrow = [feed.astype(numpy_dtype("bfloat16")) for feed in feeds_of(signature)]
    wide = CASES[name].signature("float32")
    names = [spec.name for spec in wide.inputs]
    given = [feed.astype(np.float32) for feed in narrow]
    (want,) = session(fused_model(wide)).run(None, dict(zip(names, given, strict=True)))
    (got,) = interpreter.run(signature, narrow)
    error = np.abs(got.astype(np.float32) - want).max()
    assert error <= 4 * 2**-8 * max(np.abs(want).max(), 1)


REFUSED = {
    "several rows with a norm": Case(
        "n = LayerNormalization<axis = -1> (x, g)  y = MatMul (n, W)", "xgw", rows=(2, 1)
    ),
    "a matrix that lies otherwise": Case("y = MatMul (x, w)", "xw", depth=40),
    "a computed matrix": Case("u = Relu (W)  y = MatMul (x, u)", "xw"),
    "a factor": Case("y = Gemm<alpha = 2.0, transB = 1> (x, w, b)", "xwb", rows=(1,)),
    "a computed bias": Case(
        "c = Neg (b)  y = Gemm<transB = 1> (x, w, c)", "xwb", rows=(1,)
    ),
    "no vectors": replace(PLAIN, columns=42),
    "a computed row": Case("u = Relu (x)  y = MatMul (u, W)", "xw"),
    "a norm over more than rows": Case(
        "n = LayerNormalization<axis = 1> (x, g)  y = MatMul (n, W)", "xgw"
    ),
    "five operands": Case(
        "u = MatMul (x, W)  v = Add (u, b)  s = Add (v, c)  t = Add (s, r)  d = Add (t, q)"
        "  y = Add (d, p)", "xwbcrqp"
    ),
    "three products": Case(
        "u = MatMul (x, W)  v = MatMul (x, Z)  t = MatMul (x, W)  s = Add (u, v)  y = Add (s, t)",
        "xwz",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    assert isinstance(template_for(REFUSED[name].signature()), Refused)


def test_float32_is_refused() -> None:
    assert isinstance(template_for(PLAIN.signature("float32")), Refused)


def feeds_of(signature: RegionSignature) -> list[np.ndarray]:
    feeds = [random_input(spec, {}) for spec in signature.inputs]
    return [(feed / 4).astype(np.float16) for feed in feeds]
