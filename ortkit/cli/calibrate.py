"""`ortkit calibrate`: measure what work costs on this machine, for the choice of kernels."""

from __future__ import annotations

import argparse

from ortkit.cli import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and write the result into the cache folder, if it is more than noise."""
    from ortkit.errors import CheckError
    from ortkit.kernels.tuning.calibration import save_calibration
    from ortkit.measure.calibrate import calibrate

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        done = calibrate(progress)
    if done.is_disturbed:
        raise CheckError(
            f"the machine is busy: other processes use {done.others_cpus:.1f} processors; "
            "nothing was written",
            fix="end what else runs here, and calibrate again",
        )
    if done.noisy:
        listed = ", ".join(f"{name} {done.noise[name]:.0%}" for name in done.noisy)
        raise CheckError(
            f"the machine is busy: measurements differ by more than noise ({listed}); "
            "nothing was written",
            fix="end what else runs here, and calibrate again",
        )
    path = save_calibration(done.calibration)
    if arguments.json:
        show.document(done.to_json(path))
        return 0
    found = done.calibration
    sizes = [(show.bytes_text(size), rate) for size, rate in found.bandwidths]
    show.table("", ("in use", "bytes per ns"), sizes)
    noise = ", ".join(f"{name} {part:.0%}" for name, part in done.noise.items())
    show.pairs(
        [
            ("machine", found.machine),
            ("operation", f"{found.operation_ns:.4f} ns on one float32 in a generated kernel"),
            ("node", f"{found.node_ns:.0f} ns in addition to its work"),
            ("fused node", f"{found.kernel_ns:.0f} ns in addition to its work"),
            ("threads", f"{found.parallel_ns:.0f} ns to hand work out and to wait for it"),
            *((kind, f"{factor:.2f} of the predicted time") for kind, factor in found.kernels),
            ("noise", noise),
        ]
    )
    for note in done.notes:
        show.note(f"warning: the default is kept for {note}")
    show.line(f"wrote     {path} in {done.seconds:.1f} s")
    return 0
