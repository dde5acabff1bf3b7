"""Advice on the settings of one model's sessions, on inputs as `compare` makes them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ortkit.comparison.batches import batch_axis
from ortkit.comparison.feeding import candidates, first_that_runs
from ortkit.graph.io.open import open_model
from ortkit.runtime.advice.advise import advise
from ortkit.runtime.advice.result import Advice
from ortkit.runtime.advice.use import Use
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.workers.planning import plan_session
from ortkit.temporary import TemporaryFolder


def advise_model(
    model: Path,
    use: Use,
    *,
    inputs: Path | None,
    shapes: Mapping[str, int],
    trust: bool,
    progress: Callable[[str], None],
) -> Advice:
    """Measure which settings suit a use of a model on the CPU.

    Args:
        model: Path of the model's file.
        use: What sessions of it are to do.
        inputs: An npz file to run on; None: inputs are made up.
        shapes: Numbers for named sizes.
        trust: Whether a kernel library of the model is loaded that was built elsewhere.
        progress: Called with what is being done.

    Raises:
        ModelError: It is no valid model.
        RunError: It does not run on any inputs.
        UserError: The inputs or sizes do not fit the model.
    """
    progress("find inputs")
    opened = open_model(model)
    with TemporaryFolder("advise") as folder:
        plan = plan_session(model, SessionSettings("cpu", trust=trust), lambda: folder)
        found = candidates(model, opened, inputs, shapes, None, batch_axis(opened))
        first_that_runs(found, plan, folder, use.timeout_seconds)
        return advise(plan, folder / "feeds", use, progress)
