"""Launches that may begin while the one before ends, and variants that no run takes."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from ortkit.errors import InternalError
from ortkit.kernels.cuda import Argument
from ortkit.kernels.sizes import ONE
from ortkit.kernels.triton import build
from ortkit.kernels.triton.build import Compiled, compile_step, waiting_text, write_images
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.parameters import Parameter
from ortkit.kernels.triton.source import StepSource, VariantSource
from ortkit.refusal import Refused
from scripts.sanitizer.cases import CASES, Case

TEXT = """import triton
import triton.language as tl


@triton.jit
def entry(x0, y0):
    place = tl.arange(0, 512)
    tl.store(y0 + place, tl.load(x0 + place) + 1.0)
"""
PARAMETERS = tuple(
    Parameter(name, "*fp32", True, Argument("tensor", index))
    for index, name in enumerate(("x0", "y0"))
)
STEP = StepSource("entry", TEXT, PARAMETERS, ((ONE, 1),), 4)


def test_a_launch_waits_first_and_says_that_it_did_at_its_end_or_before() -> None:
    lines = waiting_text(STEP).splitlines()
    assert lines[-4:][0].startswith("    gdc_wait()")
    assert lines[-1] == "    gdc_launch_dependents()"
    early = waiting_text(replace(STEP, is_light=True)).splitlines()
    assert early[early.index("def entry(x0, y0):") + 1 :][:2] == [
        "    gdc_launch_dependents()", "    gdc_wait()",
    ]  # fmt: skip
    with pytest.raises(InternalError, match="has 0 entries"):
        waiting_text(replace(STEP, entry="other"))


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_code_waits_from_the_architecture_on_that_can(tmp_path: Path) -> None:
    new, old = (compile_step(STEP, architecture, tmp_path) for architecture in (90, 80))
    where = [new.ptx.index(f"griddepcontrol.{what}") for what in ("wait", "launch_dependents")]
    assert new.waits
    assert where == sorted(where)
    assert where[0] < new.ptx.index("ld.global") < where[1]
    assert not old.waits
    assert "griddepcontrol" not in old.ptx


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_a_tokens_products_read_their_matrix_before_they_wait(tmp_path: Path) -> None:
    """So do squeeze-and-excite's layers. Code for older GPUs waits first."""
    names = "product_of_a_row", "gated_products_of_many_rows", "squeeze_excite"
    steps = [
        step
        for name in (*names, "squeeze_excite_of_few")
        for case in CASES
        if case.name == name
        for step in variants_of(case)[0].steps
        if step.early_text is not None
    ]
    assert len(steps) == 5
    words = "ld.global", "griddepcontrol.launch_dependents", "griddepcontrol.wait"
    for step in steps:
        new, old = (compile_step(step, architecture, tmp_path).ptx for architecture in (90, 80))
        where = [new.index(word) for word in words]
        assert where == sorted(where)
        assert new.rindex("ld.global") > where[-1]
        assert not any(word in old for word in words[1:])


def variants_of(case: Case) -> tuple[VariantSource, ...]:
    found = sources_of(case.signature())
    assert not isinstance(found, Refused)
    return found


def test_variants_that_no_run_takes_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Compiled(b"cubin", "ptx", 0)
    monkeypatch.setattr(build, "compile_step", lambda *_: made)
    (case,) = (each for each in CASES if each.name == "product_of_many_rows")
    images = write_images(variants_of(case), (90,), tmp_path, has_ptx=False)
    assert len(images.variants) == 6  # of rows whose number is not known
    inputs = {**case.inputs, "X": (1000, 264), "R": (1000, 1032)}
    fixed = replace(case, inputs=inputs, outputs={"Y": (1000, 1032)})
    assert len(variants_of(fixed)) > 2
    images = write_images(variants_of(fixed), (90,), tmp_path, has_ptx=False)
    assert [variant.aligned for variant in images.variants] == [True, False]
