"""Processes of ours end with the process that started them, also if that is killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

#: PR_SET_PDEATHSIG of prctl(2).
_SET_PARENT_DEATH_SIGNAL = 1


def end_with_parent(parent: int) -> None:
    """Let the system kill this process when its parent ends; on Linux only.

    What counts is the end of the thread that started this process, so that whoever starts it
    waits for it in the same thread.

    Args:
        parent: The process that wants this one; if it has ended already, so does this one. A
            program between the two, which measures or limits, is the parent whose end counts.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != parent and not _is_running(parent):
        os._exit(1)


def _is_running(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
