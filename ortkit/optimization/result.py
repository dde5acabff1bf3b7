"""What `optimize` returns, and how it is written."""

from __future__ import annotations

import base64
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.graph.analysis.summary import Summary
from ortkit.graph.io.atomic import Draft
from ortkit.graph.io.open import ModelSource, open_model
from ortkit.graph.io.save import save_model
from ortkit.kernels.metadata import (
    EMBEDDED_KEY,
    LIBRARY_HASH_KEY,
    LIBRARY_KEY,
    LIBRARY_TARGET_KEY,
    MADE_BY_KEY,
    library_path,
)
from ortkit.kernels.trust import digest, trust
from ortkit.optimization.report import Report
from ortkit.targets.catalog import traits_of
from ortkit.temporary import TemporaryFolder
from ortkit.version import __version__

Pack: TypeAlias = Literal["auto", "no"]
"""Whether large weights go to a file of their own, beside the model."""
#: With fewer bytes of weights a session takes some milliseconds to be made, however they lie.
_PACKED_FROM_BYTES = 16 << 20


@dataclass(frozen=True)
class Optimized:
    """A model made smaller, the library of its kernels if it has any, and the report."""

    model: ir.Model
    library: Path | None
    """In a temporary folder, until `save` copies it beside the model."""
    report: Report
    _folder: TemporaryFolder = field(repr=False)
    _sources: Path | None = field(default=None, repr=False)
    _source: ModelSource | None = field(default=None, repr=False)

    def save(
        self, path: str | os.PathLike[str], *, embed_library: bool = False, pack: Pack = "auto"
    ) -> tuple[Path, ...]:
        """Write the model, and its kernel library as `STEM.ops.so` beside it.

        The user's sessions on this machine may load the library from now on.

        Weights are written in the layout that the kernels read. ONNX Runtime copies those of the
        model's file for each session. It maps those of a file of their own, so that all sessions
        and processes share them.

        Args:
            path: The model's file.
            embed_library: Put the library into the model's metadata instead, for
                `ortkit.Session`; other hosts need the file.
            pack: `auto` writes the weights of a model with kernels for CPUs to
                `MODEL.HASH.data`, if they have 16 MiB or more and the library is not embedded.
                `no` leaves them where those of the source were.

        Returns:
            The files written, the model first.

        Raises:
            UserError: The folder does not exist or cannot be written, or the disk is full.
        """
        if pack not in (known := get_args(Pack)):
            raise UserError(f"cannot be {pack!r}", where="pack", fix=f"use {' or '.join(known)}")
        target = _path(path)
        self._state_origin(library_path(target), embed_library)
        beside: tuple[Draft, ...] = ()
        if self.library is not None and not embed_library:
            beside = (Draft.of(library_path(target), self.library.read_bytes()),)
        is_packed = pack == "auto" and bool(beside) and self._has_large_weights()
        written = save_model(
            self.model, target, external_data=True if is_packed else None, beside=beside
        )
        files = (written.model, written.data, *(draft.path for draft in beside))
        return tuple(path for path in files if path is not None)

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page with the graph before and after, side by side, and the report.

        It loads nothing from anywhere. The source is read again, if it is a file.

        Returns:
            The file written.

        Raises:
            ModelError: The source is no longer there.
            UserError: The file cannot be written, or the source has changed meanwhile.
        """
        from ortkit.optimization.page import page_of
        from ortkit.page.graph.write import write_page

        target = _path(path)
        if self._source is None:
            raise UserError("the source was not kept", where=str(target))
        source = open_model(self._source)
        if Summary.of(source) != self.report.before:
            raise UserError(
                "the model has changed since it was optimized", where=self.report.source,
                fix="write the page before the model is written over",
            )  # fmt: skip
        write_page(page_of(self.report, source, self.model), target)
        return target

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
        names = sorted({name for region in self.report.regions for name in region.sources})
        try:
            target.mkdir(parents=True, exist_ok=True)
            if kept is not None:
                for name in names:
                    shutil.copyfile(kept / name, target / name)
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", where=str(target)) from error
        return tuple(target / name for name in names)

    def _has_large_weights(self) -> bool:
        """Say whether sessions on the host gain by weights that they can map."""
        is_large = Summary.of(self.model).weight_bytes >= _PACKED_FROM_BYTES
        return is_large and traits_of(self.report.target).is_host

    def _state_origin(self, path: Path, embed: bool) -> None:
        """Say in the model's metadata who made it and which library belongs to it; trust that.

        A session loads a library only under the hash that the model states.
        """
        properties = self.model.metadata_props
        properties[MADE_BY_KEY] = __version__
        for key in (LIBRARY_KEY, LIBRARY_HASH_KEY, EMBEDDED_KEY, LIBRARY_TARGET_KEY):
            properties.pop(key, None)
        if self.library is None:
            return
        data = self.library.read_bytes()
        properties[LIBRARY_HASH_KEY] = sha256 = digest(data)
        properties[LIBRARY_TARGET_KEY] = self.report.target
        trust(sha256, path)
        if embed:
            properties[EMBEDDED_KEY] = base64.b64encode(data).decode("ascii")
        else:
            properties[LIBRARY_KEY] = path.name


def _path(given: str | os.PathLike[str]) -> Path:
    if not isinstance(given, str | os.PathLike) or "\0" in os.fspath(given):
        raise UserError(f"{given!r} is no path")
    return Path(given)
