"""The spelling suite: many ways to write an op become it; what only looks like it does not.

Cases are generated: a formula (`activations.py`, `norms.py`, `channels.py`, `rotary.py`,
`attention.py`, `layout.py`) is one way in which torch, transformers, TensorFlow, Keras, JAX or
PaddlePaddle write an op; a manner (`writer.py`) is an opset from 13 to 24, symbolic or fixed
sizes, constants as initializers or nodes of shape [] or [1], the order of operands, and whether
the result is an output of the graph. `scripts/bench spelling` runs the same cases through other
tools; docs/benchmarks/spelling.md has the table.

At level 3, with verification off, each spelling must become one of the ops it may be lowered
to, what it was made of must be gone, no function may be left, and outputs must agree with
those of the original at two sizes. Near misses (`near.py`, `near_attention.py`) are held to the
opposite: the op must not appear, and outputs must agree all the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spelling.case import Case
from tests.spelling.catalog import near_misses, spellings
from tests.spelling.judge import faults

pytest.importorskip("onnxruntime")
SPELLINGS = {case.name: case for case in spellings()}
NEAR = {case.name: case for case in near_misses()}


@pytest.mark.sampled(200)
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_recognised(name: str, tmp_path: Path) -> None:
    assert list(faults(SPELLINGS[name], tmp_path)) == []


@pytest.mark.sampled(100)
@pytest.mark.parametrize("name", NEAR)
def test_a_near_miss_is_not(name: str, tmp_path: Path) -> None:
    assert list(faults(NEAR[name], tmp_path)) == []


def test_the_suite_is_as_large_as_it_says() -> None:
    def ops(cases: dict[str, Case]) -> set[str]:
        return {case.what.op for case in cases.values()}

    assert len(SPELLINGS) >= 250
    assert len(ops(SPELLINGS)) >= 25
    assert len(NEAR) >= 60
    assert {case.manner.opset for case in SPELLINGS.values()} == set(range(13, 25))
