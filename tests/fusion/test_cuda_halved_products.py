"""Products whose halves meet are two while regions are looked for, and one again otherwise."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from ortkit.custom_ops.triton.gemm.gemv import ANCHOR
from region_models import found_by, scope_of
from test_cuda_products import HEAD, many_rows, outputs_of

from ortkit.fusion.decompose.gate_up import DecomposeGateUp
from ortkit.fusion.decompose.run import decomposed
from ortkit.fusion.gemm.cuda import prefers_split_gate_up
from ortkit.fusion.regions.lower import lower_region
from ortkit.graph.io.text import from_text

DEPTH, COLUMNS = 16, 24
GATED = """u = MatMul (x, w)  a, d = Split<axis = -1, num_outputs = 2> (u)
    s = com.microsoft.QuickGelu<alpha = 1.0> (a)  y = Mul (s, d)"""
#: A body, and whether its halves go into one region.
BODIES = {
    "gated": (GATED, True),
    "the other half is acted on": (GATED.replace("(a)", "(d)").replace("(s, d)", "(s, a)"), True),
    "something else reads the matrix": (GATED + "  t = Transpose (w)  z = Relu (t)", True),
    "halves that never meet": (
        GATED.replace("y = Mul (s, d)", "y = Relu (s)") + "  z = Tanh (d)", False
    ),
    "a half that is read elsewhere": (GATED + "  z = Tanh (d)", False),
    "unequal parts": (
        """u = MatMul (x, w)  p = Constant<value = int64[2] {8, 16}> ()
        a, d = Split<axis = -1> (u, p)  y = Relu (a)  z = Tanh (d)""", False
    ),
    "three parts": (
        """u = MatMul (x, w)  a, d, e = Split<axis = -1, num_outputs = 3> (u)
        s = Mul (a, d)  y = Mul (s, e)""", False
    ),
    "rows in two parts": (
        """u = MatMul (x, w)  a, d = Split<axis = 0, num_outputs = 2> (u)  y = Mul (a, d)""", False
    ),
}  # fmt: skip


def model_of(body: str) -> onnx.ModelProto:
    rng = np.random.default_rng(5)
    bits = (rng.integers(-64, 64, (DEPTH, COLUMNS)) / 256).astype(np.float16).view(np.uint16)
    rows = 2 if "axis = 0" in body else 1
    results = ", ".join(f"float16[] {name}" for name in "yz" if f" {name} = " in body)
    proto = ir.to_proto(
        from_text(
            f"{HEAD} g (float16[{rows}, {DEPTH}] x) => ({results}) "
            f"<float16[{DEPTH}, {COLUMNS}] w = {{{', '.join(map(str, bits.flat))}}}> {{ {body} }}"
        )
    )
    for one in proto.graph.output:
        one.type.tensor_type.ClearField("shape")
    return proto


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("is_lowered", [False, True], ids=["not taken", "taken"])
def test_what_nothing_took_is_as_it_was(name: str, is_lowered: bool) -> None:
    body, is_halved = BODIES[name]
    before = model_of(body)
    scope, replaced = scope_of(ir.from_proto(before)), dict[ir.Value, ir.Value]()
    with decomposed([scope], [DecomposeGateUp(lambda *_: True)]):
        products = [node for node in scope.model.graph if node.op_type == "MatMul"]
        assert len(products) == 1 + is_halved
        for one in found_by(ANCHOR, scope):
            assert len(one.region.nodes) == 4 or not is_halved
            if is_lowered and is_halved:
                assert one.signature is not None
                assert lower_region(scope, one.region, one.signature, replaced)
    after = ir.to_proto(scope.model)
    kinds = [node.op_type for node in after.graph.node]
    held = {item.name for item in after.graph.initializer}
    if is_lowered and is_halved:
        assert "Split" not in kinds
        assert ("w" in held) == ("Transpose" in kinds)
    else:
        assert after == before
    for one_output, other in zip(outputs_of(before), outputs_of(after), strict=True):
        np.testing.assert_allclose(one_output, other, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "is_faster"),
    [("512", 2048, 5632, True), ("n", 2048, 5632, True), ("1", 2048, 5632, True),
     ("20", 2048, 5632, False), ("512", 128, 512, False)],
)  # fmt: skip
def test_it_is_done_where_it_is_faster(
    rows: str, depth: int, columns: int, is_faster: bool
) -> None:
    scope = many_rows(rows, "y = MatMul (x, w)", depth, 2 * columns)
    (product,) = scope.model.graph
    assert prefers_split_gate_up(scope, product) == is_faster
