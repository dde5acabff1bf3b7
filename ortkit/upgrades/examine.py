"""Import an ONNX Runtime in a process of its own, to find out what it is."""

from __future__ import annotations

from pathlib import Path

from ortkit.isolation.ended import Ended
from ortkit.isolation.run import run_isolated
from ortkit.runtime.installation import Installation
from ortkit.runtime.ort import onnxruntime_in, require_onnxruntime

_TIMEOUT_SECONDS = 120.0


def examine(folder: Path | None) -> Installation | str:
    """Import an ONNX Runtime in a process of its own, and return what it is, or why it fails.

    Args:
        folder: Where its package `onnxruntime` is; None: the installed one.

    Raises:
        MissingDependencyError: None is installed.
    """
    require_onnxruntime()
    found = run_isolated(_examined, folder, timeout_seconds=_TIMEOUT_SECONDS, imports="nothing")
    return str(found) if isinstance(found, Ended) else found


def _examined(folder: Path | None) -> Installation | str:
    try:
        ort = onnxruntime_in(folder)
    except Exception as error:  # noqa: BLE001  whatever stops it is the answer
        return " ".join(str(error).split()) or type(error).__name__
    native = ort.capi._pybind_state.__file__ or ""
    libraries = sorted(Path(native).parent.glob("onnxruntime_pybind11_state*"))
    return Installation(
        ort.__version__,
        folder,
        libraries[0] if libraries else None,
        tuple(ort.get_available_providers()),
        tuple(ort.get_all_providers()),
    )
