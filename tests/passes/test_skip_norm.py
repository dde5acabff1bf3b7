"""Residual sums and norms: apart on the CPU, in ONNX Runtime too; one node at level 3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from ortkit.graph.check.model import check_model
from ortkit.passes.fuse_skip_norm import FuseSkipNorm
from ortkit.passes.select import select_passes
from ortkit.passes.split_skip_norm import SplitSkipNorm
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.passes import Pass
from ortkit.rewrite.pipeline import Pipeline, PipelineResult
from ortkit.targets.target import Target
from tests.passes.graphs import kinds, run

ort = pytest.importorskip("onnxruntime")
SIZE = 16
SKIP, SIMPLE = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"


def applied(
    model: onnx.ModelProto, target: RewriteOptions, *passes: Pass
) -> tuple[onnx.ModelProto, PipelineResult]:
    result = Pipeline(passes or select_passes("", target.level)).run(ir.from_proto(model), target)
    assert result.settled
    check_model(result.model)
    return ir.to_proto(result.model), result


def same(before: onnx.ModelProto, after: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    for want, got in zip(run(before, feeds), run(after, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def weight(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    random = np.random.default_rng((seed, len(name)))
    return numpy_helper.from_array(random.uniform(0.5, 1.5, shape).astype(np.float32), name)


def residual(
    norm: str = "LayerNormalization", *, shared: bool = False, bias: bool = False, rank: int = 3
) -> onnx.ModelProto:
    """Two blocks of sum, norm and something that is not linear."""
    shape = ["b", "s", SIZE][3 - rank :]
    nodes, x = [], "x"
    for block in "01":
        nodes.append(helper.make_node("Tanh", [x], [f"t{block}"]))
        inner = f"t{block}"
        if bias:
            nodes.append(helper.make_node("Add", ["bias", inner], [f"h{block}"]))
            inner = f"h{block}"
        nodes.append(helper.make_node("Add", [x, inner], [f"s{block}"]))
        weights = ["w", "b"] if norm == "LayerNormalization" else ["w"]
        nodes.append(
            helper.make_node(norm, [f"s{block}", *weights], [f"n{block}"], axis=-1, epsilon=1e-5)
        )
        x = f"n{block}"
        if shared:
            nodes.append(helper.make_node("Max", [x, f"s{block}"], [f"m{block}"]))
            x = f"m{block}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 1, shape)],
        [value(x, 1, shape)],
        [weight("w", SIZE), weight("b", SIZE, seed=1), weight("bias", SIZE)],
    )
    opset = 23 if norm == "RMSNormalization" else 18
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def feeds(rank: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {"x": random.standard_normal((2, 5, SIZE)[3 - rank :]).astype(np.float32)}


def kinds_in_runtime(model: onnx.ModelProto, path: Path) -> list[str]:
    """Return the ops that ONNX Runtime runs after its own optimizations."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return kinds(onnx.load(path))


@pytest.mark.parametrize("bias", [False, True])
def test_onnx_runtime_leaves_the_sum_alone(tmp_path: Path, bias: bool) -> None:
    model = residual(bias=bias)
    assert SKIP in kinds_in_runtime(model, tmp_path / "before.onnx"), "it did once"
    made, _ = applied(model, RewriteOptions(level=2), SplitSkipNorm())
    assert SKIP not in kinds_in_runtime(made, tmp_path / "after.onnx")
    assert kinds(made) == kinds(model)
    same(model, made, feeds())


@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_one_node_at_level_3(norm: str, shared: bool, bias: bool, rank: int) -> None:
    model = residual(norm, shared=shared, bias=bias, rank=rank)
    made, _ = applied(model, RewriteOptions(level=3), FuseSkipNorm())
    assert "Add" not in kinds(made)
    assert kinds(made).count(SIMPLE if norm == "RMSNormalization" else SKIP) == 2
    same(model, made, feeds(rank))


def test_one_node_on_cuda_at_level_2() -> None:
    made, _ = applied(
        residual(), RewriteOptions(Target("cuda"), 2), FuseSkipNorm(), SplitSkipNorm()
    )
    assert kinds(made) == ["Tanh", SKIP, "Tanh", SKIP]


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization"])
def test_the_presets_settle_and_find_nothing_the_second_time(level: int, norm: str) -> None:
    model = residual(norm, bias=True)
    made, _ = applied(model, RewriteOptions(level=level))
    assert (SKIP in kinds(made) or SIMPLE in kinds(made)) == (level == 3)
    _, again = applied(made, RewriteOptions(level=level))
    assert not again.modified
    same(model, made, feeds())


@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_fused_model_is_split_again(norm: str, shared: bool) -> None:
    model = residual(norm, shared=shared, bias=True)
    fused, _ = applied(model, RewriteOptions(level=3), FuseSkipNorm())
    made, _ = applied(fused, RewriteOptions(level=2), SplitSkipNorm())
    assert {SKIP, SIMPLE}.isdisjoint(kinds(made))
    same(fused, made, feeds())


def test_a_deviation_that_is_read_keeps_the_node_whole() -> None:
    model = residual()
    node = model.graph.node[2]
    assert node.op_type == "LayerNormalization"
    node.output.extend(["", "deviation"])
    model.graph.output.append(helper.make_tensor_value_info("deviation", 1, None))
    made, result = applied(model, RewriteOptions(level=3), FuseSkipNorm())
    assert kinds(made).count(SKIP) == 1
    assert any("deviation" in miss.reason for miss in result.log.misses)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_an_embedding_is_split(segments: bool, positions: bool) -> None:
    value = helper.make_tensor_value_info
    int32 = onnx.TensorProto.INT32
    inputs = ["ids", "types" if segments else "", "words", "places", "kinds" if segments else ""]
    inputs += ["w", "b", "", "at" if positions else ""]
    node = helper.make_node(
        "EmbedLayerNormalization", inputs, ["y", "index"], domain="com.microsoft"
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            value(name, int32, ["b", "s"])
            for name, given in (("ids", True), ("types", segments), ("at", positions))
            if given
        ],
        [value("y", 1, ["b", "s", SIZE])],
        [
            weight("words", 30, SIZE),
            weight("places", 9, SIZE),
            weight("kinds", 2, SIZE),
            weight("w", SIZE),
            weight("b", SIZE, seed=1),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    made, _ = applied(model, RewriteOptions(level=2), SplitSkipNorm())
    assert kinds(made)[-1] == "LayerNormalization"
    assert kinds(made).count("Gather") == 2 + segments - (not positions)
    random = np.random.default_rng(0)
    fed = {
        value.name: random.integers(0, 2 if value.name == "types" else 9, (2, 6)).astype(np.int32)
        for value in model.graph.input
    }
    same(model, made, fed)
