"""Which tensors share which memory, and for how long: an arena replayed from a trace.

ONNX Runtime does not say where it puts a tensor. What is known is the graph, so when each tensor
is needed for the last time, and how many bytes the arena had in use before and after each node.
A node whose outputs take no new bytes put them where others were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

#: The arena's grain (BFCArena::kMinAllocationSize).
GRAIN = 256
_MOST_STEPS = 4096
#: Their output is their first input's memory.
VIEWS = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True)
class Step:
    """One node of the run."""

    node: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, int], ...]
    """Name and bytes."""
    dying: frozenset[str]
    """Tensors that nothing after it needs."""
    allocated: int
    """By how much the arena's use grew."""
    requested: int
    """How many bytes of that were asked for."""
    freed: int
    """By how much it shrank before the next node."""


@dataclass(eq=False)
class Buffer:
    """One allocation, and the tensors that were put there, the latest last."""

    bytes: int
    tensors: list[tuple[str, Step]] = field(default_factory=list)
    live: set[str] = field(default_factory=set)


class Replay:
    """The arena's allocations as far as the run has come."""

    def __init__(self) -> None:
        """Begin with nothing allocated."""
        self.buffers: list[Buffer] = []
        self._at: dict[str, Buffer | None] = {}

    def begin(self, step: Step) -> None:
        """Give the node's outputs their memory."""
        left, asked = step.allocated, step.requested
        new: list[Buffer] = []
        for name, size in step.outputs:
            if 0 < size <= left:
                left -= rounded(size)
                asked -= size
                new.append(Buffer(rounded(size)))
                self._put(name, step, new[-1])
            elif (shared := self._shared(step, size)) is not None:
                self._put(name, step, shared)
            else:
                self._at[name] = None  # outside of this arena, or nothing at all
        if new and left > 0 and asked < GRAIN:
            # Nothing else was asked for: a block that is a little too large is given out whole.
            new[0].bytes += left
        self.buffers += new

    def end(self, step: Step) -> None:
        """Free what died with the node, as far as the arena shows that it was freed."""
        died: list[Buffer] = []
        for name in sorted(step.dying):
            buffer = self._at.pop(name, None)
            if buffer is None:
                continue
            buffer.live.discard(name)
            if not buffer.live and buffer not in died:
                died.append(buffer)
        # What died before was kept for a tensor to come, so what died now is likelier to go.
        earlier = [one for one in self.buffers if not one.live and one not in died]
        for buffer in _with_sum([*died, *earlier], step.freed):
            self.buffers.remove(buffer)

    def _put(self, name: str, step: Step, buffer: Buffer) -> None:
        buffer.tensors.append((name, step))
        buffer.live.add(name)
        self._at[name] = buffer

    def _shared(self, step: Step, size: int) -> Buffer | None:
        """Return the memory that an output without new bytes most likely is in."""
        if step.op in VIEWS and step.inputs:
            return self._at.get(step.inputs[0])
        own = [self._at.get(name) for name in step.inputs if name in step.dying]
        free = [one for one in self.buffers if not one.live]
        fitting = (one for one in (*own, *free) if one is not None and one.bytes >= size > 0)
        return min(fitting, key=lambda one: one.bytes, default=None)


def _with_sum(buffers: Sequence[Buffer], total: int) -> list[Buffer]:
    """Return the first of them that make up `total`; if none do, as many as fit into it."""
    steps = 0

    def search(start: int, left: int) -> list[Buffer] | None:
        nonlocal steps
        if left == 0:
            return []
        for place in range(start, len(buffers)):
            steps += 1
            if steps > _MOST_STEPS:
                return None
            if buffers[place].bytes <= left:
                rest = search(place + 1, left - buffers[place].bytes)
                if rest is not None:
                    return [buffers[place], *rest]
        return None

    found = search(0, total)
    if found is not None:
        return found
    fitting, left = [], total
    for one in buffers:
        if one.bytes <= left:
            fitting.append(one)
            left -= one.bytes
    return fitting


def rounded(size: int) -> int:
    """Return what the arena hands out for a request of `size` bytes."""
    return -(-size // GRAIN) * GRAIN


def last_uses(
    order: Sequence[tuple[Sequence[str], Sequence[str]]], kept: set[str]
) -> list[set[str]]:
    """Return for each node the tensors that nothing after it needs.

    Args:
        order: Per node what it reads, subgraphs included, and what it makes.
        kept: Outputs of the graph.
    """
    dying: list[set[str]] = [set() for _ in order]
    seen = set(kept)
    for place in range(len(order) - 1, -1, -1):
        reads, makes = order[place]
        for name in (*reads, *makes):
            if name not in seen:
                seen.add(name)
                dying[place].add(name)
    return dying
