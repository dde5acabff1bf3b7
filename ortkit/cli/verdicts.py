"""From a verdict to the exit code and the line on stderr: of `optimize`, `try` and `verify`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ortkit.cli import show
from ortkit.errors import UserError

if TYPE_CHECKING:
    from ortkit.verify.verification import Verification

DONE, FAILED, UNVERIFIED = 0, 1, 3
#: The JSON documents of these commands; the last one is the newest.
SCHEMAS = (1, 2)
_ACCEPT = "accept that with --accept-unverified"


class Outcome(NamedTuple):
    """How a command ends; no dataclass, whose module takes long to import."""

    code: int
    meaning: str
    """What the code says, for the JSON document."""
    line: str = ""
    """What is said on stderr, whatever else is printed; empty if all is verified."""

    def to_json(self) -> dict[str, object]:
        """Return the keys that the JSON document gets."""
        return {"exit": {"code": self.code, "meaning": self.meaning}}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that the three commands share; after `--json`."""
    add = parser.add_argument
    add("--json-schema", type=int, choices=SCHEMAS, metavar="N",
        help="version of the JSON document: 2 (default), or 1 as before this release")  # fmt: skip
    add("--accept-unverified", action="store_true",
        help="exit 0 also where all or a part could not be verified")  # fmt: skip


def json_schema(arguments: argparse.Namespace, *, is_written: bool) -> int:
    """Return the version of the JSON document.

    Args:
        arguments: With the flags of `add_flags`.
        is_written: Whether there is a document at all.

    Raises:
        UserError: A version was chosen, and there is no document.
    """
    chosen: int | None = arguments.json_schema
    if chosen is not None and not is_written:
        raise UserError("there is no JSON document", where="--json-schema", fix="add --json")
    return SCHEMAS[-1] if chosen is None else chosen


def outcome_of(
    found: Verification | None,
    *,
    accepts: bool,
    objections: Sequence[str] = (),
    elsewhere: str = "",
) -> Outcome:
    """Return how a command ends with this verdict.

    Args:
        found: The verification; None if it was not asked for.
        accepts: Whether the user accepts what could not be verified.
        objections: What else counts as a failure, such as rewrites that were rolled back.
        elsewhere: The command that completes the verification on a machine with other hardware;
            empty if none does.
    """
    if found is not None and found.verdict == "no":
        return Outcome(FAILED, "the results differ", f"the results differ: {found.reason}")
    rest = _rest(found, accepts, elsewhere)
    if objections:
        return Outcome(FAILED, ", ".join(objections), rest.line)
    return rest


def worst(found: Iterable[Verification]) -> Verification | None:
    """Return the verification that is furthest from yes; None if there is none."""
    order = ("yes", "partly", "not possible", "no")
    return max(found, key=lambda each: order.index(each.verdict), default=None)


def say(outcome: Outcome, found: Verification | None = None) -> None:
    """Print the line of an outcome, if it has one, after the notes of the verification."""
    for note in () if found is None else found.notes:
        show.note(f"ortkit: {note}")
    if outcome.line:
        show.note(f"ortkit: {outcome.line}")


def _rest(found: Verification | None, accepts: bool, elsewhere: str) -> Outcome:
    """Return how a command ends that found nothing wrong."""
    if found is None:
        return Outcome(DONE, "not verified, as asked for")
    if found.verdict == "yes":
        return Outcome(DONE, "verified")
    accepted = "accepted by --accept-unverified" if accepts else _ACCEPT
    if found.verdict == "not possible":
        code, meaning = (
            (DONE, "not verified, accepted") if accepts else (UNVERIFIED, "not verified")
        )
        return Outcome(
            code, meaning, _sentence(f"not verified: {found.reason}", found.fix, accepted)
        )
    from ortkit.verify.verification import gaps_text

    line = f"verified in part; not compared: {gaps_text(found.not_compared)}"
    if found.lacks_hardware_only:
        there = f"complete it with {elsewhere} on a machine that has it" if elsewhere else ""
        meaning = "verified, but for kernels of hardware that this machine has not"
        return Outcome(DONE, meaning, _sentence(line, there))
    fixes = dict.fromkeys(gap.fix for gap in found.not_compared if gap.fix)
    code, meaning = (
        (DONE, "verified in part, accepted") if accepts else (UNVERIFIED, "verified in part")
    )
    return Outcome(code, meaning, _sentence(line, *fixes, accepted))


def _sentence(line: str, *parts: str) -> str:
    return "; ".join(filter(None, (line, *parts)))
