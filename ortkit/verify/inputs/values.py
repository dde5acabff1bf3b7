"""Numbers for one input, given what they mean."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortkit.graph.symbolic.text import parse_size
from ortkit.verify.inputs.input_semantics import Bound, InputUse
from ortkit.verify.inputs.masks import make_counted_mask, make_mask
from ortkit.verify.inputs.plans import Plan
from ortkit.verify.inputs.sizes import concrete

_WORDS = ("a", "be", "sea", "dawn", "elbow", "", "fjord ", "Größe")
_NUMERALS = ("0", "1", "2", "3.5", "-4")


#: Floats are scaled by this where the squares of such numbers can be summed in their type.
_LARGE = 100.0
_LARGE_IN_HALVES = 10.0
#: Of float16 and of other types: numbers near the end of its range, and as large in others.
_HUGE = {True: 4096.0, False: 10_000.0}
#: Integers that are only computed with: negative ones, and some whose products exceed 32 bits.
_COUNTED_WITH = (-1, -7, 40_000, -40_001)
#: What is added to positions where it is not known how many there are.
_SHIFTED = 7
#: Trips of a Loop in turn.
_ITERATIONS = (3, 11, 1, 0, 4)
#: The mean of rows whose standard deviation is 0.01, in half precision and in other types.
_OFFSET = {True: 0.2, False: 0.5}
#: The part of a tensor's elements that is given a number beside a guard, or an unusual one.
_SPRINKLED = 8


def make_value(
    use: InputUse,
    dtype: ir.DataType,
    shape: tuple[int, ...],
    plan: Plan,
    name: str,
    guards: Sequence[float] = (),
) -> np.ndarray:
    """Make one tensor; the same arguments give the same numbers.

    Args:
        use: What the numbers mean.
        dtype: Their type.
        shape: The tensor's.
        plan: How the input set is made.
        name: The input's name, which decides the numbers with the plan's seed.
        guards: Numbers that the model compares the tensor's elements with.
    """
    # crc-like mixing is not needed: the name's bytes as seed words keep inputs independent.
    random = np.random.default_rng([plan.seed, *name.encode()])
    if dtype == ir.DataType.STRING:
        words = _WORDS if plan.int_bound > 2 else _NUMERALS  # some models parse numbers
        return random.choice(np.array(words, dtype=object), shape).reshape(shape)
    if dtype == ir.DataType.BOOL and use.meaning in ("free", "index"):
        made = _flags(shape, plan, random)
    elif use.meaning == "free":
        made = _free(use, dtype, shape, plan, random, guards)
    else:
        made = _meant(use, dtype, shape, plan, random, guards)
    return np.asarray(made).reshape(shape).astype(dtype.numpy())


def _flags(shape: tuple[int, ...], plan: Plan, random: np.random.Generator) -> np.ndarray:
    """Draw booleans; a single one alternates over the samples, so that both branches run."""
    if plan.mask in ("ones", "zeros"):
        return np.full(shape, plan.mask == "ones")
    return random.random(shape) < 0.5 if shape else np.array(plan.seed % 2 == 0)


def _free(
    use: InputUse,
    dtype: ir.DataType,
    shape: tuple[int, ...],
    plan: Plan,
    random: np.random.Generator,
    guards: Sequence[float],
) -> np.ndarray:
    if dtype.is_floating_point():
        made = _styled(random.standard_normal(shape), dtype, plan)
        beside = _beside(guards, whole=False)
        if dtype.bitwidth >= 16:
            beside = [number for number in beside if dtype.min <= number <= dtype.max]
        if plan.floats == "NaN":
            beside = [np.nan]
        if plan.floats == "special":
            beside = [*beside, np.inf, -np.inf, np.nan, -0.0, *_limits(dtype)]
        made = _sprinkled(made, beside, plan, random)
        return np.abs(made) if dtype == ir.DataType.FLOAT8E8M0 else made
    if not dtype.is_integer():
        return random.standard_normal(shape) + 1j * random.standard_normal(shape)
    low, high = int(dtype.min), int(dtype.max)
    if dtype.bitwidth <= 8:  # quantized numbers and image bytes use all of their range
        made = random.integers(low, high + 1, shape)
    else:
        made = random.integers(0, plan.int_bound, shape)
    beside = _beside(guards, whole=True) + list(_COUNTED_WITH if use.is_counted_with else ())
    beside = [number for number in beside if low <= number <= high]
    return _sprinkled(np.asarray(made), beside, plan, random)


def _styled(made: np.ndarray, dtype: ir.DataType, plan: Plan) -> np.ndarray:
    """Scale standard normal numbers, or put zeros in their place."""
    made = np.array(made)
    factor = 1.0 if dtype.bitwidth <= 8 else _LARGE
    factor = _LARGE_IN_HALVES if dtype == ir.DataType.FLOAT16 else factor
    match plan.floats:
        case "large":
            return np.asarray(made * factor)
        case "positive" | "negative":
            return np.asarray(np.abs(made) * (factor if plan.floats == "positive" else -factor))
        case "huge":
            return np.asarray(np.abs(made) * _HUGE[dtype == ir.DataType.FLOAT16])
        case "sparse" if made.ndim:
            made = made if dtype.bitwidth <= 8 else made / _LARGE
            made.reshape(-1)[::7] = 0.0
            made.reshape(-1, made.shape[-1] or 1)[1::4] = 0.0
        case "normal" if plan.edges and made.ndim and dtype.bitwidth > 8:
            # The mean of some rows is large beside what their elements differ by.
            rows = made.reshape(-1, made.shape[-1] or 1)
            rows[::4] = rows[::4] / _LARGE + _OFFSET[dtype.bitwidth == 16]
        case "zeros":
            return np.zeros_like(made)
    return made


def _limits(dtype: ir.DataType) -> list[float]:
    """Return the largest and the smallest positive normal number of a type."""
    if dtype.bitwidth < 16:
        return []
    return [float(dtype.max), float(dtype.min), 2.0**-14, -(2.0**-14)]


def _beside(guards: Sequence[float], *, whole: bool) -> list[float]:
    """Return numbers on both sides of guards, and the guards."""
    found = []
    for guard in guards:
        step = 1.0 if whole else max(abs(guard) / 8, 2.0**-6)
        found += [guard - step, guard, guard + step]
    return found


def _sprinkled(
    made: np.ndarray, numbers: Sequence[float], plan: Plan, random: np.random.Generator
) -> np.ndarray:
    """Put numbers in the place of some elements; a single element takes them in turn."""
    if not numbers or made.size == 0 or not plan.edges:
        return made
    flat = made.reshape(-1).copy()
    if made.size == 1:
        flat[0] = numbers[plan.seed % len(numbers)]
    else:
        count = min(made.size - 1, max(len(numbers), made.size // _SPRINKLED))
        indices = random.choice(made.size, count, replace=False)
        flat[indices] = np.resize(np.asarray(numbers), count)
    return flat.reshape(made.shape)


def _meant(
    use: InputUse,
    dtype: ir.DataType,
    shape: tuple[int, ...],
    plan: Plan,
    random: np.random.Generator,
    guards: Sequence[float],
) -> np.ndarray:
    """Make numbers with a meaning; shapes are right, types are set by the caller."""
    match use.meaning:
        case "index":
            made = _indices(_limit(use, plan), shape, plan, random, guards)
            if use.ignored is not None:
                made = _sprinkled(made, [use.ignored], plan, random)
            counts_back = use.counts_back and use.bounds and not use.shift
            return (
                _counted_back(made, _limit(use, plan)) if counts_back and plan.backwards else made
            )
        case "position":
            return _positions(use, shape, plan)
        case "mask":
            return make_mask(shape, plan, random)
        case "counted mask":
            return make_counted_mask(shape, plan, random)
        case "additive mask":
            return np.asarray((1 - make_mask(shape, plan, random)) * -1e4)
        case "length":
            return random.integers(1, _longest(use, plan) + 1, shape)
        case "total length" | "last key":
            return np.full(shape, _total(plan) - (use.meaning == "last key"))
        case "target shape" if len(shape) == 1 and shape[0]:
            return np.array([1] * (shape[0] - 1) + [-1])
        case "ones" if dtype.is_floating_point() and len(shape) == 1:  # scales of a resize
            return np.array([1.0] * max(shape[0] - 2, 0) + [2.0] * min(shape[0], 2))
        case "axes":
            return np.arange(int(np.prod(shape)))
        case "start":
            return np.zeros(shape)
        case "trips":
            return np.full(shape, 3 + plan.seed % 2)
        case "iterations":
            return np.full(shape, _ITERATIONS[plan.seed % len(_ITERATIONS)])
    return _ranged(use, dtype, shape, random)


def _ranged(
    use: InputUse, dtype: ir.DataType, shape: tuple[int, ...], random: np.random.Generator
) -> np.ndarray:
    """Make numbers that lie in the domain of the op that reads them."""
    match use.meaning:
        case "divisor" if dtype.is_integer():
            return random.integers(1, 5, shape)
        case "divisor":
            return np.asarray(random.uniform(0.5, 2.0, shape) * random.choice((-1, 1), shape))
        case "corners" if shape[-1:] == (4,):
            low = random.uniform(0.0, 0.6, (*shape[:-1], 2))
            return np.concatenate([low, low + random.uniform(0.1, 0.4, low.shape)], axis=-1)
        case "unit":
            return random.uniform(0.0, 1.0, shape)
        case "positive":
            return random.uniform(0.1, 2.0, shape)
        case "narrow":
            return random.uniform(-0.9, 0.9, shape)
        case "at least one":
            return random.uniform(1.0, 3.0, shape)
    return np.ones(shape)


def _indices(
    limit: int,
    shape: tuple[int, ...],
    plan: Plan,
    random: np.random.Generator,
    guards: Sequence[float],
) -> np.ndarray:
    """Draw indices below `limit`, the first and the last one among them where asked for."""
    made = np.asarray(random.integers(0, limit, shape))
    if not plan.edges or made.size == 0:
        return made
    beside = [number for number in _beside(guards, whole=True) if 0 <= number < limit]
    made = _sprinkled(made, beside, plan, random)
    flat = made.reshape(-1).copy()
    flat[-1] = limit - 1
    if flat.size > 1:
        flat[0] = 0
    return flat.reshape(shape)


def _counted_back(made: np.ndarray, limit: int) -> np.ndarray:
    """Name some indices from the end: every third one, the last one among them."""
    flat = made.reshape(-1).copy()
    flat[::-3] -= limit
    return flat.reshape(made.shape)


def _positions(use: InputUse, shape: tuple[int, ...], plan: Plan) -> np.ndarray:
    """Count on from the past along the last axis, within the table of positions.

    Where numbers are to be unusual, rows differ in turn. One ends at the last row of the table.
    One stands still at first, as behind padding on the left. One is as usual.
    """
    start, length = _past(plan), shape[-1] if shape else 1
    count = np.arange(start, start + length)
    rows = np.array(np.broadcast_to(count.reshape(shape[-1:]), shape))
    if plan.edges and rows.ndim:
        flat = rows.reshape(-1, length)
        flat[0::3] += max(0, _limit(use, plan) - start - length) if use.bounds else _SHIFTED
        flat[1::3] = np.maximum(flat[1::3] - length // 4, start)
    return rows % _limit(use, plan) if use.bounds else rows


def _limit(use: InputUse, plan: Plan) -> int:
    sizes = [number for bound in use.bounds if (number := _number(bound, plan)) is not None]
    return max(1, min(sizes) - use.shift) if sizes else plan.int_bound


def _longest(use: InputUse, plan: Plan) -> int:
    if use.bounds:
        return _limit(use, plan)
    lengths = [n for name, n in plan.sizes.items() if re.search(r"seq|len|time|frame", name)]
    return max(1, min(lengths)) if lengths else max(1, min(4, plan.int_bound))


def _number(bound: Bound, plan: Plan) -> int | None:
    return bound if isinstance(bound, int) else concrete(parse_size(bound), plan.sizes)


def _past(plan: Plan) -> int:
    return _sum_of(r"past", plan) if plan.past is None else plan.past


def _total(plan: Plan) -> int:
    """Return how many tokens there are, past ones included."""
    named = _sum_of(r"^(?!.*(past|total)).*(seq|len|token)", plan)
    return _past(plan) + max(1, named if plan.new is None else plan.new)


def _sum_of(pattern: str, plan: Plan) -> int:
    return sum(n for name, n in plan.sizes.items() if re.search(pattern, name.lower()))
