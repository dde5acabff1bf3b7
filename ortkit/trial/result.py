"""What a trial found: the content of `ortkit try`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from ortkit.measure.result import Ceiling
from ortkit.runtime.timing.variants import Speedup
from ortkit.verify.verification import Verification

SCHEMA = "ortkit.try/"
#: What the document has of the verification.
_CHECKED = ("verdict", "reason")


@dataclass(frozen=True)
class Latency:
    """What one model takes for one run."""

    median_ms: float
    fastest_ms: float
    rounds: int


@dataclass(frozen=True)
class Holder:
    """One operator of the original that time goes to, as ONNX Runtime runs it."""

    op: str
    """`(runtime)` for what lies outside of all kernels."""
    milliseconds: float
    share: float
    calls: int


@dataclass(frozen=True)
class Prospect:
    """What another precision or device would give, as far as it can be known."""

    what: str
    known: Literal["bound", "no gain", "not known"]
    milliseconds: float | None
    """What a run takes at best, None unless a bound is known."""
    speedup: float | None
    """That over the original as it runs here: the most that can be gained."""
    basis: str
    """What is assumed, and where it comes from."""


@dataclass(frozen=True)
class Trial:
    """What ortkit gives for a model."""

    source: str
    inputs: Mapping[str, tuple[int, ...]]
    """The shapes that were run."""
    providers: tuple[str, ...]
    nodes_before: int
    nodes_after: int
    rewrites: int
    kernels: int
    """Nodes that run generated kernels."""
    before: Latency | None
    after: Latency | None
    speedup: Speedup | None
    ceiling: Ceiling | None
    holders: tuple[Holder, ...]
    """Most time first."""
    flops: int
    """Of one run, as `ortkit inspect` counts them."""
    outlook: tuple[Prospect, ...]
    checked: Verification
    """Whether the optimized model computes the same."""
    notes: tuple[str, ...]
    """What could not be done, and why."""
    seconds: float

    def to_json(self, schema: int = 2) -> dict[str, object]:
        """Return the document of `ortkit try --json`.

        Args:
            schema: As for `Verification.to_json`.
        """
        checked = self.checked.to_json(schema)
        kept = _CHECKED if schema == 1 else (*_CHECKED, "not_compared", "fix")
        content = {**asdict(self), "checked": {key: checked[key] for key in kept}}
        return {"schema": f"{SCHEMA}{schema}", **content}
