"""Two models compared in one call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from ortkit.graph.io.open import open_model
from ortkit.verify.fixed_batch import verifier_of
from ortkit.verify.inputs.covering import Level
from ortkit.verify.user_tolerance import UserTolerance
from ortkit.verify.verification import Verification


def verify_models(
    original: Path | ir.Model,
    candidate: Path | ir.Model,
    *,
    samples: int | None = None,
    coverage: Level = "quick",
    inputs: Path | None = None,
    shapes: Mapping[str, int] | None = None,
    library: Path | None = None,
    refusal: str = "",
    seconds: float | None = None,
    memory_mib: int | None = None,
    tolerance: UserTolerance | None = None,
    is_usual: bool = False,
    computed_in: str = "",
    stated: float = 0.0,
) -> Verification:
    """Compare two models on the same inputs; see `Verifier` and `Verifier.check`.

    Raises:
        UserError: The inputs or sizes that the user gave do not fit the original.
        MissingDependencyError: ONNX Runtime is not installed.
    """
    with verifier_of(
        original,
        samples=samples,
        coverage=coverage,
        inputs=inputs,
        shapes=shapes,
        seconds=seconds,
        memory_mib=memory_mib,
        tolerance=tolerance,
        is_usual=is_usual,
        candidate=candidate if isinstance(candidate, ir.Model) else open_model(candidate),
    ) as verifier:
        return verifier.check(
            candidate, library=library, refusal=refusal, computed_in=computed_in, stated=stated
        )
