"""`scripts/bench tune`: what tuning gives on the pieces of `scripts/bench kernels`.

Each piece is one region, tuned as `ortkit tune` does, for the same time each. The kernel that is
chosen is then timed against the default once more, in processes that had no part in the choice.
Kernels run alone, on one thread, with warm caches.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from ortkit.kernels.build.compiler import staying
from ortkit.kernels.catalog import load_backend
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tunable import Tunable
from ortkit.kernels.tuning.database import Record, RecordKey
from ortkit.runtime.intervals import speedup_of
from ortkit.targets.target import Target
from ortkit.tune.cases import TuneCase
from ortkit.tune.region import BATCH, TuningRegion
from ortkit.tune.store import TuneStore
from ortkit.tune.timing import Effort, time_choices
from scripts.benches import output
from scripts.benches.kernel_cases import CASES
from scripts.benches.kernels import as_region
from scripts.benches.tune_suite import suite

_BACKEND = "tvm"
_EFFORT = Effort(processes=5, rounds=25, seconds=0.002)


def main() -> int:
    """Tune, time, print and write."""
    options = _parser().parse_args()
    target = Target("cpu", options.cpu).resolved()
    results: dict[str, object] = {"machine": output.machine(None), "level": target.level}
    print(f"machine: {results['machine']}")
    rows: list[dict[str, object]] = []
    results["tuned"] = rows
    with tempfile.TemporaryDirectory(prefix="ortkit-tune-") as folder, staying(60.0):
        os.environ["ORTKIT_CACHE"] = folder
        try:
            for name, signature in _regions(options.suite):
                if options.only in name:
                    row = _tuned(TuneCase(signature), target, options.seconds)
                    rows.append({"case": name, **row})
                    output.say(f"{name}: {row['gain']}")
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
    _print(rows, target.level)
    print(f"\nwrote {output.write(results, Path('bench-results'), 'tune')}")
    return 0


def _regions(is_suite: bool) -> Iterator[tuple[str, RegionSignature]]:
    """Yield what is tuned: the pieces, or the regions that shipped defaults are found on."""
    if is_suite:
        yield from ((item.name, item.signature) for item in suite(np.float32, by_hand=True))
    else:
        yield from ((case.name, as_region(case.as_kernel())) for case in CASES)


def _tuned(case: TuneCase, target: Target, seconds: float) -> dict[str, object]:
    """Tune one region for some time; its times in ns, or why there are none."""
    backend, signature = load_backend(_BACKEND), case.signature
    if refused := backend.accepts(signature, target):
        return {"problem": refused.reason, "gain": None}
    if not isinstance(backend, Tunable) or not backend.parameters(signature, target):
        return {"problem": "a kernel without choices", "gain": None}
    record_key = RecordKey("bench", target.level, _BACKEND, signature.key, case.bucket)
    record = Record(signature.op_type, backend.fingerprint())
    region = TuningRegion(case, _BACKEND, target, record_key, record)
    store, until = TuneStore(None), time.monotonic() + seconds
    while time.monotonic() < until and (batch := region.batch(BATCH)):
        region.run(batch, store)
    if region.is_pending:
        region.confirm(store)
    found: dict[str, object] = {
        "choices": region.record.best, "trials": len(region.record.trials),
        "space": region.result().kernels, "problem": region.problem, "gain": 1.0,
        "seconds": seconds,
    }  # fmt: skip
    if region.record.best:
        choices = ["", region.record.best]
        default, best = time_choices(case, target, _BACKEND, choices, _EFFORT)
        gain = speedup_of(default.processes, best.processes)
        found |= {
            "default_ns": [default.fastest_ns, default.median_ns],
            "best_ns": [best.fastest_ns, best.median_ns],
            "gain": gain.ratio, "low": gain.low, "high": gain.high,
            "gain_of_minima": default.fastest_ns / best.fastest_ns,
        }  # fmt: skip
    return found


def _print(rows: list[dict[str, object]], level: str) -> None:
    cells: list[list[output.Cell]] = [
        [
            str(row["case"]), _count(row), _times(row.get("default_ns")),
            _times(row.get("best_ns")), _number(row["gain"]), _interval(row),
            _number(row.get("gain_of_minima", row["gain"])),
            str(row.get("problem") or row.get("choices") or "the default"),
        ]
        for row in rows
    ]  # fmt: skip
    output.table(
        f"Tuned kernels for {level}, 1 thread: µs, minimum (median); ratios of medians",
        ("case", "tried", "default", "tuned", "gain", "95 %", "of minima", "best"),
        cells,
    )
    for name in ("gain", "gain_of_minima"):
        gains = [float(str(row.get(name, row["gain"]))) for row in rows if row["gain"] is not None]
        if gains:
            mean = math.exp(sum(map(math.log, gains)) / len(gains))
            print(f"  {name.replace('_', ' ')}: {mean:.3f} (geometric mean of {len(gains)})")
    trials = sum(int(str(row.get("trials", 0))) for row in rows)
    spent = sum(float(str(row.get("seconds", 0.0))) for row in rows)
    if spent:
        print(f"  {trials} trials, {trials / spent:.1f} a second; median of a piece "
              f"{median(int(str(row.get('trials', 0))) for row in rows):.0f}")  # fmt: skip


def _count(row: dict[str, object]) -> str | None:
    return f"{row['trials']}/{int(str(row['space'])) - 1}" if "trials" in row else None


def _times(found: object) -> str | None:
    if not isinstance(found, list):
        return None
    return f"{found[0] / 1e3:.1f} ({found[1] / 1e3:.1f})"


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


def _interval(row: dict[str, object]) -> str | None:
    low, high = _number(row.get("low")), _number(row.get("high"))
    return None if low is None or high is None else f"{low:.2f}-{high:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench tune", description=__doc__)
    add = parser.add_argument
    add("--suite", action="store_true",
        help="the regions that shipped defaults are found on, instead of the pieces")  # fmt: skip
    add("--only", default="", help="cases with this in their name only")
    add("--seconds", type=float, default=40.0, help="of trials for each case (default: 40)")
    add("--cpu", default="native", help="the processor level (default: native)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
