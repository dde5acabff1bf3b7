"""Loads one module from a changed source; the interpreter imports this before anything else.

It stands alone in its folder, which is put on PYTHONPATH, so that processes that tests start see
the change, too. The working tree and the cache of compiled modules stay as they are.
"""

from __future__ import annotations

import os
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

_TARGET = os.environ.get("MUTATED_FILE", "")
_SOURCE = os.environ.get("MUTATED_SOURCE", "")
_get_code = SourceFileLoader.get_code


def _get_changed_code(loader: SourceFileLoader, name: str) -> CodeType | None:
    if os.path.realpath(loader.path) != _TARGET:
        return _get_code(loader, name)
    source = Path(_SOURCE).read_text(encoding="utf-8")
    return compile(source, loader.path, "exec", dont_inherit=True)


if _TARGET:
    SourceFileLoader.get_code = _get_changed_code  # type: ignore[method-assign]
