"""Attention's kernel by Triton's interpreter, against attention in float64."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from interpreter import Interpreter
from triton_attention import CASES, SIZES, WHOLE, assert_close, feeds_of

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [SIZES, WHOLE], ids=["cut", "whole"])
def test_it_computes_attention(name: str, sizes: dict[str, int], interpreter: Interpreter) -> None:
    case = CASES[name]
    feeds = feeds_of(case, sizes)
    found = interpreter.run(case.signature(), feeds)[0]
    assert_close(found, case.expected(feeds))
