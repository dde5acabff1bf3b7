"""What the nodes of one run take of an arena, and which tensors are there when it is fullest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ortkit.runtime.arenas import Unavailable


@dataclass(frozen=True)
class NodeUse:
    """One call of a node; bytes of the arena of its provider."""

    name: str
    op: str
    provider: str
    before: int
    """In use when it began."""
    kept: int
    """By how much that had grown when it ended: its new outputs. 0: they share others' memory."""
    output_bytes: int
    """Of all its outputs, shared ones included."""
    workspace: int | None
    """Workspace that it used and gave back; None: not known, because an earlier node had more."""
    workspace_limit: int
    """The most that it can have been: more would have shown."""
    held_growth: int
    """What the arena took from the system meanwhile."""
    is_nested: bool
    """Whether it runs in the body of a node that holds subgraphs."""

    @property
    def during(self) -> int:
        """What was in use while it ran, as far as that is known."""
        return self.before + max(0, self.kept) + (self.workspace or 0)


@dataclass(frozen=True)
class LiveTensor:
    """A tensor that has memory of the arena when it is fullest."""

    name: str
    bytes: int
    node: str
    """What made it; a node of the graph as ONNX Runtime runs it."""
    op: str
    shared: tuple[str, ...]
    """Other tensors in the same memory, as ONNX Runtime reuses what is no longer needed."""
    is_needed: bool
    """Whether a node still reads it; else its memory is kept for a tensor to come."""


@dataclass(frozen=True)
class Peak:
    """Where one arena was fullest in the first run of a session."""

    provider: str
    bytes: int
    node: str
    op: str
    tensors: tuple[LiveTensor, ...]
    """Largest first; what the node makes included, inputs and weights outside of the arena not."""
    tensor_bytes: int
    """Of them, rounded as the arena does."""
    workspace: int | None
    """Workspace that the node used; None: not known, because making the session took more."""
    before_run: int
    """In use when the run began: weights and copies of inputs that lie in the arena."""
    unexplained: int
    """What is left: memory that kernels keep, or tensors of subgraphs."""


@dataclass(frozen=True)
class NodeMemory:
    """One run of a new session, without planned blocks, node by node in order of their ends."""

    nodes: tuple[NodeUse, ...]
    peaks: tuple[Peak, ...]
    """One for each provider that has an arena."""
    unavailable: tuple[Unavailable, ...]

    def to_json(self) -> Mapping[str, object]:
        """Return the fields as JSON types."""
        return {
            "nodes": [{**asdict(node), "during": node.during} for node in self.nodes],
            "peaks": [asdict(peak) for peak in self.peaks],
        }
