"""Attention whose result is rounded to eight bits with one factor, for the product behind it."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from interpreter import Interpreter
from test_triton_attention_hopper import hopper_sources
from triton_attention import CASES, PLAIN, SIZES, WHOLE, WIDE, Case, feeds_of, rounded

from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

FP8 = "float8_e4m3fn"
ROUNDED = {
    "columns of one, with a bias": CASES["columns of one, with a bias"],
    "a bias and a mask": CASES["columns of one, with a bias and a mask"],
    "wide, with a bias": Case(WIDE, batch="b", packed=True, biased=True),
    "a bias, causal": Case(replace(WIDE, causal="first"), batch="b", packed=True, biased=True),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ROUNDED)
def test_it_computes_attention_in_eight_bits(name: str, interpreter: Interpreter) -> None:
    case, factor = ROUNDED[name], 2.0**-7
    signature = rounded(case, factor)
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    for sizes in (SIZES, WHOLE):
        feeds = feeds_of(case, sizes)
        inside = np.clip(case.expected(feeds) / factor, -448, 448).astype(np.float32)
        want = inside.astype(ml_dtypes.float8_e4m3fn)
        (got,) = interpreter.run(signature, feeds)
        wide, expected = got.astype(np.float64), want.astype(np.float64)
        assert np.abs(expected).max() > 2
        # A number next to the middle of two may fall to the other; weights are in half precision.
        bound = np.abs(expected) / 8 + 2.0**-9 + 4e-3 * np.abs(expected).max()
        assert (np.abs(wide - expected) <= bound).all()
        assert np.linalg.norm(wide - expected) <= 0.02 * np.linalg.norm(expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    ["width 64", "width 64, chosen keys", "width 96", "width 64, added by query and head",
     "width 128, chosen keys to the last", "shared heads"],
)  # fmt: skip
def test_copies_of_boxes_write_eight_bits(name: str, interpreter: Interpreter) -> None:
    case, factor = CASES[name], 2.0**-7
    signature = rounded(case, factor)
    made = hopper_sources(signature)
    assert made
    for sizes in (SIZES, WHOLE):
        feeds = feeds_of(case, sizes)
        inside = np.clip(case.expected(feeds) / factor, -448, 448).astype(np.float32)
        expected = inside.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        assert np.abs(expected).max() > 2
        for number, _ in made:
            (got,) = interpreter.run(signature, feeds, variant=number)
            wide = got.astype(np.float64)
            bound = np.abs(expected) / 8 + 2.0**-9 + 4e-3 * np.abs(expected).max()
            assert (np.abs(wide - expected) <= bound).all()
            assert np.linalg.norm(wide - expected) <= 0.02 * np.linalg.norm(expected)


def test_copies_of_boxes_in_eight_bits_compile(tmp_path: Path) -> None:
    sources = hopper_sources(rounded(Case(WIDE, batch="b", keys="t"), 0.5))
    assert sources
    for _, source in sources:
        made = compile_step(source.steps[0], 90, tmp_path)
        assert not isinstance(made, Refused)


def test_other_results_in_eight_bits_are_left() -> None:
    signature = rounded(Case(replace(PLAIN, width=40, v_width=40)), 0.5)
    assert isinstance(template_for(signature), Refused)
    copied = rounded(Case(replace(WIDE, width=256, v_width=256), batch="b", keys="t"), 0.5)
    found = template_for(copied)
    assert isinstance(found, Refused)
    assert "copies of wide boxes" in found.reason
    negated = signature.body.replace("Div", "Mul")
    assert isinstance(template_for(replace(signature, body=negated)), Refused)


@pytest.mark.parametrize("factor", [0.0, 1e-45, -1e-40, float("nan"), float("inf")])
def test_numbers_without_a_reciprocal_are_refused(factor: float) -> None:
    found = template_for(rounded(ROUNDED["wide, with a bias"], factor))
    assert isinstance(found, Refused)
    assert "reciprocal" in found.reason
