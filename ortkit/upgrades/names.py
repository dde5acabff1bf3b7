"""Names of ONNX Runtime's own graph optimizers, as an installed version has them.

No interface lists them. ONNX Runtime logs each optimizer by name when a session is made, in the
order in which they run, with whether it changed the graph (severity INFO; 1.19 to 1.31). Rules of
a rule-based optimizer are not logged. Their names are constants of the native library, so all
words in it are candidates: ONNX Runtime ignores names that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: Its name ends like this where it applies rules, which have names of their own.
RULE_GROUP = "RuleBasedTransformer"
_APPLIED = re.compile(
    r"GraphTransformer (?P<name>\S+) modified: (?P<modified>[01]) with status: (?P<status>.*)"
)
#: A constant that may be a rule's name: a whole word of the library that ends with a zero byte.
_WORD = re.compile(rb"[A-Z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*\0")
_MIN_LENGTH, _MAX_LENGTH = 6, 64


@dataclass(frozen=True)
class Applied:
    """One optimizer of one session."""

    name: str
    modified: bool
    """Whether it changed the graph, in any of its runs."""


def applied(log: str) -> tuple[Applied, ...]:
    """Return the optimizers that a session's log names, each once, in the order of their runs."""
    found: dict[str, bool] = {}
    for match in _APPLIED.finditer(log):
        found[match["name"]] = found.get(match["name"], False) or match["modified"] == "1"
    return tuple(Applied(name, modified) for name, modified in found.items())


def words(library: Path, known: Iterable[str]) -> tuple[str, ...]:
    """Return all words of a native library that may be names of rules, sorted.

    Args:
        library: ONNX Runtime's native library.
        known: Names of optimizers, which are no rules.
    """
    content = library.read_bytes()
    found = {match[0][:-1].decode("ascii") for match in _WORD.finditer(content)}
    return tuple(
        sorted(word for word in found - set(known) if _MIN_LENGTH <= len(word) <= _MAX_LENGTH)
    )
