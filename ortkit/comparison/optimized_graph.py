"""What ONNX Runtime's own optimizations make of a model."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

from ortkit.comparison import optimize_child
from ortkit.comparison.sides import NodeSide
from ortkit.errors import UserError
from ortkit.runtime.child_process import child_command
from ortkit.runtime.ort import require_onnxruntime

_TIMEOUT_SECONDS = 600.0


def optimized_side(side: NodeSide, level: str, folder: Path) -> NodeSide:
    """Return a side as ONNX Runtime optimizes it, written into `folder`; `off`: as it is.

    The graph that is written runs with all optimizations off: outputs can then be added to it
    without changing what is fused.

    Raises:
        UserError: There is no such level, or ONNX Runtime does not load the model.
    """
    if level not in optimize_child.LEVELS:
        raise UserError(
            f"no such level: {level}",
            where="--optimizations",
            fix=f"choose of {', '.join(optimize_child.LEVELS)}",
        )
    if level == "off":
        return side
    require_onnxruntime()
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{side.model.stem}.{level}.onnx"
    job: optimize_child.OptimizeJob = {
        "model": str(side.model),
        "made": str(made),
        "level": level,
        "providers": list(side.providers),
        "libraries": [str(path.absolute()) for path in side.libraries],
    }
    job_file = folder / f"{made.name}.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    command = child_command(optimize_child.__name__, str(job_file))
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"ONNX Runtime does not load it within {_TIMEOUT_SECONDS:g} seconds", where=side.name
        ) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        how = lines[-1]
        if done.returncode < 0:
            how = f"crashed with signal {-done.returncode} ({signal.strsignal(-done.returncode)})"
        raise UserError(f"ONNX Runtime does not optimize it: {how}", where=side.name)
    return replace(side, model=made, says=f"{side.name}, ONNX Runtime's optimizations {level}")
