"""What a template says of its regions: where they begin, what they take in, what they gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused

#: What a size that is known at run time only is taken for.
NOMINAL_SIZE = 128


class Matched(Protocol):
    """A region that a template takes."""

    def estimate(self) -> tuple[float, float]:
        """Return nanoseconds of its heavy operator on one thread: ONNX Runtime's, and ours.

        Sizes that are not known are `NOMINAL_SIZE`; what is around the operator is not counted.
        """
        ...


@dataclass(frozen=True)
class Anchor:
    """The heavy operator of a template's regions, and what of a graph goes with it.

    A template's module has one as `ANCHOR`; the target's row names it among its `families`. The
    graph side grows regions by these facts: whether the kernel computes one, the template says.

    Args:
        kind: Of the regions; begins the names of their nodes. Empty: by what they compute.
        match: The template's.
        operators: Domain and type of what a region is grown around.
        dtype: Of its first operand, as numpy names it.
        rank: Of its first operand, 0 for any.
        weight: Of the constant that its second operand is made of; empty if it may be none.
        before: By operand: types of nodes in front of it that are taken in, the nearest first. Of
            those with a `?` there may be none.
        prologue: Types of nodes that are taken in where they make nothing but operands.
        epilogue: Types of the nodes behind, None for whatever is pointwise.
        longest: Nodes of the epilogue.
        batch: What a first size that is not known is taken for.
        must_pay: Whether regions are left that are not predicted to gain enough.
        is_held: Whether a session of the provider holds the weight, which no library has to.
        in_place: Whether regions are formed only where nodes are replaced where they stand, since
            sizes of results follow from values.
        regions: Where nodes do not describe what the kernel reads: what finds regions and writes
            their signatures, `module:object` of the graph side. Facts of nodes are not asked then.
    """

    kind: str
    match: Callable[[RegionSignature], Matched | Refused | None]
    operators: tuple[tuple[str, str], ...] = ()
    dtype: str = "float32"
    rank: int = 0
    weight: str = ""
    before: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    prologue: frozenset[str] = frozenset()
    epilogue: frozenset[str] | None = None
    longest: int = 16
    batch: int = NOMINAL_SIZE
    must_pay: bool = False
    is_held: bool = False
    in_place: bool = False
    regions: str = ""
