"""Kernels that users write for copies of boxes, and the kernels behind them for other GPUs."""

# ruff: noqa: F722

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortkit
from ortkit.extend.build.library import build_ops
from ortkit.extend.check.op_check import OpCheck, check_op
from ortkit.extend.declare.variants import Form, forms_of
from ortkit.extend.torch.launch import fitting
from ortkit.extend.triton.kernels import launches_of, sources_of_form
from ortkit.kernels.cuda import Condition
from ortkit.kernels.sizes import Extent
from ortkit.runtime.python_ops import OPS
from ortkit.targets.target import Target

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
gluon = pytest.importorskip("triton.experimental.gluon")
gl = pytest.importorskip("triton.experimental.gluon.language")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = dict(OPS)
    yield
    OPS.clear()
    OPS.update(before)


@triton.jit
def by_boxes(x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = [tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS]
    y.store(at, x.load(at) * 2)


@triton.jit
def a_row_too_far(x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = [tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS]
    y.store(at, x.load([at[0] + 1, at[1]]) * 2)


@triton.jit
def by_pointers(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    tl.store(y_ptr + row + at, tl.load(x_ptr + row + at, mask=at < n) * 2, mask=at < n)


@gluon.jit
def in_gluon(x, y, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    pass


BOXES: dict[str, Any] = {
    "grid": ("ceil(m / ROWS)", "ceil(n / COLUMNS)"),
    "constants": {"ROWS": 4, "COLUMNS": 16},
    "boxes": {"x": ("ROWS", "COLUMNS"), "y": ("ROWS", "COLUMNS")},
    "architectures": (90, 100),
}
POINTERS = {"grid": ("m", "ceil(n / BLOCK)"), "constants": {"BLOCK": 64}}


def declared() -> ortkit.CustomOp:
    @ortkit.custom_op("tests.boxes::Twice")
    def twice(x: ortkit.Float["m n"]) -> ortkit.Float["m n"]:
        return x * np.asarray(2, x.dtype)

    return twice


def op_of(kernel: Any = by_boxes, **options: Any) -> ortkit.CustomOp:
    op = declared()
    op.kernel("triton", kernel, **{**BOXES, **options})
    op.kernel("triton", by_pointers, **POINTERS)
    return op


def form_of(op: ortkit.CustomOp, dtype: str = "float16") -> Form:
    return next(form for form in forms_of(op, [dtype], "cuda") if isinstance(form, Form))


def check(kernel: Any) -> OpCheck:
    return check_op(op_of(kernel), dtypes=["float16"])


def test_a_right_kernel_is_compared_in_every_case() -> None:
    found = check(by_boxes)
    assert found.faults == () and found.notes == ()
    assert found.kernels > 20


def test_a_wrong_one_is_found() -> None:
    """Beyond the last row a box is 0."""
    faults = [str(fault) for fault in check(a_row_too_far).faults]
    assert any("a_row_too_far" in item and "off by" in item for item in faults), faults


def test_in_gluon_they_are_not_tried_and_that_is_said() -> None:
    found = check(in_gluon)
    assert found.faults == ()
    assert any("in_gluon" in note and "Gluon has no interpreter" in note for note in found.notes)


def test_what_is_not_for_all_gpus_has_the_others_behind_it() -> None:
    boxed, aligned, other = sources_of_form(form_of(op_of()))
    assert (boxed.architectures, boxed.is_optional) == ((90, 100), True)
    assert [one.architectures for one in (aligned, other)] == [None, None]
    assert [one.is_aligned for one in (boxed, aligned, other)] == [True, True, False]
    (step,) = boxed.steps
    assert [parameter.type for parameter in step.parameters] == ["tensordesc<fp16[4, 16]>"] * 2
    assert [(map_.box, map_.swizzle) for map_ in step.maps] == [((4, 16), 32)] * 2
    # Rows begin at multiples of 16 bytes.
    assert Condition(Extent(2, ("n",)), divisible_by=16) in boxed.conditions


def test_sizes_decide_which_is_launched() -> None:
    form = form_of(op_of())
    kinds = []
    for m, n in ((3, 8), (3, 7), (0, 8)):
        found = launches_of(form, {"m": m, "n": n})
        assert found is not None
        kinds.append(bool(found[0].steps[0].maps))
    assert kinds == [True, False, False]


def test_conditions_of_those_behind_are_theirs() -> None:
    op = declared()
    op.kernel("triton", by_boxes, **BOXES)
    op.kernel("triton", by_pointers, when="n % 32 == 0", **POINTERS)
    op.kernel("triton", by_pointers, **POINTERS)
    op.kernel("triton", by_pointers, **POINTERS)
    found = sources_of_form(form_of(op))
    rule = Condition(Extent(1, ("n",)), divisible_by=32)
    assert [rule in item.conditions for item in found] == [False, True, True, False, False]


def test_a_library_has_the_maps_for_what_has_them(tmp_path: Path) -> None:
    op = op_of()
    build = build_ops(
        [op], tmp_path / "ops.so", cuda=Target("cuda", "sm_80,sm_90"), dtypes=["float16"]
    )
    problems = [item for item in build.refused if item[1] != "cpu"]
    assert problems == []
    assert [form.text for form in build.built] == [
        "float16 by by_boxes (triton)", "float16 by by_pointers (triton)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"boxes": {"z": (4, 16)}}, "there is no tensor 'z'"),
        ({"boxes": {"x": (16,)}}, "a box of 1 axes of x, which has 2"),
        ({"boxes": {"x": (3, 16)}}, r"a box of \(3, 16\) of x"),
        ({"boxes": {"x": (4, 512)}}, r"a box of \(4, 512\) of x"),
        ({"boxes": {"x": ("WIDE", 16)}}, r"a box of \('WIDE', 16\) of x"),
        ({"architectures": ()}, "not all GPUs copy boxes"),
        ({"architectures": (80, 90)}, "not all GPUs copy boxes"),
        ({"workers": 3}, "3 additional warps"),
    ],
)
def test_what_cannot_be_is_said_at_once(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ortkit.UserError) as caught:
        declared().kernel("triton", by_boxes, **{**BOXES, **options})
    assert re.search(problem, caught.value.problem)
    assert "\n" not in str(caught.value)


def test_without_one_behind_it_a_kernel_is_refused() -> None:
    op = declared()
    op.kernel("triton", by_boxes, **BOXES)
    with pytest.raises(ortkit.UserError, match="sm_90, sm_100 alone"):
        sources_of_form(form_of(op))
    op.kernel("triton", by_pointers, when="n <= 64", **POINTERS)
    with pytest.raises(ortkit.UserError, match="no kernel behind it takes all"):
        sources_of_form(form_of(op))


def test_rows_that_are_no_multiple_of_16_bytes_are_refused() -> None:
    @ortkit.custom_op("tests.boxes::Odd")
    def odd(x: ortkit.Float["m 7"]) -> ortkit.Float["m 7"]:
        return x

    odd.kernel("triton", by_boxes, **{**BOXES, "grid": ("ceil(m / ROWS)", "1")})
    odd.kernel("triton", by_pointers, grid=("m", "1"), constants={"BLOCK": 8, "n": 7})
    with pytest.raises(ortkit.UserError, match="rows of x have 14 bytes"):
        sources_of_form(form_of(odd))


@pytest.mark.parametrize(("kernel", "is_boxed"), [(by_boxes, True), (in_gluon, False)])
def test_torch_launches_what_its_own_triton_takes(
    kernel: Any, is_boxed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    sources = sources_of_form(form_of(op_of(kernel)))
    found = fitting(sources, {"m": 3, "n": 8}, None, aligned=True)
    assert found is not None
    assert bool(found.steps[0].maps) == is_boxed
    for m, n, aligned in ((3, 7, True), (0, 8, True), (3, 8, False)):
        found = fitting(sources, {"m": m, "n": n}, None, aligned=aligned)
        assert found is not None and not found.steps[0].maps
