"""All faults of rewriting."""

from __future__ import annotations

import onnx

from mutants import (
    attributes,
    conditional,
    constants,
    movement,
    normalization,
    operators,
    partial,
)
from mutants.draft import Fault, Rng
from mutants.kinds import Kind, plant_all

_MODULES = (attributes, operators, movement, constants, normalization, conditional, partial)

KINDS: tuple[Kind, ...] = tuple(kind for module in _MODULES for kind in module.CATALOG.kinds)


def plant(model: onnx.ModelProto, rng: Rng) -> list[Fault]:
    """Plant every kind that fits, each once, each in a copy of its own."""
    return plant_all(model, rng, KINDS)
