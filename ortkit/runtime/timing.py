"""How long models take: interleaved runs in a process of their own, medians, intervals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ortkit.runtime import timing_child
from ortkit.runtime.ort import require_onnxruntime
from ortkit.runtime.profile import Profile, read_profile

CPU = ("CPUExecutionProvider",)
CONFIDENCE = 0.95
#: Fewer rounds than this say nothing about the spread.
FEWEST_ROUNDS = 5
MOST_ROUNDS = 400
_RESAMPLES = 2000

Direction = Literal["faster", "slower", "no difference", "not known"]


@dataclass(frozen=True)
class Variant:
    """One model to time."""

    model: Path
    library: Path | None = None


@dataclass(frozen=True)
class Timing:
    """What the variants took; each list of rounds is aligned with the others."""

    seconds: tuple[tuple[float, ...], ...]
    """Per variant, per round."""
    feeds: Path
    """The input set that was used."""
    profile: Profile | None
    """Of the first variant."""
    profile_file: Path | None
    """What it was read from, in the folder that was given."""


@dataclass(frozen=True)
class NotTimed:
    """Why there are no times."""

    reason: str


@dataclass(frozen=True)
class Speedup:
    """How many times faster the second variant is than the first, with its interval."""

    ratio: float
    """Median over median."""
    low: float | None
    """None if there are too few rounds for an interval."""
    high: float | None
    confidence: float
    direction: Direction

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return asdict(self)


def time_variants(
    variants: Sequence[Variant],
    feeds: Sequence[Path],
    folder: Path,
    *,
    seconds: float,
    profile_seconds: float = 0.0,
    timeout_seconds: float,
    providers: Sequence[str] = CPU,
    threads: int = 0,
) -> Timing | NotTimed:
    """Time the variants, one run each in turn, under ONNX Runtime's default optimizations.

    Args:
        variants: The first is the one that is profiled.
        feeds: npz files; the first on which the first variant runs, and often enough in the
            time, is used.
        folder: For the job's files.
        seconds: How long to time; at least one round is run.
        profile_seconds: How long to profile the first variant after that, 0 for not at all.
        timeout_seconds: When to give up.
        providers: Execution providers, most wanted first.
        threads: Of one session; 0: ONNX Runtime decides.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    require_onnxruntime()
    job: timing_child.Job = {
        "variants": [
            {
                "model": str(one.model),
                "libraries": [] if one.library is None else [str(one.library.resolve())],
            }
            for one in variants
        ],
        "feeds": [str(path) for path in feeds],
        "providers": list(providers),
        "threads": threads,
        "seconds": seconds,
        "most_rounds": MOST_ROUNDS,
        "profile_seconds": profile_seconds,
        "folder": str(folder),
        "result": str(folder / "result.json"),
    }
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-P", timing_child.__file__, str(job_file)]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return NotTimed(f"a run did not end within {timeout_seconds:.0f} seconds")
    if ended.returncode < 0:
        return NotTimed(f"the process crashed with signal {-ended.returncode}")
    result_file = folder / "result.json"
    if not result_file.is_file():
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        return NotTimed(lines[-1] if lines else f"the process ended with {ended.returncode}")
    return _timing(json.loads(result_file.read_text(encoding="utf-8")))


def _timing(result: timing_child.Result) -> Timing | NotTimed:
    if result["problem"]:
        return NotTimed(result["problem"])
    return Timing(
        tuple(tuple(rounds) for rounds in result["seconds"]),
        Path(result["feeds"]),
        read_profile(Path(result["profile"])) if "profile" in result else None,
        Path(result["profile"]) if "profile" in result else None,
    )


def speedup(before: Sequence[float], after: Sequence[float], *, seed: int = 0) -> Speedup:
    """Compare two lists of times taken in the same rounds.

    The interval is the percentile bootstrap's over rounds, so that what slowed a whole round
    down does not widen it.
    """
    first, second = np.asarray(before), np.asarray(after)
    ratio = float(np.median(first) / np.median(second))
    if len(first) < FEWEST_ROUNDS:
        return Speedup(ratio, None, None, CONFIDENCE, "not known")
    picks = np.random.default_rng(seed).integers(0, len(first), (_RESAMPLES, len(first)))
    ratios = np.median(first[picks], axis=1) / np.median(second[picks], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(bound) for bound in np.quantile(ratios, (tail, 1 - tail)))
    direction: Direction = "faster" if low > 1 else "slower" if high < 1 else "no difference"
    return Speedup(ratio, low, high, CONFIDENCE, direction)
