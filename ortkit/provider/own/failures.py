"""What went wrong while nodes were claimed, kept on disk: ONNX Runtime only logs it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from ortkit.kernels.cached import DAMAGED, write_cached

FILE = "errors.jsonl"
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
    """The path that ONNX Runtime told; empty for one in memory."""
    message: str


def record(folder: Path, model: str, message: str) -> None:
    """Add a failure to the file in `folder`; a folder that cannot be written keeps none."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    entries = [*read(folder), Failure(when, model, message[:LONGEST])][-KEPT:]
    with suppress(OSError):
        write_cached(folder / FILE, "".join(json.dumps(asdict(one)) + "\n" for one in entries))


def read(folder: Path) -> list[Failure]:
    """Return what the file in `folder` holds, the oldest first; lines that do not fit are none."""
    try:
        lines = (folder / FILE).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found: list[Failure] = []
    for line in lines:
        with suppress(*DAMAGED):
            entry = json.loads(line)
            found.append(Failure(str(entry["when"]), str(entry["model"]), str(entry["message"])))
    return found
