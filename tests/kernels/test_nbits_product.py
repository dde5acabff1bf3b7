"""Matrix products with weights in 4 or 8 bits: what the kernels compute, and where they refuse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, session, tensor
from ortkit.custom_ops.tvm.gemm.nbits import NBitsProduct, match
from ortkit.custom_ops.tvm.gemm.nbits_writer import SMALL_M

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tvm.build import assembly
from ortkit.refusal import Refused
from ortkit.targets import cpu
from ortkit.targets.target import Target

LEVEL = "x86-64-v4-amx"
TAILS = {
    "": "y = Identity (p)",
    "silu": "g = Sigmoid (p)  y = Mul (p, g)",
    "add": "y = Add (p, r)",
}

runs = pytest.mark.skipif(not cpu.runs_here(LEVEL), reason="this machine has no tiles")
x86_64 = pytest.mark.skipif(cpu.machine() != "x86-64", reason="x86-64 has levels")


@dataclass(frozen=True)
class Form:
    """A product of `rows` rows; see MatMulNBits."""

    depth: int = 64
    columns: int = 32
    block: int = 32
    zero: bool = False
    bias: bool = False
    tail: str = ""
    rows: tuple[int | str, ...] = ("rows",)
    level: int = 4
    bits: int = 4

    @property
    def blocks(self) -> int:
        return self.depth // self.block

    def signature(self) -> RegionSignature:
        names = ["x", "w", "s", "z" if self.zero else "", "", "b" if self.bias else ""]
        inputs = [
            tensor("x", *self.rows, self.depth),
            tensor("w", self.columns, self.blocks, self.block * self.bits // 8, dtype="uint8"),
            tensor("s", self.columns * self.blocks),
        ]
        if self.zero:
            inputs.append(
                tensor("z", self.columns * -(-self.blocks * self.bits // 8), dtype="uint8")
            )
        if self.bias:
            inputs.append(tensor("b", self.columns))
        if self.tail == "add":
            inputs.append(tensor("r", *self.rows, self.columns))
        given = ", ".join(spec.name for spec in inputs)
        text = (
            f'<opset_import: ["" : 20, "com.microsoft" : 1]> f ({given}) => (y) {{ '
            f"p = com.microsoft.MatMulNBits <K = {self.depth}, N = {self.columns}, "
            f"bits = {self.bits}, block_size = {self.block}, accuracy_level = {self.level}> "
            f"({', '.join(names).rstrip(', ')})  {TAILS[self.tail]} }}"
        )
        result = tensor("y", *self.rows, self.columns)
        return RegionSignature("matmul_nbits", text, tuple(inputs), (result,))

    def feeds(self, rows: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(rows)
        found = {}
        for spec in self.signature().inputs:
            shape = [rows if isinstance(size, str) else size for size in spec.shape]
            if spec.dtype == "uint8":
                found[spec.name] = random.integers(0, 256, shape, dtype=np.uint8)
            else:
                found[spec.name] = random.standard_normal(shape).astype(np.float32)
        return found

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """In float64."""
        split = _halves if self.bits == 4 else np.float64
        numbers = split(feeds["w"]).reshape(self.columns, self.blocks, self.block)
        zero = 2.0 ** (self.bits - 1)
        if self.zero:
            zero = split(feeds["z"]).reshape(self.columns, -1)[:, : self.blocks, None]
        scale = feeds["s"].reshape(self.columns, self.blocks, 1).astype(np.float64)
        matrix = ((numbers - zero) * scale).reshape(self.columns, self.depth)
        value = feeds["x"].astype(np.float64) @ matrix.T
        if self.bias:
            value = value + feeds["b"]
        if self.tail == "silu":
            value = value / (1 + np.exp(-value))
        return value + feeds["r"] if self.tail == "add" else value


def _halves(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], -1).astype(np.float64)


# More than one part of the depth, of groups of panels, and of blocks of rows; ragged ends.
FORMS = {
    "plain": Form(),
    "one step": Form(depth=32, columns=16),
    "ragged columns": Form(columns=48, tail="add"),
    "three steps": Form(depth=96, tail="silu"),
    "zeros": Form(depth=96, zero=True, bias=True),
    "many zeros": Form(depth=32 * 19, zero=True),
    "wide blocks": Form(depth=384, block=128, zero=True),
    "parts": Form(depth=1056, columns=64),
    "groups": Form(depth=32, columns=560, bias=True, tail="silu"),
    "two axes": Form(rows=(3, "rows"), tail="add"),
    "static": Form(rows=(5,), columns=48),
    "bytes": Form(depth=96, bits=8),
    "bytes and zeros": Form(depth=640, bits=8, zero=True, bias=True),
}
ROWS = (1, 2, 3, 4, 5, 15, 16, 17, 32, 33, 70)


def kernel(form: Form, folder: Path, cache: KernelCache, threads: int = 1):
    signature = form.signature()
    made = build_library([signature], Target("cpu", LEVEL), folder / "k.so", cache=cache)
    assert made.library is not None, made.refused
    return session(fused_model(signature), made.library.path, threads)


@runs
@pytest.mark.sampled(5)
@pytest.mark.parametrize("form", FORMS)
def test_results(form: str, tmp_path: Path, cache: KernelCache) -> None:
    of = FORMS[form]
    one = kernel(of, tmp_path, cache)
    for rows in ROWS:
        feeds = of.feeds(rows)
        (got,) = one.run(None, feeds)
        want = of.expected(feeds)
        # float32, or operands in bfloat16.
        is_few = np.prod(got.shape[:-1]) <= SMALL_M
        step = 2e-6 if is_few else 2.0**-7
        assert np.abs(got - want).max() <= step * max(1.0, np.abs(want).max()), rows


@runs
def test_large_m(tmp_path: Path, cache: KernelCache) -> None:
    """Several blocks of rows, of which the last is short; threads change nothing."""
    of = Form(depth=640, columns=336)
    feeds = of.feeds(600)
    (one,), (three,) = (
        kernel(of, tmp_path, cache, threads).run(None, feeds) for threads in (1, 3)
    )
    np.testing.assert_array_equal(one, three)
    want = of.expected(feeds)
    assert np.abs(one - want).max() < 2.0**-7 * np.abs(want).max()


@runs
def test_rows_in_bfloat16_are_nearer_than_in_int8(tmp_path: Path, cache: KernelCache) -> None:
    """ONNX Runtime's own kernel rounds rows to 8 bits at this accuracy level."""
    of = Form(depth=512, columns=64)
    feeds = of.feeds(48)
    (got,) = kernel(of, tmp_path, cache).run(None, feeds)
    want = of.expected(feeds)
    scale = np.abs(feeds["x"]).max(axis=1, keepdims=True) / 127
    (coarse,) = [of.expected({**feeds, "x": np.round(feeds["x"] / scale) * scale})]
    assert np.abs(got - want).mean() < np.abs(coarse - want).mean()


@runs
@pytest.mark.parametrize("rows", [3, 40])
def test_a_row_leaves_others_alone(rows: int, tmp_path: Path, cache: KernelCache) -> None:
    of = FORMS["three steps"]
    feeds = of.feeds(rows)
    feeds["x"][1] = np.nan
    feeds["x"][2, 5] = np.inf
    (got,) = kernel(of, tmp_path, cache).run(None, feeds)
    finite = np.isfinite(got).all(axis=1)
    assert [int(row) for row in np.flatnonzero(~finite)] == [1, 2]


@runs
def test_no_rows(tmp_path: Path, cache: KernelCache) -> None:
    (got,) = kernel(Form(), tmp_path, cache).run(None, Form().feeds(0))
    assert got.shape == (0, 32)


@x86_64
def test_vectors_stay_whole() -> None:
    """LLVM made each row of a transpose out of 16 vectors, with 240 shuffles."""
    template = match(Form(depth=1024, columns=256).signature())
    assert isinstance(template, NBitsProduct)
    text = assembly(template.lower("kernel", LEVEL), LEVEL)
    assert "tdpbf16ps" in text
    assert text.count("vpermt2") < 200


# ---- what is refused
@x86_64
@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Form(level=1), "accuracy level"),
        (Form(level=0), "accuracy level"),
        (Form(block=16), "blocks"),
        (Form(columns=24), "columns"),
        (Form(bits=2), "4 or 8 bits"),
    ],
)
def test_refused(form: Form, reason: str) -> None:
    found = match(form.signature())
    assert isinstance(found, Refused)
    assert reason in found.reason


@x86_64
@pytest.mark.parametrize(
    ("name", "shape"), [("w", (31, 2, 16)), ("s", (63,)), ("z", (31,)), ("x", ("rows", 32))]
)
def test_operands_of_other_sizes_are_refused(name: str, shape: tuple[int | str, ...]) -> None:
    signature = Form(zero=True).signature()
    inputs = [
        replace(spec, shape=shape) if spec.name == name else spec for spec in signature.inputs
    ]
    assert isinstance(match(replace(signature, inputs=tuple(inputs))), Refused)


@x86_64
@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4", "x86-64-v4-bf16"])
def test_processors_without_tiles(level: str) -> None:
    found = refusal(Form().signature(), Target("cpu", level))
    assert found is not None
    assert "tiles" in found.reason
