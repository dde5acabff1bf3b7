"""Norms are told by what they compute: spellings, near misses, element types."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortkit.graph.check.model import check_model
from ortkit.passes.fuse_norm import FuseNorm
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline, PipelineResult
from tests.passes.graphs import kinds, run
from tests.passes.norm_spellings import (
    NEAR_MISSES,
    Case,
    Formula,
    Rows,
    Tail,
    affine,
    centred,
    model_of,
    number_weight,
    plain,
    rms,
    rows_weight,
    spellings,
    weight,
)

pytest.importorskip("onnxruntime")
NORMS = {"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
CASES = {case.name: case for case in spellings()}


def fused(model: onnx.ModelProto, **target: int) -> tuple[onnx.ModelProto, PipelineResult]:
    result = Pipeline((FuseNorm(),)).run(ir.from_proto(model), RewriteOptions(**target))
    assert result.settled
    check_model(result.model)
    return ir.to_proto(result.model), result


def feeds(model: onnx.ModelProto, size: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(size)
    found = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value or size for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        found[value.name] = (3 * random.standard_normal(shape)).astype(dtype)
    return found


def assert_close(before: onnx.ModelProto, after: onnx.ModelProto, epsilons: float = 64) -> None:
    for size in (3, 1):
        fed = feeds(before, size)
        for want, got in zip(run(before, fed), run(after, fed), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            bound = epsilons * np.finfo(want.dtype).eps * max(np.abs(want).max(initial=0), 1)
            np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def test_names_are_unique() -> None:
    assert len(CASES) == len(list(spellings())) >= 60


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_spelling_becomes_the_op(case: Case) -> None:
    made, result = fused(case.model)
    assert case.expected in kinds(made), [miss.reason for miss in result.log.misses]
    assert len(kinds(made)) <= 4 and not set(kinds(made)) & {"ReduceMean", "Sqrt", "Pow"}
    assert_close(case.model, made)


@pytest.mark.parametrize("formula", NEAR_MISSES, ids=lambda each: each.__name__)
def test_a_near_miss_stays(formula: Formula) -> None:
    model = model_of(formula, plain, shape=("b", 5, 8))
    made, result = fused(model, level=3)
    assert not NORMS & set(kinds(made))
    assert not result.modified


@pytest.mark.parametrize("tail", [rows_weight, number_weight])
def test_what_is_no_weight_stays_behind_the_norm(tail: Tail) -> None:
    model = model_of(centred(), tail, shape=("b", 2, 3, 8))
    made, _ = fused(model)
    assert kinds(made) == ["Tanh", "LayerNormalization", "Mul", "Relu"]
    assert_close(model, made)


def test_below_opset_23_rms_is_onnx_runtimes_own_op() -> None:
    made, _ = fused(model_of(rms(), weight), max_opset=22)
    assert "SimplifiedLayerNormalization" in kinds(made)
    assert_close(model_of(rms(), weight), made)


def test_below_opset_17_a_layer_norm_stays() -> None:
    made, result = fused(model_of(centred(), affine, opset=13), max_opset=16)
    assert not result.modified and kinds(made).count("ReduceMean") == 2
    assert any("opset 17" in miss.reason for miss in result.log.misses)


def island(weight_type: type, cast_first: bool, exact: bool = True) -> onnx.ModelProto:
    """Float16 rows that are normalized in float32, weights before or after the cast back."""
    g = Rows(np.float16, 17)
    x = g.op("Tanh", g.input("b", "s", 8))
    g.dtype = np.dtype(np.float32)
    z = rms()(g, g.cast(x, np.float32))
    g.dtype = np.dtype(weight_type)
    w = g.data(np.linspace(0.5, 1.5, 8).astype(np.float16) if exact else np.linspace(0.1, 1, 8))
    if cast_first:
        y = g.op("Mul", w, g.cast(z, np.float16))
    else:
        y = g.cast(g.op("Mul", w, z), np.float16)
    g.dtype = np.dtype(np.float16)
    return g.model(g.op("Relu", y))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (island(np.float16, True), ["Tanh", "RMSNormalization", "Relu"]),
        (island(np.float32, False), ["Tanh", "RMSNormalization", "Relu"]),
        (
            island(np.float32, False, exact=False),
            ["Tanh", "Cast", "RMSNormalization", "Cast", "Relu"],
        ),
    ],
    ids=["weight in half", "weight that half holds", "weight that half does not hold"],
)
def test_half_rows_normalized_in_float(model: onnx.ModelProto, expected: list[str]) -> None:
    made, _ = fused(model)
    assert kinds(made) == expected
    assert_close(model, made, 4)


def test_float_rows_normalized_in_double_stay_in_double() -> None:
    g = Rows(np.float32, 17)
    x = g.op("Tanh", g.input("b", "s", 8))
    g.dtype = np.dtype(np.float64)
    z = rms(epsilon=2.0**-17)(g, g.cast(x, np.float64))
    z = g.op("Mul", z, g.constant(8))
    g.dtype = np.dtype(np.float32)
    model = g.model(g.op("Relu", g.cast(z, np.float32)))
    made, _ = fused(model)
    assert kinds(made) == ["Tanh", "Cast", "RMSNormalization", "Cast", "Relu"]
    assert_close(model, made)


def test_an_epsilon_that_no_float_holds_keeps_a_double_norm_written_out() -> None:
    _, result = fused(model_of(centred(), affine, dtype=np.float64))
    assert not result.modified
    assert any("double" in miss.reason for miss in result.log.misses)


def test_what_a_branch_reads_keeps_the_norm_written_out() -> None:
    model = model_of(centred(), plain)
    root = next(node for node in model.graph.node if node.op_type == "Sqrt").output[0]
    helper = onnx.helper
    body = helper.make_graph(
        [helper.make_node("Sin", [root], ["s"])],
        "then",
        [],
        [helper.make_tensor_value_info("s", 1, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Cos", [root], ["c"])],
        "else",
        [],
        [helper.make_tensor_value_info("c", 1, None)],
    )
    branch = helper.make_node("If", ["flag"], ["picked"], then_branch=body, else_branch=other)
    model.graph.input.append(helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []))
    model.graph.node.append(branch)
    model.graph.output.append(helper.make_tensor_value_info("picked", 1, None))
    _, result = fused(model)
    assert not result.modified
    assert any("read elsewhere" in miss.reason for miss in result.log.misses)


def test_rows_of_unknown_length_need_a_weight() -> None:
    g = Rows(np.float32, 17)
    x = g.op("Tanh", g.input("b", "n"))
    _, result = fused(g.model(g.op("Relu", centred()(g, x))))
    assert not result.modified
    g = Rows(np.float32, 17)
    x, w = g.op("Tanh", g.input("b", "n")), g.input("n", name="w")
    model = g.model(g.op("Relu", g.op("Mul", centred()(g, x), w)))
    made, _ = fused(model)
    assert kinds(made) == ["Tanh", "LayerNormalization", "Relu"]
    assert_close(model, made)
