"""Inputs for a comparison: the first that the first model runs on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from ortkit.comparison.batches import BatchAxis, set_batch
from ortkit.errors import RunError, UserError
from ortkit.graph.io.open import open_model
from ortkit.measure.inputs import usual_feeds
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.workers.worker import Worker, WorkerError
from ortkit.verify.exchange import write_feeds
from ortkit.verify.inputs.feeds import Feeds
from ortkit.verify.inputs.given import load_feeds


def candidates(
    path: Path,
    model: ir.Model,
    inputs: Path | None,
    sizes: Mapping[str, int],
    batch: int | None,
    axis: BatchAxis,
) -> Iterator[Feeds]:
    """Yield input sets, the most wanted first.

    Args:
        path: The model's file.
        model: What is in it.
        inputs: The user's npz file.
        sizes: Numbers for named sizes, from the user.
        batch: Size of the first axes, None to leave it as is usual.
        axis: Which they are.

    Raises:
        UserError: The inputs or sizes do not fit the model.
        ModelError: An input cannot be made up.
    """
    if inputs is not None:
        return iter((load_feeds(inputs, model),))
    if batch is None:
        return usual_feeds(model, sizes)
    if twice := sorted(axis.names & sizes.keys()):
        raise UserError(
            "is the batch, which --batch gives",
            where=f"--shape {twice[0]}",
            fix="leave one of them out",
        )
    if axis.unnamed:
        model = open_model(path)
        set_batch(model, axis, batch)
    return usual_feeds(model, {**sizes, **dict.fromkeys(axis.names, batch)})


def first_that_runs(
    found: Iterator[Feeds], plan: SessionPlan, folder: Path, timeout_seconds: float
) -> tuple[Feeds, str]:
    """Return the first input set that a session runs on, and the version of ONNX Runtime.

    Args:
        found: Input sets.
        plan: The session.
        folder: The input set is written into `folder`/feeds.
        timeout_seconds: For loading and for a run.

    Raises:
        RunError: It runs on none of them; the reason is that of the first.
    """
    problem = version = ""
    with contextlib.ExitStack() as stack:
        worker: Worker | None = None
        for number, feeds in enumerate(found):
            run_folder = folder / f"feeds{number}"
            write_feeds(run_folder, feeds)
            try:
                if worker is None or not worker.is_alive:
                    worker = stack.enter_context(Worker.for_plan(plan))
                    version = worker.load(plan, timeout_seconds).version
                worker.feed(run_folder, timeout_seconds)
            except WorkerError as error:
                problem = problem or str(error)
                if not version:
                    break  # it cannot be loaded: other inputs do not change that
                continue
            run_folder.rename(folder / "feeds")
            return feeds, version
    raise RunError(
        f"does not run: {problem or 'there are no inputs to run on'}", where=str(plan.model)
    )
