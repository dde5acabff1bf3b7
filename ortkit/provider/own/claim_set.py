"""What is claimed of one graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.fusion.regions.cost_model import Prediction
from ortkit.provider.own.program import Program
from ortkit.provider.own.weights import Origin


@dataclass(frozen=True)
class Claim:
    """Nodes of the original, and the program that does their work.

    Args:
        at: The name that reports give it.
        program: What is run.
        nodes: What it stands for.
        inputs: For each input of the program the name of the value.
        outputs: Likewise.
        prediction: Of a run of it, before and after.
        regions: The regions that it computes, by the names that reports give them.
        bundle: Claims of one number are taken together or not at all.
        weights: What the session holds for the program.
        origins: What each of `weights` is packed from, None if it is computed.
    """

    at: str
    program: Program
    nodes: tuple[ir.Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    prediction: Prediction
    regions: tuple[str, ...]
    bundle: int = 0
    weights: tuple[np.ndarray, ...] = ()
    origins: tuple[Origin | None, ...] = ()


@dataclass(frozen=True)
class Declined:
    """A region that is not claimed, and why."""

    at: str
    kind: str
    reason: str


@dataclass(frozen=True)
class ClaimSet:
    """What is claimed of one graph, and what is not."""

    claims: tuple[Claim, ...]
    declined: tuple[Declined, ...]
