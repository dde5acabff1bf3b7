"""What `ortkit profile` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.text import plural

if TYPE_CHECKING:
    from ortkit.runtime.profiling.advice import Advice
    from ortkit.runtime.profiling.result import OpRow, Overall, Profile, Row, Work
    from ortkit.runtime.profiling.trace.events import TensorShape

_SUFFIX = "ExecutionProvider"
_MOST_ORIGINS = 12
_MOST_OPS = 20


def show_profile(profile: Profile, advice: Sequence[Advice], *, top: int) -> None:
    """Print the tables, and what to do."""
    for line in _head(profile):
        show.line(line)
    several = len({row.provider for row in profile.rows}) > 1
    on_device = profile.overall.device_us is not None
    ops = profile.ops[:_MOST_OPS]
    show.table(
        "by operator",
        (
            "op",
            *_provider_name(several),
            "nodes",
            "calls",
            "ms",
            *_device(on_device),
            "share",
            *_WORK,
        ),
        [_op(op, several, on_device) for op in ops],
        spare=("calls", "GB/s", "GFLOP/s"),
    )
    if len(profile.ops) > len(ops):
        left = sum(op_row.share for op_row in profile.ops[_MOST_OPS:])
        rest = len(profile.ops) - len(ops)
        show.line(f"          and {rest} more operators, {left:.1%} of the time")
    rows = profile.rows[:top]
    if rows:
        columns = (
            "node", "op", *_provider_name(several), "shapes", "calls", "µs", *_device(on_device),
            "share",
            "mean", "p50", "p95", *_WORK, "waits",
        )  # fmt: skip
        title = f"the {len(rows)} nodes that take most, of {len(profile.rows)}"
        spare = ("waits", "p50", "mean", "shapes", "p95", "calls", "GB/s", "GFLOP/s")
        show.table(title, columns, [_node(item, several, on_device) for item in rows], spare=spare)
    for row in rows:
        if len(row.origins) > 1:
            show.labelled("", f"{row.name} stands for {_listed(row.origins)}")
    if on_device and top:
        _kernels(profile, top)
    for number, one in enumerate(advice, 1):
        gain = f"at most {_time(one.gain_us)} of a run"
        show.labelled("advice" if number == 1 else "", f"{number}. {one.title}: {gain}")
        show.labelled("", one.detail, at=13)
    for note in profile.notes:
        show.labelled("note", note)


_WORK = ("GFLOP/s", "GB/s", "of peak")


def _head(profile: Profile) -> Iterator[str]:
    about, overall = profile.about, profile.overall
    if about.model is not None:
        yield f"model     {about.model}"
    for name, shape in about.inputs.items():
        yield f"input     {name} {list(shape)}"
    where = ", ".join(provider.removesuffix(_SUFFIX) for provider in about.providers)
    threads = "" if about.threads is None else f", {about.threads} threads"
    version = "" if about.onnxruntime is None else f", onnxruntime {about.onnxruntime}"
    bodies = "; function bodies, no kernels" if about.function_bodies else ""
    yield f"ran on    {where}{threads}{version}{bodies}"
    yield from _runs(overall)
    if profile.peaks is not None:
        # ONNX Runtime multiplies float32 in TF32 on CUDA unless an option forbids it.
        said = {"float32": "float32 in TF32"} if profile.peaks.provider.startswith("CUDA") else {}
        gflops = profile.peaks.gflops.items()
        rates = ", ".join(f"{rate:,.0f} GFLOP/s {said.get(name, name)}" for name, rate in gflops)
        low, high = profile.peaks.bandwidths[-1][1], profile.peaks.bandwidths[0][1]
        yield f"peaks     {rates}; {low:,.1f} GB/s from memory, up to {high:,.0f} in caches"
        yield f"tracing   adds about {profile.peaks.tracing_us:.1f} µs to the time of each call"
    if profile.load_us is not None and profile.initialize_us is not None:
        parts = (
            f"{_time(profile.load_us)} to read it, {_time(profile.initialize_us)} to prepare it"
        )
        yield f"loading   {parts}"
    if overall.peak_bytes is not None:
        yield f"memory    {show.bytes_text(overall.peak_bytes)} in use at most"


def _runs(overall: Overall) -> Iterator[str]:
    traced = overall.profiled
    if (plain := overall.plain) is not None:
        yield (
            f"run       {_time(plain.median_us)} without tracing (median of {plain.count}, "
            f"fastest {_time(plain.least_us)}, p95 {_time(plain.p95_us)})"
        )
    added = "" if overall.overhead is None else f", {overall.overhead:+.0%}"
    yield (
        f"traced    {_time(traced.median_us)} (median of {traced.count}, "
        f"fastest {_time(traced.least_us)}{added})"
    )
    yield (
        f"          {_time(overall.covered_us)} in nodes, {_time(overall.gaps_us)} between them, "
        f"{_time(overall.outside_us)} before and after"
    )
    if overall.device_us is not None:
        copies = "" if overall.copies_us is None else f", {_time(overall.copies_us)} of it copies"
        yield f"device    {_time(overall.device_us)} of a run{copies}"


def _op(row: OpRow, several: bool, on_device: bool) -> tuple[object, ...]:
    device = (None if row.device_us is None else row.device_us / 1e3,) if on_device else ()
    provider = (row.provider.removesuffix(_SUFFIX),) if several else ()
    unknown = (
        f" + {plural(row.uncounted, 'node')}"
        if row.uncounted and row.work.gflops is not None
        else ""
    )
    rate, *rest = _work(row.work)
    shown = f"{rate}{unknown}" if rate else None
    return (
        row.op, *provider, row.nodes, _count(row.calls), row.own_us / 1e3, *device,
        f"{row.share:.1%}", shown, *rest,
    )  # fmt: skip


def _node(row: Row, several: bool, on_device: bool) -> tuple[object, ...]:
    provider = (row.provider.removesuffix(_SUFFIX),) if several else ()
    device = (_us(row.device_us),) if on_device else ()
    waits = row.balance.waiting if row.balance is not None and row.balance.parallel else None
    return (
        row.name, row.label, *provider, _shapes(row), _count(row.calls), _us(row.own_us), *device,
        f"{row.share:.1%}", _us(row.call.mean_us), _us(row.call.median_us), _us(row.call.p95_us),
        *_work(row.work), None if waits is None else f"{waits:.0%}",
    )  # fmt: skip


def _work(work: Work) -> tuple[str | None, str | None, str | None]:
    peak = None
    if work.attained is not None and work.bound is not None:
        peak = f"{work.attained:.0%} {work.bound}"
    return (
        f"{work.gflops:,.1f}" if work.gflops else None,
        f"{work.gbs:,.1f}" if work.gbs else None,
        peak,
    )


def _kernels(profile: Profile, top: int) -> None:
    rows = [
        (kernel.name, kernel.kind, _count(kernel.calls), _us(kernel.us), f"{kernel.share:.1%}",
         None if kernel.bytes is None else show.bytes_text(kernel.bytes))
        for kernel in profile.kernels[:top]
    ]  # fmt: skip
    show.table("on the device", ("name", "kind", "calls", "µs", "share", "bytes"), rows)


def _shapes(row: Row) -> str:
    inputs = " ".join(_shape(item) for item in row.inputs)
    outputs = " ".join(_shape(output) for output in row.outputs)
    varied = f" ({row.shapes} kinds)" if row.shapes > 1 else ""
    return f"{inputs} -> {outputs}{varied}"


def _shape(tensor: TensorShape) -> str:
    return "x".join(map(str, tensor[1])) or "scalar"


def _listed(origins: Sequence[str]) -> str:
    shown = ", ".join(origins[:_MOST_ORIGINS])
    rest = len(origins) - _MOST_ORIGINS
    return f"{shown} and {rest} more" if rest > 0 else shown


def _provider_name(several: bool) -> tuple[str, ...]:
    return ("provider",) if several else ()


def _device(on_device: bool) -> tuple[str, ...]:
    return ("device",) if on_device else ()


def _count(calls: float) -> int | float:
    return int(calls) if calls == int(calls) else calls


def _us(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}"


def _time(us: float) -> str:
    if us < 1e3:
        return f"{us:.1f} µs"
    return f"{us / 1e3:.3f} ms" if us < 1e6 else f"{us / 1e6:.3f} s"
