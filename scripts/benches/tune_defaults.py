"""`scripts/tune-defaults`: makes a table of defaults that ships with ortkit.

Every region of the suite is tuned as `ortkit tune` does. Then, for each kind of region, what was
best for one of them is timed on all of them, and the choice with the largest product of gains is
taken if it gives 2 % and costs none of them more than 1 %. The table says for each kind what its
gain was, on which machine; `ortkit/kernels/defaults.py` reads it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ortkit.errors import KernelError, OrtkitError
from ortkit.kernels.backend import Target
from ortkit.kernels.calibration import processor
from ortkit.kernels.catalog import load_backend
from ortkit.kernels.compiler import staying
from ortkit.kernels.cpu import resolve
from ortkit.kernels.defaults import FOLDER, SCHEMA
from ortkit.kernels.tunable import Tunable
from ortkit.kernels.tuned import Place, Record
from ortkit.tune.cases import TuneCase
from ortkit.tune.region import BATCH, TuningRegion
from ortkit.tune.store import TuneStore
from ortkit.tune.timing import Effort, time_choices
from ortkit.tune.timing_cuda import this_gpu
from scripts.benches.tune_suite import suite

_LEAST_GAIN, _MOST_LOSS = 1.02, 0.99
_FINALISTS, _CANDIDATES = 3, 8
_EFFORT = {"cpu": Effort(processes=2, rounds=15, seconds=0.001), "cuda": Effort(2, 25)}
#: Part of the time that goes to trials; the rest to what is best for all of a kind.
_PART = 0.55
#: For a GPU kernels of one region are compiled while those of another are timed.
_WORKERS = {"cpu": 1, "cuda": 3}
_TYPES = {"cpu": (np.float32,), "cuda": (np.float16, np.float32)}


@dataclass
class Member:
    """A region of the suite, as far as it was tuned."""

    name: str
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
        members = _members(backend, target, machine, options.only)
        _tune(members, began + options.seconds * _PART)
        by_kind: dict[str, list[Member]] = defaultdict(list)
        for one in members:
            by_kind[backend.kind(one.tuning.case.signature, target)].append(one)
        kinds: dict[str, dict[str, object]] = {}

        def settle(kind: str) -> None:
            if time.monotonic() > began + options.seconds:
                print(f"{kind}: no time was left", file=sys.stderr)
            elif found := _best(by_kind[kind], target, backend_name):
                kinds[kind] = found

        with ThreadPoolExecutor(_WORKERS[target.kind]) as pool:
            list(pool.map(settle, sorted(by_kind)))
    level = "x86-64-v4" if target.level.startswith("x86-64-v4") else target.level
    path = options.output or FOLDER / f"{level}.json"
    # Those that this run had no region of stay.
    kinds = {**_kept(path, set(by_kind)), **kinds}
    content = {
        "schema": SCHEMA, "backend": backend_name, "level": level, "machine": machine,
        "toolchain": load_backend(backend_name).fingerprint(),
        "regions": len(members), "seconds": round(time.monotonic() - began),
        "kinds": dict(sorted(kinds.items())),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    print(f"wrote {path}: {len(kinds)} of {len(by_kind)} kinds, {len(members)} regions")
    return 0


def _kept(path: Path, tuned: Collection[str]) -> dict[str, dict[str, object]]:
    """Return the kinds of a table that were not tuned anew."""
    if not path.exists():
        return {}
    kinds = json.loads(path.read_text("utf-8"))["kinds"]
    return {kind: one for kind, one in kinds.items() if kind not in tuned}


def _target(options: argparse.Namespace) -> tuple[Target, str, str]:
    if options.target == "cuda":
        gpu = this_gpu()
        return Target("cuda", gpu.level), gpu.name, "triton"
    return resolve(Target("cpu", options.cpu)), processor(), "tvm"


def _members(backend: Tunable, target: Target, machine: str, only: str) -> list[Member]:
    found = []
    for dtype in _TYPES[target.kind]:
        for one in suite(dtype):
            signature = one.signature
            name = f"{one.name} {np.dtype(dtype)}"
            if only not in name or not backend.parameters(signature, target):
                continue
            case = TuneCase(signature)
            place = Place(machine, target.level, backend.name, signature.key, case.bucket)
            record = Record(signature.op_type, "suite")
            region = TuningRegion(case, backend.name, target, place, record)
            found.append(Member(name, region))
    return found


def _tune(members: Sequence[Member], until: float) -> None:
    """Give every region a batch in turn, until the time is over or all was tried."""
    store = TuneStore(None)

    def turn(one: Member) -> bool:
        batch = one.tuning.batch(BATCH) if time.monotonic() < until else []
        if batch:
            one.tuning.run(batch, store)
        return bool(batch)

    kind = members[0].tuning.target.kind if members else "cpu"
    with ThreadPoolExecutor(_WORKERS[kind]) as pool:
        while any(list(pool.map(turn, members))):
            pass
    for one in members:
        best = max(one.tuning.record.ratios.items(), key=lambda each: each[1])
        tried = len(one.tuning.record.trials)
        print(f"{one.name}: {tried} tried, best {best[1]:.3f} {best[0]} {one.tuning.problem}",
              flush=True)  # fmt: skip


def _best(members: Sequence[Member], target: Target, backend: str) -> dict[str, object] | None:
    """Return what suits a kind best, None if that is its default."""
    candidates: dict[str, float] = {}
    for one in members:
        ratios = one.tuning.record.ratios
        for choices in sorted(ratios, key=lambda each: -ratios[each])[:_FINALISTS]:
            if choices and ratios[choices] > _LEAST_GAIN:
                candidates[choices] = candidates.get(choices, 0.0) + math.log(ratios[choices])
    chosen = sorted(candidates, key=lambda each: -candidates[each])[:_CANDIDATES]
    if not chosen:
        return None
    gains: dict[str, list[float]] = {one: [] for one in chosen}
    for one in members:
        try:
            default, *others = time_choices(
                one.tuning.case, target, backend, ["", *chosen], _EFFORT[target.kind]
            )
        except KernelError as error:
            print(f"{one.name}: {error}", file=sys.stderr)
            return None
        for other in others:
            # By the medians and by the fastest alike: what both say is no accident.
            ratio = 0.0 if other.problem else min(
                default.median_ns / other.median_ns, default.fastest_ns / other.fastest_ns
            )  # fmt: skip
            gains[other.choices].append(ratio)
    fitting = {one: math.exp(np.mean(np.log(each))) for one, each in gains.items()
               if min(each) >= _MOST_LOSS}  # fmt: skip
    best = max(fitting, key=lambda each: fitting[each], default="")
    if not best or fitting[best] < _LEAST_GAIN:
        return None
    return {
        "choices": best, "gain": round(fitting[best], 3),
        "least": round(min(gains[best]), 3), "regions": [one.name for one in members],
    }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/tune-defaults", description=__doc__)
    add = parser.add_argument
    add("--target", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    add("--cpu", default="native", help="the processor level (default: native)")
    add("--seconds", type=float, default=600.0, help="in all (default: 600)")
    add("--only", default="", help="regions with this in their name only")
    add("--output", type=Path, metavar="FILE", help="default: where ortkit reads it")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OrtkitError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
