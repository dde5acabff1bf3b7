"""Attention's kernel by Triton's interpreter, against attention in float64."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from interpreter import Interpreter
from triton_attention import CASES, PLAIN, SIZES, WHOLE, Case, assert_close, feeds_of

from ortkit.kernels.cuda import SHARED_BYTES
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.source import StepSource
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
#: Where a third block beside two others is worth a register or two that is put aside.
MOST_STACK = 16
#: Three groups have few registers for a mask of each query.
MOST_STACK_OF_MASKS = 64


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [SIZES, WHOLE], ids=["cut", "whole"])
def test_it_computes_attention(name: str, sizes: dict[str, int], interpreter: Interpreter) -> None:
    assert_computes(CASES[name], sizes, interpreter)


@pytest.mark.parametrize(
    "case",
    [
        Case(replace(PLAIN, causal="first", window=1)),
        Case(replace(PLAIN, heads=4, stacked=True), 2, 1, 20, past=20, at=-1),
    ],
    ids=["a window of one key", "the last row of a cache"],
)
def test_the_least_of_its_kind(case: Case, interpreter: Interpreter) -> None:
    assert_computes(case, SIZES, interpreter)


def assert_computes(case: Case, sizes: dict[str, int], interpreter: Interpreter) -> None:
    feeds = feeds_of(case, sizes)
    sources = sources_of(case.signature())
    assert not isinstance(sources, Refused)
    plain = [source for source in sources if not source.steps[0].is_gluon]
    *present, found = interpreter.run(case.signature(), feeds, sources=plain)
    assert_close(found, case.expected(feeds))
    for made, wanted in zip(present, case.appended(feeds), strict=True):
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("a row of")])
def test_a_row_is_written_in_place(name: str, interpreter: Interpreter) -> None:
    """Present and past are one: nothing else of it changes, and what a mask leaves is not read."""
    case = CASES[name]
    feeds = feeds_of(case, SIZES)
    wanted = case.expected(feeds), case.appended(feeds)
    places = {number: len(feeds) - 3 + number for number in (0, 1)}
    *present, found = interpreter.run(case.signature(), feeds, shared=places)
    assert_close(found, wanted[0])
    for made, one in zip(present, wanted[1], strict=True):
        np.testing.assert_array_equal(made, one)


@pytest.mark.parametrize(("past", "stages"), [(1024, 4), (1025, 3), ("p", 3)])
def test_few_rows_of_a_cache_are_read_in_small_blocks(past: int | str, stages: int) -> None:
    keys = "t" if isinstance(past, str) else past + 1
    sources = sources_of(Case(PLAIN, 2, 1, keys, past=past).signature())
    assert not isinstance(sources, Refused)
    assert sources[0].steps[0].stages == stages


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["causal", "chosen keys", "one query", "width 128", "a cache of shared heads"]
)
@pytest.mark.parametrize(
    "architecture", [80, 90, *(pytest.param(item, marks=pytest.mark.slow) for item in (86, 120))]
)
def test_it_compiles_without_spills(architecture: int, name: str, tmp_path: Path) -> None:
    sources = sources_of(CASES[name].signature())
    assert not isinstance(sources, Refused)
    assert sources[-1].architectures is None  # the last one is for any GPU
    for source in sources:
        if source.architectures is None or architecture in source.architectures:
            for step in source.steps:
                made = compile_step(step, architecture, tmp_path)
                assert stack_bytes(made.cubin, tmp_path) <= most_stack(step, CASES[name])
                assert made.shared_bytes <= SHARED_BYTES[architecture]
                assert step.is_gluon == bool(step.maps)
                is_few = name in ("one query", "a cache of shared heads")
                is_hopper = architecture == 90 and not is_few
                assert ("wgmma" in made.ptx) == is_hopper


def most_stack(step: StepSource, case: Case) -> int:
    return MOST_STACK_OF_MASKS if case.mask and step.workers == 12 else MOST_STACK


def stack_bytes(cubin: bytes, folder: Path) -> int:
    import triton

    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [tool, "-res-usage", path]
    usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return max(int(item) for item in re.findall(r"STACK:(\d+)", usage))


def test_a_mask_of_too_many_scores_is_refused() -> None:
    """Its positions have 32 bits; where sizes are not known a condition says so."""
    case = Case(replace(PLAIN, mask="added"), queries=50_000, keys=50_000,
                mask=(1, 1, 50_000, 50_000))  # fmt: skip
    found = template_for(case.signature())
    assert isinstance(found, Refused)
    assert "32 bits" in found.reason
