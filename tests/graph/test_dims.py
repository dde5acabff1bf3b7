"""Sizes: canonical form, proofs that hold for every value, text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortkit.graph.symbolic.dims import (
    Dim,
    Size,
    bounds,
    broadcast,
    ceil_divide,
    differ,
    divide_exactly,
    floor_divide,
    has_unknown,
    is_at_least,
    maximum,
    minimum,
    names,
    product,
    remainder,
    replace_atoms,
    substitute,
    weight,
)
from ortkit.graph.symbolic.terms import size_text
from ortkit.graph.symbolic.text import parse_size
from tests.sampling import repeats

NAMES = ("a", "b", "c")
A, B, C = (Dim.named(name) for name in NAMES)
ZERO_ON_PURPOSE = 0

Value = Callable[[dict[str, int]], int]
Pair = tuple[Size, Value]
"""A size, and what Python computes for it from the values of the names."""


def leaf(name: str) -> Pair:
    return Dim.named(name), lambda values: values[name]


def constant(number: int) -> Pair:
    return number, lambda values: number


def combined(operation: str, left: Pair, right: Pair) -> Pair:
    (x, f), (y, g) = left, right
    match operation:
        case "+":
            return x + y, lambda v: f(v) + g(v)
        case "-":
            return x - y, lambda v: f(v) - g(v)
        case "*":
            return x * y, lambda v: f(v) * g(v)
        case "max":
            return maximum(x, y), lambda v: max(f(v), g(v))
        case "min":
            return minimum(x, y), lambda v: min(f(v), g(v))
        case "//" if y != 0:
            return floor_divide(x, y), lambda v: f(v) // g(v)
        case "%" if y != 0:
            return remainder(x, y), lambda v: f(v) % g(v)
    return left


def expressions() -> st.SearchStrategy[Pair]:
    leaves = st.one_of(st.sampled_from(NAMES).map(leaf), st.integers(-4, 8).map(constant))
    return st.recursive(
        leaves,
        lambda inner: st.builds(
            combined,
            st.sampled_from(["+", "-", "*", "max", "min", "//", "%"]),
            inner,
            inner,
        ),
        max_leaves=8,
    )


values = st.fixed_dictionaries({name: st.integers(0, 9) for name in NAMES})


def evaluated(pair: Pair, at: dict[str, int]) -> tuple[int, Size] | None:
    """Return Python's answer and ours; None where Python divides by 0."""
    size, value = pair
    try:
        expected = value(at)
    except ZeroDivisionError:
        return None
    try:
        return expected, substitute(size, at)
    except ZeroDivisionError:
        # A quotient that Python never had to compute is still in the expression.
        return None


@settings(max_examples=repeats(400, 100), deadline=None)
@given(expressions(), values)
def test_substitution_gives_what_python_computes(pair: Pair, at: dict[str, int]) -> None:
    found = evaluated(pair, at)
    if found is not None:
        assert found[1] == found[0], f"{pair[0]} at {at}"


@settings(max_examples=repeats(300, 75), deadline=None)
@given(expressions(), values)
def test_bounds_hold_for_every_value(pair: Pair, at: dict[str, int]) -> None:
    found = evaluated(pair, at)
    low, high = bounds(pair[0])
    if found is not None:
        assert low is None or low <= found[0]
        assert high is None or found[0] <= high


@settings(max_examples=repeats(300, 75), deadline=None)
@given(expressions(), expressions(), values)
def test_what_is_proved_of_two_sizes_holds(left: Pair, right: Pair, at: dict[str, int]) -> None:
    first, second = evaluated(left, at), evaluated(right, at)
    if first is None or second is None:
        return
    if is_at_least(left[0], right[0]):
        assert first[0] >= second[0]
    if differ(left[0], right[0]):
        assert first[0] != second[0]
    if left[0] == right[0]:
        assert first[0] == second[0]


@settings(max_examples=repeats(300, 75), deadline=None)
@given(expressions(), expressions(), values)
def test_an_exact_quotient_multiplies_back(left: Pair, right: Pair, at: dict[str, int]) -> None:
    quotient = divide_exactly(left[0], right[0])
    if quotient is not None:
        assert quotient * right[0] == left[0]


@settings(max_examples=repeats(300, 75), deadline=None)
@given(expressions(), expressions(), values)
def test_a_broadcast_is_the_size_that_is_not_one(
    left: Pair, right: Pair, at: dict[str, int]
) -> None:
    first, second = evaluated(left, at), evaluated(right, at)
    if first is None or second is None or min(first[0], second[0]) < 0:
        return
    if first[0] != second[0] and 1 not in (first[0], second[0]):
        return
    try:
        size = substitute(broadcast(left[0], right[0]), at)
    except (ValueError, ZeroDivisionError):
        assert isinstance(left[0], int) and isinstance(right[0], int)
        return
    assert size == (second[0] if first[0] == 1 else first[0])


@settings(max_examples=repeats(300, 75), deadline=None)
@given(expressions())
def test_text_reads_back(pair: Pair) -> None:
    text = size_text(pair[0])
    assert len(text) > 200 or parse_size(text) == pair[0], text


@settings(max_examples=repeats(200, 50), deadline=None)
@given(expressions(), expressions(), expressions())
def test_sums_and_products_do_not_depend_on_order(x: Pair, y: Pair, z: Pair) -> None:
    a, b, c = x[0], y[0], z[0]
    assert a + b == b + a
    assert hash(a + b) == hash(b + a)
    assert (a + b) + c == a + (b + c)
    assert a * (b + c) == c * a + b * a


# ---- what must be provable -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (floor_divide(A * 64, 64), "a"),
        (floor_divide(A * B * 768, B * 768), "a"),
        (floor_divide(floor_divide(A * B * 768, 12), 64), "a*b"),
        (A + B - A, "b"),
        (A - A, "0"),
        (2 * A + 1, "2*a + 1"),
        ((A + 1) * (A - 1), "a**2 - 1"),
        (floor_divide(A * A + 2 * A * B + B * B, A + B), "a + b"),
        (floor_divide(3 * A, 2), "a + a//2"),
        (floor_divide(2 * A + 2, 4), "(a + 1)//2"),
        (floor_divide(2 * A + 1, 4), "a//2"),
        (floor_divide(A - 1, 2) + 1, "(a + 1)//2"),
        (floor_divide(floor_divide(A, 2), 3), "a//6"),
        (floor_divide(floor_divide(A - 1, 2), 2), "(a + 3)//4 - 1"),
        (floor_divide(A * B, A * C), "b//c"),
        (remainder(64 * A + 5, 64), "5"),
        (remainder(A * B, A), "0"),
        (maximum(A, A), "a"),
        (maximum(A, 0), "a"),
        (maximum(A, A + B), "a + b"),
        (maximum(A - 1, 0), "max(0, a - 1)"),
        (minimum(A, A + 1), "a"),
        (minimum(floor_divide(A, 2), A), "a//2"),
        (maximum(A - floor_divide(A, 2), 0), "a - a//2"),
        (maximum(A, maximum(B, A)), "max(a, b)"),
        (broadcast(A, 1), "a"),
        (broadcast(A, 5), "5"),
        (broadcast(A, A), "a"),
        (broadcast(A, A + 2), "a + 2"),
        (broadcast(A, broadcast(B, A)), "broadcast(a, b)"),
        (broadcast(minimum(A, 512), A), "a"),
        (broadcast(maximum(A - 1, 0), A - 1), "a - 1"),
        (ceil_divide(A, 4), "(a + 3)//4"),
        (product((2, A, 3, B)), "6*a*b"),
    ],
)
def test_provable(size: Size, text: str) -> None:
    assert str(size) == text
    assert size == parse_size(text)


def test_a_size_of_zero_is_never_excluded() -> None:
    assert not is_at_least(A, 1)
    assert not differ(A, ZERO_ON_PURPOSE)
    assert not differ(A, 1)
    assert differ(A, -1)
    assert differ(A + 1, 0)
    # a = 0 and b = 1 broadcast to 0, which is not their maximum.
    assert broadcast(A, B) != maximum(A, B)
    assert substitute(broadcast(A, B), {"a": 0, "b": 1}) == 0
    assert maximum(A, 1) != A


def test_an_unknown_element_may_be_negative() -> None:
    element = Dim.unknown(1, signed=True)
    assert not is_at_least(element, 0)
    assert is_at_least(Dim.unknown(1), 0)
    assert element != Dim.unknown(1)
    assert not differ(element, -1)


def test_unknowns_are_told_apart_by_number() -> None:
    assert Dim.unknown(1) == Dim.unknown(1)
    assert Dim.unknown(1) != Dim.unknown(2)
    assert Dim.unknown(1) != Dim.named("1")
    assert has_unknown(Dim.unknown(1) + A) and not has_unknown(A + B)


def test_division_by_zero_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        floor_divide(A, ZERO_ON_PURPOSE)
    with pytest.raises(ZeroDivisionError):
        remainder(A, ZERO_ON_PURPOSE)
    assert divide_exactly(A, ZERO_ON_PURPOSE) is None


def test_a_broadcast_that_cannot_be_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 and 4"):
        broadcast(3, 4)
    with pytest.raises(ValueError, match="do not broadcast"):
        substitute(broadcast(A, B), {"a": 3, "b": 4})


def test_a_result_that_is_a_number_is_a_plain_int() -> None:
    assert isinstance(A - A, int)
    assert isinstance(substitute(A * B, {"a": 2, "b": 3}), int)


def test_names_inside_opaque_expressions_are_found() -> None:
    assert names(maximum(floor_divide(A, 3), B) + C) == {"a", "b", "c"}
    assert names(7) == frozenset()


def test_replacing_goes_into_opaque_expressions() -> None:
    unknown = Dim.unknown(3)
    size = maximum(unknown, 4) + floor_divide(unknown, 2)
    found = replace_atoms(size, lambda atom: 10 if atom.kind == "size" else None)
    assert found == 15


def test_weight_grows_with_the_expression() -> None:
    assert weight(3) == 0
    assert weight(A) == 1
    assert weight(maximum(A, B)) > weight(A)


# ---- text ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "batch",
        "batch_size",
        "unk__12",
        "foo-bar",
        "sequence-length",
        "a/b",
        "floor(a/2)",
        "?",
        "a b",
    ],
)
def test_a_text_that_is_no_expression_is_a_name(text: str) -> None:
    assert parse_size(text) == Dim.named(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("past + seq", A.named("past") + A.named("seq")),
        ("2*a + 1", 2 * A + 1),
        ("a - 1", A - 1),
        ("((a - 1)//2) + 1", floor_divide(A - 1, 2) + 1),
        ("Max(1, a)", maximum(1, A)),
        ("a**2", A * A),
        ("17", 17),
        ("-a + b", B - A),
        ("a % 4", remainder(A, 4)),
    ],
)
def test_expressions_are_read(text: str, size: Size) -> None:
    assert parse_size(text) == size


def test_names_that_look_like_keys_stay_apart() -> None:
    """A name may hold any character, so its key must not be mistaken for another one's."""
    odd = Dim.named("a),name(1:b")
    assert maximum(odd, C) != maximum(A, B, C)
    assert odd * B != A * B
