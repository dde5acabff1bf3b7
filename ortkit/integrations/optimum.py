"""Folders of Hugging Face Optimum: optimized with their libraries, and opened as `ORTModel`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortkit.errors import UserError
from ortkit.integrations.packages import require
from ortkit.kernels.metadata import library_path
from ortkit.optimization.call import Optimized, OptimizeOptions, optimize
from ortkit.runtime.model_folder import copy_others, files_of
from ortkit.runtime.plain_options import session_options
from ortkit.temporary import TemporaryFolder

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
    return write_folder(source, output, optimized_models(source, output, options))


def optimized_models(
    source: PathLike, output: PathLike, options: OptimizeOptions | None = None
) -> dict[str, Optimized]:
    """Optimize all models of a folder; nothing is written.

    Args:
        source: The folder.
        output: The folder that they are for.
        options: As for `optimize`.

    Returns:
        The results by the models' file names.

    Raises:
        UserError: There is no such folder, no model in it, or `output` is there already.
        ModelError: A model is not valid.
    """
    folder = Path(source)
    models = sorted(folder.glob("*.onnx"))
    if not models:
        raise UserError("there is no ONNX model in it", where=str(folder), fix="export it first")
    if Path(output).exists():
        raise UserError("is there already", where=str(output), fix="name a new folder")
    return {model.name: optimize(model, options) for model in models}


def write_folder(
    source: PathLike, output: PathLike, models: Mapping[str, Optimized]
) -> tuple[Path, ...]:
    """Write optimized models into a new folder, with what else is in the source; all or nothing.

    Args:
        source: The folder that the models are of.
        output: The new folder.
        models: By their file names.

    Returns:
        The models that were written.

    Raises:
        UserError: A file cannot be copied or written.
    """
    folder, target = Path(source), Path(output)
    own = frozenset[Path]().union(*(files_of(folder / name) for name in models))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot be made: {error.strerror}", where=str(target.parent)) from error
    with TemporaryFolder("optimum", inside=target.parent) as work:
        new = work / "new"
        copy_others(folder, new, own, folder / next(iter(models)))
        for name, optimized in models.items():
            optimized.save(new / name)
        try:
            new.rename(target)
        except OSError as error:
            problem = f"cannot be written: {error.strerror}"
            raise UserError(problem, where=str(target), fix="name a new folder") from error
    return tuple(target / name for name in models)


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
    path = Path(folder) / given.get("subfolder", "") / file_name
    target = given.get("providers") or given.get("provider", "CPUExecutionProvider")
    return kind.from_pretrained(
        str(folder), file_name=file_name, session_options=session_options(path, target=target),
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
