"""The source files of hand-written kernels, which decide what a kernel is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

_FORMS = "ortkit.custom_ops.forms"


def template_files(package: str) -> list[Path]:
    """Return the files of a package of kernels and of the readers of bodies, at any depth."""
    folders = [each for name in (package, _FORMS) for each in import_module(name).__path__]
    endings = ("*.py", "*.c")
    found = (Path(folder).rglob(ending) for folder in folders for ending in endings)
    return sorted(path for paths in found for path in paths)
