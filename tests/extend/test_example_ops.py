"""The worked examples of custom_ops/examples are right, and those that can be compiled are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import ortkit
from ortkit.extend.check.op_check import check_op
from ortkit.extend.declare.op import CustomOp
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
