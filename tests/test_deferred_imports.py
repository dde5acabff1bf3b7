"""Modules that are loaded when they are first used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = str(Path(__file__).parents[1])
_LOADED = "import json, sys; print(json.dumps('sympy.core' in sys.modules)); "


def _loaded(*steps: str) -> list[bool]:
    """Run steps in a new Python; return for each whether sympy was loaded after it."""
    code = "".join(step + "\n" + _LOADED + "\n" for step in steps)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_onnx_ir_loads_sympy_when_it_is_first_used() -> None:
    assert _loaded(
        "import ortkit, onnx_ir as ir",
        "assert ir.SymbolicDim('N') == 'N'",
        "assert str(ir.SymbolicDim('N') + 1) == 'N + 1'",
    ) == [False, False, True]


@pytest.mark.parametrize(
    "statement",
    [
        "import sympy; assert str(sympy.Symbol('n') * 2) == '2*n'",
        "from sympy import Symbol",
        "from sympy.core.symbol import Symbol; import sympy; assert sympy.Symbol is Symbol",
    ],
)
def test_others_import_it_as_ever(statement: str) -> None:
    assert _loaded("import ortkit, onnx_ir", statement) == [False, True]


def test_what_is_loaded_already_stays() -> None:
    steps = "import sympy; was = sympy.core", "import ortkit; assert sympy.core is was"
    assert _loaded(*steps) == [True, True]
