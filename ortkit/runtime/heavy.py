"""The operators whose arithmetic no graph optimization takes away."""

from __future__ import annotations

from ortkit.operators import where

_PRODUCTS = frozenset({"attention", "conv", "matmul", "recurrent"})
#: As ONNX Runtime's profile calls them, its own fused forms included. Attention is here as a
#: whole: how much of it is products the profile does not say.
HEAVY = where(access=_PRODUCTS) | where(domain="com.microsoft", access=_PRODUCTS) | {"MoE"}
#: Those of them that compute in integers already.
INTEGER = where(integer=True) | where(domain="com.microsoft", integer=True)
