"""Other ways to run a whole model, each timed beside the one that is the default."""

from __future__ import annotations

import dataclasses
import filecmp
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ortkit.errors import OrtkitError
from ortkit.fusion.conv import finder
from ortkit.fusion.regions.region import PASS as REGIONS
from ortkit.kernels.tuning.database import Chooser
from ortkit.optimization.call import Optimized, optimize
from ortkit.optimization.options import OptimizeOptions
from ortkit.runtime.intervals import noise_floor, speedup_of
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.timing.variants import CPU
from ortkit.runtime.workers.interleave import Schedule, run_interleaved
from ortkit.targets.catalog import traits_of
from ortkit.tune.result import Alternative

_ATTENTION = "fuse-attention"
#: Kernels that the model is tried without, one after the other.
_MOST_CUTS = 3
_PROCESSES = 2
#: Of runs of one session, and how many runs that are at least.
_SECONDS, _RUNS = 1.0, 12


@dataclass(frozen=True)
class Way:
    """One alternative: what makes the model, or what makes the session.

    Args:
        what: How to get it, as the user would write it.
        options: How to optimize; None: as by default.
        settings: Of the session; None: as by default.
        provider_options: Of the first execution provider.
    """

    what: str
    options: OptimizeOptions | None = None
    settings: SessionSettings | None = None
    provider_options: Mapping[str, str] = field(default_factory=dict)


def ways_of(
    base: Optimized,
    options: OptimizeOptions,
    settings: SessionSettings,
    tuned: Chooser,
    cores: int,
    shares: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[Way]:
    """Yield what there is to choose for a model, what pays most often first.

    Args:
        base: What `optimize` makes of it by default.
        options: How that was made.
        settings: Of its sessions.
        tuned: Makes the kernels that tuning found.
        cores: That may be used.
        shares: Fused operators -> their part of the model's time.
    """
    yield Way("tuned kernels", dataclasses.replace(options, chooser=tuned))
    report = base.report
    if any(hit.pass_name == _ATTENTION for hit in report.hits):
        yield Way(
            f"--passes=-{_ATTENTION}: attention as written",
            dataclasses.replace(options, passes=f"-{_ATTENTION}"),
        )
    traits = traits_of(options.target)
    has_conv = any(node.op_type == "Conv" for node in base.model.graph)
    if traits.has_nhwc_option and has_conv:
        yield Way("prefer_nhwc: NHWC layout", provider_options={"prefer_nhwc": "1"})
    if traits.is_host and settings.threads == 0:
        # What ONNX Runtime takes by itself is all cores.
        for count in sorted({1, cores // 2} - {0, cores}):
            yield Way(f"threads={count}", settings=dataclasses.replace(settings, threads=count))
    if layout := frozenset(h.id for h in report.hits if h.pass_name == finder.PASS):
        yield Way(
            f"convolutions by ONNX Runtime, in its own layout (--deny of {finder.PASS})",
            dataclasses.replace(options, denied=options.denied | layout),
        )
    if any(region.emitted_as for region in report.regions):
        yield Way(
            "--kernels off: no generated kernels", dataclasses.replace(options, kernels="off")
        )
        yield from _cuts(base, options, shares)
    for level, what in ((3, "every recognised fusion"), (1, "no fusions")):
        if level != options.level:
            yield Way(f"--level {level}: {what}", dataclasses.replace(options, level=level))
    if traits.is_host:
        for what, other in (
            ("spinning=False", dataclasses.replace(settings, spinning=False)),
            ("memory_pattern=False", dataclasses.replace(settings, memory_pattern=False)),
            ("memory_arena=False", dataclasses.replace(settings, memory_arena=False)),
        ):
            yield Way(what, settings=other)


def _cuts(base: Optimized, options: OptimizeOptions, shares: Mapping[str, float]) -> Iterator[Way]:
    """Yield the model without the regions of one kernel, for those that take most of the time."""
    by_op: dict[str, list[str]] = {}
    for region in base.report.regions:
        if region.emitted_as is not None and region.emitted_as in shares:
            rewrite = f"{REGIONS}:{region.kind}:{region.at}"
            by_op.setdefault(region.emitted_as, []).append(rewrite)
    for op in sorted(by_op, key=lambda each: -shares[each])[:_MOST_CUTS] if len(by_op) > 1 else ():
        denied = options.denied | frozenset(by_op[op])
        yield Way(
            f"--deny {by_op[op][0]} ({len(by_op[op])} such): {op} as its nodes",
            dataclasses.replace(options, denied=denied),
        )


class Alternatives:
    """The default way, and others beside it.

    Args:
        source: The model.
        base: What `optimize` makes of it by default.
        options: How that was made.
        settings: Of its sessions.
        feeds: An npz file that it runs on.
        folder: For models and what processes print.
        run_seconds: What a run takes.
        expected: Seconds that an alternative takes in all, about.
        providers: Execution providers, most wanted first.
    """

    def __init__(
        self,
        source: Path,
        base: Optimized,
        options: OptimizeOptions,
        settings: SessionSettings,
        feeds: Path,
        folder: Path,
        *,
        run_seconds: float,
        expected: float,
        providers: Sequence[str] = CPU,
    ) -> None:
        self.source = source
        self.options = options
        self.feeds = feeds
        self.folder = folder
        self.seconds = max(_SECONDS, _RUNS * run_seconds)
        self.expected = expected + 3 * self.seconds
        self.providers = [(name, dict[str, str]()) for name in providers]
        self.plan = self._plan(base, settings, "base")

    def try_all(
        self, ways: Sequence[Way], left: Callable[[], float], progress: Callable[[str], None]
    ) -> tuple[Alternative, ...]:
        """Time one after the other, while the time that is left is enough for the next."""
        found = []
        for way in ways:
            if left() < self.expected:
                found.append(_nothing(way, "no time was left"))
                continue
            progress(f"try {way.what}")
            began = left()
            try:
                found.append(self._timed(way))
            except OrtkitError as error:
                found.append(_nothing(way, str(error)))
            if not found[-1].problem:
                self.expected = began - left()
        return tuple(found)

    def _timed(self, way: Way) -> Alternative:
        first, *others = self.plan.providers
        other = dataclasses.replace(
            self.plan,
            settings=way.settings or self.plan.settings,
            providers=[(first[0], {**first[1], **way.provider_options}), *others],
        )
        if way.options is not None:
            made = self._plan(optimize(self.source, way.options), other.settings, "other")
            other = dataclasses.replace(made, providers=other.providers)
            if _is_same(self.plan, other):
                return _nothing(way, "it makes the same model")
        # The default twice: by what it differs from itself others have to exceed.
        plans = (self.plan, other, self.plan)
        schedule = Schedule(self.seconds, processes=_PROCESSES)
        base, timed, again = run_interleaved(plans, self.feeds, schedule)
        if problem := base.problem or timed.problem or again.problem:
            return _nothing(way, problem)
        floor = noise_floor(speedup_of(base.rounds, again.rounds), (base.rounds, again.rounds))
        gain = speedup_of(base.rounds, timed.rounds, floor=floor)
        return Alternative(way.what, gain.ratio, gain.low, gain.high, gain.direction, "")

    def _plan(self, optimized: Optimized, settings: SessionSettings, name: str) -> SessionPlan:
        # Under one name: a model says what its library is called.
        path = self.folder / name / "model.onnx"
        path.parent.mkdir(exist_ok=True)
        files = optimized.save(path)
        libraries = files[-1:] if optimized.library is not None else ()
        return SessionPlan(path, tuple(libraries), self.providers, settings)


def _is_same(one: SessionPlan, other: SessionPlan) -> bool:
    """Say whether two sessions would run the same code."""
    files = [(one.model, other.model), *zip(one.libraries, other.libraries, strict=False)]
    return len(one.libraries) == len(other.libraries) and all(
        filecmp.cmp(first, second, shallow=False) for first, second in files
    )


def _nothing(way: Way, problem: str) -> Alternative:
    return Alternative(way.what, None, None, None, "not known", problem)
