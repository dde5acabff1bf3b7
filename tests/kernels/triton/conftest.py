"""One interpreting process for all tests of a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# Regions, operators and references are those of the kernels for CPUs.
sys.path.insert(0, str(Path(__file__).parent.parent))

from interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    found = Interpreter()
    yield found
    found.close()
