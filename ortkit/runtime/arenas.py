"""What the arenas of a session hold, and what they counted since it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ortkit.runtime.native_library import NotAvailableError, runtime_library

if TYPE_CHECKING:
    import onnxruntime

#: Provider -> the memories that it computes in: name, and what it is used for.
_MEMORIES = {
    "CPUExecutionProvider": (("Cpu", 0),),
    "CUDAExecutionProvider": (("Cuda", 0), ("CudaPinned", -1)),
}
#: What each version from 1.24 on counts.
_COUNTERS = {
    "InUse", "Limit", "MaxInUse", "MaxAllocSize", "TotalAllocated", "NumAllocs", "NumReserves",
    "NumArenaExtensions", "NumArenaShrinkages",
}  # fmt: skip


@dataclass(frozen=True)
class Arena:
    """One arena of a session; ONNX Runtime's own counters, from its C API."""

    memory: str
    """"Cpu", "Cuda" or "CudaPinned" (of the host, for copies)."""
    device: int
    in_use: int
    """Bytes of chunks that are given out."""
    requested: int | None
    """Bytes that were asked for in them, the rest is rounding; None: this version does not count
    them (1.28.0 does, 1.27.0 does not)."""
    peak: int
    """The most that was in use since the session was made; it never goes down."""
    held: int
    """Bytes that were taken from the system and not given back."""
    limit: int | None
    """The most it may hold; None: no limit."""
    largest: int
    """Bytes of the largest single allocation."""
    allocations: int
    reserves: int
    """Allocations that went past the arena's chunks, as those of weights do."""
    extensions: int
    """How often it took more from the system."""
    shrinkages: int
    """How often it gave a region back."""

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return asdict(self)


@dataclass(frozen=True)
class Unavailable:
    """A number that cannot be had, and why."""

    what: str
    reason: str


def arenas_of(
    session: onnxruntime.InferenceSession, *, device: int = 0
) -> tuple[tuple[Arena, ...], tuple[Unavailable, ...]]:
    """Return the arenas of a live session, and what could not be read.

    Args:
        session: Of onnxruntime's Python package.
        device: Number of the GPU that it uses.
    """
    wanted = _wanted(session.get_providers())
    try:
        from ortkit.runtime.memory.address import session_address  # which imports this module

        address = session_address(session)
    except NotAvailableError as error:
        return (), tuple(Unavailable(f"arena {name}", str(error)) for name, _ in wanted)
    arenas, missing = [], []
    for name, use in wanted:
        number = 0 if name == "Cpu" else device
        try:
            counted = runtime_library().arena_statistics(address, name, number, use)
        except NotAvailableError as error:
            missing.append(Unavailable(f"arena {name}", str(error)))
            continue
        if lacking := sorted(_COUNTERS - set(counted)):
            reason = f"its allocator does not count {', '.join(lacking)}"
            if not counted:
                reason = (
                    "the session's allocator is no arena (it was turned off): it counts nothing"
                )
            missing.append(Unavailable(f"arena {name}", reason))
            continue
        arenas.append(_arena(name, number, counted))
    return tuple(arenas), tuple(missing)


def _wanted(providers: Sequence[str]) -> list[tuple[str, int]]:
    """Return the memories of these providers; the CPU's is always there."""
    names = [
        *(provider for provider in providers if provider != "CPUExecutionProvider"),
        "CPUExecutionProvider",
    ]
    return [memory for name in names for memory in _MEMORIES.get(name, ())]


def _arena(name: str, device: int, counted: dict[str, int]) -> Arena:
    limit = counted["Limit"]
    return Arena(
        memory=name,
        device=device,
        in_use=counted["InUse"],
        requested=counted.get("RequestedInUse"),
        peak=counted["MaxInUse"],
        held=counted["TotalAllocated"],
        limit=None if limit < 0 or limit >= (1 << 63) - 1 else limit,
        largest=counted["MaxAllocSize"],
        allocations=counted["NumAllocs"],
        reserves=counted["NumReserves"],
        extensions=counted["NumArenaExtensions"],
        shrinkages=counted["NumArenaShrinkages"],
    )
