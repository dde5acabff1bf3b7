"""Models of every opset from 7 on have the kernels that newer ones have."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from conv_nets import Net
from region_models import find

from ortkit.fusion.conv.chains import find_chains
from ortkit.kernels.build.library import refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.passes.select import select_passes
from ortkit.refusal import Refused
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from ortkit.targets.target import Target

NEW = 13


def by_input(net: Net, op_type: str, x: str, since: int, **numbers: list[int]) -> str:
    """A node with integers as attributes, or as inputs since an opset."""
    if net.opset < since:
        return net.op(op_type, x, **numbers)
    inputs = (net.weight(np.array(each, np.int64)) for each in numbers.values())
    return net.op(op_type, x, *inputs)


def limited(net: Net, x: str) -> str:
    if net.opset < 11:
        return net.op("Clip", x, min=0.0, max=6.0)
    return net.relu6(x)


def enlarged(net: Net, x: str) -> str:
    if net.opset < 9:
        return net.op("Upsample", x, mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])
    scales = net.weight(np.array([1, 1, 2, 2], np.float32))
    if net.opset < 11:
        return net.op("Upsample" if net.opset < 10 else "Resize", x, scales, mode="nearest")
    none = net.weight(np.zeros(0, np.float32))
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return net.op("Resize", x, none, scales, mode="nearest", **how)


def halved(net: Net, x: str) -> str:
    """The sum of the halves of the channels, by a Split."""
    parts = [f"half{n}" for n in range(2)]
    inputs, attributes = [x], {"split": [16, 16]}
    if net.opset >= 13:
        inputs.append(net.weight(np.array(attributes.pop("split"), np.int64)))
    net.nodes.append(onnx.helper.make_node("Split", inputs, parts, axis=1, **attributes))
    return net.op("Mul", net.op("Sigmoid", parts[0]), net.op("Tanh", parts[1]))


@cache
def model(opset: int) -> onnx.ModelProto:
    """A net with each of the operators that changed their form before opset 13."""
    net = Net(opset)
    value = limited(net, net.conv("x", (16, 32), 3, pads=[1] * 4))
    value = enlarged(net, net.conv(value, (32, 32), 3, pads=[1] * 4))
    value = halved(net, net.op("Dropout", value))
    value = net.op("Transpose", value, perm=[0, 2, 3, 1])
    value = net.op("Add", value, net.number(1.0))
    value = by_input(net, "Slice", value, 10, starts=[1], ends=[30], axes=[1])
    value = by_input(net, "Unsqueeze", net.op("Exp", value), 13, axes=[1])
    value = by_input(net, "Squeeze", net.op("Neg", value), 13, axes=[1])
    value = net.op("Softmax", value, axis=3)
    value = net.op("Concat", value, net.op("Abs", value), axis=3)
    made = net.model((1, 16, 48, 48), [value])
    onnx.checker.check_model(made, full_check=True)
    return made


def accepts(signature: RegionSignature) -> Refused | None:
    return refusal(signature, Target(), "tvm")


def optimized(opset: int) -> tuple[ir.Model, Counter[str], list[str]]:
    """The model after the passes of level 2, its kernels by kind, and why others are none."""
    found = ir.from_proto(model(opset))
    result = Pipeline(select_passes("", 2)).run(found, RewriteOptions())
    (scope,) = result.scopes
    chains = find_chains(scope, found.graph, accepts)
    regions = find(scope, accepts)
    kinds = Counter(block.kind for each in chains if not each.reason for block in each.blocks)
    kinds += Counter(each.region.kind for each in regions if not each.reason)
    return found, kinds, [each.reason for each in regions if "opset" in each.reason]


def outputs(proto: onnx.ModelProto) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((1, 16, 48, 48)).astype(np.float32)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12])
def test_older_models_have_the_kernels_of_newer_ones(opset: int) -> None:
    found, kinds, refused = optimized(opset)
    assert not refused
    assert kinds == optimized(NEW)[1]
    assert kinds.total() > 4
    want = outputs(model(opset))
    np.testing.assert_allclose(outputs(ir.to_proto(found)), want, rtol=0, atol=1e-5)
