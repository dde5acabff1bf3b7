"""Text that several packages write."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping

#: What is fused is called by its kind and the key of what it computes: `product_b01a9855222a`.
_KEY = r"_([0-9a-f]{12})"
_FUSED = re.compile(rf"\bortkit\.fused::(\w+){_KEY}\b")
_LEAST_DIGITS = 4


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 node`, `2,000 nodes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def kind_of_op(op_type: str) -> str:
    """Return the word that a fused operator's name begins with."""
    return re.sub(rf"{_KEY}$", "", op_type)


def with_short_keys(texts: Iterable[str]) -> list[str]:
    """Return texts that are shown together, with keys as long as tells them apart.

    `ortkit.fused::attention_bc55c24a6bee` becomes `ortkit.fused::attention`; where another key
    of that kind occurs, each keeps the digits that differ, four or more.
    """
    whole = list(texts)
    keys: dict[str, set[str]] = {}
    for text in whole:
        for kind, key in _FUSED.findall(text):
            keys.setdefault(kind, set()).add(key)
    digits = {kind: _digits(found) for kind, found in keys.items()}

    def label(match: re.Match[str]) -> str:
        kind, key = match.groups()
        return f"ortkit.fused::{kind}" + (f"_{key[: digits[kind]]}" if digits[kind] else "")

    return [_FUSED.sub(label, text) for text in whole]


def _digits(keys: set[str]) -> int:
    """Return how many digits tell keys apart; of a single one none are needed."""
    if len(keys) == 1:
        return 0
    return next(
        count
        for count in range(_LEAST_DIGITS, 13)
        if len({key[:count] for key in keys}) == len(keys)
    )


def json_text(content: Mapping[str, object]) -> str:
    """Return a JSON document of several lines; infinities and NaN, which JSON lacks, are null."""
    try:
        return json.dumps(content, indent=2, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
