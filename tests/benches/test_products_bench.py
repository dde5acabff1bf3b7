"""`scripts/bench products`: what is timed in float32 and in bfloat16 is the same product."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest

from ortkit.targets import cpu
from scripts.benches.products_cases import CASES, Case, models


@pytest.mark.skipif(cpu.machine() != "x86-64", reason="x86-64 has levels")
@pytest.mark.parametrize(
    "case",
    [
        Case("product", (5, 40, 24)),
        Case("strided", (9, 9 * 4, 20), image=6, kernel=3, stride=2),
    ],
    ids=lambda case: case.name,
)
def test_a_case_is_the_same_in_float32_and_in_bfloat16(case: Case, tmp_path: Path) -> None:
    plain, fused, library = models(case, tmp_path, "x86-64-v4-bf16")
    assert library is not None
    one, other = (
        ort.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in (plain, fused)
    )
    (given,) = one.get_inputs()
    a = np.random.default_rng(1).standard_normal(given.shape, np.float32)
    (want,) = one.run(None, {"a": a})
    if case.image:
        a, want = a.transpose(0, 2, 3, 1), want.transpose(0, 2, 3, 1)
    bits = np.ascontiguousarray(a).astype(ml_dtypes.bfloat16).view(np.uint16)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)
    binding = other.io_binding()
    binding.bind_ortvalue_input("a", value)
    room = np.zeros(want.shape, np.uint16)
    out = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(room, 16)
    binding.bind_ortvalue_output("y0", out)
    other.run_with_iobinding(binding)
    result = room.view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.abs(result - want).max() < 0.02 * np.abs(want).max()


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.flop > 0 for case in CASES)
