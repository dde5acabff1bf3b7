"""What the options of arenas and sessions would change for a model: measured, side by side."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from ortkit.errors import OrtkitError
from ortkit.graph.io.open import open_model
from ortkit.graph.io.origin import source_of
from ortkit.graph.io.save import save_model
from ortkit.kernels.metadata import library_path
from ortkit.runtime.memory.point import Point, PointPlan, measure_point

ROUNDS = 3
DEFAULT, TWO = "default", "two sessions"
#: Differences below this part are called none, however little they scatter.
LEAST_GAIN = 0.02
#: For CUDA's arena the same words are options of the provider.
_CUDA = "CUDAExecutionProvider"


@dataclass(frozen=True)
class Range:
    """A number over the rounds: its median, and the least and the most that was seen."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class OptionEffect:
    """A model under one option."""

    name: str
    what: str
    """How to get it."""
    held: int | None
    """By the arena after the last run (of both, for two sessions); None: it is no arena."""
    resident: Range | None
    """By how much the process's resident memory was higher at its most than before loading."""
    run_ms: Range | None
    load_ms: Range | None
    problem: str
    """Why there are no numbers, empty if there are."""


@dataclass(frozen=True)
class ArenaOptions:
    """Every option, and what follows."""

    effects: tuple[OptionEffect, ...]
    advice: tuple[str, ...]
    rounds: int

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class _Variant:
    name: str
    what: str
    plan: PointPlan


def measure_options(
    plan: PointPlan,
    folder: Path,
    *,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda _: None,
) -> ArenaOptions:
    """Load and run a model under each option in turn, `rounds` times, each in its own process.

    Args:
        plan: The model and its inputs, under default options.
        folder: For a copy of the model whose weights are mapped.

    Raises:
        RunError: It does not run under default options.
    """
    base = replace(plan, nodes=False)
    progress("options: default")
    first = measure_point(base)
    variants = list(_variants(base, first, folder))
    points: dict[str, list[Point]] = {variant.name: [] for variant in variants}
    problems: dict[str, str] = {}
    for number in range(rounds):
        for one in variants:
            if one.name in problems:
                continue
            progress(f"options: {one.name}, round {number + 1} of {rounds}")
            try:
                points[one.name].append(measure_point(one.plan))
            except OrtkitError as error:
                problems[one.name] = error.problem
    effects = tuple(
        _effect(variant, points[variant.name], problems.get(variant.name, ""))
        for variant in variants
    )
    # The system counts what is resident; of a device's memory, what the arena took is known.
    memory = "held" if first.last.arena("Cuda") is not None else "resident"
    return ArenaOptions(effects, _advice(effects, memory), rounds)


def _variants(base: PointPlan, first: Point, folder: Path) -> Iterator[_Variant]:
    on_cuda = first.last.arena("Cuda") is not None
    yield _Variant(DEFAULT, "nothing", base)
    yield from _cuda_arenas(base, first) if on_cuda else _cpu_arenas(base, first)
    yield _Variant(
        "shrink",
        "memory.enable_memory_arena_shrinkage",
        replace(base, run_config={"memory.enable_memory_arena_shrinkage": _where(on_cuda)}),
    )
    yield _Variant("no pattern", "memory_pattern=False", _with(base, memory_pattern=False))
    if not on_cuda:  # kernels there pack nothing
        yield _Variant(
            "no prepacking",
            "session.disable_prepacking=1",
            _with_config(base, {"session.disable_prepacking": "1"}),
        )
    mapped = _mapped(base, folder)
    if mapped is not None:
        yield _Variant("mapped weights", "external data", mapped)
    two = replace(base, sessions=2)
    yield _Variant(TWO, "two arenas", two)
    if not on_cuda:
        yield _Variant(
            f"{TWO}, one arena",
            "shared_arena=True",
            _shared(two, {"arena_extend_strategy": 0}),
        )


def _where(on_cuda: bool) -> str:
    return "gpu:0" if on_cuda else "cpu:0"


def _cpu_arenas(base: PointPlan, first: Point) -> Iterator[_Variant]:
    yield _Variant("no arena", "memory_arena=False", _with(base, memory_arena=False))
    yield _Variant(
        "as requested",
        "arena_extend_strategy=1",
        _shared(base, {"arena_extend_strategy": 1}),
    )
    arena = first.last.arena("Cpu")
    if arena is None or not arena.peak:
        return
    for name, key in (("first chunk", "initial_chunk_size_bytes"), ("limit", "max_mem")):
        config = {"arena_extend_strategy": 1, key: arena.peak}
        yield _Variant(name, f"{key}={arena.peak} (the peak)", _shared(base, config))


def _cuda_arenas(base: PointPlan, first: Point) -> Iterator[_Variant]:
    arena = first.last.arena("Cuda")
    assert arena is not None
    strategy = {"arena_extend_strategy": "kSameAsRequested"}
    yield _Variant(
        "as requested", "arena_extend_strategy=kSameAsRequested", _with_cuda(base, strategy)
    )
    limit = {**strategy, "gpu_mem_limit": str(arena.peak)}
    what = f"gpu_mem_limit={arena.peak} (the peak), as requested"
    yield _Variant("limit", what, _with_cuda(base, limit))


def _with(base: PointPlan, **settings: object) -> PointPlan:
    return replace(base, settings={**base.settings, **settings})


def _with_config(base: PointPlan, entries: Mapping[str, str]) -> PointPlan:
    return _with(base, config={**base.settings.get("config", {}), **entries})


def _with_cuda(base: PointPlan, options: Mapping[str, str]) -> PointPlan:
    return _with(base, target=[[_CUDA, dict(options)]])


def _shared(base: PointPlan, config: Mapping[str, int]) -> PointPlan:
    return replace(_with(base, shared_arena=True), arena=config)


def _mapped(base: PointPlan, folder: Path) -> PointPlan | None:
    """Return the model with its weights in a file that is mapped, None if it has that already."""
    model = open_model(base.model)
    path = folder / base.model.name
    source = source_of(model)
    if source is not None and source.had_external_data:
        return None
    saved = save_model(model, path.with_suffix(".onnx"), external_data=True)
    if saved.data is None:
        return None
    library = library_path(base.model)
    if library.is_file():  # a session checks the copy as it checked the original
        shutil.copyfile(library, library_path(saved.model))
    return replace(base, model=saved.model)


def _effect(variant: _Variant, points: list[Point], problem: str) -> OptionEffect:
    if problem or not points:
        return OptionEffect(variant.name, variant.what, None, None, None, None, problem)
    residents = [
        point.peak_resident - point.before.resident
        for point in points
        if point.peak_resident is not None
    ]
    held = [point.held for point in points if point.held is not None]
    return OptionEffect(
        name=variant.name,
        what=variant.what,
        held=int(median(held)) if held else None,
        resident=_range(residents),
        run_ms=_range([point.run_ms for point in points]),
        load_ms=_range([1e3 * point.load_seconds for point in points]),
        problem="",
    )


def _range(values: list[float] | list[int]) -> Range | None:
    return Range(median(values), min(values), max(values)) if values else None


def _advice(effects: tuple[OptionEffect, ...], memory: str = "resident") -> tuple[str, ...]:
    """Name what gains most memory and most time; `memory` is the field that says how much."""
    by_name = {effect.name: effect for effect in effects}
    base, two = by_name[DEFAULT], by_name.get(TWO)
    single = [
        effect for effect in effects if effect is not base and not effect.name.startswith(TWO)
    ]
    lines = []
    for measure in (memory, "run_ms"):
        gains = [
            (gain, option_effect)
            for option_effect in single
            if (gain := _gain(base, option_effect, measure)) > 0
        ]
        if gains:
            gain, best = max(gains, key=lambda pair: pair[0])
            lines.append(_line(base, best, measure, gain, memory))
    shared = by_name.get(f"{TWO}, one arena")
    if two is not None and shared is not None and (gain := _gain(two, shared, memory)) > 0:
        lines.append(_line(two, shared, memory, gain, memory))
    return tuple(lines)


_WORDS = {"resident": "resident memory", "held": "held memory", "run_ms": "time of a run"}


def _line(base: OptionEffect, best: OptionEffect, measure: str, gain: float, memory: str) -> str:
    other = memory if measure == "run_ms" else "run_ms"
    text = f"{best.name} ({best.what}): {gain:.0%} less {_WORDS[measure]}"
    change = _gain(base, best, other)
    if change:
        text += f", {abs(change):.0%} {'less' if change > 0 else 'more'} {_WORDS[other]}"
    return text


def _gain(base: OptionEffect, other: OptionEffect, measure: str) -> float:
    """Return the part that is saved, negative if it is more, 0 if that is within the noise.

    With several options and few rounds one range misses another by chance: a difference counts
    if it is larger than either range, too.
    """
    before, after = _numbers(base, measure), _numbers(other, measure)
    if before is None or after is None or before.median <= 0:
        return 0.0
    if before.low <= after.high and after.low <= before.high:
        return 0.0
    gain = 1 - after.median / before.median
    noise = max(LEAST_GAIN, *((item.high - item.low) / before.median for item in (before, after)))
    return gain if abs(gain) >= noise else 0.0


def _numbers(effect: OptionEffect, measure: str) -> Range | None:
    found: Range | int | None = getattr(effect, measure)
    return Range(found, found, found) if isinstance(found, int) else found
