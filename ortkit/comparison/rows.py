"""Which variants are compared, and each with which other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ortkit.errors import UserError

_FLAGS = ("--target", "--threads", "--optimizations", "--onnxruntime")


@dataclass(frozen=True)
class Row:
    """One variant: a model under one setting."""

    number: int
    """From 1."""
    name: str
    """The model, as short as it is unique."""
    model: Path
    provider: str
    threads: int
    """0: ONNX Runtime decides."""
    optimizations: str
    """ONNX Runtime's own."""
    against: int | None
    """Number of the row that it is compared with; None for the first, which has none."""
    onnxruntime: str = ""
    """Which ONNX Runtime, as reports call it; empty: the installed one."""
    function_bodies: bool = False
    """Whether fused nodes run their function bodies, for want of a kernel library."""


def make_rows(
    models: Sequence[Path],
    providers: Sequence[str] = ("cpu",),
    threads: Sequence[int] = (0,),
    optimizations: Sequence[str] = ("all",),
    onnxruntimes: Sequence[str] = ("",),
) -> tuple[Row, ...]:
    """Return every combination; each is compared with one that differs in one thing only.

    A model is compared with the first model under the same setting. The first model is compared
    with itself on the first provider, and there at the first number of threads. There it is
    compared at the first level of optimizations, and there in the first ONNX Runtime.

    Raises:
        UserError: Nothing is named, or something is named twice.
    """
    settings = (providers, threads, optimizations, onnxruntimes)
    for values, where in zip(settings, _FLAGS, strict=True):
        if not values:
            raise UserError("nothing is named", where=where)
        for value in values:
            if list(values).count(value) > 1:
                raise UserError(f"{value!r} is named twice", where=where, fix="name it once")
    variants = list(product(*(range(len(values)) for values in (models, *settings))))
    names = _names(models)
    return tuple(
        Row(
            number,
            names[variant[0]],
            models[variant[0]],
            providers[variant[1]],
            threads[variant[2]],
            optimizations[variant[3]],
            None if not any(variant) else 1 + variants.index(_against(variant)),
            onnxruntimes[variant[4]],
        )
        for number, variant in enumerate(variants, 1)
    )


def _against(variant: Sequence[int]) -> tuple[int, ...]:
    """Return the variant with the first thing that is not the first of its kind set back."""
    index = next(index for index, value in enumerate(variant) if value)
    return (*variant[:index], 0, *variant[index + 1 :])


def _names(models: Sequence[Path]) -> list[str]:
    """Return the files' names, with folders in front as far as they are needed."""
    for depth in range(1, max(len(path.parts) for path in models) + 1):
        names = ["/".join(path.parts[-depth:]) for path in models]
        if len(set(names)) == len(set(models)):
            return names
    return [str(path) for path in models]
