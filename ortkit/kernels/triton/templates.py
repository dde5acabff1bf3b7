"""Hand-written kernels, asked before one is generated: see `ortkit.custom_ops.triton`."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.hand import PACKAGE
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused
from ortkit.targets.catalog import traits_of


class Template(Protocol):
    """A kernel for one signature.

    It may name the `architectures` that there is code for; other GPUs run the function's body.
    """

    def variants(self) -> tuple[VariantSource, ...]:
        """Return the ways to compute it, the fastest first."""
        ...


def template_for(signature: RegionSignature) -> Template | Refused | None:
    """Return the template for a region, why there is none where one nearly fits, or None."""
    for name in traits_of("cuda").templates:
        found = import_module(f"{PACKAGE}.{name}").match(signature)
        if found is not None:
            return cast(Template | Refused, found)
    return None
