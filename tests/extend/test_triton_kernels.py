"""Kernels that users write in Triton: interpreted on guarded memory, compiled into libraries."""

# ruff: noqa: F722

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortkit
from ortkit.extend.build.library import build_ops
from ortkit.extend.check.op_check import OpCheck, check_op
from ortkit.extend.declare.variants import Form, forms_of
from ortkit.extend.triton.kernels import sources_of_form
from ortkit.kernels.sizes import Extent
from ortkit.runtime.python_ops import OPS
from ortkit.targets.target import Target

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

FACTOR = tl.constexpr(2)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = dict(OPS)
    yield
    OPS.clear()
    OPS.update(before)


@triton.jit
def doubled(x):
    return x * FACTOR


@triton.jit
def good(x_ptr, y_ptr, alpha, m, n, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    x = tl.load(x_ptr + row + at, mask=at < n)
    tl.store(y_ptr + row + at, doubled(x) * alpha, mask=at < n)


@triton.jit
def wrong(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    tl.store(y_ptr + row + at, tl.load(x_ptr + row + at, mask=at < n) * 3.0, mask=at < n)


@triton.jit
def beyond(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    tl.store(y_ptr + row + at, tl.load(x_ptr + row + at, mask=at < n) * 2.0)


@triton.jit
def reads_beyond(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    tl.store(y_ptr + row + at, tl.load(x_ptr + row + at) * 2.0, mask=at < n)


@triton.jit
def into_its_input(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    x = tl.load(x_ptr + row + at, mask=at < n)
    tl.store(x_ptr + row + at, x * 2.0, mask=at < n)
    tl.store(y_ptr + row + at, x * 2.0, mask=at < n)


@triton.jit
def left_out(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    tl.store(y_ptr + row + at, tl.load(x_ptr + row + at, mask=at < n) * 2.0, mask=at < n - 1)


@triton.jit
def unknown_name(x_ptr, y_ptr, speed):
    tl.store(y_ptr, tl.load(x_ptr) * speed)


@triton.jit
def no_output(x_ptr, n):
    tl.store(x_ptr, 0.0)


@triton.jit
def names_an_array(x_ptr, y_ptr):
    tl.store(y_ptr, ARRAY)


ARRAY = np.zeros(3)


def plain(x, y):
    """No kernel at all: it writes nothing."""


def declared() -> ortkit.CustomOp:
    @ortkit.custom_op("tests.triton::Twice")
    def twice(x: ortkit.Float["m n"], *, alpha: float = 1.0) -> ortkit.Float["m n"]:
        return x * np.asarray(2 * alpha, x.dtype)

    return twice


GRID = ("m", "ceil(n / BLOCK)")


def check(kernel: Any, **options: Any) -> OpCheck:
    op = declared()
    op.kernel("triton", kernel, **{"grid": GRID, "constants": {"BLOCK": 64}, **options})
    return check_op(op, dtypes=["float32"])


def test_a_right_kernel_is_compared_in_every_case() -> None:
    found = check(good)
    assert found.faults == () and found.notes == ()
    assert 15 < found.kernels < found.cases  # grids of thousands are left out


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (wrong, "off by"),
        (beyond, "writes beside|out of bounds"),
        (reads_beyond, "out of bounds"),
        (into_its_input, "writes into its input x"),
        (left_out, "off by|not finite|nan"),
        (unknown_name, "the parameter 'speed' stands for nothing"),
        (no_output, "has no parameter y, and writes that output nowhere"),
        (names_an_array, "it names ARRAY, a ndarray, which a kernel cannot"),
        (plain, "off by|nan"),
    ],
)
def test_what_is_wrong_is_found_without_a_gpu(kernel: Any, problem: str) -> None:
    constants = {"BLOCK": 64} if "BLOCK" in getattr(kernel, "arg_names", ()) else {}
    grid = GRID if constants else (1,)
    faults = [str(fault) for fault in check(kernel, constants=constants, grid=grid).faults]
    assert faults and all("\n" not in one for one in faults)
    assert any(re.search(problem, item, re.IGNORECASE) for item in faults), faults


def test_what_triton_is_told() -> None:
    """Pointers of aligned tensors, and sizes that a condition makes multiples, are multiples."""
    op = declared()
    op.kernel("triton", good, grid=GRID, constants={"BLOCK": 64}, when="n % 32 == 0", warps=8)
    (form,) = [item for item in forms_of(op, ["float16"], "cuda") if isinstance(item, Form)]
    aligned, other = sources_of_form(form)
    assert (aligned.is_aligned, other.is_aligned) == (True, False)
    told = {
        parameter.name: (parameter.type, parameter.is_multiple)
        for parameter in aligned.steps[0].parameters
    }
    assert told == {
        "x_ptr": ("*fp16", True), "y_ptr": ("*fp16", True), "alpha": ("fp32", False),
        "n_1_s0": ("i32", False), "n_1_s1": ("i32", True),
    }  # fmt: skip
    assert not any(one.is_multiple for one in other.steps[0].parameters if "*" in one.type)
    step = aligned.steps[0]
    assert step.warps == 8
    assert step.grid == ((Extent(1, ("m",)), 1), (Extent(1, ("n",)), 64), (Extent(1), 1))


def test_a_library_has_the_kernels_for_both(tmp_path: Path) -> None:
    """The one for the CPU is generated from the body, and runs where there is no GPU."""
    import onnx.parser
    import onnxruntime as ort

    op = declared()
    op.body(
        '<opset_import: ["" : 20]> f <alpha: float = 1.0> (x) => (y) { '
        "a = Constant <value_float: float = @alpha> () b = CastLike(a, x) c = Add(b, b) "
        "y = Mul(x, c) }"
    )
    op.kernel("triton", good, grid=GRID, constants={"BLOCK": 64}, when="n % 16 == 0")
    path = tmp_path / "ops.so"
    build = build_ops([op], path, cuda=Target("cuda", "sm_90"), dtypes=["float32"])
    assert build.refused == ()
    assert [form.text for form in build.built] == [
        "float32", "float32 by good (triton) where n % 16 == 0", "float32",
    ]  # fmt: skip
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(path))
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "tests.triton" : 1]> '
        "g (float[m,n] x) => (y) { y = tests.triton.Twice <alpha = 3.0> (x) }"
    )
    providers = ["CPUExecutionProvider"]
    session = ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    x = np.ones((2, 16), np.float32)
    assert (session.run(None, {"x": x})[0] == 6).all()


def test_a_kernel_that_triton_refuses(tmp_path: Path) -> None:
    op = declared()
    op.kernel("triton", unknown_name, grid=("1",), sizes={"speed": "m*n"})
    op.kernel("triton", wrong, grid=GRID, constants={"BLOCK": 63}, dtypes=["float16"])
    build = build_ops([op], tmp_path / "x.so", cuda=Target("cuda", "sm_90"),
                      dtypes=["float16", "float32"])  # fmt: skip
    reasons = [reason for _, _, reason in build.refused]
    assert any("Triton failed on a kernel for sm_80" in item for item in reasons), reasons
    assert all("\n" not in one for one in reasons)


def test_kernels_may_be_named_by_where_they_are(tmp_path: Path) -> None:
    op = declared()
    op.kernel("triton", f"{__name__}:good", grid=GRID, constants={"BLOCK": 64})
    assert op.kernels[0].name == "good"
    assert check_op(op, dtypes=["float16"]).faults == ()
    other = declared()
    other.kernel("triton", "tests.extend.nowhere:good", grid=("1",))
    build = build_ops([other], tmp_path / "x.so", cuda=Target("cuda", "sm_90"), dtypes=["float32"])
    assert build.library is None
    reasons = [reason for _, _, reason in build.refused]
    assert "the kernel tests.extend.nowhere:good is not there: No module" in reasons[-1]


def test_declaring_imports_no_triton(tmp_path: Path) -> None:
    code = (
        "import sys, ortkit.custom_ops.examples\n"
        "print([one for one in ('triton', 'tvm', 'torch') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
