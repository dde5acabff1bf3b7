"""What `optimize` returns, and how it is written."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.graph.atomic import write_whole
from ortkit.graph.save import save_model
from ortkit.kernels.metadata import (
    EMBEDDED_KEY,
    LIBRARY_HASH_KEY,
    LIBRARY_KEY,
    LIBRARY_SUFFIX,
)
from ortkit.report import Report


@dataclass(frozen=True)
class Optimized:
    """A model made smaller, the library of its kernels if it has any, and the report."""

    model: ir.Model
    library: Path | None
    """In a temporary folder, until `save` copies it beside the model."""
    report: Report
    _folder: tempfile.TemporaryDirectory[str] = field(repr=False)
    _sources: Path | None = field(default=None, repr=False)

    @property
    def load_problem(self) -> str:
        """Why ONNX Runtime does not load the model, where verification found that it does not."""
        checked = self.report.verification
        return "" if checked is None else checked.load_problem

    def save(
        self, path: str | os.PathLike[str], *, embed_library: bool = False
    ) -> tuple[Path, ...]:
        """Write the model, and its kernel library as `STEM.ops.so` beside it.

        Args:
            path: The model's file.
            embed_library: Put the library into the model's metadata instead, for
                `ortkit.Session(path, trust_embedded=True)`; other hosts need the file.

        Returns:
            The files written, the model first.

        Raises:
            UserError: The folder does not exist or cannot be written, or the disk is full; or
                ONNX Runtime does not load the model.
        """
        target = _path(path)
        if self.load_problem:
            raise UserError(
                f"ONNX Runtime does not load the result: {self.load_problem}",
                where=str(target),
                fix="optimize with verify=False to have it all the same",
            )
        self._state_library(library_path(target).name, embed_library)
        written = save_model(self.model, target)
        files = [path for path in (written.model, written.data) if path is not None]
        if self.library is not None and not embed_library:
            beside = library_path(target)
            write_whole(beside, self.library.read_bytes())
            files.append(beside)
        return tuple(files)

    def save_sources(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write the generated code of the kernels that the model has, to read.

        For CUDA Triton's Python and PTX for each launch, for CPUs a TIR script; files are called
        by the fused operators. `OptimizeOptions.keep_source` must have been set.

        Returns:
            The files written; none if the model has no kernels.

        Raises:
            UserError: The folder cannot be written, or the code was not kept.
        """
        kept, target = self._sources, _path(folder)
        if kept is None and self.library is not None:
            raise UserError("the kernels' code was not kept", fix="optimize with keep_source=True")
        names = sorted({name for one in self.report.regions for name in one.sources})
        try:
            target.mkdir(parents=True, exist_ok=True)
            if kept is not None:
                for name in names:
                    shutil.copyfile(kept / name, target / name)
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", where=str(target)) from error
        return tuple(target / name for name in names)

    def _state_library(self, name: str, embed: bool) -> None:
        """Say in the model's metadata which kernel library belongs to it.

        A session loads a library that lies beside a model only under this name and hash.
        """
        properties = self.model.metadata_props
        for key in (LIBRARY_KEY, LIBRARY_HASH_KEY, EMBEDDED_KEY):
            properties.pop(key, None)
        if self.library is None:
            return
        data = self.library.read_bytes()
        properties[LIBRARY_HASH_KEY] = hashlib.sha256(data).hexdigest()
        if embed:
            properties[EMBEDDED_KEY] = base64.b64encode(data).decode("ascii")
        else:
            properties[LIBRARY_KEY] = name


def _path(given: str | os.PathLike[str]) -> Path:
    if not isinstance(given, str | os.PathLike) or "\0" in os.fspath(given):
        raise UserError(f"{given!r} is no path")
    return Path(given)


def library_path(model_path: Path) -> Path:
    """Return where the kernel library of a model lies: `model.opt.ops.so` for `model.opt.onnx`."""
    return model_path.parent / (model_path.stem + LIBRARY_SUFFIX)  # also of "" and "/"
