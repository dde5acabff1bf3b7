"""Attention of packed rows by Triton's interpreter, against each sample's in float64."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from interpreter import Interpreter
from packed_attention import CASES, expected, feeds_of, signature_of
from triton_attention import assert_close

from ortkit.kernels.triton.generate import sources_of
from ortkit.refusal import Refused

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.parametrize("name", CASES)
def test_rows_attend_to_rows_of_their_sample(name: str, interpreter: Interpreter) -> None:
    case = CASES[name]
    signature, feeds = signature_of(case), feeds_of(case, np.random.default_rng(1))
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    assert "packed_attention(" in sources[0].steps[0].text
    (found,) = interpreter.run(signature, feeds, sources=sources[-1:])
    assert_close(found, expected(case, feeds))
