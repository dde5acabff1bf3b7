"""How long whole models take: each turn in a process of its own, there and back in each round."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from ortkit.measure.result import Ceiling
from ortkit.runtime.heavy import HEAVY
from ortkit.runtime.profiling.result import Profile
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
    taken: dict[str, list[float]] = {name: [] for name in variants}
    until = time.perf_counter() + _MOST_SECONDS
    for number in range(ROUNDS):
        if number and time.perf_counter() > until:
            break
        for name in (*variants, *reversed(list(variants))):
            with TemporaryFolder("job", inside=folder) as job:
                found = time_variants(
                    [variants[name]],
                    [feeds],
                    job,
                    seconds=_SECONDS,
                    timeout_seconds=_TIMEOUT_SECONDS,
                    threads=threads,
                )
            if isinstance(found, NotTimed):
                return NotTimed(f"{name}: {found.reason}")
            taken[name].append(1e3 * median(found.seconds[0]))
    return taken


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
    names = tuple(one.op for one in profile.ops if one.op in HEAVY)
    return Ceiling(milliseconds * share, 1 / share, share, names)
