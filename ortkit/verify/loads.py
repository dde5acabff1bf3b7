"""Whether ONNX Runtime loads a model, found out in a child process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.io.text import is_text_suffix
from ortkit.temporary import TemporaryFolder
from ortkit.verify.kernels.gaps import fused_ops_in
from ortkit.verify.limits import time_limit
from ortkit.verify.sessions import Setting, run_sessions

#: In messages of ONNX Runtime (1.31.1): the model may be valid, and it is this build, its CPU
#: provider or this machine that lacks an operator, a type's kernel, a newer format or a locale.
_LACKS = (
    "Could not find an implementation for",
    "Failed to find kernel for",
    "is not a registered function/op",
    "Unsupported model IR version",
    "ONNX Runtime only *guarantees* support for models stamped with official released onnx opset",
    "::Locale::Locale(",
)


@dataclass(frozen=True)
class Loads:
    """Why ONNX Runtime does not load a model in each setting; empty texts: it does."""

    plain: str
    """With ONNX Runtime's optimizations off."""
    deployed: str
    """With its optimizations on, and the kernel library."""

    @property
    def problem(self) -> str:
        """The first reason, empty if the model loads in both settings."""
        return self.plain or self.deployed

    @property
    def is_good(self) -> bool:
        """Whether the model loads in both settings."""
        return not self.problem

    @property
    def lacks_operators(self) -> bool:
        """Whether the model does not load because of operators that are not there to be tried."""
        problems = [problem for problem in (self.plain, self.deployed) if problem]
        return all(any(text in problem for text in _LACKS) for problem in problems)

    def covers(self, original: Loads) -> bool:
        """Say whether the model loads in each setting in which `original` does."""
        return not (self.plain and not original.plain) and not (
            self.deployed and not original.deployed
        )


def try_to_load(model: Path, library: Path | None = None) -> Loads:
    """Load a model with optimizations off and on, on the CPU; nothing is run.

    Args:
        model: An ONNX file, in text or not.
        library: The kernel library, registered where optimizations are on and this machine runs
            its kernels.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    with TemporaryFolder("load") as folder:
        if is_text_suffix(model.suffix):
            model = save_model(open_model(model), folder / "model.onnx", is_temporary=True).model
        settings = [
            Setting(model, folder / "plain", prepack=False),
            Setting(model, folder / "deployed", True, kernels=library, fused=fused_ops_in(model)),
        ]
        seconds = time_limit(open_model(model), {})
        plain, deployed = run_sessions(settings, (), 0, seconds)
        if plain.is_ended:  # the process did not come to the second one
            (deployed,) = run_sessions(settings[1:], (), 0, seconds)
    return Loads(plain.problem, deployed.problem)
