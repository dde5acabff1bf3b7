"""Regions that no kernel can hold are cut; those that do not pay are left, with the reason."""

from __future__ import annotations

import pytest
from region_models import HEAD, accept, find, kinds, scope_of

from ortkit.fusion.regions.cost_model import CostModel
from ortkit.fusion.regions.describe import describe_region
from ortkit.fusion.regions.select import MAX_TENSORS
from ortkit.fusion.regions.sizes import join_unsolved
from ortkit.graph.io.text import from_text
from ortkit.kernels.region.bounds import exceeds_bounds
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.refusal import Refused

CHAIN = """g (float[n, 768] x, float[n, 768] y) => (z)
    { a = Add (x, y)  b = Tanh (a)  c = Erf (b)  d = Neg (c)  z = Exp (d) }"""


def without(*op_types: str):
    def judge(signature: RegionSignature) -> Refused | None:
        found = [n.op_type for n in signature.function().node if n.op_type in op_types]
        return Refused(f"operator {found[0]}") if found else accept(signature)

    return judge


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ((), ["add_tanh_erf_neg_exp"]),
        (("Add",), ["tanh_erf_neg_exp"]),
        (("Exp",), ["add_tanh_erf_neg"]),
        (("Erf",), ["add_tanh", "neg_exp"]),
        (("Add", "Erf", "Exp"), ["tanh", "neg"]),
        (("Add", "Tanh", "Erf", "Neg", "Exp"), []),
    ],
)
def test_a_region_is_cut_at_what_is_refused(refused: tuple[str, ...], expected: list[str]) -> None:
    assert kinds(CHAIN, without(*refused)) == expected


def test_the_reason_of_a_cut_is_kept() -> None:
    scope = scope_of(from_text(f"{HEAD} {CHAIN}"))
    found = find(scope, without("Erf"))
    left = {item.region.kind: item.reason for item in found if item.signature is None}
    assert left == {"erf": "operator Erf"}
    assert any("cut here: operator Erf" in miss.reason for miss in scope.log.misses)


def test_alike_regions_are_judged_once() -> None:
    asked: list[str] = []

    def judge(signature: RegionSignature) -> Refused | None:
        asked.append(signature.key)
        return None

    ones = ", ".join(["1"] * 8)
    text = f"""g (float[n, 8] x, float[8, 8] w) => (z)
        <float[8] r = {{{ones}}}, float[8] q = {{{ones}}}>
        {{ a = Add (x, r)  b = Tanh (a)  c = MatMul (b, w)  d = Add (c, q)  z = Tanh (d) }}"""
    assert kinds(text, judge) == ["bias_tanh", "bias_tanh"]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("z = Add (x, y)", []),
        ("a = Add (x, y)  z = Mul (a, y)", ["add_mul"]),
        ("a = Add (x, y)  z = LayerNormalization (a, r)", ["add_layer_norm"]),
        # 64 numbers.
        ("a = Neg (r)  b = Exp (a)  c = Neg (b)  z = MatMul (x, y)", []),
    ],
)
def test_what_pays(body: str, expected: list[str]) -> None:
    text = f"g (float[n, 64] x, float[n, 64] y, float[64] r) => (z) {{ {body} }}"
    assert kinds(text, cost=CostModel) == expected


def test_what_the_runtime_fuses_itself_does_not_count() -> None:
    """With sizes that are known a bias and a Relu end the Gemm that the product becomes."""
    ones = ", ".join(["1"] * 64)
    text = """g (float[{rows}, 8] x, float[8, 8] w) => (z)
        <float[8] r = {{{ones}}}> {{ p = MatMul (x, w)  a = Add (p, r)  z = Relu (a) }}"""
    matrix = text.format(rows="512, 16", ones=ones[:22])
    assert kinds(matrix, cost=CostModel) == []
    assert kinds(text.format(rows="b, s", ones=ones[:22]), cost=CostModel) == ["bias_relu"]


def test_sizes_and_constants_of_a_signature() -> None:
    text = f"""{HEAD} g (float[b, s, 64] x) => (z) <float half = {{0.5}}, int64[1] at = {{-1}}>
        {{ a = Mul (x, half)  m = ReduceMax <keepdims = 1> (a, at)  z = Sub (a, m) }}"""
    scope = scope_of(from_text(text))
    (found,) = find(scope)
    signature = describe_region(scope, found.region)
    assert [(tensor.dtype, tensor.shape) for tensor in signature.inputs] == [
        ("float32", ("b", "s", 64))
    ]
    function = signature.function()
    assert [node.op_type for node in function.node].count("Constant") == 2
    assert function.opset_import[0].version == scope.opset()
    assert signature.name == "mul_reduce_max_sub"


def test_a_reshape_to_a_computed_shape_is_written_with_a_constant() -> None:
    text = f"""{HEAD} g (float[b, s, 64] x) => (z)
        <int64[1] four = {{4}}, int64[1] rest = {{16}}> {{
        n = Shape <start = 0, end = 2> (x)  shape = Concat <axis = 0> (n, four, rest)
        a = Neg (x)  v = Reshape <allowzero = 1> (a, shape)  z = Abs (v) }}"""
    found = find(scope_of(from_text(text)))
    taken = [item for item in found if item.signature is not None]
    assert [one.region.kind for one in taken] == ["neg_abs"]
    assert len(taken[0].region.inputs) == 1


def test_a_table_that_is_cut_to_a_size_has_that_size() -> None:
    text = f"""{HEAD} g (float[b, s, 4] x, float[16, 4] table) => (z)
        <int64[1] zero = {{0}}, float[4] one = {{1, 1, 1, 1}}> {{
        n = Shape <start = 1, end = 2> (x)  t = Slice (table, zero, n)
        a = Add (x, t)  z = LayerNormalization (a, one) }}"""
    scope = scope_of(from_text(text))
    (found,) = [item for item in find(scope) if item.signature is not None]
    assert found.signature is not None
    assert [tensor.shape for tensor in found.signature.inputs] == [("b", "s", 4), ("s", 4), (4,)]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        # Rows of pixels: nothing tells h or w, and nothing needs them.
        (("b", "h", "w"), [("b", "h.w", 4)]),
        # An input tells h, and with it w.
        (("h", "h", "w"), [("h", "h*w", 4)]),
    ],
)
def test_a_product_whose_factors_no_input_tells_is_one_size(
    shapes: tuple[str, str, str], expected: list[tuple[int | str, ...]]
) -> None:
    batch, height, width = shapes
    text = f"""{HEAD} g (float[{batch}, 4, {height}, {width}] x) => (z)
        <int64[3] rows = {{0, 4, -1}}, int64[1] first = {{0}}> {{
        p = Reshape (x, rows)  t = Transpose <perm = [0, 2, 1]> (p)
        q = CumSum (t, first)  a = Exp (q)  z = Neg (a) }}"""
    taken = [item for item in find(scope_of(from_text(text))) if item.signature is not None]
    (found,) = [one for one in taken if one.region.kind == "exp_neg"]
    assert found.signature is not None
    assert exceeds_bounds(found.signature) is None
    assert [tensor.shape for tensor in found.signature.inputs] == expected
    assert [tensor.shape for tensor in found.signature.outputs] == expected


@pytest.mark.parametrize(
    ("exponent", "written"), [("2", "Mul (a, a)"), ("0.5", "Sqrt (a)"), ("-1", "Reciprocal (a)")]
)
def test_a_power_is_predicted_as_what_its_kernel_computes(exponent: str, written: str) -> None:
    def predicted(last: str) -> float:
        text = f"""g (float[n, 768] x) => (z) <float e = {{{exponent}}}>
            {{ a = Sin (x)  b = {last}  z = Mul (b, x) }}"""
        (found,) = find(scope_of(from_text(f"{HEAD} {text}")), accept)
        return found.prediction.after_ns

    assert predicted("Pow (a, e)") == predicted(written)


def test_a_sum_of_more_tensors_than_a_kernel_takes_is_cut() -> None:
    names = [f"x{number}" for number in range(2 * MAX_TENSORS)]
    inputs = ", ".join(f"float[n, 768] {name}" for name in names)
    sums = [f"y{at} = Add ({'x0' if at == 1 else f'y{at - 1}'}, {name})"
            for at, name in enumerate(names) if at]  # fmt: skip
    text = f"{HEAD} g ({inputs}) => (z) {{ {'  '.join(sums)}  z = Exp (y{len(sums)}) }}"
    taken = [each.signature for each in find(scope_of(from_text(text))) if each.signature]
    assert len(taken) > 1
    assert all(len(item.inputs) + len(item.outputs) <= MAX_TENSORS for item in taken)


def test_factors_of_two_products_stay_apart() -> None:
    specs = [TensorSpec("x", "float32", (size, 4)) for size in ("h*w", "h*v")]
    assert join_unsolved(specs[:1], specs[1:]) == ((specs[0],), (specs[1],))
    (joined,), _ = join_unsolved(specs[:1], [])
    assert joined.shape == ("h.w", 4)
