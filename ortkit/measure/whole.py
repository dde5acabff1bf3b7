"""How long whole models take: each turn in a process of its own, there and back in each round."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from ortkit.measure.result import Ceiling
from ortkit.runtime.heavy import HEAVY
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.rounds import interleaved, there_and_back
from ortkit.runtime.timing.variants import NotTimed, Timing, Variant, time_variants
from ortkit.temporary import TemporaryFolder

ROUNDS = 3
_SECONDS = 1.0
_PROFILE_SECONDS = 1.0
_TIMEOUT_SECONDS = 600.0
#: No round is begun after this.
_MOST_SECONDS = 60.0


def time_whole(
    variants: Mapping[str, Variant], feeds: Path, folder: Path, *, threads: int
) -> dict[str, list[float]] | NotTimed:
    """Return the milliseconds of a run for each variant and turn, two turns a round.

    Args:
        variants: By name; a round runs them in this order and back.
        feeds: An npz file.
        folder: For what the processes write.
        threads: Of a session; 0: ONNX Runtime decides.
    """
    turns = [
        partial(_turn, name, variant, feeds, folder, threads) for name, variant in variants.items()
    ]
    until = time.perf_counter() + _MOST_SECONDS
    try:
        elapsed = interleaved(turns, ROUNDS, order=there_and_back, until=until)
    except _NotTimedError as error:
        return NotTimed(str(error))
    return dict(zip(variants, elapsed, strict=True))


class _NotTimedError(Exception):
    """Why a turn has no time."""


def _turn(name: str, variant: Variant, feeds: Path, folder: Path, threads: int) -> float:
    """Return the milliseconds of a run in a process of its own."""
    with TemporaryFolder("job", inside=folder) as job:
        found = time_variants(
            [variant],
            [feeds],
            job,
            seconds=_SECONDS,
            timeout_seconds=_TIMEOUT_SECONDS,
            threads=threads,
        )
    if isinstance(found, NotTimed):
        raise _NotTimedError(f"{name}: {found.reason}")
    return 1e3 * median(found.seconds[0])


def profile_whole(
    variant: Variant, feeds: Sequence[Path], folder: Path, *, threads: int
) -> tuple[Path, Profile] | NotTimed:
    """Return the first inputs that the model runs on, and where the time of a run goes."""
    found: Timing | NotTimed = NotTimed("there are no inputs to run on")
    for path in feeds:
        found = time_variants(
            [variant],
            [path],
            folder,
            seconds=_SECONDS,
            profile_seconds=_PROFILE_SECONDS,
            timeout_seconds=_TIMEOUT_SECONDS,
            threads=threads,
        )
        if isinstance(found, Timing) and found.profile is not None:
            return path, found.profile
    return found if isinstance(found, NotTimed) else NotTimed("the model was not profiled")


def ceiling_of(milliseconds: float, profile: Profile) -> Ceiling | None:
    """Apply the profile's shares to the measured time: profiling itself slows small nodes."""
    share = profile.share(HEAVY)
    if share == 0:
        return None
    names = tuple(op.op for op in profile.ops if op.op in HEAVY)
    return Ceiling(milliseconds * share, 1 / share, share, names)
