"""What other precisions or a GPU would give, as far as it can be known without trying.

These are bounds from published peaks, never forecasts; what has no basis is "not known".
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ortkit.runtime.heavy import INTEGER
from ortkit.trial.result import Prospect

#: Time to start one CUDA kernel from ONNX Runtime without CUDA graphs: 20 layers of three small
#: kernels took 353 µs on an H100 with onnxruntime-gpu 1.31.1.
_LAUNCH_MS = 0.005


@dataclass(frozen=True)
class _Gpu:
    name: str
    precision: str
    tera_flops: float
    """Dense peak of matrix products in that precision, as the maker states it."""
    gigabytes_per_second: float
    bytes_per_weight: int


_GPUS = (
    _Gpu("NVIDIA A10", "fp32", 31.2, 600.0, 4),
    _Gpu("NVIDIA A10", "fp16", 125.0, 600.0, 2),
    _Gpu("NVIDIA H100 SXM", "fp16", 989.0, 3350.0, 2),
)


@dataclass(frozen=True)
class Facts:
    """What is known of one run of the original on this machine's CPU."""

    milliseconds: float
    heavy_share: float
    """Part of it that the heavy operators take, 0 to 1."""
    ops: frozenset[str]
    """Operators in the profile."""
    calls: int
    """Kernels started in one run."""
    flops: int
    parameters: int


def outlook(facts: Facts) -> tuple[Prospect, ...]:
    """Return what can be said, CPU first."""
    return (_int8(facts), _fp16(), _bf16(), *_gpus(facts))


def _int8(facts: Facts) -> Prospect:
    what = "int8 on this CPU"
    if facts.ops & INTEGER:
        return Prospect(what, "no gain", None, None, "the model computes in integers already")
    if facts.heavy_share == 0:
        return Prospect(what, "no gain", None, None, "there is no product to compute in int8")
    flags = _cpu_flags()
    if not flags:
        return Prospect(
            what, "not known", None, None, "this processor's instructions cannot be read"
        )
    dot_products = sorted(flags & {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})
    factor = 4 if dot_products else 2
    left = 1 - facts.heavy_share + facts.heavy_share / factor
    with_what = f"with {', '.join(dot_products)}" if dot_products else "without dot products"
    basis = (
        f"int8 products at {factor} times the float32 rate ({with_what}) in the heavy "
        f"operators, nothing for conversions; --precision int8 measures it"
    )
    return Prospect(what, "bound", facts.milliseconds * left, 1 / left, basis)


def _fp16() -> Prospect:
    what = "fp16 on this CPU"
    if platform.machine().lower() in ("x86_64", "amd64"):
        basis = "ONNX Runtime's CPU kernels on x86-64 convert fp16 to float32 and back"
        return Prospect(what, "no gain", None, None, basis)
    return Prospect(what, "not known", None, None, "it depends on the processor's kernels")


def _bf16() -> Prospect:
    what = "bf16 on this CPU"
    if _cpu_flags() & {"avx512_bf16", "amx_bf16"}:
        basis = "this processor multiplies bf16: --precision bf16 measures it"
        return Prospect(what, "not known", None, None, basis)
    return Prospect(what, "no gain", None, None, "this processor multiplies no bf16")


def _gpus(facts: Facts) -> Iterator[Prospect]:
    for gpu in _GPUS:
        arithmetic = facts.flops / (gpu.tera_flops * 1e9)
        reading = facts.parameters * gpu.bytes_per_weight / (gpu.gigabytes_per_second * 1e6)
        launches = facts.calls * _LAUNCH_MS
        bound = max(arithmetic, reading, launches)
        basis = (
            f"the largest of: {arithmetic:.2g} ms at {gpu.tera_flops:g} TFLOP/s, {reading:.2g} ms "
            f"for the weights at {gpu.gigabytes_per_second:g} GB/s, {launches:.3g} ms to start "
            f"{facts.calls} kernels one by one"
        )
        what = f"{gpu.name}, {gpu.precision}"
        if facts.flops == 0 or bound == 0:
            yield Prospect(what, "not known", None, None, "the model's arithmetic is not known")
        else:
            yield Prospect(what, "bound", bound, facts.milliseconds / bound, basis)


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    words = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(words, "").split())
