"""Int8 convolutions: ONNX Runtime's numbers, on every level of processors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from fused_model import fused_model, session
from int8_convolutions import KINDS, Convolution, qdq_float_bias, qdq_gate
from ortkit.custom_ops.tvm.conv.int8 import Int8Convolution, match

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.blocks import CpuBlockFinder
from ortkit.fusion.conv.bodies import Described
from ortkit.fusion.conv.targets import describe_block
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.layouts.int8_panels import filter_layout
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope, Whole
from ortkit.targets import cpu
from ortkit.targets.target import Target
from tests.exact_sums import exact

LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx")
HERE = [level for level in LEVELS if cpu.runs_here(level)]

#: Ragged ends of rows, lines and columns; strides, holes and pads that differ by side.
CASES: dict[str, dict[str, object]] = {
    "3x3": {},
    "point with strides": {"filters": (16, 1, 1), "strides": (2, 2), "pads": (0, 0, 0, 0)},
    "point": {"filters": (40, 1, 1), "pads": (0, 0, 0, 0)},
    "first layer": {
        "sizes": (1, 3, 16, 17), "filters": (32, 7, 7), "strides": (2, 2), "pads": (3, 3, 3, 3),
    },
    "holes": {
        "sizes": (1, 6, 13, 17), "filters": (33, 3, 2), "dilations": (2, 3), "strides": (1, 2),
        "pads": (2, 0, 1, 3),
    },
    "depthwise": {"sizes": (2, 72, 6, 7), "filters": (72, 3, 3), "group": 72},
    "depthwise, pixels together": {
        "sizes": (1, 32, 5, 6), "filters": (32, 3, 3), "group": 32, "strides": (2, 1),
    },
    "depthwise, far": {
        "sizes": (1, 24, 11, 9), "filters": (24, 5, 5), "group": 24, "strides": (2, 1),
        "pads": (2, 1, 2, 3),
    },
    "short lines": {"sizes": (2, 64, 7, 7), "filters": (64, 3, 3)},
    "shorter lines": {"sizes": (1, 16, 4, 3), "filters": (32, 3, 3)},
    "parts of lines": {"sizes": (1, 76, 3, 37), "filters": (40, 3, 3)},
    "short lines with strides": {
        "sizes": (2, 64, 8, 8), "filters": (64, 1, 1), "strides": (2, 2), "pads": (0, 0, 0, 0),
    },
    "one pixel": {"sizes": (3, 37, 1, 1), "filters": (24, 1, 1), "pads": (0, 0, 0, 0)},
    "groups": {
        "sizes": (1, 48, 6, 7), "filters": (96, 3, 3), "group": 12, "strides": (1, 2),
    },
    "groups, points": {
        "sizes": (2, 72, 5, 3), "filters": (64, 1, 1), "group": 4, "pads": (0, 0, 0, 0),
    },
    "two filters a channel": {"sizes": (1, 40, 5, 6), "filters": (80, 3, 3), "group": 40},
}  # fmt: skip

pytestmark = pytest.mark.skipif(not HERE, reason="this machine has no AVX2")


def scope_of(proto: onnx.ModelProto, level: str) -> Scope:
    model = open_model(proto)
    return Scope(
        model, model.graph, Shapes.infer(model), RewriteLog(),
        RewriteOptions(Target("cpu", level), 2), Whole.of(model),
    )  # fmt: skip


def blocks(proto: onnx.ModelProto, level: str = "native") -> tuple[Scope, list[Block]]:
    """Return the blocks of a model's graph."""
    scope = scope_of(proto, level)
    assert isinstance(scope.root, type(scope.model.graph))
    return scope, CpuBlockFinder.find(scope, scope.root)


def described(proto: onnx.ModelProto, level: str = "native") -> tuple[Block, Described]:
    """Return the one block of a model."""
    scope, (block,) = blocks(proto, level)
    assert block.kind == "int8_conv"
    return block, describe_block(scope, block)


def computed(
    net: Convolution, proto: onnx.ModelProto, level: str, folder: Path, cache: KernelCache
) -> np.ndarray:
    """Return what the kernel makes of a model's inputs, as NCHW."""
    block, one = described(proto, level)
    assert block.output.is_graph_output()
    feeds = [net.feeds[value.name or ""].transpose(0, 2, 3, 1) for value in block.operands]
    feeds += [np.asarray(weight) for weight in one.weights]
    names = [f"i{number}" for number in range(len(feeds))]
    specs = zip(one.signature.inputs, names, strict=True)
    renamed = replace(
        one.signature, inputs=tuple(replace(spec, name=name) for spec, name in specs)
    )
    made = build_library([renamed], Target("cpu", level), folder / "k.so", cache=cache)
    assert made.library is not None, made.refused
    run = session(fused_model(renamed), made.library.path, 2).run
    return run(None, dict(zip(names, feeds, strict=True)))[0].transpose(0, 3, 1, 2)


def expected(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Return what ONNX Runtime's own kernels make of it, with exact sums."""
    made = ort.InferenceSession(
        exact(proto).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return made.run(None, feeds)[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_same_numbers_as_onnx_runtime(
    case: str, kind: str, level: str, tmp_path: Path, cache: KernelCache
) -> None:
    net = Convolution(**CASES[case])  # type: ignore[arg-type]
    proto = KINDS[kind](net)
    got = computed(net, proto, level, tmp_path, cache)
    np.testing.assert_array_equal(got, expected(proto, net.feeds))


def computed_by_body(net: Convolution, proto: onnx.ModelProto) -> np.ndarray:
    """Return what the function of the fused node makes of a model's inputs, as NCHW."""
    block, one = described(proto)
    feeds = [net.feeds[value.name or ""].transpose(0, 2, 3, 1) for value in block.operands]
    names = [f"i{number}" for number in range(len(one.signature.inputs))]
    specs = zip(one.signature.inputs, names, strict=True)
    renamed = replace(
        one.signature, inputs=tuple(replace(spec, name=name) for spec, name in specs)
    )
    held = [np.asarray(weight) for weight in one.weights]
    body = exact(onnx.ModelProto.FromString(fused_model(renamed)))
    made = session(body.SerializeToString())
    return made.run(None, dict(zip(names, [*feeds, *held], strict=True)))[0].transpose(0, 3, 1, 2)


@pytest.mark.parametrize("case", CASES)
def test_the_body_computes_the_same(case: str) -> None:
    """Without a library, the function of the fused node runs."""
    net = Convolution(**CASES[case])  # type: ignore[arg-type]
    proto = KINDS["qdq"](net)
    np.testing.assert_array_equal(computed_by_body(net, proto), expected(proto, net.feeds))


def test_a_bias_in_float32_is_rounded_as_onnx_runtime_does() -> None:
    net = Convolution()
    proto = qdq_float_bias(net)
    np.testing.assert_array_equal(computed_by_body(net, proto), expected(proto, net.feeds))


def test_filters_in_float32_of_scale_0_are_left() -> None:
    net = Convolution()
    net.held["w"] = net.held["w"].astype(np.float32)
    net.held["w"][0], net.held["ws"][0] = 0.0, 0.0
    net.add("QuantizeLinear", ["w", "ws", "wz"], "wq", axis=0)
    net.rounded(net.convolved(), "y", net.reach, net.middle)
    widening = next(node for node in net.nodes if list(node.output) == ["wf"])
    widening.input[0] = "wq"
    scope, found = blocks(net.model())
    assert not found
    assert any("no constant bytes" in miss.reason for miss in scope.log.misses)


def test_products_of_bytes_are_blocks_of_their_own() -> None:
    """They are no part of the convolution: a kernel of their own rounds as ONNX Runtime does."""
    _, (block, product) = blocks(qdq_gate(Convolution()))
    assert (block.output.name, product.kind) == ("yq", "int8_scale")


def test_pads_of_a_node_in_front_are_the_windows() -> None:
    block, _ = described(KINDS["qdq_padded"](Convolution()))
    assert block.windows[0].pads == (2, 1, 3, 2)
    assert {node.op_type for node in block.nodes} >= {"Pad", "Conv"}
    assert block.source.name == "x"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"sizes": (1, 280, 5, 5), "group": 7, "filters": (168, 3, 3)},
            "groups of 40 channels and 24 filters",
        ),
    ],
)
def test_what_is_left_to_onnx_runtime(change: dict[str, object], reason: str) -> None:
    scope, found = blocks(KINDS["qdq"](Convolution(**change)))  # type: ignore[arg-type]
    assert not found
    assert any(reason in miss.reason for miss in scope.log.misses)


def test_images_of_unknown_size_are_left() -> None:
    proto = KINDS["qdq"](Convolution())
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "h"
    scope, found = blocks(proto)
    assert not found
    assert any("unknown size" in miss.reason for miss in scope.log.misses)


@pytest.mark.parametrize("pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pads_that_follow_from_sizes(pad: str) -> None:
    others = {"auto_pad": pad, "pads": None}
    net = Convolution(sizes=(1, 4, 6, 7), strides=(2, 1), others=others)
    proto = KINDS["qdq"](net)
    block, one = described(proto)
    made = expected(proto, net.feeds).shape
    assert one.signature.outputs[0].shape == (1, *made[2:], made[1])
    assert block.windows[0].pads != (1, 1, 1, 1)


def test_a_pooling_with_holes_and_pads_that_follow_from_sizes_is_left() -> None:
    """ONNX Runtime pads as if there were no holes."""
    net = Convolution()
    net.rounded(net.convolved(), "y", net.reach, net.middle)
    window = {"kernel_shape": (3, 3), "dilations": (2, 2), "auto_pad": "SAME_UPPER"}
    net.add("MaxPool", ["yq"], "p", **window)
    _, found = blocks(net.model())
    assert [block.kind for block in found] == ["int8_conv"]


def test_layers_with_other_numbers_share_a_kernel() -> None:
    one, two = Convolution(zero=3), Convolution(zero=250, middle=0)
    two.held["ws"] = two.held["ws"] * np.float32(1.7)
    two.held["cs"] = two.held["cs"] * np.float32(1.7)
    keys = {described(KINDS["qdq"](net))[1].signature.key for net in (one, two)}
    assert len(keys) == 1


def test_filters_are_packed_line_by_line() -> None:
    array = np.arange(33 * 5 * 3, dtype=np.int8).reshape(33, 5, 3, 1)
    packed = filter_layout(array.shape, 1, (1, 1)).pack(array)
    assert packed.shape == (2, 3, 2, 32, 4)
    assert packed[1, 2, 1, 0].tolist() == [array[32, 4, 2, 0], 0, 0, 0]


def test_depthwise_filters_of_very_many_places_are_left() -> None:
    net = Convolution(sizes=(1, 8, 23, 23), filters=(8, 23, 23), group=8)
    one = match(described(KINDS["qdq"](net))[1].signature)
    assert isinstance(one, Int8Convolution)
    refused = one.refuses("x86-64-v4-bf16")
    assert refused is not None
    assert "529 places" in refused.reason
