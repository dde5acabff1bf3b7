"""What all stages of one call share: its source, its options, its folder, and its times."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir

from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.shapes.fixed import fix_sizes
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.kernels import foreign_note
from ortkit.optimization.options import OptimizeOptions
from ortkit.optimization.padding import NamedPadding, zero_padding

Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


class Workspace:
    """The files of one call of `optimize`, and how long its stages took."""

    def __init__(self, source: Source, options: OptimizeOptions, folder: Path) -> None:
        """Open nothing yet.

        Args:
            source: As for `optimize`.
            options: Of the call.
            folder: For temporary files; the caller removes it.
        """
        self.source = source
        self.options = options
        self.folder = folder
        self.seconds: dict[str, float] = {}
        """By stage."""

    @property
    def name(self) -> str:
        """What the source is called in messages."""
        return str(self.source) if isinstance(self.source, str | os.PathLike) else "(memory)"

    def open(self) -> ir.Model:
        """Open the source, with the sizes that are to be fixed as numbers.

        Raises:
            ModelError: It is not a valid model.
        """
        model = open_model(self.source)
        if self.options.fixed_shapes:
            fix_sizes(model, self.options.fixed_shapes)
        if (padding := NamedPadding.of(self.options.skip_padding)) is not None:
            zero_padding(model, padding)
        return model

    def original(self) -> Path:
        """Return the source as a file, for other processes."""
        padding = NamedPadding.of(self.options.skip_padding)
        if isinstance(self.source, str | os.PathLike) and padding is None:
            return Path(self.source)
        path = self.folder / "original.onnx"
        model = open_model(self.source)
        if padding is not None:
            zero_padding(model, padding)
        save_model(model, path, external_data=True, is_temporary=True)
        return path

    def saved(self, candidate: Candidate, name: str = "candidate.onnx") -> Path:
        """Return a candidate as a file, for other processes."""
        path = self.folder / name
        save_model(candidate.model, path, external_data=True, is_temporary=True)
        return path

    def runnable(self, candidate: Candidate) -> Path | None:
        """Return the candidate's library if this machine can load it."""
        return None if foreign_note(candidate.library, self.options) else candidate.library

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Report that a stage begins, and add up how long it takes."""
        self.options.progress(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed
