"""Times of regions from earlier runs, on disk: only what is new is measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ortkit import env
from ortkit.kernels.cache_files import keep_cached, read_cached
from ortkit.measure.result import Compared

SCHEMA = "ortkit.timings/1"
_FOLDER = "timings"
#: Files of other toolchains, runtimes and machines, of which the oldest go.
_MOST_FILES = 16


@dataclass(frozen=True)
class KnownTimes:
    """The times that were taken under one set of conditions, in one file.

    Args:
        conditions: Everything but region and sizes that times depend on: machine, threads,
            toolchain, runtime.
    """

    conditions: str

    def load(self) -> dict[str, Compared]:
        """Return what is known, by region and sizes."""
        return read_cached(self._path, self._key, self._read) or {}

    def add(self, found: Mapping[str, Compared]) -> None:
        """Keep more times. A folder that cannot be written keeps none."""
        times = {**self.load(), **found}
        content = {
            "schema": SCHEMA,
            "conditions": self.conditions,
            "times": {name: asdict(time) for name, time in times.items()},
        }
        keep_cached(self._path, self._key, json.dumps(content, indent=1))
        with suppress(OSError):
            files = self._path.parent.glob("*.json")
            for old in sorted(files, key=lambda path: -path.stat().st_mtime)[_MOST_FILES:]:
                old.unlink(missing_ok=True)

    def _read(self, content: Any) -> dict[str, Compared]:
        if content["schema"] != SCHEMA or content["conditions"] != self.conditions:
            return {}
        return {name: Compared(**item) for name, item in content["times"].items()}

    @property
    def _key(self) -> str:
        return f"timings {self.conditions}"

    @property
    def _path(self) -> Path:
        name = hashlib.sha256(self.conditions.encode()).hexdigest()[:16]
        return env.cache_dir() / _FOLDER / f"{name}.json"
