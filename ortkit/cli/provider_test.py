"""`ortkit provider test`: a provider against the node cases of the ONNX standard."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.provider_options import provider_options

if TYPE_CHECKING:
    from ortkit.provider.conformance.verdict import Conformance

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `ortkit provider test`."""
    add = parser.add_argument
    add("provider", metavar="PROVIDER", help="MODULE:CLASS, or the name of a provider")
    add("--library", type=Path, metavar="FILE.so", help="the shared library that it is in")
    add("--option", action="append", default=[], metavar="KEY=VALUE",
        help="an option of the provider; may be repeated")  # fmt: skip
    add("--only", default="", metavar="PATTERN", help="cases whose names match, such as test_add*")
    add("--all", action="store_true", help="all cases, not a sample of 150")
    add("--jobs", type=int, default=0, metavar="N", help="processes (default: one for each core)")
    add("--seconds", type=float, default=60.0, metavar="S",
        help="a case that takes longer hangs (default: 60)")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Run the cases; 1 if some result is wrong, or the provider fails or crashes."""
    from ortkit.provider.conformance.cases import SAMPLE
    from ortkit.provider.conformance.conform import ConformanceOptions, conform
    from ortkit.provider.conformance.subject import Subject

    subject = Subject(arguments.provider, arguments.library, provider_options(arguments.option))
    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        found = conform(
            subject,
            ConformanceOptions(
                pattern=arguments.only,
                sample=None if arguments.all else SAMPLE,
                jobs=arguments.jobs,
                seconds=arguments.seconds,
                progress=progress,
                count=progress.count,
            ),
        )
    if arguments.json:
        show.document(found.to_json())
    else:
        _show(found)
    return 1 if found.faults else 0


def _show(found: Conformance) -> None:
    rows = [
        (op, counts["right"], *(counts[fault] or None for fault in ("wrong", "error", "crash")))
        for op, counts in found.by_operator().items()
    ]
    if rows:
        show.table("operators that were claimed", ("op", "right", "wrong", "error", "crash"), rows)
    faults = [(fault.case, fault.status, fault.detail) for fault in found.faults[:_SHOWN]]
    if faults:
        show.table("faults", ("case", "status", "what"), faults)
    if len(found.faults) > _SHOWN:
        show.line(f"and {len(found.faults) - _SHOWN} more; --json has all")
    counts = ", ".join(f"{count} {status}" for status, count in found.counts.items())
    versions = ", ".join(f"{name} {text}" for name, text in found.versions.items())
    show.line(f"provider  {found.provider} ({versions})")
    show.line(f"cases     {len(found.verdicts)}: {counts}")
    show.line(f"conforms  {'no' if found.faults else 'yes'}")
