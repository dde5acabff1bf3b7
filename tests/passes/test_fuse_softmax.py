"""Softmax is told by what it computes: spellings and near misses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortkit.graph.check.model import check_model
from ortkit.passes.fuse_softmax import FuseSoftmax
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline, PipelineResult
from tests.passes.graphs import kinds, run
from tests.passes.norm_spellings import Formula, Rows, Shape

pytest.importorskip("onnxruntime")


def fused(model: onnx.ModelProto, level: int = 3) -> tuple[onnx.ModelProto, PipelineResult]:
    result = Pipeline((FuseSoftmax(),)).run(ir.from_proto(model), RewriteOptions(level=level))
    assert result.settled
    check_model(result.model)
    return ir.to_proto(result.model), result


def stable(g: Rows, x: str) -> str:
    e = g.op("Exp", g.op("Sub", x, g.reduce("ReduceMax", x)))
    return g.op("Div", e, g.reduce("ReduceSum", e))


def unshifted(g: Rows, x: str) -> str:
    e = g.op("Exp", x)
    return g.op("Div", e, g.reduce("ReduceSum", e))


def reciprocal(g: Rows, x: str) -> str:
    e = g.op("Exp", g.op("Sub", x, g.reduce("ReduceMax", x)))
    return g.op("Mul", g.op("Reciprocal", g.reduce("ReduceSum", e)), e)


def negated(g: Rows, x: str) -> str:
    e = g.op("Exp", g.op("Neg", g.op("Sub", g.reduce("ReduceMax", x), x)))
    return g.op("Div", e, g.reduce("ReduceSum", e))


def power(g: Rows, x: str) -> str:
    e = g.op("Exp", g.op("Sub", x, g.reduce("ReduceMax", x)))
    return g.op("Mul", e, g.op("Pow", g.reduce("ReduceSum", e), g.number(-1.0)))


def of_logarithm(g: Rows, x: str) -> str:
    return g.op("Exp", g.op("Sub", x, g.reduce("ReduceLogSumExp", x)))


def twice(g: Rows, x: str) -> str:
    first, second = (g.op("Exp", g.op("Sub", x, g.reduce("ReduceMax", x))) for _ in range(2))
    return g.op("Div", first, g.reduce("ReduceSum", second))


def log_sum(g: Rows, x: str) -> str:
    shifted = g.op("Sub", x, g.reduce("ReduceMax", x))
    return g.op("Sub", shifted, g.op("Log", g.reduce("ReduceSum", g.op("Exp", shifted))))


def log_sum_exp(g: Rows, x: str) -> str:
    return g.op("Sub", x, g.reduce("ReduceLogSumExp", x))


def log_of_quotient(g: Rows, x: str) -> str:
    return g.op("Log", stable(g, x))


def log_sum_apart(g: Rows, x: str) -> str:
    peak = g.reduce("ReduceMax", x)
    total = g.reduce("ReduceSum", g.op("Exp", g.op("Sub", x, peak)))
    return g.op("Sub", x, g.op("Add", g.op("Log", total), peak))


def log_of_softmax(g: Rows, x: str) -> str:
    return g.op("Log", g.op("Softmax", x, axis=-1))


SOFT: tuple[Formula, ...] = (
    stable, unshifted, reciprocal, negated, power, of_logarithm, twice,
)  # fmt: skip
LOGS: tuple[Formula, ...] = (
    log_sum, log_sum_exp, log_of_quotient, log_sum_apart, log_of_softmax,
)  # fmt: skip


def model_of(
    formula: Formula,
    *,
    shape: Shape = ("b", "s", 7),
    axes: tuple[int, ...] = (-1,),
    opset: int = 17,
    keepdims: int = 1,
    is_output: bool = False,
) -> onnx.ModelProto:
    g = Rows(np.float32, opset)
    g.axes, g.keepdims = axes, keepdims
    y = formula(g, g.op("Relu", g.input(*shape)))
    return g.model(y if is_output else g.op("Sin", y))


def cases() -> Iterator[tuple[str, onnx.ModelProto, str]]:
    for formulas, op in ((SOFT, "Softmax"), (LOGS, "LogSoftmax")):
        for formula in formulas:
            name = formula.__name__
            yield name, model_of(formula), op
            yield f"{name} static output", model_of(formula, shape=(2, 5), is_output=True), op
            if formula is not log_of_softmax:
                yield f"{name} axis 1", model_of(formula, axes=(1,), opset=20), op
                yield f"{name} flat", model_of(formula, keepdims=0, opset=13), op
    for opset in (13, 18, 22, 24):
        yield f"opset {opset}", model_of(stable, opset=opset), "Softmax"
        yield f"log opset {opset}", model_of(log_sum, opset=opset), "LogSoftmax"


CASES = {name: (model, op) for name, model, op in cases()}


@pytest.mark.parametrize("name", CASES)
def test_a_spelling_becomes_the_op(name: str) -> None:
    model, op = CASES[name]
    made, result = fused(model)
    assert op in kinds(made) and len(kinds(made)) <= 3, [m.reason for m in result.log.misses]
    for size in (4, 1):
        random = np.random.default_rng(size)
        sizes = [d.dim_value or size for d in model.graph.input[0].type.tensor_type.shape.dim]
        feeds = {"x": (5 * random.standard_normal(sizes)).astype(np.float32)}
        for want, got in zip(run(model, feeds), run(made, feeds), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def sum_plus(g: Rows, x: str) -> str:
    e = g.op("Exp", g.op("Sub", x, g.reduce("ReduceMax", x)))
    return g.op("Div", e, g.op("Add", g.reduce("ReduceSum", e), g.number(1e-6)))


def one_plus_sum(g: Rows, x: str) -> str:
    """Softmax with a sink: one more row entry of zero."""
    e = g.op("Exp", x)
    return g.op("Div", e, g.op("Add", g.reduce("ReduceSum", e), g.number(1.0)))


def exp_minus_one(g: Rows, x: str) -> str:
    e = g.op("Sub", g.op("Exp", x), g.number(1.0))
    return g.op("Div", e, g.reduce("ReduceSum", e))


def masked(g: Rows, x: str) -> str:
    e = g.op("Mul", g.op("Exp", x), g.op("Sin", g.op("Exp", x)))
    return g.op("Div", e, g.reduce("ReduceSum", e))


def other_shift(g: Rows, x: str) -> str:
    e = g.op("Exp", g.op("Sub", x, g.reduce("ReduceMax", x)))
    return g.op("Div", g.op("Exp", x), g.reduce("ReduceSum", e))


def linear(g: Rows, x: str) -> str:
    return g.op("Div", x, g.reduce("ReduceSum", x))


def mean_below(g: Rows, x: str) -> str:
    e = g.op("Exp", x)
    return g.op("Div", e, g.reduce("ReduceMean", e))


def other_axis(g: Rows, x: str) -> str:
    """The maximum is taken along another axis: still a softmax, but not of x alone."""
    e = g.op("Exp", g.op("Mul", x, g.reduce("ReduceMax", x)))
    return g.op("Div", g.op("Exp", x), g.reduce("ReduceSum", e))


def two_axes(g: Rows, x: str) -> str:
    g.axes = (1, 2)
    return stable(g, x)


def squared(g: Rows, x: str) -> str:
    e = g.op("Exp", x)
    return g.op("Div", e, g.reduce("ReduceL2", e))


def log_base_two(g: Rows, x: str) -> str:
    total = g.op("Log", g.reduce("ReduceSum", g.op("Exp", x)))
    return g.op("Sub", x, g.op("Mul", total, g.number(1.4427)))


def exponent_read(g: Rows, x: str) -> str:
    e = g.op("Exp", x)
    total = g.reduce("ReduceSum", e)
    return g.op("Add", g.op("Div", e, total), g.op("Sin", total))


NEAR_MISSES: tuple[Formula, ...] = (
    sum_plus, one_plus_sum, exp_minus_one, masked, other_shift, linear, mean_below, other_axis,
    two_axes, squared, log_base_two, exponent_read,
)  # fmt: skip


@pytest.mark.parametrize("formula", NEAR_MISSES, ids=lambda each: each.__name__)
def test_a_near_miss_stays(formula: Formula) -> None:
    model = model_of(formula, shape=("b", 3, 7))
    made, result = fused(model)
    assert not result.modified
    assert not {"Softmax", "LogSoftmax"} & set(kinds(made))


def test_half_rows_in_float_keep_their_casts() -> None:
    g = Rows(np.float16, 17)
    x = g.op("Relu", g.input("b", 5))
    z = stable(g, g.cast(x, np.float32))
    made, _ = fused(g.model(g.op("Sin", g.cast(z, np.float16))))
    assert kinds(made) == ["Relu", "Cast", "Softmax", "Cast", "Sin"]


def test_another_axis_than_the_last_stays_on_the_cpu() -> None:
    model = model_of(stable, axes=(1,))
    _, result = fused(model, level=2)
    assert not result.modified
    assert any("transpose" in miss.reason for miss in result.log.misses)
    made, _ = fused(model_of(stable), level=2)
    assert "Softmax" in kinds(made)


@pytest.mark.parametrize(("formula", "is_fused"), [(stable, True), (unshifted, False)])
def test_infinities_are_kept_where_that_is_asked(formula: Formula, is_fused: bool) -> None:
    model = ir.from_proto(model_of(formula))
    result = Pipeline((FuseSoftmax(keeps_infinities=True),)).run(model, RewriteOptions(level=3))
    assert ("Softmax" in kinds(ir.to_proto(result.model))) == is_fused
    assert is_fused or any("infinity" in miss.reason for miss in result.log.misses)
