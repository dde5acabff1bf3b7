"""What a template says of its regions: where they begin, what they take in, what they gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ortkit.kernels.prepack import Prepack
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused

#: What a size that is known at run time only is taken for.
NOMINAL_SIZE = 128


class Matched(Protocol):
    """A region that a template takes."""

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds of its heavy operator on one thread: ONNX Runtime's, and ours.

        Sizes that are not known are `NOMINAL_SIZE`; what is around the operator is not counted.

        Args:
            level: Of the processors that it runs on.
        """
        ...


@dataclass(frozen=True)
class ProductSizes:
    """Sizes of a matrix product and what is around it, as far as its time depends on them.

    Args:
        rows: M; None where it is not known.
        depth: K.
        columns: N of one product.
        products: Of the same rows: one, or two of a gated pair.
        epilogue_ops: Nodes of the epilogue.
        biases: Those of them that add a row to a product, as a Gemm does.
        is_normed: Whether a norm of the rows is in front.
        count: Of a batch, with a matrix for each; None where it is not known.
        is_merged: Whether both matrices of a pair are one in the graph.
        is_narrow: Whether the rows have as few bits as the matrix.
        is_token: Whether rows, whose number is not known, are a prompt or one token.
        of_sample: Rows of one sample, where the number of samples is not known; 0 elsewhere.
    """

    rows: int | None
    depth: int
    columns: int
    products: int = 1
    epilogue_ops: int = 0
    biases: int = 0
    is_normed: bool = False
    count: int | None = 1
    is_merged: bool = False
    is_narrow: bool = False
    is_token: bool = False
    of_sample: int = 0


#: Given a level and sizes: nanoseconds before and after; None where no kernel is faster.
Estimate: TypeAlias = Callable[[str, ProductSizes], tuple[float, float] | None]


@dataclass(frozen=True)
class PackedMatrix:
    """What a template says of a constant matrix that its kernel reads in a layout of its own.

    Args:
        layout: Given a level, K and N, how the matrix is packed.
        gated_layout: Given K and N, the same where one half of the N columns is multiplied by the
            other one.
        least_rows: Products of fewer are left alone.
        least_side: The same for K and N.
        least_gain: The part of the time that must be saved.
    """

    layout: Callable[[str, int, int], Prepack]
    gated_layout: Callable[[int, int], Prepack]
    least_rows: int
    least_side: int
    least_gain: float


@dataclass(frozen=True)
class Anchor:
    """The heavy operator of a template's regions, and what of a graph goes with it.

    A template's module has one as `ANCHOR`; the target's row names it among its `families`. The
    graph side grows regions by these facts: whether the kernel computes one, the template says.

    Args:
        kind: Of the regions; begins the names of their nodes. Empty: by what they compute.
        match: The template's, whose result says what a region gains; None where `estimate` does.
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
        weight_in_session: Whether a session of the provider holds the weight, and no library.
        in_place: Whether regions are formed only where nodes are replaced where they stand, since
            sizes of results follow from values.
        level: What the names of the levels that there are regions for begin with; several are
            alternatives.
        regions: What finds regions where more than the facts of nodes above decides, or nodes do
            not describe what the kernel reads. It is `module:object` of the graph side.
        packed: Of the matrix, for `ortkit.fusion.regions.packed_regions:products`.
        estimate: Of products, where what they gain decides whether they are described at all.
    """

    kind: str
    match: Callable[[RegionSignature], Matched | Refused | None] | None = None
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
    weight_in_session: bool = False
    in_place: bool = False
    level: str | tuple[str, ...] = ""
    regions: str = ""
    packed: PackedMatrix | None = None
    estimate: Estimate | None = None
