"""GroupNorm and InstanceNorm written out; the op and its parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortkit.graph.check.model import check_model
from ortkit.passes.fold_affine_into_norm import FoldAffineIntoNorm
from ortkit.passes.fuse_group_norm import FuseGroupNorm
from ortkit.passes.fuse_norm import FuseNorm
from ortkit.passes.split_group_norm import SplitGroupNorm
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.passes import Pass
from ortkit.rewrite.pipeline import Pipeline, PipelineResult
from tests.passes.graphs import kinds, run
from tests.passes.norm_spellings import Rows, Shape, centred, over, raw_moments

pytest.importorskip("onnxruntime")
CHANNELS, GROUPS = 6, 3
FUSE: tuple[Pass, ...] = (FuseNorm(), FuseGroupNorm(), SplitGroupNorm(), FoldAffineIntoNorm())


def applied(
    model: onnx.ModelProto, level: int, *passes: Pass
) -> tuple[onnx.ModelProto, PipelineResult]:
    result = Pipeline(passes or FUSE).run(ir.from_proto(model), RewriteOptions(level=level))
    assert result.settled
    check_model(result.model)
    return ir.to_proto(result.model), result


def same(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    for size in (4, 1):
        shape = [d.dim_value or size for d in before.graph.input[0].type.tensor_type.shape.dim]
        x = np.random.default_rng(size).standard_normal(shape).astype(np.float32)
        for want, got in zip(run(before, {"x": x}), run(after, {"x": x}), strict=True):
            assert want.shape == got.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def by_op(g: Rows, x: str) -> str:
    ones, zeros = g.data(np.ones(GROUPS)), g.data(np.zeros(GROUPS))
    return g.op("InstanceNormalization", x, ones, zeros, epsilon=1e-3)


def by_own_weights(g: Rows, x: str) -> str:
    return g.op("InstanceNormalization", x, g.constant(GROUPS), g.constant(GROUPS))


def by_reductions(g: Rows, x: str) -> str:
    g.axes = (2,)
    return centred("pow", "reciprocal")(g, x)


def by_raw_moments(g: Rows, x: str) -> str:
    g.axes = (-1,)
    return raw_moments(g, x)


def group_norm(
    norm: Callable[[Rows, str], str],
    *,
    shape: Shape = ("n", CHANNELS, "h", "w"),
    weights: bool = True,
    opset: int = 18,
    is_output: bool = False,
) -> onnx.ModelProto:
    g = Rows(np.float32, opset)
    x = g.op("Tanh", g.input(*shape))
    rows = g.op("Reshape", x, g.ints(0, GROUPS, -1))
    y = g.op("Reshape", norm(g, rows), g.op("Shape", x))
    if weights:
        ones = [1] * (len(shape) - 2)
        y = g.op("Add", g.op("Mul", y, g.constant(CHANNELS, *ones)), g.constant(CHANNELS, *ones))
    return g.model(y if is_output else g.op("Relu", y))


FORMS = (by_op, by_own_weights, by_reductions, by_raw_moments)


@pytest.mark.parametrize("norm", FORMS, ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weights": False},
        {"opset": 21, "is_output": True},
        {"shape": (2, CHANNELS, 3, 5)},
        {"shape": ("n", CHANNELS, "l"), "opset": 13},
        {"shape": (2, CHANNELS, 2, 3, 2)},
    ],
    ids=str,
)
def test_a_spelling_becomes_the_op_at_level_3(
    norm: Callable[[Rows, str], str], options: dict[str, object]
) -> None:
    model = group_norm(norm, **options)  # type: ignore[arg-type]
    made, result = applied(model, 3)
    assert "GroupNormalization" in kinds(made), [miss.reason for miss in result.log.misses]
    assert {"InstanceNormalization", "Mul", "Reshape"}.isdisjoint(kinds(made))
    same(model, made)


@pytest.mark.parametrize("norm", FORMS, ids=lambda each: each.__name__)
def test_at_level_2_it_is_what_has_a_kernel(norm: Callable[[Rows, str], str]) -> None:
    model = group_norm(norm)
    made, _ = applied(model, 2)
    assert "InstanceNormalization" in kinds(made)
    assert {"GroupNormalization", "ReduceMean"}.isdisjoint(kinds(made))
    same(model, made)


@pytest.mark.parametrize("opset", [18, 21, 23])
@pytest.mark.parametrize(
    "shape", [("n", CHANNELS, "h", "w"), ("n", CHANNELS, 5), (2, CHANNELS, 3, "w")]
)
def test_the_op_is_split_at_level_2(opset: int, shape: Shape) -> None:
    g = Rows(np.float32, opset)
    x = g.op("Tanh", g.input(*shape))
    size = CHANNELS if opset >= 21 else GROUPS
    y = g.op("GroupNormalization", x, g.constant(size), g.constant(size), num_groups=GROUPS)
    model = g.model(g.op("Relu", y))
    made, _ = applied(model, 2)
    assert "InstanceNormalization" in kinds(made) and "GroupNormalization" not in kinds(made)
    same(model, made)
    if opset < 21:
        return  # what onnx calls deprecated is no valid model while it is there
    kept, _ = applied(model, 3)
    assert "GroupNormalization" in kinds(kept)


def instance(
    formula: Callable[[Rows, str], str], affine: str, shape: Shape = ("n", CHANNELS, "h", "w")
) -> onnx.ModelProto:
    g = Rows(np.float32, 18)
    g.axes = tuple(range(2, len(shape)))
    z = formula(g, g.op("Tanh", g.input(*shape)))
    ones = [1] * len(g.axes)
    if affine != "none":
        z = g.op("Mul", z, g.constant(CHANNELS, *ones))
    if affine == "both":
        z = g.op("Add", g.constant(1, CHANNELS, *ones), z)
    return g.model(g.op("Relu", z))


@pytest.mark.parametrize("affine", ["none", "scale", "both"])
@pytest.mark.parametrize("formula", [centred(), centred("pow", "reciprocal"), raw_moments])
def test_an_instance_norm_becomes_the_op(formula: Callable[[Rows, str], str], affine: str) -> None:
    for shape in (("n", CHANNELS, "h", "w"), (2, CHANNELS, 3, 4, 5)):
        model = instance(formula, affine, shape)
        made, result = applied(model, 2)
        assert kinds(made) == ["Tanh", "InstanceNormalization", "Relu"], result.log.misses
        same(model, made)


def unbiased(g: Rows, x: str) -> str:
    d = g.op("Sub", x, g.mean(x))
    square = g.op("Mul", g.mean(g.op("Mul", d, d)), g.number(20 / 19))
    return over(g, d, square, "div")


def over_samples(g: Rows, x: str) -> str:
    """Statistics of a batch: those of a BatchNormalization that trains."""
    g.axes = (0, 2, 3)
    return centred()(g, x)


@pytest.mark.parametrize("formula", [unbiased, over_samples])
def test_what_is_no_instance_norm_stays(formula: Callable[[Rows, str], str]) -> None:
    made, result = applied(instance(formula, "both"), 3)
    assert not result.modified
    assert {"InstanceNormalization", "GroupNormalization"}.isdisjoint(kinds(made))


def test_groups_of_samples_and_channels_stay() -> None:
    g = Rows(np.float32, 21)
    x = g.op("Tanh", g.input(2, CHANNELS, 3, 5))
    rows = g.op("Reshape", x, g.ints(1, GROUPS, -1))
    y = g.op("Reshape", by_op(g, rows), g.op("Shape", x))
    made, _ = applied(g.model(g.op("Relu", y)), 3)
    assert "GroupNormalization" not in kinds(made)
