"""Products with a skip norm behind become one region on CUDA where that was measured faster."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortkit.custom_ops.triton.gemm.split_k import ANCHOR
from region_models import accept, found_by, scope_of

from ortkit.fusion.regions.cuda_cost_model import CudaCostModel
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.lower import lower_region
from ortkit.rewrite.scope import Scope

DEPTH, COLUMNS = 3072, 768


def model_of(rows: int, *, kind: str, has_sum: bool, depth: int = DEPTH) -> onnx.ModelProto:
    """A product, its bias in the skip norm or before it, and the norm."""
    rng = np.random.default_rng(2)
    held = [
        numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float16), name)
        for name, shape, scale in (
            ("w", (depth, COLUMNS), depth**-0.5), ("b", (COLUMNS,), 1.0),
            ("g", (COLUMNS,), 1.0), ("h", (COLUMNS,), 1.0),
        )
    ]  # fmt: skip
    outputs = ["y", "", "", "s"] if has_sum else ["y"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["u"])]
    if kind == "SkipLayerNormalization":
        inputs = ["r", "u", "g", "h", "b"]
    else:
        nodes.append(helper.make_node("Add", ["u", "b"], ["t"]))
        inputs = ["t", "r", "g"]
    skip = helper.make_node(kind, inputs, outputs, domain="com.microsoft", epsilon=1e-5)
    shapes = {"x": (1, rows, depth), **dict.fromkeys("rys", (1, rows, COLUMNS))}
    infos = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)
        for name, shape in shapes.items()
    }
    graph = helper.make_graph(
        [*nodes, skip], "g", [infos["x"], infos["r"]],
        [infos[name] for name in outputs if name], held,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def found_in(scope: Scope) -> list[Candidate]:
    return found_by(ANCHOR, scope, accept, CudaCostModel)


def outputs_of(proto: onnx.ModelProto) -> list[np.ndarray]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {
        item.name: rng.standard_normal(item.shape).astype(np.float16)
        for item in session.get_inputs()
    }
    return list(session.run(None, feeds))


@pytest.mark.parametrize("has_sum", [False, True])
@pytest.mark.parametrize("kind", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_a_product_and_its_skip_norm_are_one_region(kind: str, has_sum: bool) -> None:
    before = model_of(101, kind=kind, has_sum=has_sum)
    scope = scope_of(ir.from_proto(before))
    (one,) = found_in(scope)
    assert one.signature is not None, one.reason
    assert lower_region(scope, one.region, one.signature, {})
    after = ir.to_proto(scope.model)
    assert len(after.graph.node) == 1
    for found, wanted in zip(outputs_of(after), outputs_of(before), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(("rows", "depth"), [(1, DEPTH), (197, DEPTH), (512, DEPTH), (101, 64)])
def test_what_cublas_is_faster_for_is_left(rows: int, depth: int) -> None:
    proto = model_of(rows, kind="SkipLayerNormalization", has_sum=True, depth=depth)
    assert all(item.signature is None for item in found_in(scope_of(ir.from_proto(proto))))
