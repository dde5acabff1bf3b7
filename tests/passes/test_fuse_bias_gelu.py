"""A bias and its GELU become one node, and that node is a region for kernels as the two are."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from ortkit.fusion.regions.describe import describe_region
from ortkit.fusion.regions.partition import partition
from ortkit.fusion.regions.region import region_of
from ortkit.passes.fuse_bias_gelu import FuseBiasGelu
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from tests.kernels.fused_model import fused_model, session
from tests.passes.graphs import Graph, assert_refused, assert_rewritten, run

PASSES = (FuseBiasGelu(),)


def biased(g: Graph, *, swapped: bool = False) -> str:
    x, b = g.input(2, 3, 4), g.constant(4)
    return g.op("Add", *((b, x) if swapped else (x, b)))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("approximate", "op"), [("none", "BiasGelu"), ("tanh", "FastGelu")])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_fuses(dtype: type, approximate: str, op: str, swapped: bool) -> None:
    g = Graph(dtype, opset=20)
    y = g.op("Gelu", biased(g, swapped=swapped), approximate=approximate)
    assert_rewritten(g.model(y), PASSES, [op], level=3)


@pytest.mark.parametrize(("given", "op"), [("Gelu", "BiasGelu"), ("FastGelu", "FastGelu")])
def test_fuses_ops_of_the_runtime(given: str, op: str) -> None:
    g = Graph()
    model = g.model(g.op(given, biased(g), domain="com.microsoft"))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert_rewritten(model, PASSES, [op], level=3)


def test_below_level_3_two_nodes_stay() -> None:
    g = Graph(opset=20)
    assert_refused(g.model(g.op("Gelu", biased(g))), PASSES, "as fast apart", level=2)


def test_what_others_read_stays() -> None:
    g = Graph(opset=20)
    total = biased(g)
    assert_refused(g.model(g.op("Gelu", total), total), PASSES, "others read", level=3)


@pytest.mark.parametrize("shape", [(1,), (2, 3, 4), (3, 1), ()])
def test_other_shapes_stay(shape: tuple[int, ...]) -> None:
    g = Graph(opset=20)
    total = g.op("Add", g.input(2, 3, 4), g.constant(*shape))
    assert_refused(g.model(g.op("Gelu", total)), PASSES, "per column", level=3)


def test_double_stays() -> None:
    g = Graph(np.float64, opset=20)
    y = g.op("Gelu", biased(g), approximate="tanh")
    assert_refused(g.model(y), PASSES, "float32 and float16", level=3)


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize(
    ("domain", "op", "attributes"),
    [
        ("", "Gelu", {}),
        ("", "Gelu", {"approximate": "tanh"}),
        ("com.microsoft", "Gelu", {}),
        ("com.microsoft", "FastGelu", {}),
    ],
)
def test_a_region_computes_the_same_at_every_level(
    domain: str, op: str, attributes: dict[str, str], level: int
) -> None:
    g = Graph(opset=20)
    model: onnx.ModelProto = g.model(g.op(op, biased(g), domain=domain, **attributes))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    result = Pipeline(PASSES).run(ir.from_proto(model), RewriteOptions(level=level))
    scope = result.scopes[0]
    assert isinstance(scope.root, ir.Graph)
    (nodes,) = partition(scope, scope.root).groups
    assert len(nodes) == (1 if level == 3 else 2)
    signature = describe_region(scope, region_of(scope, nodes))
    x = np.linspace(-6, 6, 24, dtype=np.float32).reshape(2, 3, 4)
    bias = onnx.numpy_helper.to_array(model.graph.initializer[0])
    names = [spec.name for spec in signature.inputs]
    fed = dict(zip(names, (x, bias), strict=True))
    (got,), (want,) = session(fused_model(signature)).run(None, fed), run(model, {"x": x})
    bound = 6 * 64 * float(np.finfo(np.float32).eps)
    assert (np.abs(np.asarray(got) - want) <= bound).all()
