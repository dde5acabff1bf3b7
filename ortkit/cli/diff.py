"""`ortkit diff`: what was removed, added and changed between two models."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import check_written

if TYPE_CHECKING:
    from ortkit.graph.analysis.diff import Change, ModelDiff

#: Changes of one part that are shown unless --all is given.
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("before", type=Path, metavar="A", help="an ONNX file")
    add("after", type=Path, metavar="B", help="an ONNX file")
    add("--all", action="store_true", help=f"show more than {SHOWN} changes of a kind")
    add("--exit-code", action="store_true", help="exit 1 if anything differs")
    add("--html", type=Path, metavar="OUT.html", help="write a page: both graphs, and the changes")
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    check_written({"--html": arguments.html}, (arguments.before, arguments.after))
    from ortkit.graph.analysis.diff import diff_models

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        progress("compare")
        diff = diff_models(arguments.before, arguments.after)
        if arguments.html is not None:
            _write_page(arguments, diff)
    if arguments.json:
        show.document(diff.to_json())
    else:
        _show(diff, None if arguments.all else SHOWN)
    return 1 if arguments.exit_code and not diff.is_same else 0


def _write_page(arguments: argparse.Namespace, diff: ModelDiff) -> None:
    from ortkit.graph.io.open import open_model
    from ortkit.page.graph.compared import page_of_diff
    from ortkit.page.graph.write import write_page

    before, after = map(open_model, (arguments.before, arguments.after))
    write_page(page_of_diff(before, after, diff), arguments.html)


def _show(diff: ModelDiff, limit: int | None) -> None:
    if diff.is_same:
        show.line("no difference")
        return
    if diff.ops:
        rows = [(op.op, op.before, op.after, f"{op.after - op.before:+}") for op in diff.ops]
        show.table("", ("op", "before", "after", "change"), rows)
    parts = (
        ("nodes", diff.nodes),
        ("weights", diff.weights),
        ("inputs and outputs", diff.interface),
        ("functions", diff.functions),
        ("model", diff.header),
    )
    for title, changes in parts:
        for kind in ("removed", "added", "changed"):
            _show_kind(
                f"{title} {kind}", [change for change in changes if change.kind == kind], limit
            )


def _show_kind(title: str, changes: Sequence[Change], limit: int | None) -> None:
    if not changes:
        return
    show.line(f"{title}: {len(changes)}")
    for change in changes[:limit]:
        what = change.before if change.before == change.after else " -> ".join(_sides(change))
        show.line(f"  {change.name}  {what}")
        for detail in change.details:
            show.line(f"      {detail}")
    if limit is not None and len(changes) > limit:
        show.line(f"  and {len(changes) - limit} more (--all shows them)")


def _sides(change: Change) -> list[str]:
    return [side for side in (change.before, change.after) if side]
