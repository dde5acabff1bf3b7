"""The source files of hand-written kernels, which decide what a kernel is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

_FORMS = "ortkit.custom_ops.forms"


def template_files(package: str) -> list[Path]:
    """Return the files of a package of kernels and of the readers of bodies, at any depth."""
    folders = [each for name in (package, _FORMS) for each in import_module(name).__path__]
    return sorted(path for folder in folders for path in Path(folder).rglob("*.py"))
