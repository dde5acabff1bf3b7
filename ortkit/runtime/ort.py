"""The one place where ortkit imports ONNX Runtime."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

from ortkit.env import has_telemetry, keep_telemetry_off, set_runtime_log
from ortkit.errors import MissingDependencyError


def import_onnxruntime() -> ModuleType:
    """Import ONNX Runtime with its telemetry off, and for the command line its log as well.

    Raises:
        MissingDependencyError: It is not installed, or its native part does not load.
    """
    require_onnxruntime()
    try:
        module = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingDependencyError(
            f"onnxruntime is installed but does not load: {error}",
            fix='install it again: pip install --force-reinstall "ortkit[cpu]"',
        ) from error
    set_runtime_log(module)
    return module


def preload_onnxruntime() -> None:
    """Import ONNX Runtime in a process that others are forked from: each saves 20 ms.

    Such a process starts no threads. ONNX Runtime starts one for its telemetry: with that on, each
    of the others imports it.
    """
    if not has_telemetry():
        importlib.import_module("onnxruntime")


def require_onnxruntime() -> None:
    """Turn telemetry off for this process and its children, and check that ORT is there.

    Imports nothing: for callers that start a process which then imports it.

    Raises:
        MissingDependencyError: It is not installed.
    """
    keep_telemetry_off()
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingDependencyError(
            "onnxruntime is not installed", fix='pip install "ortkit[cpu]"'
        )


def onnxruntime_packages() -> frozenset[str]:
    """Return the installed packages that the module `onnxruntime` is of: one, as a rule."""
    return frozenset(packages_distributions().get("onnxruntime", ()))


def onnxruntime_in(folder: Path | None) -> ModuleType:
    """Import the ONNX Runtime in a folder, in a process that has imported none.

    Args:
        folder: Where the package `onnxruntime` is; None: the installed one.

    Raises:
        ImportError: It does not load, or this process has another one.
    """
    if folder is not None and sys.path[0] != str(folder):
        sys.path.insert(0, str(folder))
    module = importlib.import_module("onnxruntime")
    if folder is not None and Path(str(module.__file__)).parents[1] != folder:
        raise ImportError(f"there is no onnxruntime in {folder}")
    return module
