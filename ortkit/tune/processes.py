"""The processes that time kernels: a crash or a hang there costs one batch and is one line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from ortkit.errors import KernelError
from ortkit.runtime.child_process import child_command

TIMEOUT_SECONDS = 60.0


def run_child(module: str, folder: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> Any:
    """Let a module's `main` work on `folder`/job.json, and return what it wrote as JSON.

    Args:
        module: Its full name.
        folder: With the job, whose `result` is `folder`/result.json.
        timeout_seconds: How long it may take.

    Raises:
        KernelError: It crashed, failed, or did not end.
    """
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    try:
        ended = subprocess.run(
            child_command(module, str(folder / "job.json")),
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout_seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise KernelError(f"kernels did not end within {timeout_seconds:g} seconds") from error
    if ended.returncode != 0:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        how = f"crashed with signal {-ended.returncode}" if ended.returncode < 0 else "failed"
        last = f": {lines[-1]}" if lines else ""
        raise KernelError(f"the process that times kernels {how}{last}")
    return json.loads(result.read_text("utf-8"))
