"""The flags of `ortkit optimize` as options of the call."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ortkit.cli.flags import sizes, tolerance, verification
from ortkit.env import times_results
from ortkit.errors import UserError
from ortkit.targets.catalog import KINDS, traits_of

if TYPE_CHECKING:
    from ortkit.cli.show import Stages
    from ortkit.optimization.call import OptimizeOptions
    from ortkit.rewrite.passes import Pass
    from ortkit.rewrite.pipeline import Instruments


def options_of(arguments: argparse.Namespace, progress: Stages) -> OptimizeOptions:
    """Return what the user asked for.

    Args:
        arguments: Of the command line.
        progress: Is told of each stage.

    Raises:
        UserError: The flags ask for something that cannot be.
    """
    from ortkit.kernels.tuning.database import chooser_after
    from ortkit.optimization.call import OptimizeOptions

    _check_levels(arguments)
    return OptimizeOptions(
        target=arguments.target,
        level=arguments.level,
        passes=arguments.passes,
        extra_passes=_extra_passes(arguments.ops),
        precision=arguments.precision,
        max_error=arguments.max_error,
        calibrate=arguments.calibrate,
        calibration=arguments.calibration,
        precision_io=arguments.precision_io,
        kernels=arguments.kernels,
        cpu=arguments.cpu,
        arch=arguments.arch,
        keep_source=arguments.keep_source is not None,
        chooser=None if arguments.db is None else chooser_after(arguments.db),
        fold_limit=arguments.fold_limit,
        max_opset=arguments.max_opset,
        verify=verification(arguments),
        verify_seconds=arguments.verify_seconds,
        verify_memory=arguments.verify_memory,
        measure=arguments.measure,
        timing=_is_timed(arguments),
        threads=arguments.threads,
        samples=arguments.samples,
        inputs=arguments.inputs,
        tolerance=tolerance(arguments.atol, arguments.rtol),
        shapes=sizes(arguments.shape),
        skip_padding=arguments.skip_padding,
        fixed_shapes=sizes(arguments.fix_shape, "--fix-shape"),
        denied=frozenset(arguments.deny),
        instruments=_instruments(arguments),
        progress=progress,
        count=progress.count,
    )


def _check_levels(arguments: argparse.Namespace) -> None:
    """Refuse the level of a target that no kernels are made for."""
    for kind in KINDS:
        option = traits_of(kind).level_option
        if kind != arguments.target and getattr(arguments, option) != "native":
            raise UserError(
                f"kernels are made for {arguments.target}",
                where=f"--{option}",
                fix=f"drop it, or use --target {kind}",
            )


def _is_timed(arguments: argparse.Namespace) -> bool:
    """Return whether a run before and after is timed: where somebody reads what it takes."""
    written = (arguments.json, arguments.report, arguments.html)
    is_read = not arguments.quiet or any(written)
    return is_read and not arguments.no_timing and times_results()


def _extra_passes(sources: list[str]) -> tuple[Pass, ...]:
    if not sources:
        return ()
    from ortkit.extend.body.recognize import RecogniseOps
    from ortkit.extend.declare.find_ops import find_ops

    ops = find_ops(sources, "--ops")
    if not ops:
        raise UserError("declares no op", where=f"--ops {sources[0]}")
    return (RecogniseOps(ops),)


def _instruments(arguments: argparse.Namespace) -> Instruments:
    from ortkit.rewrite.instruments import check_after_each, dump_into
    from ortkit.rewrite.pipeline import Instruments

    chosen = []
    if arguments.dump_passes is not None:
        chosen.append(dump_into(arguments.dump_passes))
    if arguments.check_passes:
        chosen.append(check_after_each)
    return Instruments(tuple(chosen))
