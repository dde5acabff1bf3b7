"""Regions of products in bfloat16: what belongs to one, and where the line behind it ends."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from ortkit.custom_ops.tvm.gemm.bf16 import ANCHOR
from region_models import found_by

from ortkit.fusion.regions.duplicate import Accepts, Candidate
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import names_in
from ortkit.kernels.build.library import refusal
from ortkit.kernels.layouts.bf16_blocks import pack_weight, unpack_text
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope, Whole
from ortkit.targets.target import Target

DEPTH, COLUMNS = 40, 24


def found(body: str, judge: Accepts | None = None, rounded: bool = True) -> list[Candidate]:
    """Return the candidates of a product `p` of x and a packed weight, with `body` behind it."""
    unpack = unpack_text("packed", "w", DEPTH, COLUMNS)
    first = "h = Cast<to = 16>(x)  wide = Cast<to = 1>(h)" if rounded else "wide = Identity(x)"
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, {DEPTH}] x, float[n, {COLUMNS}] r) => (y) {{
      {first}  {unpack}  p = MatMul(wide, w)  {body}
    }}"""
    proto = onnx.parser.parse_model(text)
    weight = pack_weight(np.ones((DEPTH, COLUMNS), np.float32))
    proto.graph.initializer.append(
        onnx.helper.make_tensor(
            "packed", onnx.TensorProto.BFLOAT16, weight.shape, weight.tobytes(), raw=True
        )
    )
    bias = np.ones(COLUMNS, np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(bias, "b"))
    model = open_model(proto)
    assert "packed" in names_in(model)
    scope = Scope(
        model, model.graph, Shapes.infer(model), RewriteLog(), RewriteOptions(), Whole.of(model)
    )
    assert isinstance(scope.root, ir.Graph)
    return found_by(ANCHOR, scope, judge or takes_all)


def takes_all(_signature: RegionSignature) -> None:
    """Have a kernel for everything."""


def ops(candidate: Candidate) -> list[str]:
    return [node.op_type for node in candidate.region.nodes]


CORE = ["Cast", "Cast", "Transpose", "Reshape", "Slice", "MatMul"]


@pytest.mark.parametrize(
    ("body", "epilogue"),
    [
        ("y = Identity(p)", []),
        ("y = Add(p, b)", ["Add"]),
        ("a = Add(p, b)  g = Gelu(a)  y = Cast<to = 16>(g)", ["Add", "Gelu", "Cast"]),
        ("a = Add(p, b)  y = Add(a, r)", ["Add", "Add"]),
        # What two read ends the line, but where both make one value by pointwise operators.
        ("a = Add(p, b)  g = Gelu(a)  y = Add(a, g)", ["Add", "Gelu", "Add"]),
        ("a = Add(p, b)  g = Softmax(a)  y = Add(a, g)", ["Add"]),
        # What is summed up, or is of another shape, is not of the line.
        ("a = Add(p, b)  y = Softmax(a)", ["Add"]),
        ("s = Unsqueeze(p, zero)  y = Neg(s)", []),
    ],
)
def test_the_line_behind_a_product(body: str, epilogue: list[str]) -> None:
    text = body.replace("s = Unsq", "zero = Constant<value_ints = [0]>()  s = Unsq")
    (one,) = found(text)
    got = ops(one)
    # An Identity is taken or left as the families say; what is asked is the rest.
    assert sorted(got[:6]) == sorted(CORE)
    assert [op for op in got[6:] if op != "Identity"] == epilogue
    assert one.region.kind == "bf16_product"
    assert one.signature is not None
    assert one.prediction.gain > 0.5


def test_a_shorter_line_where_there_is_no_kernel_for_all() -> None:
    def judge(signature: RegionSignature) -> Refused | None:
        return Refused("no Gelu") if "Gelu" in signature.body else None

    (one,) = found("a = Add(p, b)  g = Gelu(a)  y = Neg(g)", judge)
    assert ops(one)[6:] == ["Add"]
    (none,) = found("y = Neg(p)", lambda _: Refused("none at all"))
    assert (none.signature, none.reason) == (None, "none at all")


def test_other_products_are_no_regions() -> None:
    assert found("y = Neg(p)", rounded=False) == []


def test_the_backend_knows_the_form() -> None:
    target = Target("cpu", "x86-64-v4-amx")
    (one,) = found(
        "a = Add(p, b)  g = Gelu(a)  s = Add(g, r)  y = Cast<to = 16>(s)",
        lambda signature: refusal(signature, target, "tvm"),
    )
    assert one.reason == ""
    assert ops(one)[6:] == ["Add", "Gelu", "Add", "Cast"]
    old = Target("cpu", "x86-64-v3")
    (none,) = found("y = Add(p, b)", lambda signature: refusal(signature, old, "tvm"))
    assert "bfloat16" in none.reason
