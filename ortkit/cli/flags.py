"""What flags of several subcommands have in common: reading them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.errors import UserError

if TYPE_CHECKING:
    from ortkit.verify.inputs.covering import Level
    from ortkit.verify.user_tolerance import UserTolerance


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`."""
    parser.add_argument(
        "--trust", action="store_true",
        help="load the model's kernel library, native code, even if it was built elsewhere",
    )  # fmt: skip


PRECISIONS = ("fp32", "fp16", "bf16", "fp8", "int8", "int4")


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Add `--precision`, as `optimize` takes it."""
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32",
        help="optimize to this precision, where verified (default: fp32)")  # fmt: skip


def add_shown(parser: argparse.ArgumentParser) -> None:
    """Add `--quiet` and `--verbose`, which each command has, where it has none of its own."""
    known = parser._option_string_actions
    if "--quiet" not in known:
        parser.add_argument("-q", "--quiet", action="store_true",
            help="print nothing but errors, and the document of --json")  # fmt: skip
    if "--verbose" not in known:
        parser.add_argument("-v", "--verbose", action="store_true",
            help="print names whole, however wide tables get")  # fmt: skip


def sizes(given: Sequence[str], where: str = "--shape") -> dict[str, int]:
    """Read `--shape NAME=SIZE` flags; a later one wins.

    Raises:
        UserError: One of them has another form.
    """
    found = {}
    for text in given:
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal():
            raise UserError(f"cannot read {text!r}", where=where, fix="write NAME=SIZE")
        found[name] = int(size)
    return found


def sweeps(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read `--sweep NAME=A,B,...` flags.

    Raises:
        UserError: One of them has another form, or a name is there twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, _, values = text.rpartition("=")
        parts = [part.strip() for part in values.split(",")]
        if not name or not all(part.isdecimal() for part in parts):
            raise UserError(f"cannot read {text!r}", where="--sweep", fix="write NAME=1,2,4")
        if name in found:
            raise UserError(f"{name!r} is there twice", where="--sweep", fix="list all its sizes")
        found[name] = tuple(dict.fromkeys(int(part) for part in parts))
    return found


def add_tolerance(parser: argparse.ArgumentParser) -> None:
    """Add `--atol` and `--rtol`."""
    add = parser.add_argument
    add("--atol", action="append", default=[], metavar="[NAME=]E",
        help="hold elements to this error too, of all outputs or of one")  # fmt: skip
    add("--rtol", action="append", default=[], metavar="[NAME=]E",
        help="the same relative to what is expected; added to --atol")  # fmt: skip


def add_verification(
    parser: argparse.ArgumentParser, *, can_skip: bool = False, makes_samples: bool = True
) -> None:
    """Add `--verify`, `--no-verify`, `--verify-seconds`, `--verify-memory` and `--samples`.

    Args:
        parser: Of a subcommand.
        can_skip: Whether verification may be left out.
        makes_samples: Whether the number of input sets may be chosen.
    """
    add = parser.add_argument
    add("--verify", choices=("quick", "full"),
        help="how much to compare: quick (default), or full: more inputs, all sizes")  # fmt: skip
    if can_skip:
        add("--no-verify", action="store_true", help="do not compare with the original")
    add("--verify-seconds", type=float, metavar="S",
        help="time limit of verification (default: 60, more for larger models)")  # fmt: skip
    add("--verify-memory", type=int, metavar="MIB",
        help="memory limit of verification (default: 1.5 times the weights, or 512)")  # fmt: skip
    if makes_samples:
        add("--samples", type=int, metavar="N",
            help="random input sets to verify on (default: a covering design)")  # fmt: skip


def verification(arguments: argparse.Namespace) -> bool | Level:
    """Read the flags of `add_verification`, as `OptimizeOptions.verify`.

    Raises:
        UserError: They contradict each other.
    """
    if not getattr(arguments, "no_verify", False):
        chosen: Level | None = arguments.verify
        return True if chosen is None else chosen
    # Lower precision is chosen on the random sets, too.
    is_sampled = arguments.samples is not None and arguments.precision == "fp32"
    given = {
        "--verify": arguments.verify is not None,
        "--verify-seconds": arguments.verify_seconds is not None,
        "--verify-memory": arguments.verify_memory is not None,
        "--samples": is_sampled,
    }
    for where in (flag for flag, is_given in given.items() if is_given):
        raise UserError("goes with verification, not --no-verify", where=where, fix="drop one")
    return False


def coverage(arguments: argparse.Namespace) -> Level:
    """Read the flags of `add_verification` for a command that verifies in any case.

    Raises:
        UserError: They contradict each other.
    """
    from ortkit.optimization.options import samples_and_level

    chosen: Level | None = arguments.verify
    if chosen is not None and getattr(arguments, "samples", None) is not None:
        raise samples_and_level()
    return "quick" if chosen is None else chosen


def tolerance(atol: Sequence[str], rtol: Sequence[str]) -> UserTolerance | None:
    """Read `--atol` and `--rtol`; a later one wins, None if there is none.

    Raises:
        UserError: One of them has another form, or is no number of 0 or more.
    """
    if not atol and not rtol:
        return None
    from ortkit.verify.user_tolerance import UserTolerance

    absolute, absolute_of = _bounds(atol, "--atol")
    relative, relative_of = _bounds(rtol, "--rtol")
    return UserTolerance(absolute, relative, absolute_of, relative_of)


def _bounds(given: Sequence[str], where: str) -> tuple[float | None, dict[str, float]]:
    general: float | None = None
    named: dict[str, float] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        try:
            bound = float(number)
        except ValueError:
            bound = -1.0
        if (equals and not name) or not 0 <= bound < float("inf"):
            fix = "write a number such as 1e-3, or NAME=1e-3"
            raise UserError(f"cannot read {text!r}", where=where, fix=fix)
        if name:
            named[name] = bound
        else:
            general = bound
    return general, named


def beside(model: Path, ending: str) -> Path:
    """Return the file that is called as the model, but for its ending.

    Raises:
        UserError: The model is `.` or `/`, which have no name.
    """
    if not model.name:
        raise UserError("is a folder", where=str(model), fix="name a file")
    return model.with_name(model.stem + ending)


def names(text: str, where: str) -> tuple[str, ...]:
    """Read a list such as `cpu,cuda`.

    Raises:
        UserError: A part of it is empty.
    """
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise UserError(f"cannot read {text!r}", where=where, fix="write A,B,...")
    return parts


def numbers(text: str, where: str) -> tuple[int, ...]:
    """Read a list such as `1,8`.

    Raises:
        UserError: A part of it is no number.
    """
    parts = names(text, where)
    if not all(part.isdecimal() for part in parts):
        raise UserError(f"cannot read {text!r}", where=where, fix="write N,N,...")
    return tuple(int(part) for part in parts)


def check_written(written: Mapping[str, Path | None], read: Iterable[Path | None]) -> None:
    """Refuse files that cannot be written, before anything is done for them.

    Args:
        written: By flag; None where it was not given.
        read: Files that have to stay as they are.

    Raises:
        UserError: A file has no folder, is a folder itself, is read, or is written twice.
    """
    from ortkit.graph.io.atomic import check_target

    in_use = {realpath(path): "is read" for path in read if path is not None}
    for flag, path in written.items():
        if path is None:
            continue
        check_target(path)
        if (why := in_use.get(realpath(path))) is not None:
            raise UserError(why, where=f"{flag} {path}", fix="name another file")
        in_use[realpath(path)] = f"is written by {flag}"


def check_folders(written: Mapping[str, Path | None]) -> None:
    """Refuse folders that cannot be made, before anything is done for them.

    Args:
        written: By flag; None where it was not given.

    Raises:
        UserError: A file is there instead.
    """
    for flag, path in written.items():
        if path is not None and path.exists() and not path.is_dir():
            raise UserError("is no folder", where=f"{flag} {path}", fix="name a folder")
