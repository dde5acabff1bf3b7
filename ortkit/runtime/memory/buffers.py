"""Which tensors share which memory, and for how long: an arena replayed from a trace.

ONNX Runtime does not say where it puts a tensor. What is known is the graph, so when each tensor
is needed for the last time, and how many bytes the arena had in use before and after each node.
A node whose outputs take no new bytes put them where others were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ortkit.operators import where

#: The arena's grain (BFCArena::kMinAllocationSize).
GRAIN = 256
_MOST_STEPS = 4096
#: Their output is their first input's memory.
VIEWS = where(reshapes=True) | {"Dropout", "Identity"}


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
    asked: int
    """Bytes of the tensor that it was made for."""
    tensors: list[tuple[str, Step]] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    died: int = 0
    """At which step the last tensor in it was no longer needed."""


class Replay:
    """The arena's allocations as far as the run has come."""

    def __init__(self) -> None:
        """Begin with nothing allocated."""
        self.buffers: list[Buffer] = []
        self._at: dict[str, Buffer | None] = {}
        self._steps = 0

    def begin(self, step: Step) -> None:
        """Give the node's outputs their memory."""
        left, asked = step.allocated, step.requested
        new: list[Buffer] = []
        for name, size in step.outputs:
            if 0 < size <= left:
                left -= rounded(size)
                asked -= size
                new.append(Buffer(rounded(size), size))
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
        self._steps += 1
        died: list[Buffer] = []
        for name in sorted(step.dying):
            buffer = self._at.pop(name, None)
            if buffer is None:
                continue
            buffer.live.discard(name)
            if not buffer.live and buffer not in died:
                buffer.died = self._steps
                died.append(buffer)
        # A block is given back with the last tensor that was to be put there, so it is among
        # those that died now; if not, an earlier tensor was taken to be in the wrong one.
        freed = _with_sum(died, step.freed)
        if freed is None:
            freed = self._moved(step, died)
        if freed is None:
            earlier = [item for item in reversed(self._dead) if item not in died]
            freed = _with_sum([*died, *earlier], step.freed) or _fitting(died, step.freed)
        for buffer in freed:
            self.buffers.remove(buffer)

    def _moved(self, step: Step, died: Sequence[Buffer]) -> list[Buffer] | None:
        """Move an output from its dying input's block to one that was free, if that explains it.

        Not every operator writes over its inputs, and which do is not known.
        """
        for name, size in step.outputs:
            buffer = self._at.get(name)
            if buffer is None or buffer.live != {name} or len(buffer.tensors) < 2:
                continue
            others = [item for item in self._dead if item.asked == size and item not in died]
            freed = _with_sum([*died, buffer], step.freed)
            if others and freed is not None:
                buffer.tensors.pop()
                buffer.live.clear()
                buffer.died = self._steps
                self._put(name, step, others[-1])
                return freed
        return None

    def _put(self, name: str, step: Step, buffer: Buffer) -> None:
        buffer.tensors.append((name, step))
        buffer.live.add(name)
        self._at[name] = buffer

    def _shared(self, step: Step, size: int) -> Buffer | None:
        """Return the memory that an output without new bytes most likely is in."""
        if step.op in VIEWS and step.inputs:
            return self._at.get(step.inputs[0])
        own = [self._at.get(name) for name in step.inputs if name in step.dying]
        dying = [item for item in own if item is not None]
        # ONNX Runtime (1.31.1, allocation planner) reuses tensors of the same size only, a dying
        # input first, then what died last.
        for buffer in (*dying, *reversed(self._dead)):
            if buffer.asked == size > 0:
                return buffer
        larger = (one for one in (*dying, *self._dead) if one.bytes >= size > 0)
        return min(larger, key=lambda one: one.bytes, default=None)

    @property
    def _dead(self) -> list[Buffer]:
        """Allocations without a tensor that is needed, the one that died last at the end."""
        dead = [buffer for buffer in self.buffers if not buffer.live]
        return sorted(dead, key=lambda one: one.died)


def _with_sum(buffers: Sequence[Buffer], total: int) -> list[Buffer] | None:
    """Return the first of them that make up `total`, None if none do."""
    steps = 0

    def search(start: int, left: int) -> list[Buffer] | None:
        nonlocal steps
        if left == 0:
            return []
        for index in range(start, len(buffers)):
            steps += 1
            if steps > _MOST_STEPS:
                return None
            if buffers[index].bytes <= left:
                rest = search(index + 1, left - buffers[index].bytes)
                if rest is not None:
                    return [buffers[index], *rest]
        return None

    return search(0, total)


def _fitting(buffers: Sequence[Buffer], total: int) -> list[Buffer]:
    """Return as many of them as fit into `total`."""
    fitting, left = [], total
    for buffer in buffers:
        if buffer.bytes <= left:
            fitting.append(buffer)
            left -= buffer.bytes
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
    for index in range(len(order) - 1, -1, -1):
        reads, makes = order[index]
        for name in (*reads, *makes):
            if name not in seen:
                seen.add(name)
                dying[index].add(name)
    return dying
