"""The files of a model that is handed on: itself, its weights, and the library of its kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

from ortkit.errors import UserError
from ortkit.graph.io.open import open_model
from ortkit.graph.io.origin import source_of
from ortkit.kernels.metadata import library_path
from ortkit.runtime.libraries import fused_ops, library_of
from ortkit.runtime.source import header_at

MODEL_FILE = "model.onnx"


def trusted_library(model: Path, *, trust: bool) -> Path | None:
    """Return a file with the kernel library of a model, None if it has none.

    The file holds the bytes that were hashed.

    Raises:
        UserError: The model has a library that is not trusted, or its library is lost.
    """
    found = library_of(model, trust=trust)
    if found.loaded is None and fused_ops(header_at(model)):
        raise UserError(found.refusal, where=str(model), fix="or leave the kernels out")
    return found.loaded


def copy_model(model: Path, folder: Path, library: Path | None) -> Path:
    """Copy a model with its weights and a library into a new folder, and return its path.

    Raises:
        ModelError: It is no valid model.
        UserError: Its weights have the name of another file of the copy.
    """
    source = source_of(open_model(model))
    copy = folder / MODEL_FILE
    files = {copy: model} if library is None else {copy: model, library_path(copy): library}
    for file in () if source is None else source.external_files:
        target = folder / file.relative_to(model.parent)  # the path that the model was opened by
        if target in files:
            raise UserError(
                f"its weights cannot be called {target.name}: another file of the copy is",
                where=str(model), fix="save it with its weights in a file of another name",
            )  # fmt: skip
        files[target] = file
    folder.mkdir(parents=True)
    for target, file in files.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return copy
