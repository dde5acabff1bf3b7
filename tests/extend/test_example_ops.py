"""The worked examples of custom_ops/examples are right, and those that can be compiled are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import ortkit
from ortkit.extend.custom_ops import CustomOp
from ortkit.extend.find_ops import find_ops
from ortkit.extend.op_check import check_op
from ortkit.runtime.python_ops import OPS

DOMAIN = "ortkit.examples"
NAMES = {
    "BiasSoftmax", "FlashAttention", "MatrixProduct", "QuantizedProduct", "ResidualLayerNorm",
    "SquaredReLU", "VectorAdd",
}  # fmt: skip


@pytest.fixture(scope="module")
def ops() -> Iterator[dict[str, CustomOp]]:
    before = dict(OPS)
    found = find_ops(["ortkit.custom_ops.examples"])
    yield {op.name: op for op in found if op.domain == DOMAIN}
    for key in set(OPS) - set(before):
        del OPS[key]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_example_is_right(ops: dict[str, CustomOp], name: str) -> None:
    found = check_op(ops[name], dtypes=["float32"])
    assert [str(fault) for fault in found.faults] == []
    assert found.bodies > 8
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
