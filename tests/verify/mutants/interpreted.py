"""Triton kernels with a fault in their code, run by Triton's interpreter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from faulty_kernels import calling

from mutants.draft import Rng
from mutants.observe import ROUNDING
from mutants.runner import Outcome
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused
from ortkit.verify.kernels.check import KernelRow, check_kernels
from ortkit.verify.kernels.source import KernelSource

#: By name: a pattern of Triton's code, and what takes its place; the first place is taken.
_CHANGES: Mapping[str, tuple[str, str]] = {
    "last column left out": (r"column < (n?\d+)", r"column < \1 - 1"),
    "last row left out": (r"row < (n\d+)", r"row < \1 - 1"),
    "last point left out": (r"point < (n\d+)", r"point < \1 - 1"),
    "mask of a sum dropped": (r"tl\.where\(in_columns, (v\d+), 0\.0\)", r"\1"),
    "mask of a maximum dropped": (r"tl\.where\(in_columns, (v\d+), float\(\"-inf\"\)\)", r"\1"),
    "zero for the least": (r"float\(\"-inf\"\)", "0.0"),
    "maximum for sum": (r"tl\.sum\(", "tl.max("),
    "sum for maximum": (r"tl\.max\(", "tl.sum("),
    "missing square root": (r"tl\.sqrt_rn\((v\d+)\)", r"\1"),
    "epsilon": (r"1e-05", "1e-02"),
    "plus for minus": (r"(v\d+) - (v\d+)", r"\1 + \2"),
    "minus for plus": (r"(v\d+) \+ (v\d+)  #", r"\1 - \2  #"),
    "factor left out": (r"= (v\d+) \* (v\d+)  # Mul", r"= \1  # Mul"),
    "stride off by one": (r"row \* (\d+) \+", r"row * (\1 - 1) +"),
    "offset off by one": (r"\((v\d+) \+ (\d+)\)", r"(\1 + \2 - 1)"),
    "half turned the other way": (r"(v\d+) < (\d+), (v\d+), (v\d+)", r"\1 < \2, \4, \3"),
    "constant of an exponential": (r"1\.442695", "1.4427"),
    "number of columns": (r"tl\.full\(\(\), (\d+)\.0", r"tl.full((), 1.0 + \1.0"),
    "wide grid": (r"tl\.program_id\(0\) \* (\d+)", r"tl.program_id(0) * (\1 + 1)"),
    "padding of one": (r"other=0\)", "other=1)"),
}
_STORE = r"(tl\.store\(y0 \+ [^,]*, )(v\d+)"
#: The same for faults that are there for some inputs only: what is stored under a condition.
_CONDITIONS: Mapping[str, tuple[str, str]] = {
    name: (_STORE, rf"\1tl.where({condition}, \2 * 1.05 + 0.01, \2)")
    for name, condition in {
        "a size is 3": "n0 == 3",
        "a size above 64": "n0 > 64",
        "a size above 128": "n0 > 128",
        "a size is odd": "n0 % 2 == 1",
        "a size is a multiple of 16": "n0 % 16 == 0",
        "a size is no multiple of 8": "n0 % 8 > 0",
        "beyond the first block": "tl.program_id(0) > 0",
        "a result above 50": r"\2 > 50.0",
        "a result below -50": r"\2 < -50.0",
        "a result is NaN": r"\2 != \2",
    }.items()
} | {
    "NaN becomes zero": (_STORE, r"\1tl.where(\2 != \2, 0.0, \2)"),
    "rows beyond 64 left out": (r"row < (n\d+)", r"row < tl.minimum(\1, 64)"),
    "points beyond 4,000 left out": (r"point < (n\d+)", r"point < tl.minimum(\1, 4000)"),
}
#: By row of the table.
KINDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "triton, unconditional": _CHANGES,
    "triton, conditional": _CONDITIONS,
}


class Interpreter(Protocol):
    """What runs kernels; see tests/kernels/triton/interpreter.py."""

    def run(
        self,
        signature: RegionSignature,
        feeds: Sequence[np.ndarray],
        *,
        sources: Sequence[VariantSource] | None = None,
    ) -> list[np.ndarray]:
        """Return what a region's kernel writes."""


@dataclass(frozen=True)
class Region:
    """A region and sizes to run it with."""

    name: str
    signature: RegionSignature
    sizes: tuple[Mapping[str, int], ...]


def plant(
    region: Region, changes: Mapping[str, tuple[str, str]], rng: Rng
) -> Iterator[tuple[str, list[VariantSource]]]:
    """Yield kernels with one fault each, in every variant that has its place."""
    good = _sources(region)
    names = list(changes)
    for at in rng.permutation(len(names)):
        pattern, text = changes[names[at]]
        made = [_changed(source, pattern, text) for source in good]
        if any(item != source for item, source in zip(made, good, strict=True)):
            yield names[at], made


def _sources(region: Region) -> tuple[VariantSource, ...]:
    found = sources_of(region.signature)
    assert not isinstance(found, Refused), found.reason
    return found


def _changed(source: VariantSource, pattern: str, text: str) -> VariantSource:
    steps = tuple(
        replace(step, text=re.sub(pattern, text, step.text, count=1)) for step in source.steps
    )
    return replace(source, steps=steps)


def check(signature: RegionSignature, sources: Sequence[VariantSource]) -> KernelRow:
    """Judge a kernel for GPUs as a machine without one does."""
    source = KernelSource(signature, tuple(sources))
    model = calling(signature)
    (row,) = check_kernels(model, None, interpret="quick", source_of=lambda _: source).rows
    return row


def measure(interpreter: Interpreter, region: Region, group: str, count: int) -> Iterator[Outcome]:
    """Plant faults in a region's kernels and judge those that move a value.

    Args:
        interpreter: Runs kernels to see what a fault moves.
        region: The region.
        group: One of `KINDS`.
        count: Most faults that are judged.

    Raises:
        AssertionError: The kernels without a fault are refused, or cannot be judged.
    """
    good = check(region.signature, _sources(region))
    assert good.verdict == "passed", f"{region.name}: without a fault {good.reason}"
    runs = []
    for sizes in region.sizes:
        for factor in (2.0, 200.0, np.nan):
            feeds = [
                _input(spec, sizes, number, factor)
                for number, spec in enumerate(region.signature.inputs)
            ]
            runs.append((feeds, interpreter.run(region.signature, feeds)))
    rng = np.random.default_rng(len(region.name))
    judged = 0
    for name, sources in plant(region, KINDS[group], rng):
        if judged == count:
            return
        moved = _moved(interpreter, region, runs, sources)
        is_off = moved > ROUNDING
        judged += is_off
        is_caught, reason = False, "moves nothing"
        if is_off:
            row = check(region.signature, sources)
            is_caught, reason = row.verdict == "failed", row.reason
        yield Outcome(group, region.name, name, moved, is_off, is_caught, reason)


def _moved(
    interpreter: Interpreter,
    region: Region,
    runs: Sequence[tuple[list[np.ndarray], list[np.ndarray]]],
    sources: list[VariantSource],
) -> float:
    most = 0.0
    for feeds, good in runs:
        try:
            bad = interpreter.run(region.signature, feeds, sources=sources)
        except AssertionError:  # it writes beside its tensors, or does not run
            return float(np.inf)
        for first, second in zip(good, bad, strict=True):
            both = np.isnan(first) & np.isnan(second)
            scale = float(np.nanmax(np.abs(first), initial=1e-30))
            off = np.abs(np.where(both, 0.0, first.astype(np.float64) - second))
            most = max(most, float(np.nan_to_num(off, nan=np.inf).max(initial=0.0)) / scale)
        if most > ROUNDING:
            break
    return most


def _input(spec: TensorSpec, sizes: Mapping[str, int], number: int, factor: float) -> np.ndarray:
    """Return random values; for NaN the first one is NaN."""
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
    drawn = np.random.default_rng((number, *shape)).standard_normal(shape)
    if np.isnan(factor):
        drawn.reshape(-1)[0] = np.nan
    else:
        drawn *= factor
    return drawn.astype(spec.dtype)


_NORM = (
    '<opset_import: ["" : 20]> f (X, R, G, B) => (Y) { S = Add (X, R)'
    "  Y = LayerNormalization <axis = -1> (S, G, B) }"
)
_SOFTMAX = (
    '<opset_import: ["" : 20]> f (X, M) => (Y) { S = Add (X, M)  Y = Softmax <axis = -1> (S) }'
)
_GATED = """<opset_import: ["" : 20]> f (X) => (Y) { H = Constant <value_ints = [24, 24]> ()
    A, B = Split <axis = -1> (X, H)  S = Sigmoid (A)  T = Mul (A, S)  Y = Mul (T, B) }"""
_SIZES = tuple(
    {"b": batch, "s": length}
    for batch, length in ((1, 1), (3, 1), (2, 7), (1, 16), (3, 17), (1, 131))
)


def regions() -> tuple[Region, ...]:
    """Return a norm, a softmax and a gate."""

    def spec(name: str, *shape: int | str) -> TensorSpec:
        return TensorSpec(name, "float32", shape)

    rows = [spec("X", "b", "s", 40), spec("R", "b", "s", 40), spec("G", 40), spec("B", 40)]
    scores = [spec("X", "b", 2, "s", "s"), spec("M", "b", 1, 1, "s")]
    return (
        Region("add, layer norm", RegionSignature("norm", _NORM, tuple(rows),
                                                  (spec("Y", "b", "s", 40),)), _SIZES),
        Region("masked softmax", RegionSignature("softmax", _SOFTMAX, tuple(scores),
                                                 (spec("Y", "b", 2, "s", "s"),)), _SIZES),
        Region("gate", RegionSignature("gate", _GATED, (spec("X", "b", "s", 48),),
                                       (spec("Y", "b", "s", 24),)), _SIZES),
    )  # fmt: skip
