"""`ortkit trust`: let sessions load kernel libraries that were built elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from ortkit.cli import show

SCHEMA = "ortkit.trust/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE",
        help="a kernel library, its SHA-256, or a model with one; none: list all")  # fmt: skip
    add("--remove", action="store_true", help="trust these libraries no more")
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Change the user's list of trusted libraries, or print it."""
    from ortkit.errors import UserError
    from ortkit.kernels.trust import Listed, listed, trust, untrust, user_list

    if arguments.remove and not arguments.files:
        raise UserError("names no file", where="--remove", fix="name a library or a model")
    changed = [
        Listed(sha256, str(path.absolute()))
        for path in arguments.files
        for sha256 in _hashes_of(path)
    ]
    for one in changed:
        problem = untrust(one.sha256) if arguments.remove else trust(one.sha256, Path(one.origin))
        if problem:
            raise UserError(problem, where=one.origin, fix="mend that, or set ORTKIT_TRUST")
    try:
        shown = changed or listed()
    except OSError as error:
        raise UserError(
            f"the list is not used: {error.strerror}", where=str(user_list())
        ) from error
    word = "removed" if arguments.remove else "trusted"
    if arguments.json:
        libraries = [{"sha256": item.sha256, "origin": item.origin} for item in shown]
        show.document({"schema": SCHEMA, "list": str(user_list()), word: libraries})
        return 0
    for one in shown:
        show.line(f"{word:<9} {one.sha256}  {one.origin}")
    if not changed:
        show.line(f"{len(shown)} libraries in {user_list()}")
    return 0


def _hashes_of(given: Path) -> list[str]:
    from ortkit.kernels.trust import as_hash
    from ortkit.runtime.library_files import library_hashes

    sha256 = as_hash(str(given))
    return [sha256] if sha256 else library_hashes(given)
