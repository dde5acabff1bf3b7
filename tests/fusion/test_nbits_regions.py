"""Regions of products with weights in 4 or 8 bits: what belongs to one, and what is left."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from ortkit.custom_ops.tvm.gemm.nbits import ANCHOR
from region_models import found_by

from ortkit.fusion.regions.duplicate import Candidate
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.build.library import refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope, Whole
from ortkit.targets import cpu
from ortkit.targets.target import Target

DEPTH, COLUMNS = 128, 32
NUMBERS = "K = 128, N = 32, bits = 4, block_size = 32, accuracy_level = 4"


def judge(signature: RegionSignature) -> Refused | None:
    return refusal(signature, Target("cpu", "x86-64-v4-amx"))


def found(body: str, numbers: str = NUMBERS, operands: str = "x, w, s") -> list[Candidate]:
    """Return the candidates of a product `p` of x and a weight, with `body` behind it."""
    proto = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[n, {DEPTH}] x, float[n, {COLUMNS}] r, float[n, 1] c) => (y) {{
      p = com.microsoft.MatMulNBits <{numbers}> ({operands})  {body}
    }}""")
    constants = {
        "w": np.zeros((COLUMNS, DEPTH // 32, 16), np.uint8),
        "s": np.ones(COLUMNS * DEPTH // 32, np.float32),
        "z": np.zeros(COLUMNS * DEPTH // 64, np.uint8),
        "i": np.zeros(DEPTH, np.int32),
        "b": np.ones(COLUMNS, np.float32),
    }
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = open_model(proto)
    scope = Scope(
        model, model.graph, Shapes.infer(model), RewriteLog(), RewriteOptions(), Whole.of(model)
    )
    return found_by(ANCHOR, scope, judge)


pytestmark = pytest.mark.skipif(cpu.machine() != "x86-64", reason="x86-64 has levels")


@pytest.mark.parametrize(
    ("body", "epilogue"),
    [
        ("y = Identity(p)", ["Identity"]),
        ("y = Add(p, r)", ["Add"]),
        ("y = Add(b, p)", ["Add"]),
        ("q = Add(p, b)  y = Mul(q, r)", ["Add", "Mul"]),
        ("q = com.microsoft.QuickGelu<alpha = 1.0>(p)  y = Mul(q, r)", ["QuickGelu", "Mul"]),
        # One number a row is no operand of the epilogue.
        ("q = Relu(p)  y = Mul(q, c)", ["Relu"]),
        # What two read goes on where both make one value, by pointwise operators.
        ("q = Relu(p)  y = Add(p, q)", ["Relu", "Add"]),
        ("q = Softmax(p)  y = Add(p, q)", []),
        ("y = Softmax(p)", []),
    ],
)
def test_what_follows_a_product(body: str, epilogue: list[str]) -> None:
    (one,) = found(body)
    assert one.signature is not None
    assert [node.op_type for node in one.region.nodes] == ["MatMulNBits", *epilogue]


@pytest.mark.parametrize("operands", ["x, w, s, z", "x, w, s, , , b", "x, w, s, z, , b"])
def test_optional_operands(operands: str) -> None:
    (one,) = found("y = Add(p, r)", operands=operands)
    assert one.signature is not None


@pytest.mark.parametrize(
    ("numbers", "operands", "reason"),
    [
        (NUMBERS.replace("level = 4", "level = 0"), "x, w, s", "accuracy level"),
        (NUMBERS.replace(", accuracy_level = 4", ""), "x, w, s", "accuracy level"),
        (NUMBERS.replace("bits = 4", "bits = 2"), "x, w, s", "4 or 8 bits"),
        (NUMBERS.replace("bits = 4", "bits = 8"), "x, w, s", "sizes"),
        (NUMBERS.replace("size = 32", "size = 8"), "x, w, s", "blocks"),
        (NUMBERS.replace("N = 32", "N = 48"), "x, w, s", "sizes"),
        (NUMBERS.replace("K = 128", "K = 160"), "x, w, s", "sizes"),
        (NUMBERS, "x, w, s, , i", "another order"),
    ],
)
def test_what_has_no_kernel(numbers: str, operands: str, reason: str) -> None:
    (one,) = found("y = Identity(p)", numbers, operands)
    assert one.signature is None
    assert reason in one.reason
