"""Numbers for one input, given what they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.graph.dim_text import parse_size
from ortkit.verify.sizes import concrete
from ortkit.verify.uses import Bound, InputUse

_WORDS = ("a", "be", "sea", "dawn", "elbow", "", "fjord ", "Größe")
_NUMERALS = ("0", "1", "2", "3.5", "-4")


@dataclass(frozen=True)
class Plan:
    """How one input set is made."""

    sizes: Mapping[str, int]
    seed: int
    int_bound: int = 10
    """Integers of unknown meaning stay below this."""


def make_value(
    use: InputUse, dtype: ir.DataType, shape: tuple[int, ...], plan: Plan, name: str
) -> np.ndarray:
    """Make one tensor; the same arguments give the same numbers."""
    # crc-like mixing is not needed: the name's bytes as seed words keep inputs independent.
    random = np.random.default_rng([plan.seed, *name.encode()])
    if dtype == ir.DataType.STRING:
        words = _WORDS if plan.int_bound > 2 else _NUMERALS  # some models parse numbers
        return random.choice(np.array(words, dtype=object), shape).reshape(shape)
    if dtype == ir.DataType.BOOL and use.meaning in ("free", "index"):
        made = _flags(shape, plan, random)
    elif use.meaning == "free":
        made = _free(dtype, shape, plan, random)
    else:
        made = _meant(use, dtype, shape, plan, random)
    return np.asarray(made).reshape(shape).astype(dtype.numpy())


def _flags(shape: tuple[int, ...], plan: Plan, random: np.random.Generator) -> np.ndarray:
    """Draw booleans; a single one alternates over the samples, so that both branches run."""
    return random.random(shape) < 0.5 if shape else np.array(plan.seed % 2 == 0)


def _free(
    dtype: ir.DataType, shape: tuple[int, ...], plan: Plan, random: np.random.Generator
) -> np.ndarray:
    if dtype.is_floating_point():
        normal = random.standard_normal(shape)
        return np.abs(normal) if dtype == ir.DataType.FLOAT8E8M0 else normal
    if not dtype.is_integer():
        return random.standard_normal(shape) + 1j * random.standard_normal(shape)
    if dtype.bitwidth <= 8:  # quantized numbers and image bytes use all of their range
        return random.integers(int(dtype.min), int(dtype.max) + 1, shape)
    return random.integers(0, plan.int_bound, shape)


def _meant(
    use: InputUse,
    dtype: ir.DataType,
    shape: tuple[int, ...],
    plan: Plan,
    random: np.random.Generator,
) -> np.ndarray:
    """Make numbers with a meaning; shapes are right, types are set by the caller."""
    match use.meaning:
        case "index":
            return random.integers(0, _limit(use, plan), shape)
        case "position":
            return _positions(use, shape, plan)
        case "mask":
            return _mask(shape, plan, random)
        case "additive mask":
            return np.asarray((1 - _mask(shape, plan, random)) * -1e4)
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


def _mask(shape: tuple[int, ...], plan: Plan, random: np.random.Generator) -> np.ndarray:
    """Make rows of ones, every second one ending in zeros, as padded batches look.

    The first element of a row is always one: a query that sees nothing has no defined result.
    """
    if not shape:
        return np.ones(())
    rows, length = int(np.prod(shape[:-1])), shape[-1]
    ends = random.integers(1, length + 1, rows) if length else np.zeros(rows, np.int64)
    ends[plan.seed % 2 :: 2] = length
    return (np.arange(length) < ends[:, None]).astype(np.int64).reshape(shape)


def _positions(use: InputUse, shape: tuple[int, ...], plan: Plan) -> np.ndarray:
    """Count on from the past along the last axis, within the table of positions."""
    start = _sum_of(r"past", plan)
    count = np.arange(start, start + (shape[-1] if shape else 1))
    if use.bounds:
        count = count % _limit(use, plan)
    return np.broadcast_to(count.reshape(shape[-1:]), shape)


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


def _total(plan: Plan) -> int:
    """Return how many tokens there are, past ones included."""
    return _sum_of(r"past", plan) + max(1, _sum_of(r"^(?!.*(past|total)).*(seq|len|token)", plan))


def _sum_of(pattern: str, plan: Plan) -> int:
    return sum(n for name, n in plan.sizes.items() if re.search(pattern, name.lower()))
