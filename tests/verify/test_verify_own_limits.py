"""Limits that only a candidate has, such as a Clip or a special case for one length."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

from ortkit.verify.verifier import Verifier

NUMBERS = {
    "one": np.array(1), "axis": np.array([1]), "thirty_seven": np.array(37),
    "zero": np.array(0), "limit": np.array(300.0, np.float32),
    "negative": np.array(-5e3, np.float32), "none": np.array(0.0, np.float32),
    "w": random_weights(8, 8), "forty": np.array(4000),
}  # fmt: skip
GOOD = "p = MatMul(x, w) y = Neg(p)"
LENGTH = "h = Shape(x) n = Gather(h, one)"
FAULTS = {
    "at one exact length": f"{LENGTH} c = Equal(n, thirty_seven) p = MatMul(x, w)"
    " q = Where(c, none, p) y = Neg(q)",
    "in a batch of 37": "h = Shape(x) n = Gather(h, zero) c = Equal(n, thirty_seven)"
    " p = MatMul(x, w) q = Where(c, none, p) y = Neg(q)",
    "at multiples of 37": f"{LENGTH} r = Mod(n, thirty_seven) c = Equal(r, zero)"
    " p = MatMul(x, w) q = Where(c, none, p) y = Neg(q)",
    "beyond a long length": f"{LENGTH} c = Greater(n, forty) p = MatMul(x, w)"
    " q = Where(c, none, p) y = Neg(q)",
    "above a number": "c = Greater(x, limit) z = Where(c, none, x) p = MatMul(z, w) y = Neg(p)",
    "a Clip of an input": "z = Clip(x, negative) p = MatMul(z, w) y = Neg(p)",
    "a Clip of a product": "p = MatMul(x, w) q = Clip(p, negative) y = Neg(q)",
    "a Min of a product": "p = MatMul(x, w) q = Min(p, limit) r = Max(q, negative) y = Neg(r)",
}


def built(nodes: str) -> ir.Model:
    text = f"g (float[n, s, 8] x) => (float[n, s, 8] y) {{ {nodes} }}"
    words = re.split(r"\W+", nodes)
    return model(text, {name: each for name, each in NUMBERS.items() if name in words})


@pytest.mark.parametrize("name", FAULTS)
def test_a_limit_that_only_the_candidate_has_is_found(name: str) -> None:
    with Verifier(built(GOOD)) as verifier:
        assert verifier.check(built(FAULTS[name]), keeps_names=True).verdict == "no"


def test_a_limit_without_an_effect_is_no_fault() -> None:
    nodes = FAULTS["at one exact length"].replace("none", "p")
    with Verifier(built(GOOD)) as verifier:
        found = verifier.check(built(nodes))
        assert found.verdict == "yes"
        assert "numbers that only the candidate compares with" in found.reason
        assert "numbers that only" not in verifier.check(built(GOOD)).reason
