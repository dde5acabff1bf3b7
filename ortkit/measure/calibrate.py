"""`ortkit calibrate`: what the parts of a kernel's work cost on this machine, in some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from ortkit.errors import KernelError, MissingDependencyError
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec
from ortkit.kernels.tuning.calibration import Calibration, falling, machine
from ortkit.measure.rates import LONG, SHORT, Heavy, heavy_operators
from ortkit.runtime.machine import LoadWatch
from ortkit.runtime.ort import require_onnxruntime
from ortkit.runtime.timing.variants import NotTimed, Variant, time_variants
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder

SCHEMA = "ortkit.calibrate/1"
#: Sizes in use, of which the time of a copy is taken: within the caches, and beyond.
_SIZES = (1 << 18, 1 << 21, 1 << 24, 1 << 27)
_COPY_SECONDS = 0.1
_CHAIN = 200
_SHORT, _LONG = 8, 72
_POINTS = 1 << 16
_REPEATS = 16
_TINY = 16
_SECONDS, _TIMEOUT_SECONDS = 0.4, 60.0
#: Four chains together.
_HEAVY_SECONDS = 0.6
#: A part is measured until two of its measurements differ by no more than this part of them.
_MOST_NOISE = 0.15
_MOST_REPETITIONS = 4
#: Processors that others may use: with more, measurements agree and are wrong alike.
_MOST_OTHERS, _WATCH_SECONDS = 0.25, 0.5


def _silent(stage: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Calibrated:
    """What was measured; what could not be keeps its default."""

    calibration: Calibration
    notes: tuple[str, ...]
    """What could not be measured, and why."""
    noise: Mapping[str, float]
    """By part, by how much the two measurements that agree best differ, as a part of them."""
    seconds: float
    others_cpus: float = 0.0
    """Processors that other processes used before or after, the larger of the two."""

    @property
    def is_disturbed(self) -> bool:
        """Whether others used so much that what agrees may be wrong each time."""
        return self.others_cpus > _MOST_OTHERS

    @property
    def noisy(self) -> tuple[str, ...]:
        """The parts that other processes disturbed each time."""
        return tuple(name for name, noise in self.noise.items() if noise > _MOST_NOISE)

    def to_json(self, path: Path) -> dict[str, object]:
        """Return the document of `ortkit calibrate --json`; `path` is where it was written."""
        found = asdict(self.calibration)
        rates = [{"bytes": size, "bytes_per_ns": rate} for size, rate in found.pop("bandwidths")]
        found["kernels"] = dict(self.calibration.kernels)
        return {
            "schema": SCHEMA,
            "file": str(path),
            "bandwidths": rates,
            **found,
            "noise": dict(self.noise),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 2),
        }


def calibrate(progress: Callable[[str], None] = _silent) -> Calibrated:
    """Measure; nothing is written.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    require_onnxruntime()
    started = time.perf_counter()
    others = _others_cpus()
    notes: list[str] = []
    noise: dict[str, float] = {}
    progress("memory")
    found = Calibration(machine=machine())
    rates, noise["memory"] = _repeated(lambda: tuple(map(_bandwidth, _SIZES)))
    found = replace(found, bandwidths=falling(tuple(zip(_SIZES, rates, strict=True))))
    with TemporaryFolder("calibrate") as folder:
        bench = _Bench(folder)
        for stage in (_node, _kernel, _operation, _parallel):
            name = stage.__name__.strip("_")
            progress(name)
            try:
                (value,), noise[name] = _repeated(partial(_alone, stage, bench))
            except (KernelError, MissingDependencyError, _NotMeasuredError) as error:
                notes.append(f"{name}: {error}")
                continue
            changed: dict[str, Any] = {f"{name}_ns": value}
            found = replace(found, **changed)
        found = replace(found, kernels=_kernels(folder, progress, noise, notes))
    others = max(others, _others_cpus())
    return Calibrated(found, tuple(notes), noise, time.perf_counter() - started, others)


def _kernels(
    folder: Path, progress: Callable[[str], None], noise: dict[str, float], notes: list[str]
) -> tuple[tuple[str, float], ...]:
    """Return `Calibration.kernels`; notes what could not be measured."""
    progress("kernels")
    heavy, library = [*heavy_operators(Target())], folder / "heavy.so"
    try:
        built = build_library([one.signature for one in heavy], Target(), library)
    except (KernelError, MissingDependencyError) as error:
        notes.append(f"kernels: {error}")
        return ()
    refused = {signature.name: reason for signature, reason in built.refused}
    notes += [f"{kind}: no kernel: {reason}" for kind, reason in refused.items()]
    timed = [one for one in heavy if one.kind not in refused]
    if not timed:
        return ()
    try:
        factors, noise["kernels"] = _repeated(partial(_factors, timed, library, folder))
    except _NotMeasuredError as error:
        notes.append(f"kernels: {error}")
        return ()
    return tuple((one.kind, factor) for one, factor in zip(timed, factors, strict=True))


def _factors(timed: Sequence[Heavy], library: Path, folder: Path) -> tuple[float, ...]:
    """Time chains of both kernels side by side; not positive where the short one took longer."""
    feeds, variants = folder / "heavy.npz", []
    np.savez(feeds, x0=np.ones(1, np.float32))
    for heavy in timed:
        for is_ours in (False, True):
            for nodes in (SHORT, LONG):
                model = folder / f"{heavy.kind}-{nodes}-{is_ours}.onnx"
                onnx.save(heavy.chain(nodes, is_ours=is_ours), model)
                variants.append(Variant(model, library if is_ours else None))
    fastest = _fastest(variants, feeds, folder, _HEAVY_SECONDS * len(timed), 1)
    chains = (fastest[start : start + 4] for start in range(0, len(fastest), 4))
    return tuple(_factor(heavy, *each) for heavy, each in zip(timed, chains, strict=True))


def _factor(heavy: Heavy, short: float, long: float, our_short: float, our_long: float) -> float:
    runtime, ours = long - short, our_long - our_short
    return heavy.factor(runtime, ours) if min(runtime, ours) > 0 else -1.0


def _others_cpus() -> float:
    """Return how many processors other processes use while this one waits."""
    with LoadWatch() as watch:
        time.sleep(_WATCH_SECONDS)
    return watch.found().others_cpus or 0.0


def _repeated(measure: Callable[[], Sequence[float]]) -> tuple[tuple[float, ...], float]:
    """Measure until two results agree, and return their mean and by how much they differ.

    A result that is not positive agrees with none: a difference of disturbed times.

    Raises:
        _NotMeasuredError: Less than two results are positive.
    """
    results: list[Sequence[float]] = []
    best: tuple[float, tuple[float, ...]] | None = None
    for _ in range(_MOST_REPETITIONS):
        new = measure()
        if min(new) <= 0:
            continue
        for old in results:
            pairs = tuple(zip(old, new, strict=True))
            noise = max(abs(a - b) / max(a, b) for a, b in pairs)
            if best is None or noise < best[0]:
                best = noise, tuple((a + b) / 2 for a, b in pairs)
        results.append(new)
        if best is not None and best[0] <= _MOST_NOISE:
            break
    if best is None:
        raise _NotMeasuredError("other processes disturbed the measurement")
    return best[1], best[0]


def _bandwidth(size: int) -> float:
    """Return the bytes per ns that one thread reads or writes, of `size` that are in use."""
    source = np.ones(size // 8, np.float32)
    target = np.full_like(source, 2)  # its pages are there before the first copy
    until = time.perf_counter() + _COPY_SECONDS
    best = float("inf")
    while time.perf_counter() < until:
        started = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - started)
    return size / best / 1e9


class _NotMeasuredError(Exception):
    """A stage has no result; the message says why."""


class _Bench:
    """Times chains of equal nodes in ONNX Runtime, each chain in one process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._library: Path | None = None

    def library(self) -> Path:
        """Return the library of the two kernels that differ in the number of operations."""
        if self._library is None:
            path = self.folder / "kernels.so"
            built = build_library([_region(_SHORT), _region(_LONG)], Target(), path)
            if built.library is None or built.refused:
                raise _NotMeasuredError(f"no kernels: {built.refused[0][1]}")
            self._library = path
        return self._library

    def fastest_ns(
        self, op: str, nodes: int, points: int, *, threads: int, kernels: bool = True
    ) -> float:
        """Return the ns of a run of `nodes` times `op` on `points` floats: the fastest."""
        name = f"{DOMAIN}.{op}" if kernels else op
        second = "" if kernels else ", x0"
        body = " ".join(f"x{i + 1} = {name} (x{i}{second})" for i in range(nodes))
        text = f"""<ir_version: 10, opset_import: ["" : 20, "{DOMAIN}" : 1]>
            chain (float[n] x0) => (float[n] x{nodes}) {{ {body} }}"""
        model, feeds = self.folder / "chain.onnx", self.folder / "chain.npz"
        onnx.save(onnx.parser.parse_model(text), model)
        np.savez(feeds, x0=np.full(points, 0.5, np.float32))
        variant = Variant(model, self.library() if kernels else None)
        return 1e9 * _fastest([variant], feeds, self.folder, _SECONDS, threads)[0]


def _fastest(
    variants: Sequence[Variant], feeds: Path, folder: Path, seconds: float, threads: int
) -> tuple[float, ...]:
    """Return the seconds of each variant's fastest run, all of them timed side by side.

    Raises:
        _NotMeasuredError: One does not run.
    """
    timed = time_variants(
        variants, [feeds], folder, seconds=seconds, timeout_seconds=_TIMEOUT_SECONDS,
        threads=threads,
    )  # fmt: skip
    if isinstance(timed, NotTimed):
        raise _NotMeasuredError(timed.reason)
    return timed.fastest


def _alone(stage: Callable[[_Bench], float], bench: _Bench) -> tuple[float]:
    return (stage(bench),)


def _node(bench: _Bench) -> float:
    chain = bench.fastest_ns("Add", _CHAIN, _TINY, threads=1, kernels=False)
    one = bench.fastest_ns("Add", 1, _TINY, threads=1, kernels=False)
    return (chain - one) / (_CHAIN - 1)


def _kernel(bench: _Bench) -> float:
    op = _region(_SHORT).op_type
    chain = bench.fastest_ns(op, _CHAIN, _TINY, threads=1)
    one = bench.fastest_ns(op, 1, _TINY, threads=1)
    return (chain - one) / (_CHAIN - 1)


def _operation(bench: _Bench) -> float:
    short, long = (
        bench.fastest_ns(_region(count).op_type, _REPEATS, _POINTS, threads=1)
        for count in (_SHORT, _LONG)
    )
    return (long - short) / (_REPEATS * _POINTS * (_LONG - _SHORT))


def _parallel(bench: _Bench) -> float:
    cores = int(machine().rpartition(", ")[2].split()[0])
    if cores == 1:
        return Calibration.parallel_ns
    op = _region(_LONG).op_type
    alone, shared = (
        bench.fastest_ns(op, _REPEATS, _POINTS, threads=threads) for threads in (1, cores)
    )
    return (shared - alone / cores) / _REPEATS


def _region(operations: int) -> RegionSignature:
    """Return a region of one input: additions, of which no two become one instruction."""
    steps = ["a = Constant <value = float {0.5}> ()", "v0 = Identity (X)"]
    steps += [f"v{i + 1} = Add (v{i}, a)" for i in range(operations)]
    body = f'<opset_import: ["" : 20]> f (X) => (v{operations}) {{ {"  ".join(steps)} }}'
    spec = ("float32", ("n",))
    return RegionSignature(
        f"chain{operations}", body, (TensorSpec("X", *spec),), (TensorSpec("Y", *spec),)
    )
