"""Inputs for commands that run a model: the user's, or made up at usual sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.errors import LoadError, RunError

if TYPE_CHECKING:
    from ortkit.verify.inputs.feeds import Feeds


def candidate_feeds(
    model: Path, inputs: Path | None, shapes: Mapping[str, int]
) -> Iterator[Feeds]:
    """Yield input sets, the most wanted first; only the first if they are the user's.

    Args:
        model: The model's file.
        inputs: The user's npz file.
        shapes: Numbers for named sizes, from the user.

    Raises:
        UserError: The npz file does not fit, or `shapes` names what no input has.
        ModelError: It is no model, or it has an input that cannot be made up.
    """
    from ortkit.graph.io.open import open_model
    from ortkit.measure.inputs import usual_feeds
    from ortkit.verify.inputs.given import load_feeds

    opened = open_model(model)
    if inputs is not None:
        yield load_feeds(inputs, opened)
        return
    yield from usual_feeds(opened, shapes)


def feeds_for(model: Path, inputs: Path | None, shapes: Mapping[str, int]) -> Feeds:
    """Return the first of `candidate_feeds`."""
    return next(candidate_feeds(model, inputs, shapes))


@contextmanager
def blaming_made_up(model: Path, inputs: Path | None) -> Iterator[None]:
    """Say how to give inputs where ONNX Runtime refuses a run on those that were made up."""
    try:
        yield
    except RunError as error:
        ran = not isinstance(error, LoadError) and not error.problem.startswith("out of memory")
        if inputs is None and not error.fix and ran and model.is_file():
            error.fix = f"the inputs were made up: {_how_to_give(model)}"
        raise


def _how_to_give(model: Path) -> str:
    from ortkit.graph.io.open import open_model
    from ortkit.verify.inputs.usual_sizes import how_to_give

    return how_to_give(open_model(model))
