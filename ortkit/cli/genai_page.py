"""How the agreement of two language models is printed, and written as JSON."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from ortkit.cli import show

if TYPE_CHECKING:
    from ortkit.genai.agreement import Agreement
    from ortkit.refusal import Refused


def show_agreement(found: Agreement | Refused) -> None:
    """Print it, one fact a line."""
    from ortkit.refusal import Refused  # dataclasses take long to import

    if isinstance(found, Refused):
        show.line(f"decoding  not compared: {found.reason}")
        return
    for label, line in zip_longest(["decoding"], found.lines, fillvalue=""):
        show.line(f"{label:<10}{line}")


def agreement_json(found: Agreement | Refused | None) -> object:
    """Return the numbers, the reason why there are none, or None if none were asked for."""
    from ortkit.refusal import Refused

    if isinstance(found, Refused):
        return {"refused": found.reason}
    return None if found is None else found.to_json()


def other_choices(found: Agreement | Refused, *, lowered: bool) -> list[str]:
    """Return what counts as a failure: tokens that only another function chooses.

    Args:
        found: What was compared.
        lowered: Whether the candidate computes in a lower precision, which changes tokens.
    """
    from ortkit.refusal import Refused

    if isinstance(found, Refused) or found.agrees or lowered:
        return []
    return [f"the decoder chooses other tokens: {found.lines[0]}"]
