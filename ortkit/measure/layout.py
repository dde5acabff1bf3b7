"""Which layout and type each convolution and product wants here, and what conversion costs.

Measured, not looked up: each node at its real sizes is a model of its own in every layout and type
that there is an operator for. ONNX Runtime's trace says what the operator and what the
conversions around it take. What does not exist is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import onnx

from ortkit.errors import OrtkitError, RunError
from ortkit.graph.io.open import open_model
from ortkit.isolation.ended import Ended, Failed
from ortkit.isolation.run import run_isolated
from ortkit.measure.layout_cases import LayoutCase, layout_cases
from ortkit.measure.layout_child import WARM_UP, LayoutsJob, Ran, TracedVariant, run_variants
from ortkit.measure.layout_kernels import own_kernel
from ortkit.measure.layout_models import (
    LayoutVariant,
    feeds_of,
    float_variants,
    int8_variant,
    kernel_variant,
    nhwc_variant,
)
from ortkit.measure.layout_result import Layouts, LayoutTime, NodeLayouts
from ortkit.measure.result import LEAST_NOISE
from ortkit.runtime.memory.nodes import place_events
from ortkit.runtime.memory.point import PointPlan
from ortkit.runtime.memory.point_child import SAVED_WEIGHTS
from ortkit.runtime.profiling.trace.read import read_trace
from ortkit.runtime.profiling.trace.trace import Trace
from ortkit.runtime.tensor_files import of_plain, write_manifest
from ortkit.temporary import TemporaryFolder

MOST_CASES = 12
_SECONDS = 0.2
_TIMEOUT_SECONDS = 300.0
_CUDA = "CUDAExecutionProvider"


def measure_layouts(
    plan: PointPlan,
    folder: Path,
    *,
    most: int = MOST_CASES,
    progress: Callable[[str], None] = lambda _: None,
) -> Layouts:
    """Measure the nodes that take most time.

    Args:
        plan: The model, its inputs, and the target and threads of a session.
        folder: For small models and traces.
        most: How many different nodes.

    Raises:
        RunError: The model does not run without optimizations.
    """
    progress("layouts: the model without optimizations")
    cases, on_cuda = _cases(plan, folder)
    settings = {key: plan.settings[key] for key in ("target", "threads") if key in plan.settings}
    found = []
    for number, case in enumerate(cases[:most]):
        progress(f"layouts: {case.op} {case.described} ({number + 1} of {min(most, len(cases))})")
        with TemporaryFolder("job", inside=folder) as own:
            times = _measured(case, settings, own, on_cuda=on_cuda)
        found.append(NodeLayouts(case.op, case.nodes, case.described, case.share, times))
    return Layouts(tuple(found), max(0, len(cases) - most), int(settings.get("threads", 0)))


def _cases(plan: PointPlan, folder: Path) -> tuple[tuple[LayoutCase, ...], bool]:
    with TemporaryFolder("job", inside=folder) as own:
        graph = own / "executed.onnx"
        settings = {
            **plan.settings,
            "optimizations": "off",
            "kernels": "never",
            "optimized_model": str(graph),
            "config": {
                **plan.settings.get("config", {}),
                SAVED_WEIGHTS: "executed.weights",
                # A weight that is packed is no input of its node in the trace.
                "session.disable_prepacking": "1",
            },
        }
        variant = TracedVariant(plan.model.absolute(), settings, own / "trace")
        (ran,) = _run([variant], plan.feeds)
        if ran.trace is None:
            raise RunError(ran.problem, where=str(plan.model))
        trace = read_trace(ran.trace)
        events = [event for event in trace.nodes if event.run >= WARM_UP]
        nodes_of = place_events(events, open_model(graph)) if graph.is_file() else []
        # Names repeat from run to run, and nodes without one are distinguished by their order.
        cases = layout_cases(list(zip(events, nodes_of, strict=False)))
    return cases, any(event.provider == _CUDA for event in events)


def _measured(
    case: LayoutCase, settings: Mapping[str, Any], folder: Path, *, on_cuda: bool
) -> tuple[LayoutTime, ...]:
    variants = [*float_variants(case, on_cuda)]
    variants += [
        layout_variant
        for layout_variant in (nhwc_variant(case), int8_variant(case))
        if layout_variant is not None
    ]
    extra: dict[int, dict[str, Any]] = {}
    missing: list[LayoutTime] = []
    if case.op == "Conv" and not on_cuda:
        own = own_kernel(case, folder / "own.so")
        if isinstance(own, str):
            missing.append(LayoutTime("NHWC", "float32", "ortkit", None, None, 0.0, own))
        else:
            extra[len(variants)] = {"kernels": str(own.library)}
            variants.append(
                kernel_variant(case, own.signature, own.weights, is_planar=own.is_planar)
            )
    feeds = folder / "feeds"
    feeds.mkdir()
    arrays = enumerate(feeds_of(case).items())
    write_manifest(feeds, [of_plain(name, index, array, feeds) for index, (name, array) in arrays])
    traced = []
    for index, variant in enumerate(variants):
        path = folder / f"variant{index}.onnx"
        onnx.save(variant.model, path)
        given = {**settings, **variant.settings, **extra.get(index, {})}
        traced.append(TracedVariant(path, given, folder / f"trace{index}"))
    ran = _run(traced, feeds)
    times = [_time(variant, item, on_cuda) for variant, item in zip(variants, ran, strict=True)]
    return (*times, *missing)


def _run(variants: Sequence[TracedVariant], feeds: Path) -> list[Ran]:
    """Run variants side by side; if that ends the process, each alone."""
    job = LayoutsJob(tuple(variants), feeds.absolute(), _SECONDS)
    ran = run_isolated(run_variants, job, timeout_seconds=_TIMEOUT_SECONDS)
    if not isinstance(ran, Ended):
        return ran
    if len(variants) == 1:
        problem = ran.problem if isinstance(ran, Failed) else f"the process {ran}"
        return [Ran(problem=problem)]
    return [each for variant in variants for each in _run([variant], feeds)]


def _time(variant: LayoutVariant, ran: Ran, on_cuda: bool) -> LayoutTime:
    head = (variant.layout, variant.dtype, variant.by)
    if ran.trace is None:
        problem = ran.problem
        if "Could not find an implementation" in problem or "node_provider_type" in problem:
            problem = "no kernel: ONNX Runtime has no implementation for this type"
        return LayoutTime(*head, None, None, 0.0, problem)
    try:
        trace = read_trace(ran.trace)
    except OrtkitError as error:
        return LayoutTime(*head, None, None, 0.0, error.problem)
    if problem := _absence(variant, trace, on_cuda):
        return LayoutTime(*head, None, None, 0.0, problem)
    if variant.transposed and any(event.op == "Transpose" for event in trace.nodes):
        head = (variant.transposed, variant.dtype, variant.by)
    work: dict[int, float] = {}
    rest: dict[int, float] = {}
    parts = ran.device if on_cuda else _parts(trace)
    if on_cuda and not ran.device:
        reason = ran.no_device or "no kernel of the device was seen"
        return LayoutTime(*head, None, None, 0.0, f"times of the device: {reason}")
    for run, op, elapsed in parts:
        if run >= WARM_UP:
            part = work if op in variant.ops else rest
            part[run] = part.get(run, 0.0) + elapsed
    runs = range(WARM_UP, len(trace.runs))
    kernel = [work.get(run, 0.0) for run in runs]
    first, second = _typical(kernel[::2]), _typical(kernel[1::2])
    noise = LEAST_NOISE
    if first > 0 and second > 0:
        noise = max(noise, first / second - 1, second / first - 1)
    conversion = _typical([rest.get(run, 0.0) for run in runs])
    return LayoutTime(*head, _typical(kernel), conversion, noise, "")


def _absence(variant: LayoutVariant, trace: Trace, on_cuda: bool) -> str:
    """Say why this is not the layout or type that it was to be, empty if it is."""
    ran = {event.op: event for event in trace.nodes if event.run == WARM_UP}
    if variant.needs and variant.needs not in ran:
        return "ONNX Runtime leaves the node in its own layout"
    work = next((ran[op] for op in variant.ops if op in ran), None)
    if work is None:
        return f"no kernel: ONNX Runtime runs {', '.join(ran)} instead"
    element = work.inputs[0][0] if work.inputs else ""
    if element != variant.element:
        return f"no kernel: it is computed in {element} between casts"
    if on_cuda and work.provider != _CUDA:
        return "no kernel on CUDA: it runs on the CPU"
    return ""


def _parts(trace: Trace) -> Iterator[tuple[int, str, float]]:
    """Yield run, operator and microseconds of each node."""
    for event in trace.nodes:
        yield event.run, event.op, float(event.duration_us)


def _typical(values: Sequence[float]) -> float:
    """Return the mean of the faster half, which other processes disturbed least.

    The trace counts whole microseconds; a mean is finer.
    """
    kept = sorted(values)[: (len(values) + 1) // 2]
    return fmean(kept)
