"""Arithmetic on the elements of small tensors: integers, sizes, floats, fractions of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ortkit.graph.shapes.rules.call import (
    INTEGERS,
    Call,
    Element,
    Elements,
    Fact,
    Ratio,
    Shape,
    UnknownError,
    is_small,
)
from ortkit.graph.symbolic.dims import (
    Dim,
    Size,
    add,
    bounds,
    ceil_divide,
    differ,
    divide_exactly,
    floor_divide,
    is_at_least,
    maximum,
    minimum,
    multiply,
    remainder,
)

#: Arithmetic is done in these only: others wrap around early.
_WRAPS_AT = {ir.DataType.INT64: 2**63, ir.DataType.INT32: 2**31}
#: Fractions with larger parts are not followed: float32 would round them.
_FRACTION_LIMIT = 4096

ElementArray = npt.NDArray[np.object_]
Operation = Callable[[Element, Element], Element]


def as_array(fact: Fact) -> ElementArray | None:
    """Return the elements in their shape, None if unknown."""
    if fact.elements is None or fact.shape is None:
        return None
    array = np.empty(len(fact.elements), dtype=object)
    array[:] = fact.elements
    return array.reshape([size for size in fact.shape if isinstance(size, int)])


def from_array(array: ElementArray) -> Elements:
    """Return an array's elements in row-major order."""
    # numpy hands out a single object as itself and not as an array.
    return tuple(np.asarray(array, dtype=object).reshape(-1).tolist())


def apply(
    call: Call,
    function: Callable[..., Element],
    facts: Sequence[Fact],
    shape: Shape,
    dtype: ir.DataType | None,
) -> Elements | None:
    """Apply an element function to broadcast inputs; None if any contents are unknown.

    An integer result that the function does not know becomes a new unknown element; an
    unknown float makes all of it unknown.
    """
    if any(fact.elements is None for fact in facts):
        return None
    if not is_small(shape):
        return None
    target = [size for size in shape if isinstance(size, int)]
    columns: list[Sequence[Element]] = []
    for fact in facts:
        array = as_array(fact)
        if array is None:
            return None
        columns.append(np.broadcast_to(array, target).reshape(-1).tolist())
    wrap = None if dtype is None else _WRAPS_AT.get(dtype)
    results: list[Element] = []
    for row in zip(*columns, strict=True):
        try:
            result = function(*row)
            if wrap is not None and isinstance(result, int) and not -wrap <= result < wrap:
                raise UnknownError
        except (UnknownError, ZeroDivisionError, OverflowError):
            if dtype not in INTEGERS:
                return None
            result = call.fresh_element()
        results.append(_rounded(result) if dtype == ir.DataType.FLOAT else result)
    return tuple(results)


def can_compute(dtype: ir.DataType | None) -> bool:
    """Say whether arithmetic on elements of this type is followed."""
    return dtype in _WRAPS_AT or dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _rounded(element: Element) -> Element:
    return float(np.float32(element)) if isinstance(element, float) else element


# ---- fractions of sizes ------------------------------------------------------------------


def _parts(element: Element) -> tuple[Size, int]:
    """Return numerator and denominator.

    Raises:
        UnknownError: A float with large parts, or not finite.
    """
    if isinstance(element, Ratio):
        return element.over, element.under
    if not isinstance(element, float):
        return element, 1
    if not math.isfinite(element):
        raise UnknownError
    over, under = element.as_integer_ratio()
    if under > _FRACTION_LIMIT or abs(over) > _FRACTION_LIMIT * _FRACTION_LIMIT:
        raise UnknownError
    return over, under


def _fraction(over: Size, under: Size) -> Element:
    """Return the quotient as the element of a float tensor.

    Raises:
        UnknownError: The divisor is a size and does not divide, or is 0 or large.
    """
    if under == 0:
        raise UnknownError
    exact = divide_exactly(over, under)
    if exact is not None:
        return float(exact) if isinstance(exact, int) else exact
    if not isinstance(under, int) or abs(under) > _FRACTION_LIMIT:
        raise UnknownError
    if isinstance(over, int):
        return over / under
    return Ratio(over, under) if under > 0 else Ratio(_dim(-over), -under)


def _dim(size: Size) -> Dim:
    if isinstance(size, int):
        raise UnknownError
    return size


# ---- operations on two elements ----------------------------------------------------------


def added(left: Element, right: Element) -> Element:
    """Return the sum."""
    if isinstance(left, int | Dim) and isinstance(right, int | Dim):
        return add(left, right)
    if isinstance(left, float) and isinstance(right, float):
        return left + right
    (a, b), (c, d) = _parts(left), _parts(right)
    return _fraction(add(multiply(a, d), multiply(c, b)), b * d)


def negated(element: Element) -> Element:
    """Return the negative."""
    if isinstance(element, Ratio):
        return Ratio(_dim(-element.over), element.under)
    return -element


def subtracted(left: Element, right: Element) -> Element:
    """Return the difference."""
    return added(left, negated(right))


def multiplied(left: Element, right: Element) -> Element:
    """Return the product."""
    if isinstance(left, int | Dim) and isinstance(right, int | Dim):
        return multiply(left, right)
    if isinstance(left, float) and isinstance(right, float):
        return left * right
    (a, b), (c, d) = _parts(left), _parts(right)
    return _fraction(multiply(a, c), b * d)


def divided_as_integers(left: Element, right: Element) -> Element:
    """Return the quotient rounded towards 0, as C does."""
    if not isinstance(left, int | Dim) or not isinstance(right, int | Dim) or right == 0:
        raise UnknownError
    exact = divide_exactly(left, right)
    if exact is not None:
        return exact
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    if is_at_least(left, 0) and is_at_least(right, 0):
        return floor_divide(left, right)
    raise UnknownError


def divided_as_floats(left: Element, right: Element) -> Element:
    """Return the quotient of two elements of a float tensor."""
    if isinstance(left, float) and isinstance(right, float):
        return left / right
    (a, b), (c, d) = _parts(left), _parts(right)
    return _fraction(multiply(a, d), multiply(b, c))


def modulo(left: Element, right: Element) -> Element:
    """Return the remainder of integers with the divisor's sign."""
    if not isinstance(left, int | Dim) or not isinstance(right, int | Dim):
        raise UnknownError
    return remainder(left, right)


def larger(left: Element, right: Element) -> Element:
    """Return the maximum."""
    if isinstance(left, int | Dim) and isinstance(right, int | Dim):
        return maximum(left, right)
    if isinstance(left, float) and isinstance(right, float):
        return max(left, right)
    if isinstance(left, Ratio) or isinstance(right, Ratio):
        raise UnknownError
    return _as_float_element(maximum(_whole(left), _whole(right)))


def smaller(left: Element, right: Element) -> Element:
    """Return the minimum."""
    if isinstance(left, int | Dim) and isinstance(right, int | Dim):
        return minimum(left, right)
    if isinstance(left, float) and isinstance(right, float):
        return min(left, right)
    return _as_float_element(minimum(_whole(left), _whole(right)))


def _whole(element: Element) -> Size:
    if isinstance(element, Ratio) or (isinstance(element, float) and not element.is_integer()):
        raise UnknownError
    return int(element) if isinstance(element, float) else element


def _as_float_element(size: Size) -> Element:
    return float(size) if isinstance(size, int) else size


# ---- comparisons: 0 or 1 -----------------------------------------------------------------


def equal(left: Element, right: Element) -> Element:
    """Return 1 or 0 where provable."""
    if isinstance(left, float) and isinstance(right, float):
        return int(left == right)
    a, b = _whole(left), _whole(right)
    if a == b:
        return 1
    if differ(a, b):
        return 0
    raise UnknownError


def greater(left: Element, right: Element) -> Element:
    """Return 1 or 0 where provable."""
    if isinstance(left, float) and isinstance(right, float):
        return int(left > right)
    a, b = _whole(left), _whole(right)
    if is_at_least(a, add(b, 1)):
        return 1
    if is_at_least(b, a):
        return 0
    raise UnknownError


def less(left: Element, right: Element) -> Element:
    """Return 1 or 0 where provable."""
    return greater(right, left)


def greater_or_equal(left: Element, right: Element) -> Element:
    """Return 1 or 0 where provable."""
    if isinstance(left, float) and isinstance(right, float):
        return int(left >= right)
    return _flip(greater(right, left))


def less_or_equal(left: Element, right: Element) -> Element:
    """Return 1 or 0 where provable."""
    return greater_or_equal(right, left)


def _flip(element: Element) -> Element:
    if not isinstance(element, int):
        raise UnknownError
    return 1 - element


def negation(element: Element) -> Element:
    """Return the other truth value."""
    return _flip(element)


def both(left: Element, right: Element) -> Element:
    """Return the conjunction; one 0 decides."""
    if left == 0 or right == 0:
        return 0
    if isinstance(left, int) and isinstance(right, int):
        return 1
    raise UnknownError


def either(left: Element, right: Element) -> Element:
    """Return the disjunction; one 1 decides."""
    if left == 1 or right == 1:
        return 1
    if left == 0 and right == 0:
        return 0
    raise UnknownError


def not_both(left: Element, right: Element) -> Element:
    """Return the exclusive disjunction."""
    if isinstance(left, int) and isinstance(right, int):
        return int(left != right)
    raise UnknownError


def chosen(condition: Element, left: Element, right: Element) -> Element:
    """Return `left` where the condition is 1, `right` where it is 0, either if equal."""
    if condition == 1 or left == right:
        return left
    if condition == 0:
        return right
    raise UnknownError


# ---- one element -------------------------------------------------------------------------


def floor(element: Element) -> Element:
    """Round down, in a float tensor."""
    if isinstance(element, Ratio):
        return _as_float_element(floor_divide(element.over, element.under))
    return float(math.floor(element)) if isinstance(element, float) else element


def ceil(element: Element) -> Element:
    """Round up, in a float tensor."""
    if isinstance(element, Ratio):
        return _as_float_element(ceil_divide(element.over, element.under))
    return float(math.ceil(element)) if isinstance(element, float) else element


def absolute(element: Element) -> Element:
    """Return the absolute value."""
    if isinstance(element, int | float):
        return abs(element)
    size = element.over if isinstance(element, Ratio) else element
    if is_at_least(size, 0):
        return element
    raise UnknownError


def as_integer(element: Element) -> Element:
    """Convert to an integer, rounding towards 0."""
    if isinstance(element, float):
        if not math.isfinite(element):
            raise UnknownError
        return int(element)
    if not isinstance(element, Ratio):
        return element
    if not is_at_least(element.over, 0):
        raise UnknownError
    return floor_divide(element.over, element.under)


def as_float(element: Element) -> Element:
    """Convert to an element of a float tensor."""
    return float(element) if isinstance(element, int) else element


def as_truth(element: Element) -> Element:
    """Convert to 0 or 1."""
    if isinstance(element, int | float):
        return int(element != 0)
    size = element.over if isinstance(element, Ratio) else element
    if differ(size, 0):
        return 1
    raise UnknownError


def fits(element: Element, low: int, high: int) -> bool:
    """Say whether an integer provably lies in [low, high]."""
    if not isinstance(element, int | Dim):
        return False
    least, most = bounds(element)
    return least is not None and most is not None and low <= least and most <= high
