"""Inputs of the size that people run models with, not the small ones of verification."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.errors import ModelError, UserError
from ortkit.graph.io.npz import write_npz
from ortkit.graph.symbolic.dims import names
from ortkit.verify.inputs.feeds import FeedMaker, Feeds
from ortkit.verify.inputs.given import load_given
from ortkit.verify.inputs.plans import Plan
from ortkit.verify.inputs.sizes import fitted, size_plans

#: What a size's name says about it; the first pattern that is found decides.
_USUAL: tuple[tuple[str, int], ...] = (
    (r"batch|^(b|n|bs|bsz)$", 1),
    (r"height|width|^(h|w)$|^\?axis[23]of4$", 224),
    (r"past|cache|kv_len", 128),
    (r"audio|sample|wave", 16000),
    (r"total", 0),  # follows from the past and the new length
    (r"seq|len|token|time|step|^(s|t|l)$|^\?axis1of2$", 128),
)
#: Lengths are divided by these in turn, for models that take no such long input.
_DIVISORS = (1, 2, 8)
_FALLBACKS = 12


def write_inputs(
    model: ir.Model, given: Path | None, sizes: Mapping[str, int], folder: Path
) -> tuple[Path, ...]:
    """Write input sets as npz files, the most wanted first.

    Args:
        model: Read, not changed.
        given: The user's npz file, used instead.
        sizes: Numbers for named sizes, from the user.
        folder: Where they are written to.

    Raises:
        UserError: `given` does not fit the model, or `sizes` names what no input has.
        ModelError: An input is of a type that cannot be timed here.
    """
    sets = iter((load_given(given, model)[0].feeds,)) if given else usual_feeds(model, sizes)
    paths = []
    for number, feeds in enumerate(sets):
        path = folder / f"inputs{number}.npz"
        write_npz(path, {name: _plain(name, value) for name, value in feeds.items()})
        paths.append(path)
    return tuple(paths)


def usual_feeds(model: ir.Model, given: Mapping[str, int]) -> Iterator[Feeds]:
    """Yield input sets of usual sizes, the most wanted first; see `write_inputs`.

    Raises:
        ModelError: Not one can be made up.
    """
    maker = FeedMaker.of(model, given)
    places: dict[str, set[tuple[int, int]]] = {}
    for shape in maker.shapes:
        for axis, size in enumerate(shape):
            for name in names(size):
                places.setdefault(name, set()).add((axis, len(shape)))
    seen: list[Mapping[str, int]] = []
    made, refused = 0, None
    for divisor in _DIVISORS:
        usual = {
            name: max(1, size // divisor)
            for name in sorted(places)
            if (size := _usual(name, places[name]))
        }
        plans, _ = size_plans(maker.shapes, 1, {**usual, **given})
        sizes = fitted(plans[0], maker.shapes, maker.fixed)
        if sizes in seen:
            continue
        seen.append(sizes)
        try:
            feeds = maker.make(Plan(sizes, 0))
        except ModelError as error:  # these sizes do not go together, or are too large
            refused = refused or error
            continue
        made += 1
        yield feeds
    for feeds in islice(maker.fallbacks(0), _FALLBACKS):
        made += 1
        yield feeds
    if refused is not None and not made:
        raise refused


def _usual(name: str, places: Collection[tuple[int, int]]) -> int:
    """Return what a size's name says, or its places (axis and rank); 0 if neither does."""
    by_name = next((size for pattern, size in _USUAL if re.search(pattern, name.lower())), None)
    if by_name is not None:
        return by_name
    if all(axis == 0 and rank > 1 for axis, rank in places):
        return 1
    if all(rank == 4 and axis >= 2 for axis, rank in places):
        return 224
    return 128 if all(rank <= 3 for _, rank in places) else 0


def _plain(name: str, value: object) -> np.ndarray:
    """Return an array as npz files hold it without pickling.

    Raises:
        ModelError: It is a sequence, absent, or of a type that numpy lacks.
    """
    if not isinstance(value, np.ndarray) or value.dtype.kind == "V":
        kind = value.dtype.name if isinstance(value, np.ndarray) else type(value).__name__
        raise ModelError(f"input {name!r} ({kind}) cannot be fed for timing")
    if value.dtype.kind == "O":
        return value.astype(str)
    return value


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes in an npz file.

    Raises:
        UserError: It cannot be read.
    """
    try:
        with np.load(path) as file:
            return {name: tuple(file[name].shape) for name in file.files}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read: {error}", where=str(path)) from error
