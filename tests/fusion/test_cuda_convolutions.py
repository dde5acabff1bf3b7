"""Chains of convolutions for CUDA: what they are made of, and that they compute what was there."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from conv_nets import Net, bottlenecks, half, hard_gates, inverted_residuals, squeeze_excites
from region_models import accept, scope_of

from ortkit.fusion.conv.chains import Chain, find_chains
from ortkit.fusion.conv.lower import lower_chain
from ortkit.fusion.conv.plan import settle_chain
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

NETS = {
    "inverted residuals": inverted_residuals,
    "squeeze-and-excite": squeeze_excites,
    "hard gates": hard_gates,
    "bottlenecks": bottlenecks,
}


def chains_of(proto: onnx.ModelProto, judge=accept) -> tuple[Scope, list[Chain]]:
    scope = scope_of(ir.from_proto(proto), kind="cuda")
    return scope, find_chains(scope, scope.model.graph, judge)


def run(proto: onnx.ModelProto) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    shape = [size if isinstance(size, int) else 2 for size in session.get_inputs()[0].shape]
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float16)
    return session.run(None, {"x": x})


@pytest.mark.parametrize("name", NETS)
def test_a_net_is_one_chain_that_computes_the_same(name: str) -> None:
    proto = half(NETS[name]())
    expected = run(proto)
    scope, chains = chains_of(proto)
    (chain,) = [item for item in chains if not item.reason]
    convs = [node for node in scope.model.graph if node.op_type == "Conv"]
    assert {conv for block in chain.blocks for conv in block.convs} == set(convs)
    assert lower_chain(scope, chain, {})
    assert not [node for node in scope.model.graph if node.op_type == "Conv"]
    made = ir.to_proto(scope.model)
    onnx.checker.check_model(made)
    for got, want in zip(run(made), expected, strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=0.02 * scale)


def test_what_a_kernel_takes_in() -> None:
    _, (chain,) = chains_of(half(hard_gates()))
    kinds = Counter(block.kind for block in chain.blocks)
    assert kinds["squeeze_excite"] == sum(block.gate is not None for block in chain.blocks)
    assert kinds["squeeze_excite"] == sum(block.pooled for block in chain.blocks) > 0
    assert [block.is_planar for block in chain.blocks].count(True) == 1


@pytest.mark.parametrize(
    ("images", "is_joined"), [(1, True), (2, True), (1000, False), ("n", False)]
)
def test_few_images_are_expanded_and_filtered_in_one_launch(
    images: int | str, is_joined: bool
) -> None:
    _, (chain,) = chains_of(half(inverted_residuals((images, 3, 32, 32))))
    kinds = Counter(block.kind for block in chain.blocks)
    assert kinds["expand_depthwise"] == (3 if is_joined else 0)
    assert kinds["depthwise_conv"] == (0 if is_joined else 3)


def test_a_result_that_others_read_is_not_joined() -> None:
    net = Net()
    wide = net.relu6(net.conv("x", (16, 24)))
    y = net.op("Add", net.conv(wide, (24, 24)), net.depthwise(wide, 24, 3))
    z = net.relu6(net.conv(y, (24, 32)))
    _, (chain,) = chains_of(half(net.model((1, 16, 8, 8), [net.depthwise(z, 32, 3), z])))
    kinds = Counter(block.kind for block in chain.blocks)
    assert kinds == {"conv": 3, "depthwise_conv": 2}


def test_a_pair_without_kernel_is_two_blocks() -> None:
    def judge(signature: RegionSignature) -> Refused | None:
        is_refused = signature.name == "expand_depthwise"
        return Refused("not so") if is_refused else accept(signature)

    _, (chain,) = chains_of(half(inverted_residuals()), judge)
    assert Counter(block.kind for block in chain.blocks) == {"conv": 7, "depthwise_conv": 3}


def test_poolings_of_results_are_a_part() -> None:
    net = Net()
    x = net.op("Relu", net.conv("x", (3, 16), 7, strides=[2, 2], pads=[3] * 4))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = net.op("GlobalAveragePool", net.op("Relu", net.conv(x, (16, 32))))
    _, (chain,) = chains_of(half(net.model((1, 3, 32, 32), [x])))
    assert [block.kind for block in chain.blocks] == ["conv", "max_pool", "conv", "global_mean"]


def test_float32_is_left_alone() -> None:
    scope, chains = chains_of(inverted_residuals())
    assert not chains
    assert {miss.reason for miss in scope.log.misses} == {"it is not in half precision"}


def test_what_has_no_kernel_stays_outside() -> None:
    def judge(signature: RegionSignature) -> Refused | None:
        is_refused = signature.name in ("depthwise_conv", "expand_depthwise")
        return Refused("not so") if is_refused else accept(signature)

    scope, chains = chains_of(half(inverted_residuals()), judge)
    assert all(block.kind == "conv" for chain in chains for block in chain.blocks)
    assert "not so" in {miss.reason for miss in scope.log.misses}


def test_a_kernel_that_fails_keeps_its_chain_as_it_was() -> None:
    proto = half(bottlenecks())
    scope, (chain,) = chains_of(proto)
    key = next(iter(chain.signatures))
    reports = list(settle_chain(scope, chain, {key: "the assembler failed"}, {}))
    assert {report.reason for report in reports} == {"the assembler failed"}
    assert all(report.emitted_as is None for report in reports)
    assert sum(node.op_type == "Conv" for node in scope.model.graph) == len(reports)
