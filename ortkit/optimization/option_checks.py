"""Options of `optimize` that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ortkit.errors import UserError
from ortkit.targets.catalog import traits_of
from ortkit.verify.budget import check_budget

if TYPE_CHECKING:
    from ortkit.optimization.options import OptimizeOptions

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


def check_verification(options: OptimizeOptions) -> None:
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


def check_precision(options: OptimizeOptions) -> None:
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
    if options.precision_io == "convert" and (options.precision == "fp32" or options.has_budget):
        raise UserError(
            "inputs and outputs are converted to half precision only",
            where="--precision-io",
            fix="use --precision fp16 or bf16, or leave it out",
        )
