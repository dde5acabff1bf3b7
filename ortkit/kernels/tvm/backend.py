"""The backend `tvm`: importable without tvm, which is loaded by the first compilation."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ortkit.errors import InternalError
from ortkit.kernels.backend import Kernel, Launch
from ortkit.kernels.c_compiler import compile_c
from ortkit.kernels.region.bounds import exceeds_bounds
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import symbols_of
from ortkit.kernels.template_files import template_files
from ortkit.kernels.tunable import symbol_of
from ortkit.kernels.tvm.choices import VALUES, read_choices
from ortkit.kernels.tvm.parameters import kind_of, parameters_of
from ortkit.kernels.tvm.plan import plan_of
from ortkit.kernels.tvm.schedule import Schedule
from ortkit.kernels.tvm.templates import (
    PACKAGE,
    CTemplate,
    TunableTemplate,
    refusal_of,
    template_for,
    template_modules,
)
from ortkit.refusal import Refused
from ortkit.targets.catalog import traits_of
from ortkit.targets.target import Target


@dataclass(frozen=True)
class TvmBackend:
    """Regions of one iteration space, with reductions local to its rows, for CPUs."""

    name: str = "tvm"

    def available(self) -> Refused | None:
        """Say whether tvm is installed; does not load it."""
        if find_spec("tvm") is None:
            return Refused("tvm is not installed (pip install apache-tvm)")
        return None

    def fingerprint(self) -> str:
        """Name tvm's versions and the content of the code generator."""
        here = Path(__file__).parent
        digest = hashlib.sha256()
        folders = (here.parent / "region", here.parent / "layouts", here.parents[1] / "targets")
        shared = (*(each for folder in folders for each in sorted(folder.rglob("*.py"))),
                  here.parent / "sizes.py")  # fmt: skip
        sources = (*sorted(here.rglob("*.py")), *shared, *template_files(PACKAGE))
        for source in sources:
            digest.update(source.read_bytes())
        digest.update(" ".join(traits_of("cpu").templates).encode())
        versions = [_version("apache-tvm"), _version("apache-tvm-ffi")]
        return " ".join([self.name, *versions, digest.hexdigest()[:16]])

    def accepts(self, signature: RegionSignature, target: Target) -> Refused | None:
        """Accept what there is a template for, or what a schedule is found for."""
        if self.name not in target.traits.backends:
            return Refused(f"tvm kernels for {target.kind} are not made")
        if refused := exceeds_bounds(signature):
            return refused
        template = template_for(signature)
        if isinstance(template, Refused):
            return template
        if template is not None:
            return refusal_of(template, target.resolved().level)
        plan = plan_of(signature)
        return plan if isinstance(plan, Refused) else None

    def load(self) -> None:
        """Import tvm, what compiles with it, and the templates."""
        import_module("ortkit.kernels.tvm.build")
        import_module("ortkit.kernels.tvm.lower")
        import_module("tvm")
        tuple(template_modules())

    def source(self, signature: RegionSignature, target: Target) -> dict[str, str]:
        """Return a TIR script, for which tvm is loaded, or C.

        Raises:
            InternalError: `accepts` would refuse.
        """
        template = template_for(signature)
        if isinstance(template, CTemplate):
            symbol = symbol_of(signature, "")
            return {".c": template.c_source(symbol, target.resolved().level)}
        _, function = _lowered(signature, target.resolved())
        return {".tir.py": f"{function.script()}\n"}

    def parameters(
        self, signature: RegionSignature, target: Target
    ) -> Mapping[str, tuple[int, ...]]:
        """Return what can be chosen of the generator, or of a hand-written kernel's tiles."""
        if self.name not in target.traits.backends:
            return {}
        template = template_for(signature)
        if isinstance(template, TunableTemplate):
            return {name: VALUES[name] for name in template.parameters}
        if template is not None:
            return {}
        plan = plan_of(signature)
        return {} if isinstance(plan, Refused) else parameters_of(plan)

    def kind(self, signature: RegionSignature, target: Target) -> str:
        """Return what the kernel's loops are like, empty if nothing can be chosen."""
        if not self.parameters(signature, target):
            return ""
        template = template_for(signature)
        if isinstance(template, TunableTemplate):
            return template.kind
        plan = plan_of(signature)
        return "" if isinstance(plan, Refused) else kind_of(plan)

    def is_choice(self, choices: str) -> bool:
        """Say whether a text names choices of this generator."""
        return read_choices(choices) is not None

    def compile(self, signature: RegionSignature, target: Target, folder: Path) -> Kernel:
        """Compile into `folder`/<key>.o.

        Raises:
            InternalError: `accepts` would refuse.
            KernelError: TVM failed.
        """
        return self.compile_as(signature, target, folder, "")

    def compile_as(
        self,
        signature: RegionSignature,
        target: Target,
        folder: Path,
        choices: str,
        *,
        is_trial: bool = False,  # noqa: ARG002  there is nothing to leave out
    ) -> Kernel:
        """Compile into `folder`/<key>.o with some of the generator's parameters given.

        Raises:
            InternalError: `accepts` would refuse, or `is_choice` would not hold.
            KernelError: TVM failed.
        """
        from ortkit.kernels.tvm.build import write_object

        started = time.perf_counter()
        target = target.resolved()
        artifact = folder / f"{signature.key}.o"
        template = template_for(signature)
        if isinstance(template, CTemplate):
            launch = template.launch(target.level)
            compile_c(template.c_source(symbol_of(signature, choices), target.level), artifact)
        else:
            launch, function = _lowered(signature, target, choices)
            write_object(function, target.level, artifact)
        seconds = time.perf_counter() - started
        return Kernel(
            key=signature.key,
            backend=self.name,
            target=target,
            artifact=artifact,
            symbol=symbol_of(signature, choices),
            launch=launch.numbered(symbols_of((*signature.inputs, *signature.outputs))),
            compile_seconds=seconds,
        )


def _lowered(signature: RegionSignature, target: Target, choices: str = "") -> tuple[Launch, Any]:
    """Return how the kernel is called, and its TIR function."""
    from ortkit.kernels.tvm.lower import lower

    symbol = symbol_of(signature, choices)
    chosen = read_choices(choices)
    if chosen is None:
        raise InternalError(f"the choices {choices!r} are none of the backend tvm")
    template = template_for(signature)
    if isinstance(template, TunableTemplate):
        template = template.chosen(chosen)
    plan = plan_of(signature, chosen) if template is None else template
    if isinstance(plan, Refused | CTemplate):
        raise InternalError(f"region {signature.op_type} was not accepted and yet compiled")
    if isinstance(plan, Schedule):
        return plan.launch, lower(plan, signature, symbol)
    return plan.launch(target.level), plan.lower(symbol, target.level)


def _version(distribution: str) -> str:
    try:
        return f"{distribution}-{version(distribution)}"
    except PackageNotFoundError:
        return f"{distribution}-unknown"
