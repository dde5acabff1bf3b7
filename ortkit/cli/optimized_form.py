"""The optimized form of a model, for commands that set a model against it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortkit.optimization.options import Precision


def optimized_form(
    model: Path, folder: Path, progress: Callable[[str], None], precision: Precision = "fp32"
) -> Path:
    """Optimize a model as `ortkit optimize` does; returns a file or a folder in `folder`.

    Its kernel library lies beside it.

    Raises:
        ModelError: It is not a valid model.
    """
    from ortkit.optimization.call import OptimizeOptions, optimize

    options = OptimizeOptions(progress=progress, precision=precision)
    if model.is_dir():
        from ortkit.genai.optimize import optimize_genai

        return optimize_genai(model, folder / f"{model.name}.opt", options).path
    made = optimize(model, options)
    path = folder / f"{model.stem}.opt.onnx"
    made.save(path)
    return path
