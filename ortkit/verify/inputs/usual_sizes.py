"""Sizes that people run models with, not the small ones of verification."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from ortkit.errors import OrtkitError
from ortkit.graph.symbolic.dims import names
from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.plans import Plan
from ortkit.verify.inputs.sizes import UNNAMED, free_inputs

#: What a size's name says about it; the first pattern that is found decides.
_BY_NAME: tuple[tuple[str, int], ...] = (
    (r"batch|^(b|n|bs|bsz)$", 1),
    (r"height|width|^(h|w)$|^\?axis[23]of4$", 224),
    (r"past|cache|kv_len", 128),
    (r"audio|sample|wave", 16000),
    (r"total", 0),  # follows from the past and the new length
    (r"seq|len|token|time|step|^(s|t|l)$|^\?axis1of2$", 128),
)
_PAST = 128
#: Lengths are divided by these in turn, for models that take no such long input.
_DIVISORS = (1, 2, 8)
#: Number of sizes that a message gives an example of.
_SHOWN_SIZES = 6


def usual_size_plans(maker: FeedMaker) -> Iterator[Plan]:
    """Plan input sets of usual sizes, the most wanted first."""
    seen: list[Mapping[str, int]] = []
    for divisor in _DIVISORS:
        plan = maker.sized(_usual(maker, divisor))
        if plan.sizes not in seen:
            seen.append(plan.sizes)
            yield plan


def how_to_give(model: ir.Model) -> str:
    """Say by which flags a model gets inputs that are not made up, with its own sizes' names."""
    try:
        maker = FeedMaker.of(model, {})
        plan = maker.sized(_usual(maker, _DIVISORS[-1]))
        sizes = {n: size for n, size in plan.sizes.items() if n not in maker.fixed}
    except OrtkitError:  # an input cannot be made up at all
        sizes = {}
    named = [name for name in sizes if not name.startswith(UNNAMED)]
    if not named:
        fed = [value.name or "" for value in free_inputs(model)]
        more = " ..." if len(fed) > _SHOWN_SIZES else ""
        return f"give --inputs FILE.npz with {', '.join(fed[:_SHOWN_SIZES])}{more}"
    more = " ..." if len(named) > _SHOWN_SIZES else ""
    example = " ".join(f"--shape {name}={sizes[name]}" for name in named[:_SHOWN_SIZES])
    return f"give --inputs FILE.npz, or sizes such as {example}{more}"


def _usual(maker: FeedMaker, divisor: int) -> dict[str, int]:
    """Return the usual number of each free size, inferred from its name or its axes."""
    axes: dict[str, set[tuple[int, int]]] = {}
    for shape in maker.shapes:
        for axis, size in enumerate(shape):
            for name in names(size):
                axes.setdefault(name, set()).add((axis, len(shape)))
    pasts = maker.pasts
    inferred = {
        name: _PAST if name in pasts else _inferred(name, axes[name]) for name in sorted(axes)
    }
    return {name: max(1, size // divisor) for name, size in inferred.items() if size}


def _inferred(name: str, axes: Collection[tuple[int, int]]) -> int:
    """Return what a size's name says, or its axes (axis and rank); 0 if neither does."""
    by_name = next((size for pattern, size in _BY_NAME if re.search(pattern, name.lower())), None)
    if by_name is not None:
        return by_name
    if all(axis == 0 and rank > 1 for axis, rank in axes):
        return 1
    if all(rank == 4 and axis >= 2 for axis, rank in axes):
        return 224
    return 128 if all(rank <= 3 for _, rank in axes) else 0
