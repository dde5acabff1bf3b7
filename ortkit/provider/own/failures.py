"""What went wrong while nodes were claimed, kept on disk: ONNX Runtime only logs it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ortkit.kernels.cache_files import keep_cached, read_cached

FILE = "failures.json"
_KEY = "failures"
#: Older ones are forgotten.
KEPT = 20
#: Messages are cut here.
LONGEST = 2000


@dataclass(frozen=True)
class Failure:
    """One graph that could not be claimed from."""

    when: str
    """In UTC, ISO 8601."""
    model: str
    """The path that ONNX Runtime gave; empty for one in memory."""
    message: str


def record(folder: Path, model: str, message: str) -> None:
    """Add a failure to the file in `folder`; a folder that cannot be written keeps none."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    entries = [*read(folder), Failure(when, model, message[:LONGEST])][-KEPT:]
    content = json.dumps({"failures": [asdict(entry) for entry in entries]}, indent=1)
    keep_cached(folder / FILE, _KEY, content + "\n")


def read(folder: Path) -> list[Failure]:
    """Return what the file in `folder` holds, the oldest first; nothing if it is damaged."""

    def failures(content: Any) -> list[Failure]:
        return [
            Failure(str(each["when"]), str(each["model"]), str(each["message"]))
            for each in content["failures"]
        ]

    return read_cached(folder / FILE, _KEY, failures) or []
