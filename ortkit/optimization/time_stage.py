"""One run of the source beside one of the result, if that is a matter of a second or two."""

from __future__ import annotations

import time

from ortkit.measure.short_timing import (
    ShortRequest,
    ShortTiming,
    seconds_after,
    time_shortly,
    too_large,
)
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.kernels import foreign_note
from ortkit.optimization.workspace import Workspace
from ortkit.runtime.timing.variants import Variant
from ortkit.temporary import TemporaryFolder


def timed(work: Workspace, candidate: Candidate, weight_bytes: int) -> ShortTiming:
    """Time the result; or say why it is not timed.

    Args:
        work: Says how long the other stages took: timing takes a small share of that.
        candidate: The result.
        weight_bytes: Of the source.
    """
    seconds = seconds_after(sum(work.seconds.values()))
    reason = _not_timed(work, candidate) or too_large(weight_bytes, seconds)
    if reason:
        return ShortTiming(reason)
    started = time.perf_counter()
    options = work.options
    with work.stage("time"), TemporaryFolder("time", inside=work.folder) as folder:
        result = Variant(work.saved(candidate), candidate.library)
        request = ShortRequest(
            work.original(), result, folder, options.inputs, options.shapes, options.threads
        )
        return time_shortly(request, seconds - (time.perf_counter() - started))


def _not_timed(work: Workspace, candidate: Candidate) -> str:
    """Return why a run is not timed here, empty if it can be."""
    options = work.options
    if not options.machine.traits.is_timed:
        return f"models for {options.target} are not timed here"
    if foreign := foreign_note(candidate.library, options):
        return foreign
    if not candidate.log.hits and candidate.library is None:
        return "nothing was rewritten"
    return ""
