"""All cases of the suite."""

from __future__ import annotations

from tests.spelling import (
    activations,
    activations_piecewise,
    attention,
    channels,
    layout,
    near,
    near_attention,
    near_rows,
    norms,
    norms_rms,
    rotary,
)
from tests.spelling.case import Case, Formula, NearMiss, cases, near_cases

FORMULAS: tuple[Formula, ...] = (
    *activations.FORMULAS,
    *activations_piecewise.FORMULAS,
    *norms.FORMULAS,
    *norms_rms.FORMULAS,
    *channels.FORMULAS,
    *rotary.FORMULAS,
    *attention.FORMULAS,
    *layout.FORMULAS,
)

MISSES: tuple[NearMiss, ...] = (*near.MISSES, *near_rows.MISSES, *near_attention.MISSES)


def spellings() -> tuple[Case, ...]:
    """Return what must be recognised."""
    return tuple(cases(FORMULAS))


def near_misses() -> tuple[Case, ...]:
    """Return what must not be recognised as what it looks like."""
    return tuple(near_cases(MISSES))
