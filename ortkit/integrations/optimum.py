"""Folders of Hugging Face Optimum: optimized with their libraries, and opened as `ORTModel`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ortkit.errors import UserError
from ortkit.integrations.packages import require
from ortkit.kernels.metadata import library_path
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.runtime.plain_options import session_options

PathLike = str | os.PathLike[str]


def optimize_folder(
    source: PathLike, output: PathLike, options: OptimizeOptions | None = None
) -> tuple[Path, ...]:
    """Optimize all models of a folder that Optimum exported.

    Models keep their names, so that `ORTModel.from_pretrained` finds them. Libraries of kernels
    lie beside them, and all other files are copied.

    Args:
        source: The folder.
        output: A new folder, made here.
        options: As for `optimize`.

    Returns:
        The models that were written.

    Raises:
        UserError: There is no such folder, no model in it, or `output` is there already.
        ModelError: A model is not valid.
    """
    folder, target = Path(source), Path(output)
    models = sorted(folder.glob("*.onnx"))
    if not models:
        raise UserError("there is no ONNX model in it", where=str(folder), fix="export it first")
    if target.exists():
        raise UserError("is there already", where=str(target), fix="name a new folder")
    found = [(optimize(model, options), target / model.name) for model in models]
    data = {path for model in models for path in folder.glob(f"{model.name}*")}
    target.mkdir(parents=True)
    for path in folder.iterdir():
        if path.is_file() and path not in data:
            shutil.copyfile(path, target / path.name)
    for optimized, path in found:
        optimized.save(path)
    return tuple(path for _, path in found)


def from_pretrained(
    kind: Any, folder: PathLike, *, file_name: str = "model.onnx", **given: Any
) -> Any:
    """Open a folder as an `ORTModel`, with the kernels of its model.

    Args:
        kind: A class of `optimum.onnxruntime`, such as `ORTModelForSequenceClassification`.
        folder: On this machine; what a hub has is downloaded first.
        file_name: The model in it.
        given: Further arguments of `kind.from_pretrained`.

    Raises:
        UserError: There is no such model, or session options are given.
        MissingDependencyError: Optimum is not installed.
    """
    require("optimum.onnxruntime", "optimum")
    if "session_options" in given:
        fix = "call kind.from_pretrained with ortkit.session_options(model)"
        raise UserError("are made here", where="session_options", fix=fix)
    path = Path(folder) / file_name
    return kind.from_pretrained(
        str(folder), file_name=file_name, session_options=session_options(path, target="cpu"),
        **given,
    )  # fmt: skip


def save_pretrained(model: Any, folder: PathLike) -> Path:
    """Save an `ORTModel` as its own `save_pretrained` does, and its kernel library with it.

    Returns:
        The model's file in the folder.
    """
    model.save_pretrained(str(folder))
    source = Path(model.path)
    target = Path(folder) / source.name
    if (library := library_path(source)).is_file():
        shutil.copyfile(library, library_path(target))
    return target
