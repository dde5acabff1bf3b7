"""Optimizes a case and says what is wrong with the result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from ortkit import OptimizeOptions, optimize
from ortkit.verify.compare import compare_outputs
from tests.e2e.suites import run, with_subgraphs
from tests.spelling.case import Case, Formula
from tests.spelling.writer import Feeds


def ops_of(model: onnx.ModelProto) -> list[str]:
    """Return the ops of a model, with their domain where it is not ONNX's; bodies included."""
    nodes = with_subgraphs(model.graph.node)
    return [f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in nodes]


def optimized(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Return what ortkit makes of a model at level 3, neither verified nor with kernels."""
    options = OptimizeOptions(level=3, kernels="off", verify=False, check_load=False)
    optimize(model, options).save(path)
    return onnx.load(path)


def faults(case: Case, folder: Path) -> Iterator[str]:
    """Optimize a case and yield what is wrong with the result."""
    model, feeds = case.build()
    after = optimized(model, folder / "after.onnx")
    yield from not_as_wanted(case, after)
    yield from differences(model, after, feeds)


def not_as_wanted(case: Case, after: onnx.ModelProto) -> Iterator[str]:
    """Yield what is in a result that must not be, and what is not in it that must."""
    found = ops_of(after)
    left = " ".join(sorted(found))
    if after.functions:
        yield "functions are left"
    if isinstance(case.what, Formula):
        if not case.what.wanted & set(found):
            yield f"none of {', '.join(sorted(case.what.wanted))} in: {left}"
        if gone := case.what.gone & set(found):
            yield f"{', '.join(sorted(gone))} left in: {left}"
    elif wrong := case.what.never & set(found):
        yield f"{', '.join(sorted(wrong))} in: {left}"


def differences(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: tuple[Feeds, Feeds]
) -> Iterator[str]:
    """Run both on each set of inputs and yield where they differ."""
    for number, inputs in enumerate(feeds):
        want, got = run(before, inputs), run(after, inputs)
        for output, first, second in zip(before.graph.output, want, got, strict=True):
            judged = compare_outputs(output.name, first, second)
            if not judged.equal:
                yield f"output {output.name!r} on inputs {number}: {judged.reason}"
