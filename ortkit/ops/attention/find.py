"""Softmax outward to the two matrix products: what is between them, and what it means."""

from __future__ import annotations

from ortkit.ops.attention.core import Core
from ortkit.ops.attention.probabilities import read_probabilities
from ortkit.ops.attention.scores import read_scores
from ortkit.refusal import RefusedError
from ortkit.rewrite.site import Site


def find_core(site: Site) -> Core:
    """Read the attention around the site's Softmax.

    Raises:
        RefusedError: With the condition that fails.
    """
    rank = site.rank(site.output)
    source = site.input(0)
    if rank is None or source is None:
        raise RefusedError("the rank of its scores is unknown")
    axis = site.int("axis", -1 if site.opset >= 13 else 1)
    if axis % rank != rank - 1:
        raise RefusedError("its Softmax is not over the last axis")
    core = read_scores(site, source)
    return read_probabilities(site, core)
