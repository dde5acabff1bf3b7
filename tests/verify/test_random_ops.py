"""Operators that draw random numbers are distinguished from those that do so in training."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortkit.analysis.random_ops import is_random
from ortkit.verify.random_ops import random_outputs

MS = "com.microsoft"


@pytest.mark.parametrize(
    ("call", "is_drawn"),
    [
        ("Dropout(x)", False),
        ("Dropout(x, half, t)", True),
        (f"{MS}.BitmaskDropout(x, half)", False),
        (f"{MS}.BitmaskDropout(x, half, t)", True),
        (f"{MS}.BiasDropout(x, x, x, half)", False),
        (f"{MS}.BiasDropout(x, x, , half, t)", True),
        (f"{MS}.BitmaskBiasDropout(x, x, x, half, t)", True),
        (f"{MS}.Sampling(i, i, i)", True),
        ("Bernoulli(x)", True),
        ("Abs(x)", False),
    ],
)
def test_what_draws(call: str, is_drawn: bool) -> None:
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21, "{MS}" : 1]>'
        "g (float[2] x, int32[2] i, bool t) => (y, z) <float half = {0.5}>"
        f"{{ y = {call} z = Neg(x) }}"
    )
    assert is_random(model.graph[0]) is is_drawn
    assert random_outputs(model) == (("y",) if is_drawn else ())


def test_training_that_a_constant_rules_out_draws_nothing() -> None:
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21, "{MS}" : 1]>'
        "g (float[2] x) => (y) <float half = {0.5}, bool t = {0}>"
        f"{{ y = {MS}.BitmaskDropout(x, half, t) }}"
    )
    assert random_outputs(model) == ()
