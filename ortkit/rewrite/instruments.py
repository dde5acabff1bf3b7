"""Ready-made instruments: what to do with the model after each pass."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import InternalError, ModelError
from ortkit.graph.check.model import check_model
from ortkit.graph.io.save import save_model
from ortkit.rewrite.pipeline import Step

Instrument = Callable[[ir.Model, Step], None]


def dump_into(folder: Path) -> Instrument:
    """Return an instrument that saves the model after each change as `NN-ROUND-PASS.onnx`."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = count(1)

    def dump(model: ir.Model, step: Step) -> None:
        if step.rewrites:
            name = f"{next(numbers):02}-{step.round}-{'+'.join(step.passes)}.onnx"
            save_model(model, folder / name)

    return dump


def check_after_each(model: ir.Model, step: Step) -> None:
    """Check the model's structure.

    Raises:
        InternalError: The pass left an invalid model.
    """
    try:
        check_model(model)
    except ModelError as error:
        raise InternalError(
            f"the model is invalid after it: {error}", where=f"pass {'+'.join(step.passes)}"
        ) from error
