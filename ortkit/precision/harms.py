"""What products cost the outputs, where there is no time to try each alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ortkit.precision.forms import Form


def groups_of(forms: Sequence[Form], size: int) -> list[tuple[int, ...]]:
    """Return groups of up to `size` forms that are alike, by index.

    Neighbours are not alike: a product of a gate's result is far coarser than one behind a norm.
    """
    order = sorted(range(len(forms)), key=lambda index: (*_kind(forms[index]), index))
    return [tuple(order[at : at + size]) for at in range(0, len(order), size)]


def _kind(form: Form) -> tuple[str, str, str]:
    product = form.product
    return product.kind, form.name, str(product.weight.shape)


def shared(
    groups: Sequence[Sequence[int]], errors: Sequence[float], own: Sequence[float]
) -> list[float]:
    """Return the error that each form makes alone, given those of groups.

    Errors add up like the sides of right-angled triangles.

    Args:
        groups: Of forms, by index; each form is in one.
        errors: Of the outputs with each group.
        own: The errors of the forms' products, which shares are in proportion to.
    """
    found = [0.0] * len(own)
    for group, error in zip(groups, errors, strict=True):
        whole = math.hypot(*(own[index] for index in group))
        for index in group:
            share = own[index] / whole if whole else 1 / math.sqrt(len(group))
            found[index] = error * share
    return found
