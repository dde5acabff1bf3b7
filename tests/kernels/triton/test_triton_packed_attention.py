"""Attention of packed rows by Triton's interpreter, against each sample's in float64."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import onnx.parser
import pytest
from interpreter import Interpreter
from packed_attention import CASES, expected, feeds_of, signature_of
from triton_attention import assert_close

from ortkit.kernels.triton.generate import sources_of
from ortkit.refusal import Refused
from ortkit.verify.kernels.packed_rows import packed_rows

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


def test_cases_of_its_check_have_samples_of_several_rows() -> None:
    """A sample of one row has that row's values as its result, whatever is done with scores."""
    function = onnx.parser.parse_function(signature_of(CASES["one tensor"]).body)
    found = packed_rows(function)
    assert found is not None
    shapes = [(1, 3, 384), (3, 1, 1, 40), (3, 40), (1, 3)]
    assert found.sizes(shapes, 0) == shapes
    assert found.sizes(shapes, 1) == [(1, 80, 384), (3, 1, 1, 40), (3, 40), (1, 80)]
    assert found.fits(found.sizes(shapes, 1))
