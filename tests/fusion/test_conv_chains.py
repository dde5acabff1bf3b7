"""Chains of convolution blocks: what they are made of, and that they compute what was there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from conv_nets import (
    Net,
    bottlenecks,
    channels_last_blocks,
    enlarged_sums,
    hard_gates,
    inverted_residuals,
    joined_images,
    mishes,
    residuals,
    squeeze_excites,
)
from region_models import accept, scope_of

from ortkit.analysis.transposed_resize import REASON
from ortkit.fusion.conv import chains
from ortkit.fusion.conv.borders import borders
from ortkit.fusion.conv.chains import Chain, find_chains
from ortkit.fusion.conv.lower import lower_chain
from ortkit.fusion.conv.unknown_sizes import unknown_sizes_note
from ortkit.fusion.plan import compile_regions
from ortkit.kernels.signature import RegionSignature
from ortkit.passes.channels_last import ChannelsLast
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope
from ortkit.targets.target import Target


def chains_of(proto: onnx.ModelProto, judge=accept) -> tuple[Scope, list[Chain]]:
    scope = scope_of(ir.from_proto(proto))
    return scope, find_chains(scope, scope.model.graph, judge)


def taken(chains: list[Chain]) -> list[list[str]]:
    return [[block.kind for block in chain.blocks] for chain in chains if not chain.reason]


def run(proto: onnx.ModelProto, x: np.ndarray, library: Path | None = None) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if library is not None:
        options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_a_mobile_net_is_one_chain() -> None:
    _, chains = chains_of(inverted_residuals())
    block = ["pointwise_conv", "depthwise_conv", "pointwise_conv"]
    assert taken(chains) == [["stem_conv", *block * 3]]
    (chain,) = chains
    assert [len(each.extras) for each in chain.blocks if each.kind == "pointwise_conv"] == [
        0, 0, 0, 1, 0, 1
    ]  # fmt: skip


def test_a_stem_reads_the_image_as_it_is_and_the_result_changes_its_layout() -> None:
    scope, (chain,) = chains_of(inverted_residuals())
    (output,) = scope.model.graph.outputs
    assert borders(chain.blocks).changed == (output,)
    assert borders(chain.blocks[1:]).changed == (chain.blocks[0].output, output)


def test_large_values_between_two_convolutions_are_never_whole() -> None:
    scope, (chain,) = chains_of(inverted_residuals((1, 3, 122, 126)))
    kinds = [block.kind for block in chain.blocks]
    assert kinds[:3] == ["stem_conv", "expand_depthwise", "pointwise_conv"]
    assert kinds[3:6] == ["expand_depthwise", "pointwise_conv", "expand_depthwise"]
    assert lower_chain(scope, chain, {})


@pytest.mark.parametrize(
    ("attributes", "is_joined"),
    [
        ({"pads": [1] * 4}, True),
        ({"pads": [2] * 4, "dilations": [2, 2]}, False),
        ({"strides": [4, 4]}, False),  # some rows of the large value are not read
    ],
)
def test_what_is_joined_reads_neighbouring_rows(
    attributes: dict[str, object], is_joined: bool
) -> None:
    net = Net()
    value = net.relu6(net.conv("x", (3, 16), 3, strides=[2, 2], pads=[0, 0, 1, 1]))
    for _ in range(2):
        wide = net.relu6(net.conv(value, (16, 96)))
        deep = net.relu6(net.conv(wide, (96, 96), 3, group=96, **attributes))
        value = net.conv(deep, (96, 16))
    _, chains = chains_of(net.model((1, 3, 122, 126), [value]))
    kinds = {block.kind for chain in chains for block in chain.blocks}
    assert ("expand_depthwise" in kinds) == is_joined
    assert ("depthwise_conv" in kinds) != is_joined


def test_a_chain_that_would_have_to_be_found_again_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judge(signature: RegionSignature) -> Refused | None:
        return Refused("not so") if signature.name == "depthwise_conv" else accept(signature)

    monkeypatch.setattr(chains, "MOST_ROUNDS", 1)
    assert chains_of(inverted_residuals(), judge)[1] == []


def test_what_should_not_be_joined_stays_apart() -> None:
    def judge(signature: RegionSignature) -> Refused | None:
        return Refused("not so") if signature.name == "expand_depthwise" else accept(signature)

    _, (chain,) = chains_of(inverted_residuals((1, 3, 122, 126)), judge)
    assert not chain.reason
    assert len(chain.blocks) == 10


@pytest.mark.parametrize("pool", ["GlobalAveragePool", "ReduceMean"])
def test_gates_are_taken_in(pool: str) -> None:
    _, chains = chains_of(squeeze_excites(pool=pool))
    (kinds,) = taken(chains)
    assert Counter(kinds) == {
        "stem_conv": 1, "pointwise_conv": 6, "depthwise_conv": 3, "squeeze_excite": 3
    }  # fmt: skip
    gated = [block for block in chains[0].blocks if block.gate is not None]
    assert [block.kind for block in gated] == ["pointwise_conv"] * 3


def test_a_value_times_a_function_of_it_is_one_activation() -> None:
    (_, whole), (_, apart) = chains_of(hard_gates()), chains_of(hard_gates(apart=True))
    assert taken(apart) == taken(whole)
    assert "squeeze_excite" in taken(apart)[0]


@pytest.mark.parametrize("form", ["softplus", "parts"])
def test_an_activation_of_several_nodes_is_one(form: str) -> None:
    (_, whole), (_, apart) = chains_of(mishes("op")), chains_of(mishes(form))
    assert taken(apart) == taken(whole) == [
        ["stem_conv", *["depthwise_conv", "pointwise_conv"] * 3]
    ]  # fmt: skip


@pytest.mark.parametrize("read", ["Tanh", "Softplus"])
def test_a_part_of_an_activation_that_others_read_ends_it(read: str) -> None:
    proto = mishes("softplus")
    nodes = [node for node in proto.graph.node if node.op_type == read]
    proto.graph.output.add(name=nodes[-1].output[0])
    _, chains = chains_of(proto)
    blocks = [block for chain in chains for block in chain.blocks]
    inside = {node.name for block in blocks for node in block.nodes}
    assert nodes[-1].name not in inside
    assert {node.name for node in nodes[:-1]} <= inside


def test_a_function_that_others_read_too_is_left() -> None:
    net = Net()
    value = net.conv("x", (3, 16), 3, strides=[2, 2], pads=[0, 0, 1, 1])
    gate = net.op("HardSigmoid", value, alpha=1 / 6)
    end = net.conv(net.op("Mul", value, gate), (16, 8))
    _, chains = chains_of(net.model((1, 3, 64, 64), [end, gate]))
    tails = [[n.op_type for n in block.nodes] for chain in chains for block in chain.blocks]
    assert tails == [["Conv"], ["Conv"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("net", "sizes"),
    [
        (inverted_residuals(), (1, 3, 32, 32)),
        (inverted_residuals(("n", 3, 30, 34)), (2, 3, 30, 34)),
        (inverted_residuals((1, 3, 122, 126)), (1, 3, 122, 126)),
        (squeeze_excites(), (1, 3, 32, 32)),
        (hard_gates(), (1, 3, 64, 64)),
        (hard_gates(apart=True), (1, 3, 64, 64)),
        (squeeze_excites(("n", 3, 31, 29), "ReduceMean"), (3, 3, 31, 29)),
        (mishes("softplus"), (1, 3, 32, 32)),
        (mishes("parts"), (1, 3, 32, 32)),
    ],
    ids=[
        "mobile",
        "mobile, named batch",
        "mobile, joined",
        "gated",
        "hard",
        "hard, in two nodes",
        "gated, named batch, odd sizes",
        "Mish by Softplus",
        "Mish of parts",
    ],
)
def test_same_results_with_and_without_kernels(
    net: onnx.ModelProto, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    expected, x = run(net, random(*sizes)), random(*sizes)
    model = ir.from_proto(net)
    scope = scope_of(model)
    path = tmp_path / "net.ops.so"
    reports, library, _ = compile_regions([scope], path, "tvm", Target(), lambda *_: None)
    assert library is not None
    kinds = {report.kind for report in reports if report.emitted_as}
    deep = "expand_depthwise" if sizes[3] == 126 else "depthwise_conv"
    assert {"stem_conv", "pointwise_conv", deep} <= kinds
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert not [node for node in proto.graph.node if node.op_type == "Conv"]
    bound = 1e-5 * max(np.abs(value).max() for value in expected)
    for found in (run(proto, x, library), run(proto, x)):
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def test_transposes_around_a_chain_go_with_it() -> None:
    scope, chains = chains_of(channels_last_blocks())
    first, second = (chain for chain in chains if chain.blocks[0].kind == "depthwise_conv")
    assert not first.reason
    assert [node.op_type for node in first.spared] == ["Transpose", "Transpose"]
    assert borders(first.blocks, spares=False).changed == (
        first.blocks[0].source, first.blocks[0].output
    )  # fmt: skip
    # Others read the image: its Transpose stays, and the result is transposed back for them.
    around = borders(second.blocks)
    assert [node.inputs[0] for node in around.spared] == [second.blocks[0].output]
    assert around.changed == (second.blocks[0].output,)
    before = len([node for node in scope.model.graph if node.op_type == "Transpose"])
    assert lower_chain(scope, first, {})
    after = [node for node in scope.model.graph if node.op_type == "Transpose"]
    assert len(after) == before - 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("net", [channels_last_blocks, enlarged_sums])
def test_same_results_in_the_layout_around(
    net: Callable[[Sequence[int | str]], onnx.ModelProto], tmp_path: Path
) -> None:
    sizes = (2, 3, 32, 32) if net is channels_last_blocks else (2, 16, 8, 12)
    proto, x = net(("n", *sizes[1:])), random(*sizes)
    expected, model = run(proto, x), ir.from_proto(proto)
    scope, path = scope_of(model), tmp_path / "net.ops.so"
    for chain in find_chains(scope, model.graph, accept):
        assert not chain.reason
    reports, library, _ = compile_regions([scope], path, "tvm", Target(), lambda *_: None)
    assert library is not None
    kinds = {report.kind for report in reports if report.emitted_as}
    assert ("depthwise_conv" if net is channels_last_blocks else "resize") in kinds
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    for found in (run(proto, x, library), run(proto, x)):
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("op_type", ["Gelu", "FastGelu"])
def test_an_activation_of_onnx_runtimes_domain_ends_a_convolution(op_type: str) -> None:
    net = Net()
    value = net.op(op_type, net.conv("x", (16, 16)), domain="com.microsoft")
    _, (chain,) = chains_of(net.model((1, 16, 32, 32), [value]))
    (block,) = chain.blocks
    assert [node.op_type for node in block.nodes] == ["Conv", op_type]


@pytest.mark.parametrize("opset", [11, 19])
def test_enlarged_images_are_added_in_one_kernel(opset: int) -> None:
    _, (chain,) = chains_of(enlarged_sums(opset=opset))
    (block,) = [block for block in chain.blocks if block.kind == "resize"]
    assert [node.op_type for node in block.nodes[:2]] == ["Resize", "Resize"]
    assert len(block.convs) == 2


def test_a_resize_alone_stays_in_its_layout() -> None:
    net = Net(opset=19)
    scales = net.weight(np.array([1, 1, 2, 2], np.float32))
    value = net.op("Resize", net.op("Relu", "x"), "", scales, mode="linear")
    _, (chain,) = chains_of(net.model((1, 64, 32, 32), [net.op("Neg", value)]))
    assert chain.cost.pays
    assert chain.reason == "Resizes alone are not worth another layout"


@pytest.mark.parametrize(
    ("attributes", "scales"),
    [
        ({"mode": "cubic"}, (2, 2)),
        ({"mode": "linear", "antialias": 1}, (2, 2)),
        ({"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}, (2, 2)),
        ({"mode": "nearest", "coordinate_transformation_mode": "align_corners"}, (2, 2)),
        ({"mode": "nearest", "nearest_mode": "ceil"}, (2, 2)),
        ({"mode": "linear"}, (1.3, 2)),
    ],
)
def test_a_resize_of_another_kind_is_left(
    attributes: dict[str, object], scales: tuple[float, float]
) -> None:
    net = Net(opset=19)
    given = net.weight(np.array([1, 1, *scales], np.float32))
    value = net.op("Resize", net.conv("x", (16, 16)), "", given, **attributes)
    _, chains = chains_of(net.model((1, 16, 8, 8), [net.conv(value, (16, 16))]))
    assert "resize" not in {block.kind for chain in chains for block in chain.blocks}


def test_images_that_meet_in_a_concat_stay_in_one_chain(tmp_path: Path) -> None:
    for sizes in ((1, 32, 24, 20), ("n", 32, 24, 20)):
        net, x = joined_images(sizes), random(2 if sizes[0] == "n" else 1, 32, 24, 20)
        _, (chain,) = chains_of(net)
        assert [block.kind for block in chain.blocks].count("concat") == 2
        model = ir.from_proto(net)
        path = tmp_path / f"{sizes[0]}.ops.so"
        _, library, _ = compile_regions([scope_of(model)], path, "tvm", Target(), lambda *_: None)
        proto = ir.to_proto(model)
        kinds = Counter(node.op_type for node in proto.graph.node)
        assert not {"Conv", "Concat"} & set(kinds)
        (want,) = run(net, x)
        for (got,) in (run(proto, x, library), run(proto, x)):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_a_concat_of_large_images_from_elsewhere_is_left() -> None:
    net = Net()
    value = net.silu(net.conv("x", (32, 32), 3, pads=[1] * 4))
    value = net.silu(net.conv(value, (32, 32), 3, pads=[1] * 4))
    counts = (net.weight(np.array([1, n, 1, 1])) for n in (4, 6, 8))
    others = [net.op("Sin", net.op("Tile", "x", count)) for count in counts]
    joined = net.op("Concat", value, *others, axis=1)
    scope, chains = chains_of(net.model((1, 32, 40, 40), [joined]))
    assert taken(chains) == [["winograd_conv", "winograd_conv"]]
    assert any("convolutions around it gain more" in miss.reason for miss in scope.log.misses)


@pytest.mark.parametrize(
    ("axis", "other"),
    [(2, (1, 16, 8, 8)), (1, (1, 16, 4, 8)), (1, ("n", 16, 8, 8)), (1, (1, "c", 8, 8))],
    ids=["rows", "other sizes", "sizes that are not known to be equal", "unknown channels"],
)
def test_a_concat_of_another_kind_is_left(axis: int, other: tuple[int | str, ...]) -> None:
    net = Net()
    value = net.conv("x", (16, 16))
    joined = net.op("Concat", value, "z", axis=axis)
    proto = net.model((1, 16, 8, 8), [net.conv(joined, (32 if axis == 1 else 16, 16))])
    second = onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, other)
    proto.graph.input.append(second)
    _, chains = chains_of(proto)
    assert "concat" not in {block.kind for chain in chains for block in chain.blocks}


def test_a_concat_with_a_constant_image_is_left() -> None:
    net = Net()
    joined = net.op("Concat", net.conv("x", (16, 16)), net.weight(random(1, 16, 8, 8)), axis=1)
    _, chains = chains_of(net.model((1, 16, 8, 8), [net.conv(joined, (32, 16))]))
    assert "concat" not in {block.kind for chain in chains for block in chain.blocks}


def test_a_concat_of_other_numbers_is_left() -> None:
    net = Net()
    images = [net.op("Cast", net.conv("x", (16, 16)), to=onnx.TensorProto.DOUBLE) for _ in "ab"]
    joined = net.op("Cast", net.op("Concat", *images, axis=1), to=onnx.TensorProto.FLOAT)
    _, chains = chains_of(net.model((1, 16, 8, 8), [net.conv(joined, (32, 16))]))
    assert "concat" not in {block.kind for chain in chains for block in chain.blocks}


def test_images_of_unknown_sizes_have_kernels_where_these_stay() -> None:
    net = Net()
    value = net.op("Relu", net.conv("x", (32, 64), 3, pads=[1] * 4))
    skip = net.op("Relu", net.conv(value, (64, 64), 3, pads=[1] * 4))
    value = net.conv(net.op("Concat", value, skip, axis=1), (128, 32))
    value = net.conv(value, (32, 64), 3, pads=[0] * 4)  # of another size
    _, chains = chains_of(net.model(("n", 32, "h", "w"), [value]))
    kinds = [block.kind for chain in chains for block in chain.blocks if not chain.reason]
    assert kinds[:4] == ["winograd_conv", "winograd_conv", "concat", "pointwise_conv"]
    assert kinds.count("winograd_conv") == 2


@pytest.mark.parametrize(
    ("sizes", "given"),
    [
        ((1, 8, 8), ""), (("n", 8, 8), ""), ((1, "h", "w"), "--fix-shape h=N --fix-shape w=N"),
        ((None, None, 8), "--fix-shape x[2]=N"),
        ((1, "h", None), "--fix-shape h=N --fix-shape x[3]=N"),
    ],
)  # fmt: skip
def test_sizes_that_convolutions_lack_are_named(
    sizes: tuple[int | str | None, ...], given: str
) -> None:
    net = Net()
    value = net.conv(net.conv("x", (16, 24), 3, strides=[2, 2]), (24, 24))
    scope, _ = chains_of(net.model((sizes[0], 16, *sizes[1:]), [value]))
    note = unknown_sizes_note([scope])
    assert note.endswith(given)
    assert note.startswith("2 convolutions") == bool(given)
    assert bool(note) == bool(given)


def test_replaced_weights_are_gone() -> None:
    net = inverted_residuals()
    scope, (chain,) = chains_of(net)
    assert lower_chain(scope, chain, {})
    names = {
        value.name for node in scope.model.graph for value in node.inputs if value is not None
    }
    assert set(scope.model.graph.initializers) <= names


def test_only_the_ends_change_their_layout() -> None:
    scope, (chain,) = chains_of(squeeze_excites())
    assert lower_chain(scope, chain, {})
    kinds = Counter(node.op_type for node in scope.model.graph)
    assert kinds["Transpose"] == 1
    assert sum(kinds.values()) == len(chain.blocks) + 1


def test_values_that_others_read_come_back_to_nchw() -> None:
    net = Net()
    value = net.relu6(net.conv("x", (3, 16), 3, strides=[2, 2], pads=[0, 0, 1, 1]))
    for _ in range(4):
        value = net.silu(net.depthwise(net.silu(net.conv(value, (16, 16))), 16))
    middle = value
    pooled = net.op("MaxPool", middle, kernel_shape=[2, 2])
    for _ in range(4):
        value = net.silu(net.depthwise(net.silu(net.conv(value, (16, 16))), 16))
    proto = net.model((1, 3, 32, 32), [value, pooled, middle])
    scope, chains = chains_of(proto)
    (chain,) = (chain for chain in chains if not chain.reason)
    assert lower_chain(scope, chain, {})
    x = random(1, 3, 32, 32)
    lowered = ir.to_proto(scope.model)
    onnx.checker.check_model(lowered, full_check=True)
    for got, want in zip(run(lowered, x), run(proto, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_a_net_of_3x3_convolutions_is_one_chain() -> None:
    _, chains = chains_of(residuals())
    minimal, others = "winograd_conv", ["conv", "conv"]
    assert taken(chains) == [["stem_conv", "max_pool", minimal, minimal, *others, minimal]]
    (chain,) = chains
    assert sum(len(block.extras) for block in chain.blocks) == 2


@pytest.mark.parametrize(
    ("window", "size", "channels", "kind"),
    [
        ({"pads": [1] * 4}, 16, 32, "winograd_conv"),
        ({"pads": [1] * 4}, 4, 32, "conv"),
        ({"pads": [1] * 4}, 16, 40, "conv"),
        ({"pads": [2] * 4, "dilations": [2, 2]}, 16, 32, "conv"),
        ({"pads": [1] * 4, "strides": [2, 2]}, 16, 32, "conv"),
    ],
)
def test_minimal_filtering_is_for_3x3_filters_of_some_tiles(
    window: dict[str, object], size: int, channels: int, kind: str
) -> None:
    net = Net()
    value = net.conv("x", (channels, channels), 3, **window)
    _, (chain,) = chains_of(net.model((1, channels, size, size), [value]))
    assert [block.kind for block in chain.blocks] == [kind]


def test_full_convolutions_of_any_batch_compute_what_was_there(tmp_path: Path) -> None:
    net, x = residuals(("n", 3, 61, 58)), random(3, 3, 61, 58)
    model = ir.from_proto(net)
    path = tmp_path / "net.ops.so"
    reports, library, _ = compile_regions(
        [scope_of(model)], path, "tvm", Target(), lambda *_: None
    )
    assert library is not None
    kinds = {report.kind for report in reports if report.emitted_as}
    assert {"stem_conv", "max_pool", "winograd_conv", "conv"} <= kinds
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    (want,) = run(net, x)
    for (got,) in (run(proto, x, library), run(proto, x)):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_a_residual_net_of_full_convolutions_is_left_alone() -> None:
    _, chains = chains_of(bottlenecks())
    assert not taken(chains)
    assert {chain.reason for chain in chains} == {"not predicted to gain a tenth of its time"}


def test_a_refused_block_splits_the_chain() -> None:
    def judge(signature: RegionSignature) -> Refused | None:
        is_it = signature.name == "depthwise_conv" and signature.inputs[0].shape[3] == 96
        return Refused("not this one") if is_it else accept(signature)

    scope, chains = chains_of(inverted_residuals((1, 3, 64, 64)), judge)
    assert all("squeeze" not in kind for kinds in taken(chains) for kind in kinds)
    sizes = [len(chain.blocks) for chain in chains]
    assert sum(sizes) == 9
    assert len(sizes) == 2
    assert any(miss.reason == "not this one" for miss in scope.log.misses)


@pytest.mark.parametrize(
    ("channels", "attributes", "reason"),
    [
        ((16, 32), {"group": 16, "pads": [1] * 4}, "several filters for a channel"),
        ((16, 32), {"group": 4, "pads": [1] * 4}, "groups of several channels"),
    ],
)
def test_what_is_no_block_says_why(
    channels: tuple[int, int], attributes: dict[str, object], reason: str
) -> None:
    net = Net()
    value = net.conv(net.op("Relu", "x"), channels, 3, **attributes)
    scope, chains = chains_of(net.model((1, 16, 8, 8), [value]))
    assert not chains
    assert any(reason in miss.reason for miss in scope.log.misses)


def test_weights_that_vary_are_left() -> None:
    net = Net()
    factor = net.op("ReduceMax", "x", keepdims=1)
    weight = net.op("Mul", net.weight(np.ones((16, 16, 1, 1), np.float32)), factor)
    scope, chains = chains_of(net.model((1, 16, 8, 8), [net.op("Conv", "x", weight)]))
    assert not chains
    assert any("weights are not constants" in miss.reason for miss in scope.log.misses)


def test_a_denied_chain_stays() -> None:
    proto = inverted_residuals()
    denied = f"fuse-convolutions:nhwc:{proto.graph.output[0].name}"
    scope = scope_of(ir.from_proto(proto), [denied])
    (chain,) = find_chains(scope, scope.model.graph, accept)
    assert chain.reason == "rolled back, or denied by its id"
    assert not lower_chain(scope, chain, {})
    assert Counter(node.op_type for node in scope.model.graph)["Conv"] == 10


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pads_that_follow_from_the_sizes(mode: str) -> None:
    net = Net()
    value = net.silu(net.conv("x", (3, 16), 3, strides=[2, 2], auto_pad=mode))
    for kernel, stride in ((3, 1), (5, 2), (3, 2)):
        strides = {"strides": [stride, stride], "auto_pad": mode}
        wide = net.silu(net.conv(value, (16, 16)))
        value = net.silu(net.conv(wide, (16, 16), kernel, group=16, **strides))
    proto = net.model((1, 3, 47, 50), [value])
    scope, (chain,) = chains_of(proto)
    assert lower_chain(scope, chain, {})
    x = random(1, 3, 47, 50)
    for got, want in zip(run(ir.to_proto(scope.model), x), run(proto, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("attributes", [{"mode": "cubic"}, {"mode": "linear", "axes": [3, 2]}])
def test_no_transpose_before_a_resize_that_onnx_runtime_would_break(
    attributes: dict[str, object],
) -> None:
    net, value = Net(opset=19), "x"
    for _ in range(3):
        value = net.silu(net.depthwise(net.silu(net.conv(value, (16, 16))), 16))
    scales = np.array([2, 3] if "axes" in attributes else [1, 1, 3, 2], np.float32)
    value = net.op("Resize", net.op("Neg", value), "", net.weight(scales), **attributes)
    _, (chain,) = chains_of(net.model((1, 16, 64, 64), [value]))
    assert chain.reason == REASON


def test_a_part_that_reads_what_another_one_replaced_stays() -> None:
    """Pixels in NHWC may be transposed once more, as if they were an image."""
    net = Net()
    image = net.op("Transpose", net.op("Neg", "x"), perm=[0, 3, 1, 2])
    pixels = net.op("Transpose", net.conv(image, (8, 8)), perm=[0, 2, 3, 1])
    turned = net.op("Relu", pixels)
    ends = [net.op("Transpose", turned, perm=[0, 2, 3, 1]) for _ in range(2)]
    proto, x = net.model((1, 4, 6, 8), ends), random(1, 4, 6, 8)
    scope = scope_of(ir.from_proto(proto))
    ChannelsLast().run(scope)
    for got, want in zip(run(ir.to_proto(scope.model), x), run(proto, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "size", "kind"),
    [
        ((32, 3), (1, 32, 40, 44), "head_conv"), ((16, 4), (1, 16, 9, 9), "head_conv"),
        ((32, 5), (1, 32, 40, 44), "conv"), ((12, 3), (1, 12, 40, 44), "conv"),
        ((32, 3), (1, 32, "h", "w"), "conv"),
    ],
)  # fmt: skip
def test_convolutions_to_few_channels_have_a_kernel(
    channels: tuple[int, int], size: tuple[int | str, ...], kind: str
) -> None:
    depth, net = channels[0], Net()
    value = net.conv("x", (depth, depth), 3, pads=[1] * 4)
    value = net.relu6(net.depthwise(net.relu6(value), depth))
    value = net.conv(value, channels, 3, pads=[1] * 4)
    _, chains = chains_of(net.model(size, [value]))
    assert [block.kind for chain in chains for block in chain.blocks][-1] == kind
