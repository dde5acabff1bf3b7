"""What went wrong in a provider's Python code, in one line that says where."""

from __future__ import annotations

import traceback
from pathlib import Path

from ortkit.errors import OrtkitError

_HERE = Path(__file__).parent


def describe(error: BaseException, where: str) -> str:
    """Return an exception's message with the place that raised it, on one line.

    Args:
        error: What was raised.
        where: What was being called, where ONNX Runtime does not say so: "compile".
    """
    text = " ".join(str(error).split())
    kind = type(error).__name__
    said = f"{kind}: {text}" if text else kind
    prefix = f"{where}: " if where else ""
    if isinstance(error, OrtkitError) and _is_ours(error):
        return f"{prefix}{text}"
    return f"{prefix}{said}{_location(error)}"


def _is_ours(error: OrtkitError) -> bool:
    """Whether this package raised it, so that the place says nothing to a provider's author."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).parent == _HERE


def _location(error: BaseException) -> str:
    """Return the innermost frame outside this package and, where that differs, outside others."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent != _HERE
    ]
    if not frames:
        return ""
    first, last = frames[0], frames[-1]
    where = f"{first.filename}:{first.lineno} in {first.name}"
    if (last.filename, last.lineno) == (first.filename, first.lineno):
        return f" ({where})"
    return f" ({where}, raised at {last.filename}:{last.lineno} in {last.name})"
