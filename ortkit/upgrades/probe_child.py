"""The process in which sessions are tried one after the other, with optimizers switched off."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.ort import onnxruntime_in, preload_onnxruntime
from ortkit.runtime.workers.worker import HeldSession
from ortkit.upgrades.names import Applied, applied

#: Most of the time of a small job would be spent on importing it.
before_jobs = preload_onnxruntime


@dataclass(frozen=True)
class Probe:
    """A session to be tried."""

    plan: SessionPlan
    feeds: Path
    results: Path
    """Where its outputs go; made here."""
    log: Path
    """Where ONNX Runtime's log of the session goes."""


@dataclass(frozen=True)
class Probed:
    """What became of it."""

    at: Literal["load", "run", "done"]
    """Where it stopped."""
    problem: str = ""
    applied: tuple[Applied, ...] = ()
    """The optimizers that ran, if the plan logs them."""


class Prober:
    """Tries sessions in one ONNX Runtime."""

    def __init__(self, folder: Path | None) -> None:
        """Import it.

        Args:
            folder: Where the package `onnxruntime` is; None: the installed one.
        """
        onnxruntime_in(folder)

    def probe(self, job: Probe) -> Probed:
        """Make a session, run it, and keep its outputs."""
        at: Literal["load", "run"] = "load"
        session = HeldSession()
        problem = ""
        with _stderr_to(job.log):
            try:
                session.load(job.plan)
                at = "run"
                session.feed(job.feeds)
                session.keep(job.results)
            except Exception as error:  # noqa: BLE001  whatever stops it is the answer
                problem = str(error)
        names = applied(job.log.read_text("utf-8", "replace"))
        return Probed(at, problem, names) if problem else Probed("done", "", names)


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Let what this process, native code included, writes to stderr go to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
