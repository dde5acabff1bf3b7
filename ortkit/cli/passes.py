"""`ortkit passes`: which passes there are, and what one does."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ortkit.cli import show

if TYPE_CHECKING:
    from ortkit.optimization.pass_info import PassInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands `list` and `show`."""
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    listing = what.add_parser(
        "list", help="list all passes", description="list all passes", allow_abbrev=False
    )
    listing.set_defaults(parser=listing)
    listing.add_argument("--level", type=int, choices=range(4), metavar="0..3",
        help="only those that run at this level")  # fmt: skip
    listing.add_argument("--json", action="store_true", help="print one JSON document")
    showing = what.add_parser(
        "show", help="describe one pass", description="describe one pass", allow_abbrev=False
    )
    showing.set_defaults(parser=showing)
    showing.add_argument("name", metavar="NAME", help="a pass of `ortkit passes list`")
    showing.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """List passes, or describe one."""
    from ortkit.optimization.pass_info import SCHEMA, describe_pass, list_passes

    if arguments.what == "show":
        infos: tuple[PassInfo, ...] = (describe_pass(arguments.name),)
    else:
        infos = list_passes(arguments.level)
    if arguments.json:
        show.document({"schema": SCHEMA, "passes": [info.to_json() for info in infos]})
    elif arguments.what == "show":
        _show(infos[0])
    else:
        rows = [(info.name, _level(info), info.kind, info.summary) for info in infos]
        show.table("", ("pass", "level", "sees", "what it does"), rows)
    return 0


def _level(info: PassInfo) -> str:
    return "named" if info.level is None else str(info.level)


def _show(info: PassInfo) -> None:
    since = "only when named" if info.level is None else f"from level {info.level} on"
    starts = f", starts at {', '.join(info.ops)}" if info.ops and info.ops != ("*",) else ""
    rows = [
        ("name", info.name),
        ("runs", since),
        ("sees", f"one {info.kind} at a time{starts}"),
        ("text", info.text),
        ("from", info.place),
    ]
    show.pairs(rows)
    show.lines(f"\n{info.doc}")
    if info.options:
        options = [(option.name, option.default, option.summary) for option in info.options]
        show.table("", ("option", "default", "what it decides"), options)
