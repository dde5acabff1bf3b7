"""All faults of rewriting."""

from __future__ import annotations

import onnx

from mutants import (
    attributes,
    conditional,
    constants,
    normalization,
    operators,
)
from mutants.draft import Fault, Rng
from mutants.kinds import Kind, plant_all

KINDS: tuple[Kind, ...] = tuple(
    kind
    for module in (attributes, operators, constants, normalization, conditional)
    for kind in module.CATALOG.kinds
)


def plant(model: onnx.ModelProto, rng: Rng) -> list[Fault]:
    """Plant every kind that fits, each once, each in a copy of its own."""
    return plant_all(model, rng, KINDS)
