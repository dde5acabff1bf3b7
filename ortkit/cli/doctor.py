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
        for member in members:
            show.line(f"  {member.name:<{width}}  {member.state:<8}  {member.value}")
            if member.fix:
                show.line(f"  {'':<{width}}  {'':<8}  -> {member.fix}")
    problems = diagnosis.problems
    show.line("")
    if problems:
        show.line(f"not healthy: look at {', '.join(problem.name for problem in problems)}")
    else:
        show.line("healthy: everything that commands need is there")
    return 0
