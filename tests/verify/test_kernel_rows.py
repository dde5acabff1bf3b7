"""Large kernels of fixed sizes: each row beside a body for a few rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from faulty_kernels import RELU, Fault, calling, faulty_library, has_compiler, signature

from ortkit.graph.batch.row_order import copies_of, row_order
from ortkit.verify.kernels import child
from ortkit.verify.kernels.few_rows import few_rows
from ortkit.verify.kernels.inputs import EIGHT_BITS, SPECIAL, Kind, made_up
from ortkit.verify.kernels.job import KernelsJob
from ortkit.verify.kernels.models import KernelNode, kernel_nodes
from ortkit.verify.kernels.process import Order, job_of
from ortkit.verify.kernels.report import KernelRow

ROWS, COLUMNS = 2048, 520
#: A tile of 64 rows that is computed again in place of a later one.
AGAIN = "if (end == n) for (int64_t i = 0; i < 64 * m; ++i) y[1088 * m + i] = y[64 * m + i];"


def kernel_of(rows: int = ROWS, bias: np.ndarray | None = None) -> KernelNode:
    """Return x + b and a Relu, of fixed sizes."""
    model = calling(signature(), bias=bias)
    for value in model.graph.inputs:
        sizes = (rows, COLUMNS) if value.name == "X0" else (COLUMNS,)
        value.shape = ir.Shape(sizes)
    (found,) = kernel_nodes(model)
    return found


def outcome(fault: Fault, folder: Path) -> KernelRow:
    library = faulty_library(fault, folder / "m.opt.ops.so")
    bias = np.linspace(-1, 1, COLUMNS, dtype=np.float32)
    made = job_of(Order(kernel_of(bias=bias), ""), folder / "0")
    assert made.rows is not None
    job = KernelsJob(library, (), (made,), 0, 1.0, 0.0)
    return child.Check(onnxruntime, job, 0, lambda _: None).row()


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C compiler")


@needs_compiler
def test_a_right_kernel_passes(tmp_path: Path) -> None:
    found = outcome(Fault(), tmp_path)
    assert (found.verdict, found.reason) == ("passed", "")
    assert found.cases == 8  # kinds of values, two batches
    assert found.runs == 2 * 4  # aligned and not, two threads, in a model


@needs_compiler
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(f"i == n - 1 && j == 3 ? v + 1 : {RELU}"), "output 0"),
        (Fault(f"i == 1000 ? 0 : {RELU}"), "output 0"),
        (Fault(end=AGAIN), "output 0"),
        (Fault(end="if (end == n) y[n * m] = 0;"), "it writes outside of output 0"),
        (Fault("v < 0 ? 0 : b[j] == b[0] ? x[i * m + j] : v"), "output 0"),
        (Fault("v > 0 ? v : 0"), "nan, infinity values"),
    ],
)
def test_a_fault_is_found(fault: Fault, words: str, tmp_path: Path) -> None:
    found = outcome(fault, tmp_path)
    assert found.verdict == "failed", found
    assert words in found.reason


def test_the_body_for_fewer_rows() -> None:
    few = few_rows(kernel_of())
    assert few is not None
    assert (few.batch, few.inputs, few.outputs) == (ROWS, (0, None), (0,))
    assert few.kernel.inputs[0].shape == (few.rows, COLUMNS)
    assert few.kernel.outputs == ((few.rows, COLUMNS),)
    assert 2 <= few.rows < ROWS / 2


def test_constants_are_read_where_their_file_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = np.ones((ROWS, COLUMNS), np.float32)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "weights.data").write_bytes(held.tobytes())
    tensor = ir.ExternalTensor(
        "weights.data", 0, held.nbytes, ir.DataType.FLOAT, shape=ir.Shape(held.shape), name="w",
        base_dir=tmp_path / "a",
    )  # fmt: skip
    kernel = kernel_of(bias=held)
    inputs = tuple(
        each if each.constant is None else replace(each, constant=tensor) for each in kernel.inputs
    )
    monkeypatch.chdir(tmp_path)
    few = few_rows(replace(kernel, inputs=inputs))
    assert few is not None
    assert few.inputs == (0, None)


def test_small_and_symbolic_kernels_have_all_rows() -> None:
    assert few_rows(kernel_of(64)) is None
    (symbolic,) = kernel_nodes(calling(signature()))
    assert few_rows(symbolic) is None


def test_every_place_of_a_batch_is_named() -> None:
    order = row_order(100, 7)
    places = list(copies_of(order, 7))
    assert {int(place) for each in places for place in each} == set(range(100))
    assert all((order[each] == np.arange(7)).all() for each in places)


def test_rows_of_products_are_tokens_and_those_of_attention_samples() -> None:
    """A few tokens of all samples are less than a few samples."""
    product = "y = MatMul (x, w)"
    attention = """t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t)
        p = Softmax <axis = -1> (s) y = MatMul (p, x)"""
    found = []
    for body in (product, attention):
        text = f"""<ir_version: 10, opset_import: ["" : 20, "ortkit.fused" : 1]>
            g (float16[32, 512, 512] x) => (float16[32, 512, 512] y) <float16[1] w = {{0}}> {{
                y = ortkit.fused.op (x, w)
            }}
            <opset_import: ["" : 20], domain: "ortkit.fused">
            op (x, w) => (y) {{ {body} }}"""
        model = ir.from_proto(onnx.parser.parse_model(text))
        weight = ir.tensor(np.zeros((512, 512), np.float16), name="w")
        model.graph.initializers["w"].const_value = weight
        (kernel,) = kernel_nodes(model)
        few = few_rows(kernel)
        assert few is not None
        found.append((few.batch, few.kernel.inputs[0].shape, few.inputs, few.outputs))
    assert found == [
        (512, (32, 16, 512), (1, None), (1,)),
        (32, (2, 512, 512), (0, None), (0,)),
    ]


@pytest.mark.parametrize("kind", sorted({*SPECIAL, *EIGHT_BITS}))
@pytest.mark.parametrize("dtype", ["float16", "float32", "bool", "int64"])
def test_a_scalar_that_is_made_up_is_an_array(kind: Kind, dtype: str) -> None:
    made = made_up(np.dtype(dtype), (), kind, 0, 0)
    assert isinstance(made, np.ndarray)
    assert (made.dtype, made.shape) == (np.dtype(dtype), ())
