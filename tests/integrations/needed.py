"""Packages that only some tests need: without one, its tests are skipped with a reason."""

from __future__ import annotations

import importlib.util

import pytest


def needs(*packages: str, extra: str) -> pytest.MarkDecorator:
    """Return the mark of tests that run only where packages are installed.

    Nothing is imported: collecting tests costs no time.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    names = ", ".join(missing)
    return pytest.mark.skipif(
        bool(missing), reason=f'{names} not installed: pip install -e ".[{extra}]"'
    )
