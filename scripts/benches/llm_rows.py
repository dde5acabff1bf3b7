"""What engines of language models took, over several calls of the bench."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """One engine with a number of threads, and what it took."""

    name: str
    engine: str
    path: Path
    threads: int
    create_ms: list[float] = field(default_factory=list)
    """One for each call of the bench."""
    prefill_ms: dict[int, list[float]] = field(default_factory=dict)
    token_ms: dict[int, list[float]] = field(default_factory=dict)
    """By the tokens before it."""
    cpu_ms: dict[int, list[float]] = field(default_factory=dict)
    """Processor time of all threads for a prompt."""
    token_cpu_ms: dict[int, list[float]] = field(default_factory=dict)
    """Processor time of all threads for a token; without llama.cpp, which does not say it."""
    resident: int = 0
    before: int = 0
    """Bytes in memory before the model was loaded."""
    weights: int = 0
    """Bytes of the model's weights."""
    read: dict[int, int] = field(default_factory=dict)
    """Bytes of weights and caches that a token behind a prompt reads."""
    shares: dict[int, list[float]] = field(default_factory=dict)
    """Parts of the bandwidth that tokens use, by the tokens before them; see `add_share`."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Row:
        """Return the row of a document; see `document`."""
        given = {each.name: document[each.name] for each in fields(cls)}
        for name, value in given.items():
            if isinstance(value, dict):
                given[name] = {int(key): each for key, each in value.items()}
        return cls(**{**given, "path": Path(given["path"])})

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "path": self.path.name}

    def add(self, other: Row) -> None:
        """Add what the same engine took in another call."""
        self.create_ms += other.create_ms
        mine = (self.prefill_ms, self.token_ms, self.cpu_ms, self.token_cpu_ms, self.shares)
        theirs = (
            other.prefill_ms, other.token_ms, other.cpu_ms, other.token_cpu_ms, other.shares,
        )  # fmt: skip
        for here, there in zip(mine, theirs, strict=True):
            for prompt, times in there.items():
                here.setdefault(prompt, []).extend(times)
        self.resident = max(self.resident, other.resident)
        self.read |= other.read

    def add_share(self, prompt: int, times: Sequence[float], rates: Sequence[float]) -> None:
        """Note which part of the bandwidth some tokens use.

        A virtual machine is slower for seconds at a time, so the two are interleaved.

        Args:
            prompt: Tokens before them.
            times: The ms of each.
            rates: Bytes a second of passes over memory just before and after them.
        """
        read = self.read[prompt] / (1e-3 * statistics.median(times))
        self.shares.setdefault(prompt, []).append(read / statistics.median(rates))

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        return (
            self.name,
            *(f"{min(each):,.0f}" for each in self.prefill_ms.values()),
            *(f"{statistics.median(each):.2f}" for each in self.token_ms.values()),
            *(f"{min(each):,.0f}" for each in self.cpu_ms.values()),
            *(_least(self.token_cpu_ms.get(prompt)) for prompt in self.token_ms),
            f"{statistics.median(self.create_ms):,.0f}",
            f"{self.resident / 1e6:,.0f}",
            *(f"{statistics.median(each):.0%}" for each in self.shares.values()),
            f"{(self.resident - self.before) / self.weights:.2f}",
        )


def _least(times: Sequence[float] | None) -> str:
    return f"{min(times):.2f}" if times else "-"


def merged(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each engine and number of threads, by threads."""
    found: dict[tuple[str, int], Row] = {}
    for row in rows:
        if known := found.get((row.name, row.threads)):
            known.add(row)
        else:
            found[row.name, row.threads] = row
    return sorted(found.values(), key=lambda row: row.threads)


def header(prompts: Sequence[int]) -> list[str]:
    """Return the names of the columns of `Row.cells`."""
    return [
        "engine",
        *(f"{n}, ms" for n in prompts),
        *(f"token after {n}" for n in prompts),
        *(f"{n}, CPU ms" for n in prompts),
        *(f"token after {n}, CPU" for n in prompts),
        "load, ms",
        "resident, MB",
        *(f"of bandwidth after {n}" for n in prompts),
        "added, of the weights",
    ]
