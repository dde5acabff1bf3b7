"""The one list of targets: kind -> "module:row". Nothing is imported until it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

if TYPE_CHECKING:  # the command line reads the names, and is to start fast
    from ortkit.targets.traits import Traits

Kind = Literal["cpu", "cuda"]
KINDS: tuple[Kind, ...] = get_args(Kind)

TARGETS: Mapping[str, str] = {
    "cpu": "ortkit.targets.cpu:CPU",
    "cuda": "ortkit.targets.cuda:CUDA",
}


def traits_of(kind: str) -> Traits:
    """Return the row of a target."""
    return cast("Traits", load(TARGETS[kind]))


@cache
def load(reference: str) -> Any:
    """Return what a row names as "module:object"."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def kind_of_backend(backend: str) -> Kind:
    """Return the target that a kernel backend compiles for."""
    return next(kind for kind in KINDS if backend in traits_of(kind).backends)
