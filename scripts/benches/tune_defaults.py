"""`scripts/tune-defaults`: makes a table of defaults that ships with ortkit.

Every region of the suite is tuned as `ortkit tune` does. Then, for each kind of region, what was
best for one of them is timed on all of them, and the choice with the largest product of gains is
taken if it gives 2 % and costs none of them more than 1 %. The table says for each kind what its
gain was, on which machine; `ortkit/kernels/tuning/defaults.py` reads it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortkit.errors import KernelError, OrtkitError
from ortkit.kernels.build.compiler import staying
from ortkit.kernels.catalog import load_backend
from ortkit.kernels.tunable import Tunable
from ortkit.kernels.tuning.calibration import processor
from ortkit.kernels.tuning.database import Record, RecordKey
from ortkit.kernels.tuning.defaults import FOLDER, SCHEMA
from ortkit.targets.target import Target
from ortkit.tune.cases import TuneCase
from ortkit.tune.region import BATCH, TuningRegion
from ortkit.tune.store import TuneStore
from ortkit.tune.timing import Effort, Request, Times, time_all
from ortkit.tune.timing_cuda import this_gpu
from scripts.benches.tune_suite import suite

_LEAST_GAIN, _MOST_LOSS = 1.02, 0.99
_FINALISTS, _CANDIDATES = 3, 8
_EFFORT = {"cpu": Effort(processes=2, rounds=15, seconds=0.001), "cuda": Effort(1, 40)}
#: Regions whose kernels are compiled together: a process that has made one for a GPU makes the
#: next several times as fast.
_REGIONS_AT_ONCE = {"cpu": 1, "cuda": 30}
#: Part of the time that goes to trials; the rest to what is best for all of a kind.
_PART = {"cpu": 0.55, "cuda": 0.35}
_TYPES = {"cpu": (np.float32,), "cuda": (np.float16, np.float32)}


@dataclass
class Member:
    """A region of the suite, as far as it was tuned."""

    name: str
    kind: str
    tuning: TuningRegion


def main() -> int:
    """Tune the suite and write the table."""
    options = _parser().parse_args()
    target, machine, backend_name = _target(options)
    backend = load_backend(backend_name)
    assert isinstance(backend, Tunable)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ortkit-tune-") as folder, staying(60.0):
        os.environ["ORTKIT_CACHE"] = folder
        level = "x86-64-v4" if target.level.startswith("x86-64-v4") else target.level
        table = Table(options.output or FOLDER / f"{level}.json", backend_name, level, machine)
        known = table.tried if options.missing else frozenset()
        members = [
            member for member in _members(backend, target, machine, options.only)
            if member.kind not in known
        ]  # fmt: skip
        _tune(members, began + options.seconds * _PART[target.kind])
        by_kind: dict[str, list[Member]] = defaultdict(list)
        for member in members:
            by_kind[member.kind].append(member)
        settled = _settled(by_kind, target, backend_name, began + options.seconds)
        table.write(settled, time.monotonic() - began)
    print(f"wrote {table.path}: {len(settled)} of {len(by_kind)} kinds tried to the end, "
          f"{sum(item is not None for item in settled.values())} with choices of their own; "
          f"{len(members)} regions")  # fmt: skip
    return 0


@dataclass
class Table:
    """The file that is made: what it holds of kinds that a run does not come to stays."""

    path: Path
    backend: str
    level: str
    machine: str

    def __post_init__(self) -> None:
        self.content: dict[str, Any] = {"kinds": {}, "as_ruled": [], "seconds": 0}
        if self.path.exists():
            self.content |= json.loads(self.path.read_text("utf-8"))

    @property
    def tried(self) -> frozenset[str]:
        """The kinds that it knows of, those for which nothing is better than the rules too."""
        return frozenset((*self.content["kinds"], *self.content["as_ruled"]))

    def write(self, settled: Mapping[str, Mapping[str, object] | None], seconds: float) -> None:
        """Add kinds: what was chosen for each, None where the rules are best."""
        kinds = {k: item for k, item in self.content["kinds"].items() if k not in settled}
        kinds |= {kind: one for kind, one in settled.items() if one is not None}
        as_ruled = {*self.content["as_ruled"], *settled} - kinds.keys()
        content = {
            "schema": SCHEMA, "backend": self.backend, "level": self.level,
            "machine": self.machine, "toolchain": load_backend(self.backend).fingerprint(),
            "seconds": round(seconds), "kinds": dict(sorted(kinds.items())),
            "as_ruled": sorted(as_ruled),
        }  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _target(options: argparse.Namespace) -> tuple[Target, str, str]:
    if options.target == "cuda":
        gpu = this_gpu()
        return Target("cuda", gpu.level), gpu.name, "triton"
    return Target("cpu", options.cpu).resolved(), processor(), "tvm"


def _members(backend: Tunable, target: Target, machine: str, only: str) -> list[Member]:
    found = []
    for dtype in _TYPES[target.kind]:
        for one in suite(dtype, by_hand=target.kind == "cpu"):
            signature = one.signature
            name, kind = f"{one.name} {np.dtype(dtype)}", backend.kind(signature, target)
            if not kind or not re.search(only, f"{name}: {kind}"):
                continue
            case = TuneCase(signature)
            record_key = RecordKey(machine, target.level, backend.name, signature.key, case.bucket)
            record = Record(signature.op_type, "suite")
            region = TuningRegion(case, backend.name, target, record_key, record)
            found.append(Member(name, kind, region))
    return found


def _tune(members: Sequence[Member], until: float) -> None:
    """Give every region a batch in turn, until the time is over or all was tried."""
    store = TuneStore(None)
    target = members[0].tuning.target if members else Target()
    together = _REGIONS_AT_ONCE[target.kind]
    is_open = True
    while is_open and time.monotonic() < until:
        is_open = False
        for start in range(0, len(members), together):
            turn = [
                (member.tuning, batch)
                for member in members[start : start + together]
                if (batch := member.tuning.batch(BATCH))
            ]
            if not turn or time.monotonic() > until:
                continue
            is_open = True
            requests = [region.request(batch) for region, batch in turn]
            for (region, _), found in zip(turn, time_all(requests, target, Effort()), strict=True):
                if isinstance(found, KernelError):
                    region.problem = str(found)
                else:
                    region.keep(found, store)
    for member in members:
        best = max(member.tuning.record.ratios.items(), key=lambda each: each[1])
        tried = len(member.tuning.record.trials)
        best_text = f"best {best[1]:.3f} {best[0]}"
        print(f"{member.name}: {tried} tried, {best_text} {member.tuning.problem}", flush=True)


def _settled(
    by_kind: Mapping[str, Sequence[Member]], target: Target, backend: str, until: float
) -> dict[str, dict[str, object] | None]:
    """Return what suits each kind best, None for the rules, of those for which there was time."""
    candidates = {kind: _candidates(several) for kind, several in by_kind.items()}
    requests = [
        (kind, item, Request(item.tuning.case, backend, ["", *candidates[kind]]))
        for kind, several in sorted(by_kind.items())
        for item in several
        if candidates[kind]
    ]
    gains: dict[str, list[dict[str, float]]] = defaultdict(list)
    together = _REGIONS_AT_ONCE[target.kind]
    for start in range(0, len(requests), together):
        if time.monotonic() > until:
            print("no time was left for all kinds", file=sys.stderr)
            break
        turn = requests[start : start + together]
        found = time_all([one for *_, one in turn], target, _EFFORT[target.kind])
        for (kind, one, _), times in zip(turn, found, strict=True):
            if isinstance(times, KernelError):
                print(f"{one.name}: {times}", file=sys.stderr)
            gains[kind].append({} if isinstance(times, KernelError) else _gains(times))
    kinds: dict[str, dict[str, object] | None] = {}
    for kind, several in sorted(by_kind.items()):
        # A choice has to suit all regions of a kind.
        is_tried = all(one.tuning.record.trials for one in several)
        if is_tried and len(gains[kind]) == (len(several) if candidates[kind] else 0):
            kinds[kind] = _best(candidates[kind], gains[kind], [one.name for one in several])
    return kinds


def _candidates(members: Sequence[Member]) -> list[str]:
    """Return what was good for some region of a kind, what gained most first."""
    found: dict[str, float] = {}
    for member in members:
        ratios = member.tuning.record.ratios
        for choices in sorted(ratios, key=lambda each: -ratios[each])[:_FINALISTS]:
            if choices and ratios[choices] > _LEAST_GAIN:
                found[choices] = found.get(choices, 0.0) + math.log(ratios[choices])
    return sorted(found, key=lambda each: -found[each])[:_CANDIDATES]


def _gains(times: Sequence[Times]) -> dict[str, float]:
    """Return how many times as fast as the first each is, by medians and minima alike."""
    default, *others = times
    return {
        other.choices: 0.0 if other.problem else min(
            default.median_ns / other.median_ns, default.fastest_ns / other.fastest_ns
        )
        for other in others
    }  # fmt: skip


def _best(
    candidates: Sequence[str], gains: Sequence[dict[str, float]], names: Sequence[str]
) -> dict[str, object] | None:
    """Return what suits a kind best, None if that is its default."""
    by_choices = {
        candidate: [each.get(candidate, 0.0) for each in gains] for candidate in candidates
    }
    fitting = {
        item: math.exp(sum(map(math.log, each)) / len(each))
        for item, each in by_choices.items()
        if each and min(each) >= _MOST_LOSS
    }
    best = max(fitting, key=lambda each: fitting[each], default="")
    if not best or fitting[best] < _LEAST_GAIN:
        return None
    return {
        "choices": best, "gain": round(fitting[best], 3),
        "least": round(min(by_choices[best]), 3), "regions": list(names),
    }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/tune-defaults", description=__doc__)
    add = parser.add_argument
    add("--target", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    add("--cpu", default="native", help="the processor level (default: native)")
    add("--seconds", type=float, default=600.0, help="in all (default: 600)")
    add("--only", default="",
        help="regions that have this regular expression in `name type: kind` only")  # fmt: skip
    add("--missing", action="store_true", help="kinds that the table does not know yet only")
    add("--output", type=Path, metavar="FILE", help="default: where ortkit reads it")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OrtkitError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
