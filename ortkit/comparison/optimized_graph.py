"""What ONNX Runtime's own optimizations make of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ortkit.comparison.optimize_child import write_optimized
from ortkit.comparison.sides import NodeSide
from ortkit.errors import UserError
from ortkit.isolation.ended import TimedOut
from ortkit.isolation.run import Imports, run_isolated
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.ort import require_onnxruntime
from ortkit.runtime.settings import Optimizations, SessionSettings

_TIMEOUT_SECONDS = 600.0
LEVELS: tuple[Optimizations, ...] = ("off", "basic", "extended", "all")


def optimized_side(
    side: NodeSide, level: str, folder: Path, disabled: tuple[str, ...] = ()
) -> NodeSide:
    """Return a side as ONNX Runtime optimizes it, written into `folder`; `off`: as it is.

    The graph that is written runs with all optimizations off: outputs can then be added to it
    without changing what is fused.

    Args:
        side: The model, and the ONNX Runtime.
        level: Of its optimizations.
        folder: Made here.
        disabled: Optimizers that are switched off, by name.

    Raises:
        UserError: There is no such level, or ONNX Runtime does not load the model.
    """
    wanted = next((each for each in LEVELS if each == level), None)
    if wanted is None:
        raise UserError(
            f"no such level: {level}",
            where="--optimizations",
            fix=f"choose of {', '.join(LEVELS)}",
        )
    if wanted == "off":
        return side
    require_onnxruntime()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{side.model.stem}.{level}.onnx"
    settings = SessionSettings(
        optimizations=wanted, optimized_model=path, config=_saved_config(path)
    )
    providers = tuple((name, dict[str, str]()) for name in side.providers)
    plan = SessionPlan(
        side.model, side.libraries, providers, settings,
        onnxruntime=side.onnxruntime, disabled_optimizers=disabled,
    )  # fmt: skip
    # A process that others are forked from has the installed ONNX Runtime.
    imports: Imports = "ortkit" if side.onnxruntime is None else "nothing"
    problem = run_isolated(
        write_optimized, plan, timeout_seconds=_TIMEOUT_SECONDS, imports=imports
    )
    if isinstance(problem, TimedOut):
        raise UserError(
            f"ONNX Runtime does not load it within {_TIMEOUT_SECONDS:g} seconds", where=side.name
        )
    if problem:
        raise UserError(f"ONNX Runtime does not optimize it: {problem}", where=side.name)
    return replace(side, model=path, says=f"{side.name}, ONNX Runtime's optimizations {level}")


def _saved_config(path: Path) -> dict[str, str]:
    prefix = "session.optimized_model_external_initializers"
    return {f"{prefix}_file_name": f"{path.name}.data", f"{prefix}_min_size_in_bytes": "1024"}
