"""What each form saves, measured: the time of a switched model's nodes with and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ortkit.isolation.ended import Ended
from ortkit.isolation.run import run_isolated
from ortkit.precision.profile_child import GainsJob, NodeTimes, node_times
from ortkit.precision.running import write_flags
from ortkit.precision.trials import TRIAL
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.settings import SessionSettings

_ROUNDS = 8
_SECONDS = 300.0


@dataclass(frozen=True)
class Gain:
    """What one product takes, in us: the least of several interleaved runs."""

    float_us: float
    lowered_us: float

    @property
    def saved_us(self) -> float:
        """What the form saves; negative where it costs."""
        return self.float_us - self.lowered_us


def measure_gains(
    switched: Path, chained: Sequence[bool], feeds: Path, folder: Path, threads: int
) -> list[Gain] | str:
    """Time each product of a switched model on one input set.

    Args:
        switched: The model, with as many flags.
        chained: For each flag, whether what converts at the product's ends does not count, as it
            falls away where neighbours take the same form.
        feeds: Folder of the input set, its tensors of types that ONNX Runtime's API takes.
        folder: For files; made here.
        threads: Of the session; 0: ONNX Runtime decides.

    Returns:
        A gain for each flag, or why nothing was timed.
    """
    count = len(chained)
    for name, flag in (("float", False), ("lowered", True)):
        write_flags(folder / name, feeds, [flag] * count)
    settings = SessionSettings(threads=threads, trace_prefix=folder / "trace")
    job = GainsJob(
        SessionPlan(switched, settings=settings),
        (folder / "float", folder / "lowered"),
        _ROUNDS,
        TRIAL,
        frozenset(f"{TRIAL}/{number}" for number in range(count) if chained[number]),
    )
    times = run_isolated(node_times, job, timeout_seconds=_SECONDS)
    if isinstance(times, Ended):
        return f"not timed: the process {times}"
    gains = _gains(times, count)
    return gains if gains is not None else "not timed: the trace lacks nodes"


def _gains(times: NodeTimes, count: int) -> list[Gain] | None:
    found = [times.get(f"{TRIAL}/{number}") for number in range(count)]
    if any(one is None or not all(one) for one in found):
        return None
    return [Gain(min(item[0]), min(item[1])) for item in found if item is not None]
