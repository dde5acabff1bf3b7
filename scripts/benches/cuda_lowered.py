"""What `scripts/bench cuda --precision` says of models that are lowered further than float16."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from scripts.benches import output

#: What the lowered model is compared with.
_BESIDE = "ortkit graph"
#: What `ortkit optimize` says of its own verification.
_VERDICT = re.compile(r"^\s*verif\S*:?\s+(.+)$", re.MULTILINE | re.IGNORECASE)


def way_of(precision: str) -> str:
    """Return what runs of a lowered model in a CUDA graph are called."""
    return f"{precision} graph"


def lines(
    rows: Iterable[Mapping[str, Any]], precisions: Iterable[str]
) -> tuple[list[str], list[list[output.Cell]]]:
    """Return the table of lowered models: a header and rows, in ms.

    Errors are norms of the difference to torch's float16 over its norm. That of the optimized
    model in float16 stands in brackets.
    """
    header = ["ms", "batch", "precision", "float16, host", "lowered, host", "gain",
              "float16, device", "lowered, device", "gain", "error", "optimize, s",
              "verification"]  # fmt: skip
    precisions = tuple(precisions)
    found: list[list[output.Cell]] = []
    for row in rows:
        for precision in precisions:
            way = way_of(precision)
            if way not in row["milliseconds"]:
                continue
            host = [median(row["milliseconds"][name]) for name in (_BESIDE, way)]
            device = [row[f"{name}: device"]["microseconds"] / 1e3 for name in (_BESIDE, way)]
            errors, made = row["errors"], row[f"{precision}: optimize"]
            verdict = _VERDICT.search(str(made["said"]))
            found.append(
                [row["model"], row["batch"], precision, *host, host[0] / host[1], *device,
                 device[0] / device[1], f"{errors[way]:.1e} ({errors[_BESIDE]:.0e})",
                 made["seconds"], verdict.group(1) if verdict else "not run"]
            )  # fmt: skip
    return header, found
