"""Every spelling of an activation becomes the same op; what is nearly one stays."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortkit.graph.check.model import check_model
from ortkit.passes.fuse_activation import FuseActivation, rounding_of
from ortkit.passes.select import select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from ortkit.targets.target import Target
from tests.passes.graphs import Graph, kinds, run

PASSES = (FuseActivation(),)
ROOT = math.sqrt(2)
RATE = math.sqrt(2 / math.pi)


class Term:
    """A value of a graph; operators add nodes, numbers become constants."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def op(self, kind: str, *others: object, **attributes: object) -> Term:
        names = [self.name, *(self.named(other) for other in others)]
        return Term(self.graph, self.graph.op(kind, *names, **attributes))

    def named(self, other: object) -> str:
        return other.name if isinstance(other, Term) else self.graph.data(other)

    def after(self, kind: str, number: float) -> Term:
        """Apply an op with the constant on the left."""
        return Term(self.graph, self.graph.op(kind, self.graph.data(number), self.name))

    def __add__(self, other: object) -> Term:
        return self.op("Add", other)

    def __sub__(self, other: object) -> Term:
        return self.op("Sub", other)

    def __mul__(self, other: object) -> Term:
        return self.op("Mul", other)

    def __truediv__(self, other: object) -> Term:
        return self.op("Div", other)

    def __pow__(self, other: object) -> Term:
        return self.op("Pow", other)

    def __radd__(self, other: float) -> Term:
        return self.after("Add", other)

    def __rsub__(self, other: float) -> Term:
        return self.after("Sub", other)

    def __rmul__(self, other: float) -> Term:
        return self.after("Mul", other)

    def __rtruediv__(self, other: float) -> Term:
        return self.after("Div", other)

    def __neg__(self) -> Term:
        return self.op("Neg")

    def __getattr__(self, name: str) -> Callable[..., Term]:
        if name.startswith("_") or not name.islower():
            raise AttributeError(name)
        return lambda *others, **attributes: self.op(name.title(), *others, **attributes)

    def where(self, yes: object, no: object) -> Term:
        """Choose by this bool value."""
        return self.op("Where", yes, no)


Spelling = Callable[[Term], Term]


def line(x: Term) -> Term:
    """Return x + 0.044715 x^3."""
    return x + 0.044715 * x**3


def sigma(x: Term) -> Term:
    return 1 / (1 + (-x).exp())


def e(x: Term) -> Term:
    return x.exp()


SPELLINGS: dict[str, list[Spelling]] = {
    "Gelu": [
        lambda x: x * 0.5 * (1 + (x / ROOT).erf()),
        lambda x: 0.5 * (x * ((x * (1 / ROOT)).erf() + 1)),
        lambda x: x * (0.5 + 0.5 * (x / ROOT).erf()),
        lambda x: (x / 2) * (1 + (x * 0.7071).erf()),
        lambda x: ((x / 1.4142).erf() + 1) * x / 2,
        lambda x: x - x * (0.5 - 0.5 * (x / ROOT).erf()),
        lambda x: x * 0.5 + x * 0.5 * (x / ROOT).erf(),
        lambda x: x * 0.5 * (1 - (-(x / ROOT)).erf()),
        lambda x: (x / ROOT) * (1 + (x / ROOT).erf()) * (1 / ROOT),
    ],
    "FastGelu": [
        lambda x: 0.5 * x * (1 + (RATE * line(x)).tanh()),
        lambda x: 0.5 * x * (1 + (0.7978845608 * (x + 0.044715 * (x * x * x))).tanh()),
        lambda x: x * (0.5 * (1 + (0.7979 * x * (1 + 0.0447 * (x * x))).tanh())),
        lambda x: x * (2 * RATE * line(x)).sigmoid(),
        lambda x: x * (1.5957691216 * x * (1 + 0.044715 * x**2)).sigmoid(),
        lambda x: x * 0.5 * (1 + (x * (0.79788456 + 0.035677408 * x * x)).tanh()),
        lambda x: x / (1 + (-1.5957691216 * line(x)).exp()),
        lambda x: x - x / (1 + (2 * RATE * line(x)).exp()),
    ],
    "QuickGelu": [
        lambda x: x * x.sigmoid(),
        lambda x: x.sigmoid() * x,
        lambda x: x / (1 + (-x).exp()),
        lambda x: x * sigma(x),
        lambda x: x * ((x * -1.0).exp() + 1).reciprocal(),
        lambda x: x * (0.5 + 0.5 * (0.5 * x).tanh()),
        lambda x: x * e(x) / (1 + e(x)),
        lambda x: x * (1.702 * x).sigmoid(),
        lambda x: x / (1 + (-1.702 * x).exp()),
        lambda x: (x * 1.7).sigmoid() * x,
        lambda x: x - x * (-x).sigmoid(),
    ],
    "Mish": [
        lambda x: x * x.softplus().tanh(),
        lambda x: x * (1 + e(x)).log().tanh(),
        lambda x: x * ((1 + e(x)) ** 2 - 1) / ((1 + e(x)) ** 2 + 1),
        lambda x: x * (1 - 2 / ((1 + e(x)) * (1 + e(x)) + 1)),
    ],
    "HardSwish": [
        lambda x: x * (x + 3.0).op("Clip", 0.0, 6.0) / 6,
        lambda x: x * ((x + 3).relu().min(6.0) * (1 / 6)),
        lambda x: x * (x / 6 + 0.5).op("Clip", 0.0, 1.0),
        lambda x: x * x.op("HardSigmoid", alpha=1 / 6),
        lambda x: (x + 3).max(0.0).min(6.0) / 6 * x,
    ],
    "HardSigmoid": [
        lambda x: (x + 3).op("Clip", 0.0, 6.0) / 6,
        lambda x: (x * 0.2 + 0.5).op("Clip", 0.0, 1.0),
        lambda x: (0.5 + x / 6).min(1.0).max(0.0),
        lambda x: 1 - (0.5 - x / 4).op("Clip", 0.0, 1.0),
    ],
    "Softplus": [
        lambda x: (1 + e(x)).log(),
        lambda x: x.relu() + (1 + e(-x.abs())).log(),
    ],
    "Softsign": [lambda x: x / (1 + x.abs()), lambda x: x * (x.abs() + 1).reciprocal()],
    "Sigmoid": [
        sigma,
        lambda x: e(x) / (e(x) + 1),
        lambda x: 0.5 * (x / 2).tanh() + 0.5,
        lambda x: 1 - (-x).sigmoid(),
    ],
    "Tanh": [
        lambda x: (e(x) - e(-x)) / (e(x) + e(-x)),
        lambda x: 2 * (2 * x).sigmoid() - 1,
        lambda x: 1 - 2 / ((2 * x).exp() + 1),
    ],
    "Elu": [
        lambda x: x.greater(0.0).where(x, e(x) - 1),
        lambda x: x.less(0.0).where(0.7 * (e(x) - 1), x),
        lambda x: x.relu() + 0.5 * (e(x.min(0.0)) - 1),
    ],
    "Celu": [
        lambda x: x.relu() + (0.6 * (e(x / 0.6) - 1)).min(0.0),
        lambda x: x.greater(0.0).where(x, 2 * (e(x / 2) - 1)),
    ],
    "Selu": [
        lambda x: 1.0507 * x.greater(0.0).where(x, 1.67326 * (e(x) - 1)),
        lambda x: x.elu(alpha=1.67326) * 1.0507,
    ],
    "LeakyRelu": [
        lambda x: x.greater(0.0).where(x, 0.1 * x),
        lambda x: x.max(0.01 * x),
        lambda x: x.relu() - 0.2 * (-x).relu(),
        lambda x: 0.6 * x + 0.4 * x.abs(),
    ],
    "Relu": [
        lambda x: x.max(0.0),
        lambda x: (x + x.abs()) / 2,
        lambda x: x.less(0.0).where(0.0, x),
    ],
    "Clip": [
        lambda x: x.relu().min(6.0),
        lambda x: x.max(-1.0).min(1.0),
        lambda x: x.min(2.5).max(-0.5),
        lambda x: x.op("Clip", 0.0, 8.0).min(6.0),
        lambda x: x.relu().min(5.9),
    ],
    "ThresholdedRelu": [
        lambda x: x.greater(1.5).where(x, 0.0),
        lambda x: x.greater(0.0).where(x, 0.0),
    ],
}
CASES = [
    pytest.param(kind, spelling, id=f"{kind}-{i}")
    for kind, spellings in SPELLINGS.items()
    for i, spelling in enumerate(spellings)
]
#: Written with all digits, float32 rounding decides; with four, the rounding of the constants.
ROUNDED = 3e-4
INPUT = np.concatenate([np.linspace(-12, 12, 193), [30, -30, 60, -60, 1e4, -1e4, 0.25, 1.5]])


def written(spelling: Spelling, opset: int = 17, dtype: type = np.float32) -> onnx.ModelProto:
    g = Graph(dtype, opset)
    return g.model(spelling(Term(g, g.input("n", "m"))).name)


def applied(
    model: onnx.ModelProto, level: int = 3, kind: str = "cpu", *, full: bool = False
) -> onnx.ModelProto:
    passes = select_passes("", level) if full else PASSES
    result = Pipeline(passes).run(ir.from_proto(model), RewriteOptions(Target(kind), level))  # type: ignore[arg-type]
    assert result.settled
    check_model(result.model)
    return ir.to_proto(result.model)


def assert_same_values(model: onnx.ModelProto, made: onnx.ModelProto) -> None:
    """Compare where the written form gives a number, and what becomes of NaN."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    x = INPUT.astype(dtype).reshape(3, -1)
    (want,), (got,) = run(model, {"x": x}), run(made, {"x": x})
    assert got.dtype == want.dtype and got.shape == want.shape
    bound = max(ROUNDED, 40 * float(np.finfo(dtype).eps)) * np.maximum(1, np.abs(want))
    fits = np.isfinite(want)
    assert fits.mean() > 0.7
    assert (np.abs(got[fits] - want[fits]) <= bound[fits]).all()
    nan = np.full((1, 1), np.nan, dtype)
    assert np.isnan(run(made, {"x": nan})[0]) == np.isnan(run(model, {"x": nan})[0])


def expected(kind: str, opset: int) -> list[str]:
    """Return the ops of level 3 on CPU."""
    if kind == "FastGelu" and opset >= 20:
        return ["Gelu"]
    return [kind]


@pytest.mark.parametrize("opset", [18, 22])
@pytest.mark.parametrize(("kind", "spelling"), CASES)
def test_spelling(kind: str, spelling: Spelling, opset: int) -> None:
    model = written(spelling, opset)
    made = applied(model)
    assert kinds(made) == expected(kind, opset)
    assert_same_values(model, made)


@pytest.mark.parametrize(("kind", "spelling"), CASES)
def test_level_2_is_right_and_no_slower_by_the_table(kind: str, spelling: Spelling) -> None:
    model = written(spelling)
    made = applied(model, 2)
    assert_same_values(model, made)
    if kind not in ("Mish", "Softplus", "Celu", "Elu", "Selu"):
        assert kinds(made) == [kind]


@pytest.mark.parametrize("opset", [13, 14, 17, 20, 23, 24])
@pytest.mark.parametrize("kind", sorted(SPELLINGS))
def test_opsets(kind: str, opset: int) -> None:
    model = written(SPELLINGS[kind][0], opset)
    made = applied(model, full=True)
    assert "Erf" not in kinds(made) and len(made.graph.node) <= 2
    assert_same_values(model, made)


@pytest.mark.parametrize("kind", sorted(SPELLINGS))
def test_half_computed_in_single_precision_stays_between_its_casts(kind: str) -> None:
    g = Graph(np.float16, 20)
    x = Term(g, g.input("n", "m")).cast(to=1)
    g.dtype = np.dtype(np.float32)  # type: ignore[assignment]
    y = SPELLINGS[kind][0](x).cast(to=10)
    g.dtype = np.dtype(np.float16)  # type: ignore[assignment]
    assert kinds(applied(g.model(y.name))) == ["Cast", *expected(kind, 20), "Cast"]


@pytest.mark.parametrize("kind", sorted(set(SPELLINGS) - {"Elu", "Celu", "Selu", "LeakyRelu"}))
def test_double_becomes_what_has_kernels_of_it(kind: str) -> None:
    model = written(SPELLINGS[kind][0], 20, np.float64)
    made = applied(model)
    if kind in ("Clip", "Relu", "Sigmoid", "Tanh"):
        assert kinds(made) == [kind]
        assert_same_values(model, made)
    elif kind != "Mish":  # its own spelling in double is below
        assert kinds(made) == kinds(model)


def test_mish_of_double_runs() -> None:
    model = written(SPELLINGS["Mish"][2], 20, np.float64)
    made = applied(model, full=True)
    assert len(made.graph.node) < len(model.graph.node) and "Mish" not in kinds(made)
    assert_same_values(model, made)


@pytest.mark.parametrize("kind", sorted(set(SPELLINGS) - {"Celu", "Tanh", "Sigmoid", "Mish"}))
def test_half_throughout(kind: str) -> None:
    model = written(SPELLINGS[kind][0], 20, np.float16)
    made = applied(model)
    assert kinds(made) == expected(kind, 20)
    x = np.linspace(-4, 4, 64).astype(np.float16).reshape(1, -1)
    (want,), (got,) = run(model, {"x": x}), run(made, {"x": x})
    np.testing.assert_allclose(got, want, rtol=6e-3, atol=6e-3)


def where_else(x: Term) -> Term:
    return x.greater(0.0).where(x, 0.0)


OTHER: dict[str, Spelling] = {
    "gelu without the half": lambda x: x * (1 + (x / ROOT).erf()),
    "gelu with 0.45": lambda x: 0.45 * x * (1 + (x / ROOT).erf()),
    "gelu with 0.6": lambda x: 0.6 * x * (1 + (x / ROOT).erf()),
    "gelu without the root": lambda x: 0.5 * x * (1 + x.erf()),
    "gelu with 0.72": lambda x: 0.5 * x * (1 + (x * 0.72).erf()),
    "gelu with 1.5": lambda x: 0.5 * x * (1 + (x / 1.5).erf()),
    "gelu with minus": lambda x: 0.5 * x * (1 - (x / ROOT).erf()),
    "gelu with 1.01": lambda x: 0.5 * x * (1.01 + (x / ROOT).erf()),
    "gelu of a square": lambda x: 0.5 * (x * x) * (1 + (x / ROOT).erf()),
    "gelu shifted": lambda x: 0.5 * (x + 0.1) * (1 + (x / ROOT).erf()),
    "tanh gelu with 0.05": lambda x: 0.5 * x * (1 + (RATE * (x + 0.05 * x**3)).tanh()),
    "tanh gelu with 0.04": lambda x: 0.5 * x * (1 + (RATE * (x + 0.04 * x**3)).tanh()),
    "tanh gelu with 0.8": lambda x: 0.5 * x * (1 + (0.8 * line(x)).tanh()),
    "tanh gelu of a square": lambda x: 0.5 * x * (1 + (RATE * (x + 0.044715 * x**2)).tanh()),
    "tanh gelu without the cube": lambda x: 0.4 * x * (1 + (RATE * x).tanh()),
    "silu of minus": lambda x: x * (0.1 + x.sigmoid()),
    "silu plus one": lambda x: x / (2 + (-x).exp()),
    "silu squared": lambda x: x * x * x.sigmoid(),
    "silu of a shifted value": lambda x: x * (x + 0.5).sigmoid(),
    "mish with another base": lambda x: x * (2 + e(x)).log().tanh(),
    "mish without the product": lambda x: x + x.softplus().tanh(),
    "hard swish with 2 / 7": lambda x: x * (x * (2 / 7) + 0.5).cos(),
    "softplus with 2": lambda x: (2 + e(x)).log(),
    "softsign with 2": lambda x: x / (2 + x.abs()),
    "sigmoid with 2": lambda x: 1 / (2 + (-x).exp()),
    "sigmoid of exp2": lambda x: 1 / (1 + (-0.693 * x).exp() * 3),
    "tanh halved": lambda x: (e(x) - e(-x)) / 2,
    "swapped bounds": lambda x: x.max(6.0).min(0.0) + x,
    "elu without one": lambda x: x.greater(0.0).where(x, e(x)),
    "elu at one": lambda x: x.greater(1.0).where(x, e(x) - 1),
    "leaky with an offset": lambda x: x.greater(0.0).where(x, 0.1 * x - 0.5),
    "leaky turned at one": lambda x: x.greater(1.0).where(x, 0.1 * x),
    "relu cubed": lambda x: x.relu() ** 3,
    "threshold with another number": lambda x: x.greater(1.5).where(x, 1.0),
    "threshold that keeps NaN": lambda x: x.op("LessOrEqual", 0.25).where(0.0, x),
    "threshold times NaN": lambda x: x * x.greater(0.5).cast(to=1),
    "threshold at the number": lambda x: x.op("GreaterOrEqual", 1.5).where(x, 0.0),
    "sine": lambda x: x + x.sin() ** 2,
}


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("name", OTHER)
def test_what_is_nearly_one_stays(name: str, level: int) -> None:
    model = written(OTHER[name])
    assert kinds(applied(model, level)) == kinds(model)


@pytest.mark.parametrize("small", [1e-9, 1e-7])
@pytest.mark.parametrize("kind", ["Relu", "Gelu", "QuickGelu", "Sigmoid", "Softplus", "HardSwish"])
def test_what_is_added_lest_it_be_zero_stays(kind: str, small: float) -> None:
    made = applied(written(lambda x: SPELLINGS[kind][0](x) + small))
    assert kinds(made) == [kind, "Add"]


def two_inputs(build: Callable[[Term, Term], Term], shape: tuple[str, ...]) -> onnx.ModelProto:
    g = Graph()
    x = Term(g, g.input("n", "m"))
    return g.model(build(x, Term(g, g.input(*shape, name="z"))).name)


@pytest.mark.parametrize("shape", [("n", "m"), ("m",), ()])
@pytest.mark.parametrize(
    "build",
    [
        lambda x, z: x * z.sigmoid(),
        lambda x, z: z * 0.5 * (1 + (x / ROOT).erf()),
        lambda x, z: x * z.softplus().tanh(),
        lambda x, z: x * (z + 3.0).op("Clip", 0.0, 6.0) / z,
        lambda x, z: x.max(0.1 * z),
        lambda x, z: x.greater(0.0).where(x, e(z) - 1),
    ],
)
def test_functions_of_two_values_stay(
    build: Callable[[Term, Term], Term], shape: tuple[str, ...]
) -> None:
    model = two_inputs(build, shape)
    assert kinds(applied(model)) == kinds(model)


@pytest.mark.parametrize("gate", [lambda x: x * x.sigmoid(), SPELLINGS["Gelu"][0]])
def test_a_gate_keeps_its_product(gate: Spelling) -> None:
    made = applied(two_inputs(lambda x, z: gate(x) * z, ("n", "m")))
    assert len(made.graph.node) == 2 and made.graph.node[1].op_type == "Mul"


def test_squared_relu_is_a_product() -> None:
    model = written(lambda x: x.relu() ** 2)
    made = applied(model, 3)
    assert kinds(made) == ["Relu", "Mul"]
    assert_same_values(model, made)


def test_one_column_constants_stay() -> None:
    model = written(lambda x: x * (x * [1.0, 1.5]).sigmoid())
    assert kinds(applied(model)) == kinds(model)


def test_constants_that_add_axes_stay() -> None:
    model = written(lambda x: x * (x * np.ones((1, 1, 1))).sigmoid())
    assert kinds(applied(model)) == kinds(model)


def test_constants_of_rank_two_do_not_matter() -> None:
    model = written(lambda x: x * (x * np.full((1, 1), 1.5)).sigmoid())
    assert kinds(applied(model)) == ["QuickGelu"]


def test_bfloat16_has_no_kernel_on_cpu() -> None:
    model = written(lambda x: (x.cast(to=16) * x.cast(to=16).sigmoid()).cast(to=1))
    assert "QuickGelu" not in kinds(applied(model))
    assert "QuickGelu" in kinds(applied(model, kind="cuda", full=True))


def test_inner_results_that_others_read_stay() -> None:
    g = Graph()
    x = Term(g, g.input("n", "m"))
    inner = x.sigmoid()
    model = g.model((x * inner).name, inner.name)
    assert kinds(applied(model)) == ["Sigmoid", "Mul"]


def test_the_result_may_be_read_and_returned() -> None:
    g = Graph()
    x = Term(g, g.input("n", "m"))
    y = SPELLINGS["Gelu"][0](x)
    made = applied(g.model(y.name, (-y).name))
    assert kinds(made) == ["Gelu", "Neg"]
    assert made.graph.output[0].name == y.name


@pytest.mark.parametrize(("level", "ops"), [(2, 7), (3, 1)])
def test_mish_is_what_the_level_says(level: int, ops: int) -> None:
    model = written(SPELLINGS["Mish"][0], 18)
    made = applied(model, level)
    assert len(made.graph.node) == ops
    assert_same_values(model, made)
    assert kinds(applied(made, level)) == kinds(made)


@pytest.mark.parametrize(("newest", "ops"), [(17, 3), (23, 1)])
def test_the_opset_is_raised_for_mish_where_it_may_be(newest: int, ops: int) -> None:
    model = written(SPELLINGS["Mish"][1], 15)
    target = RewriteOptions(level=3, max_opset=newest)
    made = ir.to_proto(Pipeline(PASSES).run(ir.from_proto(model), target).model)
    assert len(made.graph.node) == ops
    assert made.opset_import[0].version == (18 if newest >= 18 else 15)
    assert_same_values(model, made)


def test_mish_and_swish_as_ops_become_what_has_kernels() -> None:
    assert kinds(applied(written(lambda x: x.mish(), 18), 2)).count("Exp") == 1
    swish = written(lambda x: x.swish(alpha=1.5), 24)
    assert kinds(applied(swish, 2)) == ["QuickGelu"]


def test_one_slope_for_all_is_a_leaky_relu() -> None:
    model = written(lambda x: x.op("PRelu", 0.25))
    made = applied(model, 2)
    assert kinds(made) == ["LeakyRelu"]
    assert_same_values(model, made)


@pytest.mark.parametrize(
    ("number", "rounding"),
    [(0.5, 0.0), (0.45, 0.0), (3.0, 0.0), (0.7071, 5e-5 / 0.7071), (0.044715, 2e-5)],
)
def test_rounding_of_constants(number: float, rounding: float) -> None:
    assert rounding_of(np.float32(number)) == pytest.approx(rounding, rel=1e-3)


def test_exact_integers_are_not_rounded() -> None:
    assert rounding_of(np.int64(1234)) == 0.0
