"""What the caller may ask of `optimize`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ortkit.errors import UserError
from ortkit.graph.opsets.raising import NEWEST, OLDEST
from ortkit.kernels.cuda import architectures_of
from ortkit.rewrite.passes import Pass
from ortkit.rewrite.pipeline import Instruments
from ortkit.rewrite.target import Target

if TYPE_CHECKING:
    from ortkit.kernels.tuned import Chooser
    from ortkit.verify.covering import Level
    from ortkit.verify.user_tolerance import UserTolerance

#: Regions are grown from this level on.
REGIONS_SINCE_LEVEL = 2

Precision = Literal["fp32", "fp16", "bf16", "fp8", "int8", "int4"]
Calibration = Literal["auto", "minmax", "entropy", "percentile"]
KernelChoice = Literal["auto", "off", "tvm", "triton"]

_CHOICES = {
    "target": ("cpu", "cuda"),
    "level": range(4),
    "precision": get_args(Precision),
    "calibration": get_args(Calibration),
    "precision_io": ("keep", "convert"),
    "kernels": get_args(KernelChoice),
}
#: By field: its type, and the least number.
_NUMBERS = {
    "samples": (int | None, 1), "threads": (int, 0), "fold_limit": (int, 0), "max_opset": (int, 0),
    "max_error": (float | int | None, 0),
}  # fmt: skip
_TYPES: Mapping[str, Any] = {
    "passes": str, "cpu": str, "arch": str, "shapes": Mapping, "denied": Set,
    "extra_passes": tuple | list, "inputs": Path | None, "calibrate": Path | None,
    "fuel": int | None, "instruments": Instruments, "progress": Callable, "count": Callable,
    "chooser": Callable | None,
}  # fmt: skip


def _silent(stage: str) -> None:
    """Ignore progress."""


def _uncounted(done: int, total: int) -> None:
    """Ignore how far a stage is."""


@dataclass(frozen=True)
class OptimizeOptions:
    """How to optimize; the defaults are those of `ortkit optimize`."""

    target: Literal["cpu", "cuda"] = "cpu"
    level: int = 2
    """0 clean, 1 folds, 2 fusions that pay on the target, 3 every recognised fusion."""
    passes: str = ""
    """See `ortkit.passes.select.select_passes`."""
    extra_passes: tuple[Pass, ...] = ()
    """The caller's own, run after the others."""
    precision: Precision = "fp32"
    """What float32 is computed in: `fp16` and `bf16` halve it where that is safe; on CPUs `bf16`,
    `int8` and `int4`, and on CUDA `fp8`, are taken by the products that gain, within
    `max_error`."""
    max_error: float | None = None
    """Of precisions below 16 bits, and of bf16 on CPUs, the largest error of an output; see
    `ortkit.verify.accuracy`. None: what is usual for the precision,
    `ortkit.precision.cpu.MAX_ERROR`."""
    calibrate: Path | None = None
    """For int8: an npz file or a folder of them, with inputs that ranges are found on."""
    calibration: Calibration = "auto"
    """How ranges are found; `auto` tries several."""
    precision_io: Literal["keep", "convert"] = "keep"
    """Whether float32 inputs and outputs keep their type, or get that of `precision`."""
    kernels: KernelChoice = "auto"
    cpu: str = "native"
    """The CPU level that kernels are made for."""
    arch: str = "native"
    """The GPU architectures that kernels are made for, such as `sm_90,sm_100`; `native`: the
    usual ones, `ortkit.kernels.cuda.DEFAULT_LEVEL`. PTX for all others is always there."""
    keep_source: bool = False
    """Keep the generated code of the kernels, for `Optimized.save_sources`."""
    verify: bool = True
    check_load: bool = True
    """Load the result in ONNX Runtime, in another process, and leave rewrites out that keep it
    from loading; a result that is verified has been loaded anyway."""
    measure: bool = False
    """Time the kernels and the whole model, and drop what does not pay."""
    threads: int = 0
    """Of the sessions that are timed; 0: ONNX Runtime decides."""
    samples: int | None = None
    """Random input sets to verify on; None: those of a covering design, or two for another
    precision."""
    inputs: Path | None = None
    """A file or a folder of inputs to verify on instead, and to measure on the first of them."""
    tolerance: UserTolerance | None = None
    """What results may be off in verification, in addition to what is judged anyway."""
    shapes: Mapping[str, int] = field(default_factory=dict)
    """Values for symbolic sizes in verification and measurement."""
    fold_limit: int = 1 << 20
    """Bytes by which one folded constant may exceed what it is made from."""
    max_opset: int = Target.max_opset
    """The default domain's version may be raised up to this where a rewrite needs it."""
    denied: frozenset[str] = frozenset()
    """Ids of rewrites that must not happen, as the report names them."""
    fuel: int | None = None
    """Stop after that many rewrites."""
    chooser: Chooser | None = None
    """Says which of several kernels for a region to make; None: what `ortkit tune` found."""
    instruments: Instruments = field(default_factory=Instruments)
    """What to do after each pass; see `ortkit.rewrite.instruments`."""
    progress: Callable[[str], None] = _silent
    """Called with the name of each stage as it begins."""
    count: Callable[[int, int], None] = _uncounted
    """Called with how many kernels are compiled, and of how many."""

    def __post_init__(self) -> None:
        for name in ("inputs", "calibrate"):
            if isinstance(given := getattr(self, name), str | os.PathLike):
                object.__setattr__(self, name, Path(given))
        self._check_values()
        if self.measure and self.target != "cpu":
            raise UserError(
                f"models for {self.target} are not timed",
                where="--measure",
                fix="use --target cpu",
            )
        self._check_precision()
        if self.precision_io == "convert" and (self.precision == "fp32" or self.has_budget):
            raise UserError(
                "inputs and outputs are converted to half precision only",
                where="--precision-io",
                fix="use --precision fp16 or bf16, or leave it out",
            )
        architectures_of(self.arch)
        wrong = {"cpu": "triton", "cuda": "tvm"}[self.target]
        if self.kernels == wrong:
            raise UserError(
                f"{wrong} makes no kernels for {self.target}",
                where="--kernels",
                fix="use --kernels auto",
            )
        if not OLDEST <= self.max_opset <= NEWEST:
            raise UserError(
                f"no model is raised to opset {self.max_opset}",
                where="--max-opset",
                fix=f"use {OLDEST} to {NEWEST}",
            )

    @property
    def input_sets(self) -> int | Level:
        """What inputs are made up for verification: see `ortkit.verify.covering`.

        Fewer bits are judged on usual numbers, as they were chosen on those.
        """
        return self.samples or ("quick" if self.precision == "fp32" else 2)

    @property
    def lowers_on_cpu(self) -> bool:
        """Whether products are to be computed in a lower precision on a CPU."""
        return self.target == "cpu" and self.precision != "fp32"

    @property
    def has_budget(self) -> bool:
        """Whether products are computed in a lower precision as long as outputs are not too far
        off."""
        return self.lowers_on_cpu or self.precision == "fp8"

    @property
    def has_regions(self) -> bool:
        """Whether regions become kernels."""
        return self.kernels != "off" and self.level >= REGIONS_SINCE_LEVEL

    def _check_values(self) -> None:
        """Refuse what no type checker has seen."""
        for name, known in _CHOICES.items():
            if (given := getattr(self, name)) not in known:
                fix = f"use {', '.join(map(str, known))}"
                raise UserError(f"{given!r} is not known", where=_flag(name), fix=fix)
        for name, (kind, least) in _NUMBERS.items():
            given = getattr(self, name)
            if not isinstance(given, kind) or (given is not None and given < least):
                fix = f"use a number, {least} or more"
                raise UserError(f"cannot be {given!r}", where=_flag(name), fix=fix)
        for name, kind in _TYPES.items():
            if not isinstance(given := getattr(self, name), kind):
                wanted = getattr(kind, "__name__", str(kind))
                raise UserError(
                    f"is of type {type(given).__name__}, expected {wanted}", where=name
                )
        for one in self.extra_passes:
            if not isinstance(one, Pass):
                raise UserError(
                    f"{one!r} is no pass", where="extra_passes", fix="give instances of Pass"
                )
        for size, value in self.shapes.items():
            if not isinstance(value, int) or value < 0:
                raise UserError(f"{value!r} is no size", where=f"shapes, {size!r}")

    def _check_precision(self) -> None:
        if self.precision == "fp16" and self.target == "cpu":
            raise UserError(
                "ONNX Runtime computes fp16 in float32 on CPUs",
                where="--precision",
                fix="use --target cuda, or bf16 or int8",
            )
        if self.precision == "bf16" and self.target == "cpu" and not self.has_regions:
            raise UserError(
                "on CPUs bf16 is computed by kernels of ours",
                where="--precision",
                fix="use --level 2 or 3, and not --kernels off",
            )
        if self.precision in ("int8", "int4") and self.target != "cpu":
            raise UserError(
                f"{self.precision} is for CPUs", where="--precision", fix="use fp16 or bf16"
            )
        if self.precision == "fp8" and (self.target == "cpu" or not self.has_regions):
            raise UserError(
                "fp8 is computed by kernels of ours on CUDA",
                where="--precision",
                fix="use --target cuda and --level 2 or 3, and not --kernels off",
            )
        if self.max_error is not None and not self.has_budget:
            raise UserError(
                "only a lower precision on a CPU and fp8 have a budget",
                where="--max-error",
                fix="name a --precision and --target cpu, or --precision fp8",
            )
        if self.max_error is not None and not 0 < self.max_error < 1:
            raise UserError(
                f"nothing is checked against {self.max_error:g}",
                where="--max-error",
                fix="use a number between 0 and 1, such as 0.02",
            )
        if self.calibrate is not None and self.precision != "int8":
            raise UserError(
                "only int8 is calibrated", where="--calibrate", fix="add --precision int8"
            )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
