"""Hand-written kernels, asked before a schedule is generated: see `ortkit.custom_ops.tvm`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, cast, runtime_checkable

from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tvm.choices import Choices
from ortkit.refusal import Refused
from ortkit.targets.catalog import traits_of

PACKAGE = "ortkit.custom_ops.tvm"


class Template(Protocol):
    """A kernel for one signature, its sizes chosen."""

    def launch(self, level: str) -> Launch:
        """Say how the kernel for a processor level is called."""
        ...

    def lower(self, symbol: str, level: str) -> Any:
        """Return the kernel as a TIR function called `symbol`; needs tvm."""
        ...


@runtime_checkable
class CTemplate(Protocol):
    """A kernel in C: one whose results must be those of separate operations, bit for bit.

    TVM lets LLVM contract a product and a sum.
    """

    def launch(self, level: str) -> Launch:
        """Say how the kernel for a processor level is called."""
        ...

    def c_source(self, symbol: str, level: str) -> str:
        """Return C11 with the kernel as a function called `symbol`."""
        ...


@runtime_checkable
class TunableTemplate(Template, Protocol):
    """A template whose rule for its tiles can be overruled."""

    @property
    def kind(self) -> str:
        """What regions are alike: see `Tunable.kind`."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """The choices that it goes by; each is 0 where its rule is to say."""
        ...

    def chosen(self, choices: Choices) -> Template:
        """Return the kernel with its tiles chosen."""
        ...


def template_for(signature: RegionSignature) -> Template | CTemplate | Refused | None:
    """Return the template for a region, why there is none where one nearly fits, or None."""
    for module in template_modules():
        found = module.match(signature)
        if found is not None:
            return cast(Template | CTemplate | Refused, found)
    return None


def template_modules() -> Iterator[ModuleType]:
    """Import the templates one by one."""
    return (import_module(f"{PACKAGE}.{name}") for name in traits_of("cpu").templates)


def refusal_of(template: Template | CTemplate, level: str) -> Refused | None:
    """Say why a template has no kernel for a processor level; most have one for each."""
    refuses = getattr(template, "refuses", None)
    return None if refuses is None else cast(Refused | None, refuses(level))
