"""What the caller may ask of `optimize`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ortkit.errors import UserError
from ortkit.graph.opsets.raising import NEWEST, OLDEST
from ortkit.optimization.padding import NamedPadding
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.passes import Pass
from ortkit.rewrite.pipeline import Instruments
from ortkit.targets.catalog import KINDS, Kind, traits_of
from ortkit.targets.cuda import architectures_of
from ortkit.targets.target import Target
from ortkit.verify.budget import check_budget
from ortkit.verify.inputs.covering import Level

if TYPE_CHECKING:
    from ortkit.kernels.tuning.database import Chooser
    from ortkit.verify.user_tolerance import UserTolerance

#: Regions are grown from this level on.
REGIONS_SINCE_LEVEL = 2

Precision = Literal["fp32", "fp16", "bf16", "fp8", "int8", "int4"]
Calibration = Literal["auto", "minmax", "entropy", "percentile"]
KernelChoice = Literal["auto", "off", "tvm", "triton"]

_CHOICES = {
    "target": KINDS,
    "level": range(4),
    "precision": get_args(Precision),
    "calibration": get_args(Calibration),
    "precision_io": ("keep", "convert"),
    "verify": (True, False, *get_args(Level)),
    "kernels": get_args(KernelChoice),
}
#: By field: its type, and the least number.
_NUMBERS = {
    "samples": (int | None, 1), "threads": (int, 0), "fold_limit": (int, 0), "max_opset": (int, 0),
    "max_error": (float | int | None, 0), "verify_seconds": (float | int | None, 0),
    "verify_memory": (int | None, 0),
}  # fmt: skip
_TYPES: Mapping[str, Any] = {
    "passes": str, "skip_padding": str, "cpu": str, "arch": str, "shapes": Mapping, "denied": Set,
    "fixed_shapes": Mapping,
    "extra_passes": tuple | list, "inputs": Path | None, "calibrate": Path | None,
    "fuel": int | None, "instruments": Instruments, "progress": Callable, "count": Callable,
    "chooser": Callable | None,
}  # fmt: skip

#: Precision -> what to say where a target has none, or no kernels are made, and what to use.
_NOT_THERE: Mapping[str, tuple[str, str]] = {
    "fp16": (
        "ONNX Runtime computes fp16 in float32 on CPUs",
        "use --target cuda, or bf16 or int8",
    ),
    "bf16": (
        "on CPUs bf16 is computed by kernels of ours",
        "use --level 2 or 3, and not --kernels off",
    ),
    "int8": ("int8 is for CPUs", "use fp16 or bf16"),
    "int4": ("int4 is for CPUs", "use fp16 or bf16"),
    "fp8": (
        "fp8 is computed by kernels of ours on CUDA",
        "use --target cuda and --level 2 or 3, and not --kernels off",
    ),
}


def _silent(stage: str) -> None:
    """Ignore progress."""


def _uncounted(done: int, total: int) -> None:
    """Ignore how far a stage is."""


@dataclass(frozen=True)
class OptimizeOptions:
    """How to optimize; the defaults are those of `ortkit optimize`."""

    target: Kind = "cpu"
    level: int = 2
    """0 clean, 1 folds, 2 fusions that pay on the target, 3 every recognised fusion."""
    passes: str = ""
    """See `ortkit.passes.select.select_passes`."""
    extra_passes: tuple[Pass, ...] = ()
    """The caller's own, run after the others."""
    skip_padding: str = ""
    """Which padding of a batch is not computed. `proved`: what provably reaches no result.
    `INPUT=NUMBER`: tokens at which an input is this number, or 0 if only `INPUT` is given; all
    outputs hold zeros there. Empty: all padding is computed."""
    fixed_shapes: Mapping[str, int] = field(default_factory=dict)
    """Named sizes that the result has as numbers; it is verified at these."""
    precision: Precision = "fp32"
    """What float32 is computed in: `fp16` and `bf16` halve it where that is safe; on CPUs `bf16`,
    `int8` and `int4`, and on CUDA `fp8`, are taken by the products that gain, within
    `max_error`."""
    max_error: float | None = None
    """Of precisions below 16 bits, and of bf16 on CPUs, the largest error of an output; see
    `ortkit.verify.accuracy`. None: what is usual for the precision,
    `ortkit.precision.lowering.MAX_ERROR`."""
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
    usual ones, `ortkit.targets.cuda.DEFAULT_LEVEL`. PTX for all others is always there."""
    keep_source: bool = False
    """Keep the generated code of the kernels, for `Optimized.save_sources`."""
    verify: bool | Level = True
    """Whether to compare the result with the source, and how much is covered: True is `quick`,
    `full` takes all sizes."""
    check_load: bool = True
    """Load the result in ONNX Runtime, in another process, and leave rewrites out that keep it
    from loading; a result that is verified has been loaded anyway."""
    measure: bool = False
    """Time the kernels and the whole model, and drop what does not pay."""
    timing: bool = False
    """Time a run of the source and of the result for a second or two, for the report; a model
    that takes longer is not timed."""
    threads: int = 0
    """Of the sessions that are timed; 0: ONNX Runtime decides."""
    samples: int | None = None
    """Random input sets to verify on; None: those that `coverage` has."""
    verify_seconds: float | None = None
    """For the sessions of the source and a candidate in verification; None: 60, and more for
    larger models."""
    verify_memory: int | None = None
    """MiB for each process of verification; None: 1.5 times the weights in float32, and 512."""
    inputs: Path | None = None
    """A file or a folder of inputs to verify on instead, and to measure on the first of them."""
    tolerance: UserTolerance | None = None
    """What results may be off in verification, in addition to what is judged anyway."""
    shapes: Mapping[str, int] = field(default_factory=dict)
    """Values for symbolic sizes in verification and measurement."""
    fold_limit: int = 1 << 20
    """Bytes by which one folded constant may exceed what it is made from."""
    max_opset: int = RewriteOptions.max_opset
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
        traits = traits_of(self.target)
        if self.measure and not traits.is_timed:
            raise UserError(
                f"models for {self.target} are not timed",
                where="--measure",
                fix="use --target cpu",
            )
        _check_verification(self)
        NamedPadding.of(self.skip_padding)
        _check_precision(self)
        architectures_of(self.arch)
        if self.kernels not in ("auto", "off", *traits.backends):
            raise UserError(
                f"{self.kernels} makes no kernels for {self.target}",
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
    def machine(self) -> Target:
        """What kernels are made for."""
        return Target(self.target, getattr(self, traits_of(self.target).level_option))

    @property
    def coverage(self) -> Level:
        """How much verification covers."""
        return "quick" if isinstance(self.verify, bool) else self.verify

    @property
    def skips_padding(self) -> bool:
        """Whether padding is skipped where it reaches no result."""
        return self.level >= REGIONS_SINCE_LEVEL and self.skip_padding != ""

    @property
    def lowers_products(self) -> bool:
        """Whether products are lowered one by one, by measurement."""
        how = traits_of(self.target).precisions.get(self.precision)
        return how is not None and how.by_product

    @property
    def has_budget(self) -> bool:
        """Whether products are computed in a lower precision as long as outputs are not too far
        off."""
        how = traits_of(self.target).precisions.get(self.precision)
        return how is not None and how.has_budget

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
        for pass_ in self.extra_passes:
            if not isinstance(pass_, Pass):
                raise UserError(
                    f"{pass_!r} is no pass", where="extra_passes", fix="give instances of Pass"
                )
        for size, value in self.shapes.items():
            if not isinstance(value, int) or value < 0:
                raise UserError(f"{value!r} is no size", where=f"shapes, {size!r}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_verification(options: OptimizeOptions) -> None:
    """Check that one option alone chooses the input sets, and that there is time.

    Raises:
        UserError: Two options do, or no session could run.
    """
    check_budget(options.verify_seconds, options.verify_memory)
    if options.samples is not None and not isinstance(options.verify, bool):
        raise samples_and_level()


def samples_and_level() -> UserError:
    """Return the error of a number of random sets beside a level of coverage."""
    return UserError(
        "random input sets take the place of those that --verify covers sizes with",
        where="--samples",
        fix="drop one of them",
    )


def _check_precision(options: OptimizeOptions) -> None:
    """Check that the precision is computed on the target, and that its options go with it.

    Raises:
        UserError: They contradict each other.
    """
    how = traits_of(options.target).precisions.get(options.precision)
    is_offered = how is not None and (options.has_regions or not how.needs_kernels)
    if options.precision != "fp32" and not is_offered:
        problem, fix = _NOT_THERE[options.precision]
        raise UserError(problem, where="--precision", fix=fix)
    if options.max_error is not None and not options.has_budget:
        raise UserError(
            "only a lower precision on a CPU and fp8 have a budget",
            where="--max-error",
            fix="name a --precision and --target cpu, or --precision fp8",
        )
    if options.max_error is not None and not 0 < options.max_error < 1:
        raise UserError(
            f"nothing is checked against {options.max_error:g}",
            where="--max-error",
            fix="use a number between 0 and 1, such as 0.02",
        )
    if options.calibrate is not None and options.precision != "int8":
        raise UserError("only int8 is calibrated", where="--calibrate", fix="add --precision int8")
    if options.calibration != "auto" and options.precision != "int8":
        raise UserError(
            "only int8 is calibrated", where="--calibration", fix="add --precision int8"
        )
    if options.precision_io == "convert" and (options.precision == "fp32" or options.has_budget):
        raise UserError(
            "inputs and outputs are converted to half precision only",
            where="--precision-io",
            fix="use --precision fp16 or bf16, or leave it out",
        )
