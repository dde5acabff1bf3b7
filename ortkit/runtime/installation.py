"""ONNX Runtimes beside the installed one, each in a folder; a process imports one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Installation:
    """An ONNX Runtime that sessions can be made with."""

    version: str
    folder: Path | None = None
    """Where its package `onnxruntime` is; None: the installed one."""
    library: Path | None = None
    """Its native library."""
    providers: tuple[str, ...] = ()
    """Execution providers that it has."""
    all_providers: tuple[str, ...] = ()
    """Execution providers that it knows."""

    def get_available_providers(self) -> list[str]:
        """Return the providers that it has, as the module `onnxruntime` does."""
        return list(self.providers)

    def get_all_providers(self) -> list[str]:
        """Return the providers that it knows, as the module `onnxruntime` does."""
        return list(self.all_providers)
