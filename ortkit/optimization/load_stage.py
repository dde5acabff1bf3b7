"""The last stage: a result that ONNX Runtime does not load is never written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ortkit.errors import InternalError, MissingDependencyError, RunError
from ortkit.optimization.options import OptimizeOptions
from ortkit.targets.traits import HOST_PROVIDER
from ortkit.verify.loads import Loads, try_to_load

LOADS = "yes"


@dataclass(frozen=True)
class LoadStage:
    """Holds results to loading wherever their original does."""

    source: str
    """What the original is called in messages."""
    original: Callable[[], Path]
    options: OptimizeOptions

    def check(
        self, model: Path, library: Path | None, *, is_original_suspect: bool
    ) -> tuple[bool, str]:
        """Say whether a result may be written, and what is known of it.

        Args:
            model: The result.
            library: Its kernel library, if this machine runs it.
            is_original_suspect: Whether to load the original even if the result loads.

        Returns:
            False if a rewrite is to blame; and `yes`, why it does not load, or why it was not
            tried.

        Raises:
            RunError: ONNX Runtime does not load the original.
        """
        try:
            original = self._original() if is_original_suspect else None
            result = try_to_load(model, library)
            if result.is_good:
                return True, LOADS
            original = original or self._original()
        except (MissingDependencyError, InternalError) as error:
            # Without ONNX Runtime, or with one that cannot be imported.
            return True, f"not checked: {error.problem}"
        if original.problem and original.lacks_operators:
            return (
                True,
                f"not checked: ONNX Runtime here does not load the original: {original.problem}",
            )
        if result.covers(original):
            return True, LOADS
        if result.lacks_operators and self._is_for_others:
            return (
                True,
                f"not checked: ONNX Runtime's CPU provider does not load it: {result.problem}",
            )
        return False, result.problem

    @property
    def _is_for_others(self) -> bool:
        """Whether results may have operators that only other providers than the CPU's have."""
        return self.options.machine.traits.provider != HOST_PROVIDER or self.options.precision in (
            "fp16",
            "bf16",
            "fp8",
        )

    def _original(self) -> Loads:
        found = try_to_load(self.original())
        if found.plain and found.deployed and not found.lacks_operators:
            raise RunError(
                f"ONNX Runtime does not load the model: {found.problem}",
                where=self.source,
                fix="mend or export it again; nothing was written",
            )
        return found
