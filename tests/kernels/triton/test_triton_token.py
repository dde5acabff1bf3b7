"""Products of a prompt's or a token's rows, interpreted, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from interpreter import Interpreter, numpy_dtype
from ortkit.custom_ops.triton.gemm.gemm import TiledProduct
from ortkit.custom_ops.triton.gemm.token import TokenProduct, token_ns
from test_triton_compile import assert_fits
from test_triton_products import Case

from ortkit.kernels.anchor import ProductSizes
from ortkit.kernels.cuda import SHARED_BYTES, Product
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused
from ortkit.targets.cuda import ARCHITECTURES

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
PLAIN = Case("y = MatMul (x, W)", "xw", rows=("b", "s"))
CASES = {
    "nothing else": PLAIN,
    "deep": replace(PLAIN, depth=4104, columns=24),
    "shallow": replace(PLAIN, depth=8, columns=8),
    "a bias": Case("u = MatMul (x, W)  y = Add (b, u)", "xwb", rows=("b", "s"), depth=2048),
    "two rows": Case("u = MatMul (x, W)  v = Add (u, b)  y = Add (v, c)", "xwbc", rows=("b", "s")),
    "a Gemm": Case("y = Gemm<transB = 1> (x, w, b)", "xwb", rows=("n",)),
}
#: Rows; the launch of one row has the first variant, then come many, and any address.
ROWS = (1, 1), (1, 0), (1, 2), (3, 1), (2, 35)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows(name: str, dtype: str, interpreter: Interpreter) -> None:
    case = CASES[name]
    signature = case.signature(dtype)
    assert isinstance(template_for(signature), TokenProduct)
    random = np.random.default_rng(5)
    for batch, rows in ROWS:
        sizes = {"b": batch, "s": rows, "n": batch * rows}
        shapes = [
            [sizes[size] if isinstance(size, str) else size for size in spec.shape]
            for spec in signature.inputs
        ]
        feeds = [random.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes]
        x, w, *added = (np.asarray(feed, np.float64) for feed in feeds)
        want = x @ w.T + sum(added)
        near = 0.02 if dtype == "bfloat16" else 2e-3
        for shift in (0, 2):
            (got,) = interpreter.run(signature, feeds, shift=shift)
            np.testing.assert_allclose(
                np.asarray(got, np.float64), want, rtol=near, atol=near * case.depth**0.5
            )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("body", "inputs", "want"),
    [
        (
            "u = MatMul (x, W)  v = MatMul (x, Z)  s = Sigmoid (u)  t = Mul (u, s)"
            "  y = Mul (t, v)", "xwz", lambda u, z, _: u / (1 + np.exp(-u)) * z,
        ),
        ("u = MatMul (x, W)  t = Add (u, r)  y = Relu (t)", "xwr",
         lambda u, _, r: np.maximum(u + r, 0.0)),
    ],
)  # fmt: skip
def test_one_row_of_what_has_tiles(
    body: str, inputs: str, want: Callable[..., np.ndarray], interpreter: Interpreter
) -> None:
    """Gated pairs, and other ends: tiles are for prompts."""
    signature = Case(body, inputs, rows=("b", "s"), depth=1032, columns=40).signature()
    assert isinstance(template_for(signature), TiledProduct)
    random = np.random.default_rng(6)
    for rows in (1, 0):
        sizes = {"b": 1, "s": rows}
        shapes = [
            [sizes[size] if isinstance(size, str) else size for size in spec.shape]
            for spec in signature.inputs
        ]
        feeds = [random.standard_normal(shape).astype(np.float16) for shape in shapes]
        x, w, last = (np.asarray(feed, np.float64) for feed in feeds)
        (got,) = interpreter.run(signature, feeds, variant=0)
        made = want(x @ w.T, x @ last.T if "z" in inputs else None, last)
        np.testing.assert_allclose(np.asarray(got, np.float64), made, rtol=3e-3, atol=0.05)


def test_which_launch_has_which_rows() -> None:
    sources = sources_of(CASES["a bias"].signature())
    assert not isinstance(sources, Refused)
    token, prompt, unaligned = (each.variant([0] * len(each.steps)) for each in sources)
    rows = Extent(1, ("s0", "s1"))
    assert [(each.extent, each.at_most) for each in token.conditions] == [(rows, 1)]
    assert [each.product for each in token.steps] == [None]
    assert [each.product for each in prompt.steps] == [Product(0, 1, 3, rows, 40, 2048), None]
    assert [each.product for each in unaligned.steps] == [None]
    assert (token.aligned, prompt.aligned, unaligned.aligned) == (True, True, False)


@pytest.mark.parametrize(
    "case",
    [
        Case("u = MatMul (x, W)  y = Tanh (u)", "xw", rows=("b", "s")),
        Case("u = MatMul (x, W)  y = Add (u, r)", "xwr", rows=("b", "s")),
        Case("y = MatMul (x, a)", "xa", rows=("b", "s")),
        Case("u = MatMul (x, W)  v = MatMul (x, Z)  y = Mul (u, v)", "xwz", rows=("b", "s")),
        replace(PLAIN, rows=(1, 7)),
        replace(PLAIN, rows=(1, 1)),
    ],
)
def test_what_else_has_other_kernels(case: Case) -> None:
    assert not isinstance(template_for(case.signature()), TokenProduct)


def test_times() -> None:
    """Large matrices take what their bytes take, whoever reads them: see the module's table."""
    sizes = ProductSizes(None, 4096, 4096, is_token=True)
    gains = [
        token_ns(replace(sizes, depth=depth, columns=columns))
        for depth, columns in ((2048, 2048), (14336, 4096), (28672, 8192))
    ]
    parts = [found[1] / found[0] for found in gains if found is not None]
    assert parts[0] < 0.7 and parts[1] < 0.9 < parts[2] < 1.0
    assert token_ns(replace(sizes, products=2)) is None
    assert token_ns(replace(sizes, epilogue_ops=1)) is None
    assert token_ns(replace(sizes, epilogue_ops=1, biases=1)) is not None
    assert token_ns(replace(sizes, is_normed=True)) is None
    assert token_ns(replace(sizes, depth=2048, columns=8192)) is None


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_fit_every_architecture(architecture: int, tmp_path: Path) -> None:
    case = Case("u = MatMul (x, W)  y = Add (b, u)", "xwb", ("b", "s"), 4096, 4096)
    sources = sources_of(case.signature())
    assert not isinstance(sources, Refused)
    for source in sources:
        for step in source.steps:
            made = compile_step(step, architecture, tmp_path)
            assert_fits(made, tmp_path, f"sm_{architecture}", SHARED_BYTES[architecture])
