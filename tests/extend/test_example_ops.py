"""The worked examples of custom_ops/examples are right, and those that can be compiled are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import ortkit
from ortkit.extend.build.library import built_forms
from ortkit.extend.check.guarded import call_guarded
from ortkit.extend.check.op_cases import cases_of
from ortkit.extend.check.op_check import check_op
from ortkit.extend.declare.op import CustomOp
from ortkit.extend.declare.variants import Form, forms_of
from ortkit.kernels.backend import Kernel
from ortkit.targets.cpu import LEVELS, runs_here
from ortkit.targets.target import Target
from tests.example_ops import DOMAIN, example_ops

NAMES = {
    "BiasSoftmax", "FlashAttention", "MatrixProduct", "QuantizedProduct", "ResidualLayerNorm",
    "SquaredReLU", "VectorAdd",
}  # fmt: skip


@pytest.fixture(scope="module")
def ops() -> Iterator[dict[str, CustomOp]]:
    with example_ops() as declared:
        yield declared


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_example_is_right(ops: dict[str, CustomOp], name: str) -> None:
    found = check_op(ops[name], dtypes=["float32"])
    assert [str(fault) for fault in found.faults] == []
    assert found.bodies > 8
    assert found.kernels > 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["MatrixProduct", "SquaredReLU", "VectorAdd"])
def test_kernels_in_triton_compute_in_bfloat16(ops: dict[str, CustomOp], name: str) -> None:
    """Its interpreter computes with the bits of bfloat16 without our help."""
    found = check_op(ops[name], dtypes=["bfloat16"])
    assert [str(fault) for fault in found.faults] == []
    assert found.kernels > 8


def test_there_are_no_others(ops: dict[str, CustomOp]) -> None:
    assert set(ops) == NAMES
    folder = Path(__file__).parents[2] / "custom_ops" / "examples"
    assert len(list(folder.glob("[a-z]*.py"))) == len(ops)


def test_one_runs_in_a_session(ops: dict[str, CustomOp]) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20, "{DOMAIN}" : 1]> '
        "g (uint8[m,k] x, uint8 z, int8[k,n] w, float[n] s) => (float[m,n] y) "
        f"{{ y = {DOMAIN}.QuantizedProduct(x, z, w, s) }}"
    )
    draw = np.random.default_rng(0)
    x = draw.integers(0, 255, (3, 5)).astype(np.uint8)
    z, w = np.array(7, np.uint8), draw.integers(-9, 9, (5, 4)).astype(np.int8)
    s = np.float32([1, 2, 3, 4])
    with ortkit.Session(model) as session:
        found = session.run({"x": x, "z": z, "w": w, "s": s})["y"]
    np.testing.assert_array_equal(found, ops["QuantizedProduct"](x, z, w, s))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
def test_the_quantized_product_of_each_level_is_exact(
    ops: dict[str, CustomOp], level: str
) -> None:
    """More rows of w than a panel has among them, and bytes at both ends of their range."""
    if not runs_here(level):
        pytest.skip(f"this processor has not all of {level}")
    op = ops["QuantizedProduct"]
    forms = [one for one in forms_of(op, None, "cpu") if isinstance(one, Form)]
    form = next(one for one in forms if not one.rules)
    cases = list(cases_of(op, form.types, form.is_present))
    with built_forms([(form, Target("cpu", level))]) as ((kernel,), _):
        assert isinstance(kernel, Kernel)
        outcomes = call_guarded(form, kernel, cases)
    assert len(outcomes) == len(cases) > 20
    for case, outcome in zip(cases, outcomes, strict=True):
        assert outcome.problem == "", case.text
        want = op.compute(case.inputs, case.attributes)[0]
        np.testing.assert_array_equal(outcome.outputs[0], want, case.text)


def test_kernels_on_tiles_run_without_a_session(ops: dict[str, CustomOp]) -> None:
    """A process must ask for tiles before it uses them; no library of kernels does so here."""
    code = """
import numpy, torch, ortkit
[op] = [op for op in find_ops(["ortkit.custom_ops.examples"]) if op.name == "QuantizedProduct"]
x, w = torch.full((64, 64), 255, dtype=torch.uint8), torch.full((64, 32), -128, dtype=torch.int8)
y = op.torch(kernels="always")(x, torch.tensor(1, dtype=torch.uint8), w, torch.ones(32))
assert (y == -64 * 254 * 128).all()
"""
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
