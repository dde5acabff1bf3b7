"""`ortkit doctor`: runtimes, toolchains and versions; what is missing and how to get it."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from itertools import groupby

from ortkit.cli import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; missing parts are no failure."""
    from ortkit.doctor import diagnose

    # rich may be what is missing.
    with show.progress(
        quiet=arguments.quiet or arguments.json or find_spec("rich") is None
    ) as progress:
        diagnosis = diagnose(progress)
    if arguments.json:
        show.document(diagnosis.to_json())
        return 0
    width = max(len(finding.name) for finding in diagnosis.findings)
    for group, members in groupby(diagnosis.findings, key=lambda one: one.group):
        show.line(group)
        for one in members:
            show.line(f"  {one.name:<{width}}  {one.state:<8}  {one.value}")
            if one.fix:
                show.line(f"  {'':<{width}}  {'':<8}  -> {one.fix}")
    problems = diagnosis.problems
    show.line("")
    if problems:
        show.line(f"not healthy: look at {', '.join(one.name for one in problems)}")
    else:
        show.line("healthy: everything that commands need is there")
    return 0
