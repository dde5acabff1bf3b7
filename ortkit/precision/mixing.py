"""Products in bfloat16 beside those in 8 bits: what the budget keeps out of them, and more.

One order has both. First products are rounded to bfloat16, which harms little. Then they go on to
8 bits, the one that harms least for what it saves first. What the budget allows of the order is
measured on the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.anchor import NOMINAL_SIZE
from ortkit.precision.attention import RoundedAttention
from ortkit.precision.budget import Choice, Trial, flags_after, order_of
from ortkit.precision.candidates import Measured
from ortkit.precision.convolutions import convolution_refusal
from ortkit.precision.forms import RoundedBf16
from ortkit.precision.products import Product

#: Forms that are computed in bfloat16 by kernels of ours alone.
ROUNDED = (RoundedBf16, RoundedAttention)

#: Nanoseconds on one thread of an Emerald Rapids, 2026-11-29. What a multiply-add in bfloat16
#: takes more than one in 8 bits, and a weight, which has a byte more.
_MULTIPLY, _WEIGHT = 1.2e-3, 0.083
#: A number that is quantized: the part that every thread does, and the part that they share.
_LOOK, _ROUND = 0.15, 0.25
#: The node that quantizes.
_NODE = 3e3


def rounded_forms(products: Iterable[Product], shapes: Shapes, level: str) -> list[RoundedBf16]:
    """Return the products that have kernels in bfloat16, in that form.

    Args:
        products: Products and convolutions.
        shapes: Of their model.
        level: Of processors, or `native`.
    """
    return [
        RoundedBf16(product)
        for product in products
        if product.kind == "product"
        or (product.kind == "convolution" and not convolution_refusal(product, shapes, level))
    ]


def slower_in_int8(products: Iterable[Product], shapes: Shapes, threads: int) -> frozenset[str]:
    """Return the keys of products that are predicted to be no faster in 8 bits than in bfloat16.

    What several products multiply is quantized once, so that they count together.

    Args:
        products: Those that have both forms; convolutions are not predicted.
        shapes: Of their model.
        threads: Of a session.
    """
    readers: dict[object, list[Product]] = {}
    for product in products:
        if product.kind == "product":
            readers.setdefault(product.x, []).append(product)
    found: set[str] = set()
    for together in readers.values():
        rows = _rows(shapes, together[0])
        depth = together[0].array().shape[0]
        columns = sum(product.array().shape[1] for product in together)
        saved = depth * columns * (rows * _MULTIPLY / threads + _WEIGHT)
        if saved <= rows * depth * (_LOOK + _ROUND / threads) + _NODE:
            found |= {product.key for product in together}
    return frozenset(found)


def _rows(shapes: Shapes, product: Product) -> int:
    shape = shapes.shape(product.x) or (None,)
    return math.prod(size if isinstance(size, int) else NOMINAL_SIZE for size in shape[:-1])


def mixed_order(
    measured: Sequence[Measured], kept: Collection[str]
) -> tuple[tuple[int, ...], Mapping[int, int]]:
    """Return the order in which forms are taken, and which take the place of others.

    Args:
        measured: Forms in 8 bits and of attention, and those of products in bfloat16.
        kept: Keys of products that do not go on to 8 bits.
    """
    rounded = {
        one.form.product.key: index
        for index, one in enumerate(measured)
        if isinstance(one.form, RoundedBf16)
    }
    first = [index for index, one in enumerate(measured) if isinstance(one.form, ROUNDED)]
    second = [
        index
        for index, one in enumerate(measured)
        if not isinstance(one.form, ROUNDED) and one.form.product.key not in kept
    ]
    trials = [Trial(one.harm, one.saved_us) for one in measured]
    order = (*_sorted(trials, first), *_sorted(trials, second))
    replaces = {
        index: rounded[key]
        for index in second
        if (key := measured[index].form.product.key) in rounded
    }
    return order, replaces


def _sorted(trials: Sequence[Trial], indices: Sequence[int]) -> list[int]:
    return [indices[index] for index in order_of([trials[index] for index in indices])]


def all_rounded(choice: Choice, measured: Sequence[Measured]) -> Choice:
    """Return the choice of every form in bfloat16 and no other, with the curve if it is on it."""
    flags = tuple(isinstance(one.form, ROUNDED) for one in measured)
    if flags_after(choice, sum(flags)) == flags:
        return replace(choice, flags=flags)
    order, _ = mixed_order(measured, {one.form.product.key for one in measured})
    return Choice(flags, order, ())


def widened_choice(choice: Choice, count: int) -> Choice:
    """Return a choice with flags for `count` further forms, which it does not take."""
    return Choice((*choice.flags, *[False] * count), choice.order, choice.curve)
