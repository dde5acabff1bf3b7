"""The input sets that fewer bits are calibrated and judged on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ortkit.errors import ModelError
from ortkit.graph.io.open import open_model
from ortkit.precision.calibrate import read_sets
from ortkit.refusal import Refused
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.inputs.batch_rows import FewRows, rows_of_sets
from ortkit.verify.inputs.covering import Level
from ortkit.verify.inputs.feeds import Feeds
from ortkit.verify.inputs.given import load_given
from ortkit.verify.reference import Request, compute_reference, input_sets

#: Input sets of the user that accuracy is measured on; all are used for ranges.
JUDGED = 4
#: Made-up sets that products are chosen on: each takes a run of every choice that is tried.
_TRIED = 2


@dataclass(frozen=True)
class Data:
    """Input sets on disk, as `verify.exchange` writes them."""

    judged: tuple[Path, ...]
    """What accuracy is measured on."""
    calibrating: tuple[Path, ...]
    """What ranges are found on; empty if the user gave nothing."""
    given: tuple[Feeds, ...]
    """What is judged on."""
    text: str
    is_random: bool
    tried: tuple[Path, ...]
    """What products are chosen and timed on."""
    few: FewRows | None = None
    """The rows of the batch that these sets have, if not all, and what computes them."""


def gather(
    original: Path,
    folder: Path,
    *,
    inputs: Path | None,
    calibrate: Path | None,
    samples: int | Level,
    shapes: Mapping[str, int],
) -> Data | str:
    """Read the user's input sets, or make some up that the model runs on.

    Returns:
        The data, or why there are none.

    Raises:
        UserError: What the user gave does not fit the model.
    """
    model = open_model(original)
    ranged = [] if calibrate is None else read_sets(calibrate, model)
    judged: list[Feeds] = (
        [] if inputs is None else [each.feeds for each in load_given(inputs, model)]
    )
    if judged:
        text = f"the inputs of {inputs}"
    elif ranged:
        judged = ranged[:JUDGED]
        text = f"{len(judged)} of {len(ranged)} calibration samples of {calibrate}"
    else:
        return _made_up(original, folder, samples, shapes)
    judged_sets = _written(judged, folder / "judged")
    # What is judged on serves as calibration data where nothing else does.
    calibrating = _written(ranged, folder / "calibrating") if ranged else judged_sets
    return Data(judged_sets, calibrating, tuple(judged), text, is_random=False, tried=judged_sets)


def _made_up(
    original: Path, folder: Path, samples: int | Level, shapes: Mapping[str, int]
) -> Data | str:
    request = Request(
        open_model(original), original, samples=samples, shapes=shapes, is_usual=True
    )
    found = compute_reference(request, folder / "reference")
    if isinstance(found, Refused):
        return found.reason
    few = compute_reference(replace(request, samples=_TRIED), folder / "tried")
    tried = found.feeds[:1] if isinstance(few, Refused) else few.feeds
    if len(found.excluded) == len(found.outputs):
        return "every output depends on random numbers"
    text = "made-up random inputs, which say little about real ones"
    given = tuple(read_values(each) for each in found.feeds)
    return Data(found.feeds, (), given, text, is_random=True, tried=tried)


def gather_few(
    found: FewRows, folder: Path, *, inputs: Path | None, original: Path, samples: int | Level
) -> Data | str:
    """Read a few rows of the user's input sets, or make them up.

    Args:
        found: The rows that stand for the batch.
        folder: Where the sets are written.
        inputs: The user's.
        original: The model with all rows.
        samples: As for `Request`.

    Returns:
        The data, or why there are none.

    Raises:
        UserError: What the user gave does not fit the model.
    """
    if inputs is not None:
        read = load_given(inputs, open_model(original))
        sets = [found.of(each.feeds, number) for number, each in enumerate(read)]
        text, is_random = f"the inputs of {inputs}, {found.text}", False
    else:
        level = "quick" if isinstance(samples, int) else samples
        request = Request(
            found.cut.model, original, level, most_sets=found.cut.rows, is_usual=True
        )
        try:
            made = rows_of_sets(found.cut, found.axes, input_sets(request).first)
        except ModelError as error:
            return error.problem
        if not made:
            return "an input has no rows"
        sets = [dict(each.feeds) for each in made]
        text, is_random = f"made-up random inputs, {found.text}", True
    judged = _written(sets, folder / "judged")
    few = replace(found, sets=tuple(sets))
    return Data(judged, judged, few.sets, text, is_random=is_random, tried=judged, few=few)


def _written(sets: Sequence[Feeds], folder: Path) -> tuple[Path, ...]:
    found = []
    for number, feeds in enumerate(sets):
        write_feeds(folder / str(number), feeds)
        found.append(folder / str(number))
    return tuple(found)
