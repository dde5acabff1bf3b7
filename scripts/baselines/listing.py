"""A baseline file: named entries of lines, compared entry by entry."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "tests" / "baseline"
#: Differences that are printed; the rest is counted.
_MOST_SHOWN = 20

Entries = Mapping[str, tuple[str, ...]]


def digest(*parts: str | bytes) -> str:
    """Return 16 hex digits of the SHA-256 of `parts`, each ended by a zero byte."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part)
        found.update(b"\0")
    return found.hexdigest()[:16]


def read(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the entries of a file: a name in a line of its own, its lines indented by two."""
    entries: dict[str, tuple[str, ...]] = {}
    name = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("  "):
            entries[name] += (line[2:],)
        else:
            name = line
            entries[name] = ()
    return entries


def write(path: Path, entries: Entries) -> None:
    """Write entries in the order of their names, as `read` reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        line
        for name in sorted(entries)
        for line in (name, *(f"  {each}" for each in entries[name]))
    ]
    path.write_text("\n".join((*lines, "")), "utf-8")


def differences(before: Entries, after: Entries) -> list[str]:
    """Return a line for each difference of the entries that both have."""
    found = []
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        found += [f"{name}: - {line}" for line in old if line not in new]
        found += [f"{name}: + {line}" for line in new if line not in old]
        if old != new and sorted(old) == sorted(new):
            found.append(f"{name}: the same lines in another order")
    return found


def conclude(
    path: Path, after: Entries, *, is_update: bool, is_whole: bool, is_partial: bool = False
) -> int:
    """Write or compare a baseline, print what there is to say, and return the exit code.

    Args:
        path: The baseline's file.
        after: The entries of today's code.
        is_update: Whether to write the file; entries that `is_partial` runs lack stay.
        is_whole: Whether `after` should have every entry of the file.
        is_partial: Whether `after` is of a part of what is listed.
    """
    before = read(path)
    if is_update:
        kept = {**before, **after} if is_partial else after
        write(path, kept)
        print(f"{len(after)} of {len(kept)} entries written to {path.name}")
        return 0
    found = differences(before, after)
    if is_whole:
        found += [f"{name}: missing" for name in sorted(before.keys() - after.keys())]
    new = len(after.keys() - before.keys())
    print(f"{len(before.keys() & after.keys())} entries compared, {new} new, {len(found)} differ")
    for line in found[:_MOST_SHOWN]:
        print(f"  {line}")
    return 1 if found else 0
