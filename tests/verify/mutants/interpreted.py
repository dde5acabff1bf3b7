"""Triton kernels with a fault in their code, run by Triton's interpreter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from mutants.draft import Rng
from mutants.observe import ROUNDING
from mutants.runner import Outcome
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.triton.source import VariantSource, sources_of
from ortkit.refusal import Refused

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


def plant(region: Region, rng: Rng) -> Iterator[tuple[str, list[VariantSource]]]:
    """Yield kernels with one fault each, in every variant that has its place."""
    good = sources_of(region.signature)
    assert not isinstance(good, Refused), good.reason
    names = list(_CHANGES)
    for at in rng.permutation(len(names)):
        pattern, text = _CHANGES[names[at]]
        made = [_changed(source, pattern, text) for source in good]
        if any(one != source for one, source in zip(made, good, strict=True)):
            yield names[at], made


def _changed(source: VariantSource, pattern: str, text: str) -> VariantSource:
    steps = tuple(
        replace(step, text=re.sub(pattern, text, step.text, count=1)) for step in source.steps
    )
    return replace(source, steps=steps)


def is_refused(signature: RegionSignature, sources: Sequence[VariantSource]) -> bool:
    """Judge a kernel for GPUs: verification lists it as not run where there is no GPU."""
    del signature, sources
    return False


def measure(interpreter: Interpreter, region: Region, count: int) -> Iterator[Outcome]:
    """Plant faults in a region's kernels and judge those that move a value."""
    runs = []
    for sizes in region.sizes:
        feeds = [
            _input(spec, sizes, number) for number, spec in enumerate(region.signature.inputs)
        ]
        runs.append((feeds, interpreter.run(region.signature, feeds)))
    rng = np.random.default_rng(len(region.name))
    planted = 0
    for name, sources in plant(region, rng):
        if planted == count:
            return
        moved = _moved(interpreter, region, runs, sources)
        planted += moved > ROUNDING
        is_off = moved > ROUNDING
        is_caught = is_off and is_refused(region.signature, sources)
        yield Outcome("triton, unconditional", region.name, name, moved, is_off, is_caught, "")


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
            scale = float(np.abs(first).max(initial=1e-30))
            off = np.abs(first.astype(np.float64) - second).max(initial=0.0)
            most = max(most, float(np.nan_to_num(off, nan=np.inf, posinf=np.inf)) / scale)
    return most


def _input(spec: TensorSpec, sizes: Mapping[str, int], number: int) -> np.ndarray:
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
    drawn = np.random.default_rng((number, *shape)).standard_normal(shape) * 2
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
_SIZES = tuple({"b": batch, "s": length} for batch, length in ((1, 1), (2, 7), (3, 17), (1, 33)))


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
