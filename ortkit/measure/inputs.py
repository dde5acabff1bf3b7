"""Inputs of the size that people run models with, not the small ones of verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.errors import ModelError, UserError
from ortkit.graph.io.npz import write_npz
from ortkit.verify.inputs.feeds import FeedMaker, Feeds
from ortkit.verify.inputs.given import load_given
from ortkit.verify.inputs.usual_sizes import usual_size_plans

_FALLBACKS = 12


def write_inputs(
    model: ir.Model, given: Path | None, sizes: Mapping[str, int], folder: Path
) -> tuple[Path, ...]:
    """Write input sets as npz files, the most wanted first; see `written_inputs`."""
    return tuple(written_inputs(model, given, sizes, folder))


def written_inputs(
    model: ir.Model, given: Path | None, sizes: Mapping[str, int], folder: Path
) -> Iterator[Path]:
    """Write one input set after the other as npz files, the most wanted first.

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
    for number, feeds in enumerate(sets):
        path = folder / f"inputs{number}.npz"
        write_npz(path, {name: _plain(name, value) for name, value in feeds.items()})
        yield path


def usual_feeds(model: ir.Model, given: Mapping[str, int]) -> Iterator[Feeds]:
    """Yield input sets of usual sizes, the most wanted first; see `write_inputs`.

    Raises:
        ModelError: Not one can be made up.
    """
    maker = FeedMaker.of(model, given)
    made, refused = 0, None
    for plan in usual_size_plans(maker):
        try:
            feeds = maker.make(plan)
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
