"""`ortkit calibrate`: what the parts of a kernel's work cost on this machine, in some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from ortkit.errors import KernelError, MissingDependencyError
from ortkit.isolation.ended import Ended, Failed
from ortkit.isolation.run import run_isolated
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec
from ortkit.kernels.tuning.calibration import (
    LEAST_CORRECTION,
    Calibration,
    falling,
    machine,
)
from ortkit.measure.agreement import MOST_NOISE, Agreed, medians, repeated
from ortkit.measure.chain_child import Chain, ChainsJob, fastest_runs
from ortkit.measure.rates import SHORT, Heavy, heavy_operators
from ortkit.runtime.machine import LoadWatch
from ortkit.runtime.ort import require_onnxruntime
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
#: Of each chain of nodes, and of each of heavy operators, which run longer.
_SECONDS, _HEAVY_SECONDS, _TIMEOUT_SECONDS = 0.1, 0.04, 60.0
#: Processors that others may use: with more, measurements agree and are wrong alike.
_MOST_OTHERS, _WATCH_SECONDS = 0.25, 0.5
_DISTURBED = "other processes disturbed the measurement"


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
        return tuple(name for name, noise in self.noise.items() if noise > MOST_NOISE)

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
    progress("memory")
    memory = repeated(["memory"], lambda _: {"memory": [*map(_bandwidth, _SIZES)]}, MOST_NOISE)
    with TemporaryFolder("calibrate") as folder:
        progress("compile")
        bench = _Bench(folder)
        bench.build([*heavy_operators(Target())])
        progress("nodes")
        nodes = repeated([*bench.nodes], bench.measure_nodes, MOST_NOISE)
        progress("kernels")
        kernels = medians([*bench.heavy], bench.measure_heavy, _is_doubtful)
    found = _calibration(memory, nodes, kernels)
    every = {**memory, **nodes, **kernels}
    notes = [
        *bench.notes,
        *(f"{name}: {_DISTURBED}" for name, item in every.items() if item is None),
    ]
    noise = {name: agreed.noise for name, agreed in every.items() if agreed is not None}
    others = max(others, _others_cpus())
    return Calibrated(found, tuple(notes), noise, time.perf_counter() - started, others)


def _calibration(
    memory: Mapping[str, Agreed | None],
    nodes: Mapping[str, Agreed | None],
    kernels: Mapping[str, Agreed | None],
) -> Calibration:
    """Return what was found; what was not keeps its default."""
    found = Calibration(machine=machine())
    if (rates := memory["memory"]) is not None:
        found = replace(found, bandwidths=falling(tuple(zip(_SIZES, rates.values, strict=True))))
    changed: dict[str, Any] = {
        f"{name}_ns": node.values[0] for name, node in nodes.items() if node is not None
    }
    factors = tuple(
        (kind, kernel.values[0]) for kind, kernel in kernels.items() if kernel is not None
    )
    return replace(found, kernels=factors, **changed)


def _others_cpus() -> float:
    """Return how many processors other processes use while this one waits."""
    with LoadWatch() as watch:
        time.sleep(_WATCH_SECONDS)
    return watch.found().others_cpus or 0.0


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


@dataclass(frozen=True)
class _Nodes:
    """A cost that is the difference of two chains of small nodes.

    Args:
        chains: The two: the operations of our kernel (0: ONNX Runtime's Add), how many nodes,
            numbers in a tensor, and threads.
        cost: Returns it in ns, given what the two take in ns.
    """

    chains: tuple[tuple[int, int, int, int], tuple[int, int, int, int]]
    cost: Callable[[float, float], float]

    @property
    def has_threads(self) -> bool:
        """Whether a chain runs in a session of several threads."""
        return any(threads > 1 for *_, threads in self.chains)

    @property
    def needs_kernels(self) -> bool:
        """Whether a chain has nodes of ours."""
        return any(operations for operations, *_ in self.chains)


def _nodes(cores: int) -> dict[str, _Nodes]:
    """Return the parts of `Calibration` that are costs of small nodes, by their names."""
    found = {
        "node": _Nodes(((0, _CHAIN, _TINY, 1), (0, 1, _TINY, 1)), _each_of_a_chain),
        "kernel": _Nodes(((_SHORT, _CHAIN, _TINY, 1), (_SHORT, 1, _TINY, 1)), _each_of_a_chain),
        "operation": _Nodes(
            ((_LONG, _REPEATS, _POINTS, 1), (_SHORT, _REPEATS, _POINTS, 1)),
            lambda long, short: (long - short) / (_REPEATS * _POINTS * (_LONG - _SHORT)),
        ),
    }
    if cores > 1:
        found["parallel"] = _Nodes(
            ((_LONG, _REPEATS, _POINTS, cores), (_LONG, _REPEATS, _POINTS, 1)),
            lambda shared, alone: (shared - alone / cores) / _REPEATS,
        )
    return found


def _each_of_a_chain(chain: float, number: float) -> float:
    return (chain - number) / (_CHAIN - 1)


class _Bench:
    """Times chains of equal nodes in ONNX Runtime, those of one call in one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        """What cannot be measured, and why."""
        self.nodes = _nodes(int(machine().rpartition(", ")[2].split()[0]))
        self.heavy: dict[str, Heavy] = {}
        self._library = folder / "kernels.so"

    def build(self, heavy: Sequence[Heavy]) -> None:
        """Compile all kernels that are timed, and forget those that cannot be."""
        small = [_region(_SHORT), _region(_LONG)]
        signatures = [*small, *(one.signature for one in heavy)]
        try:
            built = build_library(signatures, Target(), self._library)
            refused = {signature.name: reason for signature, reason in built.refused}
        except (KernelError, MissingDependencyError) as error:
            refused = {signature.name: str(error) for signature in signatures}
        if reason := next((refused[one.name] for one in small if one.name in refused), ""):
            lost = [name for name, part in self.nodes.items() if part.needs_kernels]
            self.notes += [f"{name}: {reason}" for name in lost]
            self.nodes = {name: self.nodes[name] for name in self.nodes if name not in lost}
        self.notes += [f"{item.kind}: no kernel: {refused[item.kind]}" for item in heavy
                       if item.kind in refused]  # fmt: skip
        self.heavy = {one.kind: one for one in heavy if one.kind not in refused}

    def measure_nodes(self, parts: Sequence[str]) -> dict[str, tuple[float]]:
        """Return the ns of each part; none if a chain does not run.

        Threads of a session spin for a while after a run: parts with several have their own
        process.
        """
        alone = [name for name in parts if not self.nodes[name].has_threads]
        shared = [name for name in parts if self.nodes[name].has_threads]
        return {**self._measure_nodes(alone), **self._measure_nodes(shared)}

    def _measure_nodes(self, parts: Sequence[str]) -> dict[str, tuple[float]]:
        if not parts:
            return {}
        chains = [self._small(*each) for name in parts for each in self.nodes[name].chains]
        if not (ns := self._fastest_ns(chains, _SECONDS)):
            return {}
        costs = [self.nodes[name].cost for name in parts]
        pairs = zip(costs, ns[::2], ns[1::2], strict=True)
        return {
            name: (cost(first, second),)
            for name, (cost, first, second) in zip(parts, pairs, strict=True)
        }

    def measure_heavy(self, kinds: Sequence[str]) -> dict[str, tuple[float]]:
        """Return `Heavy.factor` of each kind; not positive where a short chain took longer."""
        chains = []
        for kind in kinds:
            for is_ours in (False, True):
                for nodes in (SHORT, self.heavy[kind].long):
                    model = self.folder / f"{kind}-{nodes}-{is_ours}.onnx"
                    if not model.exists():
                        onnx.save(self.heavy[kind].chain(nodes, is_ours=is_ours), model)
                    chains.append(Chain(model, self._library if is_ours else None, 1))
        if not (ns := self._fastest_ns(chains, _HEAVY_SECONDS)):
            return {}
        fours = (ns[start : start + 4] for start in range(0, len(ns), 4))
        return {
            kind: (_factor(self.heavy[kind], *each),)
            for kind, each in zip(kinds, fours, strict=True)
        }

    def _small(self, operations: int, nodes: int, points: int, threads: int) -> Chain:
        """Return a chain of nodes of ours, or of Add for 0 operations."""
        op, second = "Add", ", x0"
        if operations:
            op, second = f"{DOMAIN}.{_region(operations).op_type}", ""
        model = self.folder / f"chain{operations}-{nodes}.onnx"
        if not model.exists():
            body = " ".join(f"x{i + 1} = {op} (x{i}{second})" for i in range(nodes))
            text = f"""<ir_version: 10, opset_import: ["" : 20, "{DOMAIN}" : 1]>
                chain (float[n] x0) => (float[n] x{nodes}) {{ {body} }}"""
            onnx.save(onnx.parser.parse_model(text), model)
        return Chain(model, self._library if operations else None, points, threads)

    def _fastest_ns(self, chains: Sequence[Chain], seconds: float) -> list[float]:
        """Return the ns of each chain's fastest run; nothing, with a note, if one fails."""
        job = ChainsJob(tuple(chains), seconds * len(chains))
        found = run_isolated(
            fastest_runs, job, timeout_seconds=_TIMEOUT_SECONDS, imports="nothing"
        )
        if isinstance(found, Ended):
            self.notes.append(found.problem if isinstance(found, Failed) else f"chains {found}")
            return []
        return [1e9 * each for each in found]


def _is_doubtful(found: Agreed) -> bool:
    """Say whether a factor is too noisy, or may be on either side of what corrects predictions."""
    (factor,), noise = found.values, found.noise
    limit = LEAST_CORRECTION if factor > 1 else 1 / LEAST_CORRECTION
    return noise > MOST_NOISE or abs(factor / limit - 1) < noise


def _factor(heavy: Heavy, short: float, long: float, our_short: float, our_long: float) -> float:
    runtime, ours = long - short, our_long - our_short
    return heavy.factor(runtime, ours) if min(runtime, ours) > 0 else -1.0


def _region(operations: int) -> RegionSignature:
    """Return a region of one input: additions, of which no two become one instruction."""
    steps = ["a = Constant <value = float {0.5}> ()", "v0 = Identity (X)"]
    steps += [f"v{i + 1} = Add (v{i}, a)" for i in range(operations)]
    body = f'<opset_import: ["" : 20]> f (X) => (v{operations}) {{ {"  ".join(steps)} }}'
    spec = ("float32", ("n",))
    return RegionSignature(
        f"chain{operations}", body, (TensorSpec("X", *spec),), (TensorSpec("Y", *spec),)
    )
