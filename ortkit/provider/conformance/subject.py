"""The provider under test: found by what the user wrote, and given to sessions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ortkit.errors import UserError
from ortkit.provider.own.options import NAME
from ortkit.runtime.ort import import_onnxruntime


@dataclass(frozen=True)
class Subject:
    """A provider by what the user wrote.

    Args:
        text: `MODULE:CLASS`, a subclass of `ortkit.ExecutionProvider` or an object of one; or the
            name of a provider.
        library: The shared library of a provider that is not in ONNX Runtime itself.
        options: That each session gives it.
    """

    text: str
    library: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def register(self) -> str:
        """Make the provider known to ONNX Runtime in this process; returns its name.

        Raises:
            UserError: There is no such module, class or provider.
            RunError: ONNX Runtime refuses it.
        """
        from ortkit.provider.registration import register_provider

        if self.library is not None:
            return _register_library(self.text, self.library)
        if ":" in self.text:
            return register_provider(_load(self.text))
        known = import_onnxruntime().get_available_providers()
        if self.text == NAME and NAME not in known:
            return register_provider()
        if self.text not in known:
            raise UserError(
                f"there is no provider {self.text!r}",
                fix=f"write MODULE:CLASS, give its --library, or use {', '.join([NAME, *known])}",
            )
        return self.text


def _register_library(name: str, library: Path) -> str:
    ort: Any = import_onnxruntime()
    if not library.is_file():
        raise UserError("there is no such file", where=str(library), fix="name a shared library")
    try:
        ort.register_execution_provider_library(name, str(library.resolve()))
    except Exception as error:  # onnxruntime's own classes, which share no base
        raise UserError(f"ONNX Runtime does not register it: {error}", where=name) from error
    return name


def _load(text: str) -> Any:
    module_name, _, attribute = text.partition(":")
    # As `python -m` does: what lies in the folder where the user is.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise UserError(f"{module_name!r} is not imported: {error}", where=text) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise UserError(f"{module_name!r} has no {attribute!r}", where=text)
    return found() if isinstance(found, type) else found
