"""`ortkit profile`: where the time of a model's runs goes, and what to do about it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ortkit.cli import profile_diff, show
from ortkit.cli.decoding_flags import add_decoding, is_decoding, refuse_without
from ortkit.cli.flags import add_trust, check_written, sizes
from ortkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortkit.cli.tree import Parser
    from ortkit.runtime.profiling.result import Profile


def add_arguments(parser: Parser) -> None:
    """Add the subcommand's flags, and `profile diff` beside them."""
    add = parser.add_argument
    add("model", type=Path, nargs="?", metavar="MODEL", help="an ONNX file, or a folder of genai")
    add("--from", type=Path, metavar="TRACE", dest="trace_file",
        help="a trace of ONNX Runtime instead of runs; MODEL adds what it computes")  # fmt: skip
    add("--inputs", type=Path, metavar="FILE.npz", help="run on these inputs")
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size (default: what is usual); may be repeated")  # fmt: skip
    add("--target", default="auto", metavar="P",
        help="cpu, cuda, auto (default) or a provider's full name")  # fmt: skip
    add("--threads", type=int, default=0, metavar="N",
        help="threads of the session (default: ONNX Runtime decides)")  # fmt: skip
    add("--runs", type=int, metavar="N",
        help="traced runs (default: as many as take two seconds, 10 to 100)")  # fmt: skip
    add("--warmup", type=int, metavar="N",
        help="runs before those (default: 3; with --from 1)")  # fmt: skip
    add("--top", type=int, default=10, metavar="N", help="nodes to show (default: 10)")
    add("--trace", type=Path, metavar="OUT.json", help="write a trace for ui.perfetto.dev")
    add("--html", type=Path, metavar="OUT.html", help="write a page with timeline and tables")
    add("--graph", type=Path, metavar="PAGE.html",
        help="page of `optimize --html` or `inspect --html` that the nodes link to")  # fmt: skip
    add_decoding(parser)
    add_trust(parser)
    add("--json", action="store_true", help="print one JSON document")
    summary = "compare two profiles: what got faster or slower, beyond the noise"
    diff = parser.add_beside("diff", summary)
    diff.set_defaults(beside=profile_diff.run)
    profile_diff.add_arguments(diff)
    parser.epilog = "`ortkit profile diff A B` compares two models or profiles."


def run(arguments: argparse.Namespace) -> int:
    """Profile, print, and write what is asked for."""
    beside: Callable[[argparse.Namespace], int] | None = getattr(arguments, "beside", None)
    if beside is not None:
        return beside(arguments)
    _check(arguments)
    if arguments.model is not None and is_decoding(arguments, [arguments.model]):
        from ortkit.cli.profile_decoding import run_decoding

        return run_decoding(arguments)
    refuse_without(arguments, "prompt", "sweep")
    from ortkit.cli.profile_tables import show_profile
    from ortkit.runtime.profiling.advice import advice_on

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        made = _read if arguments.trace_file is not None else _made
        profile = made(arguments, progress)
        advice = advice_on(profile)
    if arguments.trace is not None:
        from ortkit.runtime.profiling.perfetto import write_perfetto

        write_perfetto(profile, arguments.trace)
    if arguments.html is not None:
        from ortkit.runtime.profiling.page.data import page_of
        from ortkit.runtime.profiling.page.write import write_page

        write_page(page_of(profile, advice, _graph_page(arguments)), arguments.html)
    if arguments.json:
        from dataclasses import asdict

        show.document({**profile.to_json(), "advice": [asdict(item) for item in advice]})
        return 0
    show_profile(profile, advice, top=arguments.top)
    for path in (arguments.trace, arguments.html):
        if path is not None:
            show.line(f"wrote     {path}")
    return 0


def _graph_page(arguments: argparse.Namespace) -> str:
    """Return the way from the page to that of the graph, empty if there is none."""
    if arguments.graph is None:
        return ""
    way = os.path.relpath(arguments.graph.resolve(), arguments.html.resolve().parent)
    return quote(way)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.model is None and arguments.trace_file is None:
        raise UserError("there is nothing to profile", fix="give a MODEL, or --from TRACE")
    if arguments.top < 0:
        raise UserError(f"{arguments.top} rows", where="--top", fix="give 0 or more")
    if arguments.graph is not None and arguments.html is None:
        raise UserError("only a page has links", where="--graph", fix="add --html OUT.html")
    written = {"--trace": arguments.trace, "--html": arguments.html}
    check_written(written, (arguments.model, arguments.trace_file, arguments.inputs))
    if arguments.trace_file is None:
        return
    for name, given in (("--inputs", arguments.inputs), ("--shape", arguments.shape),
                        ("--runs", arguments.runs)):  # fmt: skip
        if given:
            raise UserError("nothing is run for a trace", where=name, fix="leave it out")


def _made(arguments: argparse.Namespace, progress: show.Stages) -> Profile:
    """Run the model."""
    shapes = sizes(arguments.shape)
    from ortkit.cli.feeds import blaming_made_up, candidate_feeds
    from ortkit.measure.peaks import peaks_of
    from ortkit.runtime.profiling.model_runs import RunPlan, profile_model
    from ortkit.runtime.settings import SessionSettings

    warmup = {} if arguments.warmup is None else {"warmup": arguments.warmup}
    plan = RunPlan(arguments.runs, **warmup)
    with blaming_made_up(arguments.model, arguments.inputs):
        return profile_model(
            arguments.model,
            candidate_feeds(arguments.model, arguments.inputs, shapes),
            SessionSettings(
                target=arguments.target, threads=arguments.threads, trust=arguments.trust
            ),
            plan,
            peaks_of=lambda provider, threads: peaks_of(provider, threads, progress),
            progress=progress,
        )


def _read(arguments: argparse.Namespace, progress: show.Stages) -> Profile:
    """Read a trace."""
    from ortkit.runtime.profiling.saved_trace import profile_saved

    progress("read the trace")
    return profile_saved(
        arguments.trace_file,
        arguments.model,
        warmup=1 if arguments.warmup is None else arguments.warmup,
        target=arguments.target,
        threads=arguments.threads,
    )
