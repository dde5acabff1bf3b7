"""Schedules in a tuning database are data: steps that only order loops."""

from __future__ import annotations

from typing import Any

import pytest

from ortkit.extend.tvm.traces import TracedSchedule, read_traced

CODE = '"define void @f() { ret void }"'


def read(*steps: Any) -> TracedSchedule | None:
    return read_traced(str(TracedSchedule({"m": 8}, [list(steps), []])))


def annotated(key: str, value: object = 1) -> list[Any]:
    return ["Annotate", ["l1", value], [key], []]


@pytest.mark.parametrize(
    "step",
    [
        ["GetLoops", ["b0"], [], ["l1"]],
        annotated("meta_schedule.parallel", 16),
        annotated("pragma_auto_unroll_max_step", 64),
    ],
)
def test_steps_that_order_loops_are_read(step: list[Any]) -> None:
    assert read(step) is not None


@pytest.mark.parametrize(
    "step",
    [
        annotated("pragma_import_llvm", CODE),
        annotated("pragma_import_c", CODE),
        annotated("meta_schedule.parallel pragma_import_llvm", CODE),
        ["UnsafeHideBufferAccess", ["b0"], ["read", [0]], []],
        ["Tensorize", ["l1"], ["own"], []],
        ["Annotate", [], [], []],
        ["Annotate", [], [7], []],
        [["GetLoops"], [], [], []],
        ["GetLoops"],
        7,
    ],
)
def test_what_may_do_anything_is_none(step: Any) -> None:
    assert read(["GetLoops", ["b0"], [], ["l1"]], step) is None


@pytest.mark.parametrize("trace", [[], {}, 7, None, [[], [], []], [7, []]])
def test_what_is_no_trace_is_none(trace: Any) -> None:
    assert read_traced(str(TracedSchedule({"m": 8}, trace))) is None
