"""A batch of regions: one library, one model, every run judged."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.direct import Functions
from fuzz.feeds import Run, runs
from fuzz.judge import judge, same
from fuzz.reference import Reference
from fuzz.sessions import Outcome, Sessions
from fuzz.values import Region
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.cache import KernelCache, Slot
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.catalog import load_backend
from ortkit.kernels.tuning.defaults import default_choices
from ortkit.targets.target import Target

#: Threads of the two sessions whose results must be the same bits.
THREADS = (1, 4)


@dataclass(frozen=True)
class Finding:
    """A region that a kernel gets wrong."""

    region: Region
    fault: str
    run: Run | None = None

    def text(self) -> str:
        """Return all that is needed to look at it."""
        run = "" if self.run is None else f"{self.run.kind} inputs, sizes {dict(self.run.sizes)}\n"
        return f"{self.fault}\n{run}{self.region.text()}"


@dataclass
class Tally:
    """What a number of regions came to."""

    regions: int = 0
    built: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)
    """Operators of regions that were built."""
    runs: int = 0
    without_runtime: int = 0
    """Judged against the reference alone."""
    judged: int = 0
    elements: int = 0
    worst: float = 0.0
    """The largest error of a kernel, in what `judge` allows 10 of."""
    worst_own: float = 0.0
    """ONNX Runtime's own."""

    def add(self, other: Tally) -> None:
        """Add another batch's."""
        for name in ("regions", "built", "runs", "without_runtime", "judged", "elements"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused += other.refused
        self.ops += other.ops
        self.worst = max(self.worst, other.worst)
        self.worst_own = max(self.worst_own, other.worst_own)

    def text(self) -> str:
        """Return it as a few lines."""
        share = self.judged / self.elements if self.elements else 0.0
        lines = [
            f"{self.regions} regions, {self.built} built, {sum(self.refused.values())} refused",
            f"{self.runs} runs judged, {self.without_runtime} of them without ONNX Runtime; "
            f"{share:.1%} of {self.elements} elements could be judged",
            f"largest error {self.worst:.2f}, ONNX Runtime's {self.worst_own:.2f}",
        ]
        for reason, count in self.refused.most_common(40):
            lines.append(f"  {count / self.regions:6.1%}  {reason}")
        return "\n".join(lines)


def check(regions: Sequence[Region], cache: KernelCache) -> tuple[list[Finding], Tally]:
    """Build the regions of one opset, run what was built, and judge it."""
    tally = Tally(regions=len(regions))
    with tempfile.TemporaryDirectory(prefix="ortkit-fuzz-") as folder:
        path = Path(folder) / "regions.so"
        findings, built, functions = _build(dict(enumerate(regions)), path, cache, tally)
        if functions is not None:
            findings += _compare(built, path, functions, tally)
    return findings, tally


def fault_of(region: Region, run: Run, cache: KernelCache) -> str:
    """Return what is wrong with one run of one region; empty if it is right, or refused."""
    with tempfile.TemporaryDirectory(prefix="ortkit-fuzz-") as folder:
        path = Path(folder) / "regions.so"
        findings, built, functions = _build({0: region}, path, cache, Tally())
        if findings or functions is None:
            return findings[0].fault if findings else ""
        found = [Sessions(built, path, threads).run({0: run.feeds})[0] for threads in THREADS]
        own = Sessions(built, None, 1).run({0: run.feeds})[0]
        return _fault(region, Reference(region), functions, run, found, own, Tally())


def _build(
    regions: Mapping[int, Region], path: Path, cache: KernelCache, tally: Tally
) -> tuple[list[Finding], dict[int, Region], Functions | None]:
    """Build one library; a region that is accepted and does not compile is a finding."""
    signatures = {number: region.signature() for number, region in regions.items()}
    made = build_library(list(signatures.values()), Target(), path, cache=cache)
    findings: list[Finding] = []
    reasons = {signature.key: reason for signature, reason in made.refused}
    accepted: dict[int, Region] = {}
    for number, signature in signatures.items():
        reason = reasons.get(signature.key)
        if reason is None:
            accepted[number] = regions[number]
        elif refusal(signature, Target()) is None:
            findings.append(Finding(regions[number], f"does not compile: {reason}"))
        else:
            tally.refused[_general(reason)] += 1
    tally.built += len(accepted)
    for region in accepted.values():
        tally.ops.update(node.op_type for node in region.nodes if node.op_type != "Constant")
    if not accepted:
        return findings, {}, None
    # Types that ONNX Runtime has few kernels of stand together: its sessions are halved there.
    built = dict(sorted(accepted.items(), key=lambda one: _rareness(one[1])))
    slots = {}
    for kernel, number in zip(made.kernels, accepted, strict=True):
        backend, signature = load_backend(kernel.backend), signatures[number]
        choices = default_choices(signature, backend, kernel.target)
        slots[kernel.key] = Slot(
            signature, backend.name, backend.fingerprint(), kernel.target, choices
        )
    return findings, built, Functions(_objects(slots, cache, path.parent), path.parent)


def _objects(slots: Mapping[str, Slot], cache: KernelCache, into: Path) -> dict[str, Kernel]:
    """Return the kernels again, with their objects, which a library's building leaves nowhere."""
    found = {}
    for key, slot in slots.items():
        kernel = cache.find(slot, into)
        assert kernel is not None, "the code generator changed while regions were built"
        found[key] = kernel
    return found


def _compare(
    built: Mapping[int, Region], library: Path, functions: Functions, tally: Tally
) -> list[Finding]:
    ours = [Sessions(built, library, threads) for threads in THREADS]
    theirs = Sessions(built, None, 1)
    references = {number: Reference(region) for number, region in built.items()}
    every = {number: runs(region) for number, region in built.items()}
    findings: dict[int, Finding] = {}
    for turn in range(max(len(each) for each in every.values())):
        turns = {n: each[turn] for n, each in every.items() if turn < len(each)}
        feeds = {number: run.feeds for number, run in turns.items()}
        found = [sessions.run(feeds) for sessions in ours]
        own = theirs.run({n: run.feeds for n, run in turns.items() if run.is_judged})
        for number, run in turns.items():
            outcomes = [each[number] for each in found]
            fault = _fault(
                built[number], references[number], functions, run, outcomes,
                own.get(number, ""), tally,
            )  # fmt: skip
            if fault:
                findings.setdefault(number, Finding(built[number], fault, run))
    return list(findings.values())


def _fault(
    region: Region,
    reference: Reference,
    functions: Functions,
    run: Run,
    outcomes: Sequence[Outcome],
    theirs: Outcome,
    tally: Tally,
) -> str:
    """Return what is wrong with a run; empty if nothing is."""
    outcome, other = outcomes
    if isinstance(outcome, str) or isinstance(other, str):
        # What ONNX Runtime cannot run either, such as the largest of no elements, is no fault.
        return f"does not run: {outcome}" if isinstance(theirs, list) else ""
    for value, one, many in zip(region.outputs, outcome, other, strict=True):
        if not same(one, many):
            return f"output {value.name} depends on the number of threads"
    if fault := functions.fault(region, run, outcome):
        return fault
    if not run.is_judged:
        return ""
    try:
        exact, samples = reference.run(run.feeds), reference.samples(run.feeds)
    except ValueError as error:
        if isinstance(theirs, list) and all(array.size for array in theirs):
            raise AssertionError(f"no reference: {error}\n{region.text()}") from error
        return ""
    tally.runs += 1
    tally.without_runtime += not isinstance(theirs, list)
    for index, value in enumerate(region.outputs):
        judgement = judge(
            value.dtype,
            outcome[index],
            theirs[index] if isinstance(theirs, list) else None,
            exact[value.name],
            [sample[value.name] for sample in samples],
        )
        tally.judged += judgement.judged
        tally.elements += judgement.elements
        tally.worst = max(tally.worst, judgement.error)
        tally.worst_own = max(tally.worst_own, judgement.own_error)
        if judgement.fault:
            return f"output {value.name}: {judgement.fault}"
    return ""


def _rareness(region: Region) -> tuple[bool, ...]:
    dtypes = {value.dtype for value in region.values.values()}
    usual = {"float32", "int64", "int32", "bool"}
    return ("bfloat16" in dtypes, bool(dtypes - usual), "float16" in dtypes)


def _general(reason: str) -> str:
    """Return a reason without what differs from region to region."""
    return re.sub(r"'[^']*'|\[[^\]]*\]|-?\d+(\.\d+)?(e-?\d+)?", "_", reason)
