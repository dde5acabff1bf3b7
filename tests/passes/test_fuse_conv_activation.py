"""FusedConv computes what the convolution and its activation did."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortkit.passes.fuse_conv_activation import FuseConvActivation
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from ortkit.targets.target import Target
from tests.passes.graphs import Graph, assert_refused, assert_rewritten

PASSES = (FuseConvActivation(),)


def conv(g: Graph, dims: int = 2, **attributes: object) -> str:
    size = (7, 6, 5)[:dims]
    weight = g.data(np.random.default_rng(0).standard_normal((6, 2, 3, 2, 2)[: 2 + dims]))
    return g.op("Conv", g.input(2, 4, *size), weight, g.constant(6), group=2, **attributes)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Relu", {}),
        ("LeakyRelu", {}),
        ("LeakyRelu", {"alpha": 0.3}),
        ("Sigmoid", {}),
        ("Tanh", {}),
        ("HardSigmoid", {}),
        ("HardSigmoid", {"alpha": 0.1, "beta": 0.4}),
        ("HardSwish", {}),
    ],
)
def test_fuses(op: str, attributes: dict[str, float], dims: int) -> None:
    g = Graph()
    y = g.op(op, conv(g, dims, pads=[1] * 2 * dims), **attributes)
    assert_rewritten(g.model(y), PASSES, ["FusedConv"], level=3)


@pytest.mark.parametrize("limits", [(0.0, 1.5), (-0.5, None), (None, 0.25), (None, None)])
@pytest.mark.parametrize("opset", [10, 17])
def test_clip(limits: tuple[float | None, float | None], opset: int) -> None:
    g = Graph(opset=opset)
    x = conv(g)
    if opset == 10:
        given = {n: v for n, v in zip(("min", "max"), limits, strict=True) if v is not None}
        y = g.op("Clip", x, **given)
    else:
        y = g.op("Clip", x, *("" if limit is None else g.data(limit) for limit in limits))
    assert_rewritten(g.model(y), PASSES, ["FusedConv"], level=3)


def test_below_level_3_it_is_left_to_the_runtime() -> None:
    g = Graph()
    assert_refused(g.model(g.op("Relu", conv(g))), PASSES, "at load", level=2)


def test_limits_that_vary_stay() -> None:
    g = Graph()
    y = g.op("Clip", conv(g), g.input(name="low"))
    assert_refused(g.model(y), PASSES, "vary", level=3)


def test_other_element_types_stay() -> None:
    g = Graph(np.float16)
    assert_refused(g.model(g.op("Relu", conv(g))), PASSES, "float32", level=3)


def test_what_others_read_stays() -> None:
    g = Graph()
    x = conv(g)
    assert_refused(g.model(g.op("Relu", x), x), PASSES, level=3)


def test_a_residual_stays() -> None:
    g = Graph()
    y = g.op("Relu", g.op("Add", conv(g), g.input(2, 6, 5, 5, name="z")))
    assert_refused(g.model(y), PASSES, level=3)


def test_a_convolution_as_a_limit_stays() -> None:
    g = Graph()
    x = g.op("Reshape", conv(g), g.ints(-1))
    y = g.op("Clip", g.input(3, name="z"), g.op("ReduceMax", x, keepdims=0))
    assert_refused(g.model(y), PASSES, level=3)


def test_dequantized_weights_stay() -> None:
    g = Graph(opset=19)
    q = g.op("QuantizeLinear", g.constant(6, 4, 1, 1), g.constant())
    x = g.op("Conv", g.input(2, 4, 3, 3), g.op("DequantizeLinear", q, g.constant()))
    assert_refused(g.model(g.op("Relu", x)), PASSES, "dequantized", level=3)


def test_cuda_takes_relu_only() -> None:
    for op, count in (("Relu", 1), ("Sigmoid", 0)):
        g = Graph()
        model: onnx.ModelProto = g.model(g.op(op, conv(g)))
        result = Pipeline(PASSES).run(ir.from_proto(model), RewriteOptions(Target("cuda"), 3))
        assert len(result.log.hits) == count
