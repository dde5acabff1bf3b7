"""Products and permutations: Einsum, Gemm, DepthToSpace and SpaceToDepth."""

from __future__ import annotations

from collections.abc import Callable

from tests.spelling.case import MS, Formula
from tests.spelling.writer import Writer

CHANNELS = 8
PRODUCTS = frozenset({"MatMul", "Gemm", MS + "FusedMatMul"})


def einsum(equation: str, left: tuple[int | str, ...], right: tuple[int | str, ...]) -> object:
    """Two operands."""

    def write(w: Writer) -> str:
        return w.op("Einsum", w.input("a", *left), w.input("b", *right), equation=equation)

    return write


def einsum_heads(w: Writer) -> str:
    """A linear layer to heads (Flax): abc,cde->abde."""
    x = w.input("x", "B", "S", 16)
    return w.op("Einsum", x, w.weight(16, 2, 8), equation="abc,cde->abde")


def einsum_join(w: Writer) -> str:
    """A linear layer of heads (Flax): abcd,cde->abe."""
    x = w.input("x", "B", "S", 2, 8)
    return w.op("Einsum", x, w.weight(2, 8, 16), equation="abcd,cde->abe")


def gemm_bias(w: Writer) -> str:
    """x W + b of a matrix."""
    return w.linear(w.input("x", "B", 16), 16, CHANNELS)


def gemm_transposed(w: Writer) -> str:
    """x W^T + b, the transpose in the graph."""
    x = w.input("x", "B", 16)
    weight = w.transpose(w.weight(CHANNELS, 16), 1, 0)
    return w.add(w.op("MatMul", x, weight), w.weight(CHANNELS))


def gemm_reshaped(w: Writer) -> str:
    """GPT-2's Conv1D: rows, MatMul, bias."""
    x = w.reshape(w.input("x", "B", "S", 16), -1, 16)
    return w.add(w.weight(CHANNELS), w.op("MatMul", x, w.weight(16, CHANNELS)))


def _space(w: Writer) -> tuple[str, str, str]:
    x = w.input("x", "B", CHANNELS, "X", "Y")
    return x, w.dim(x, 2), w.dim(x, 3)


def _twice(w: Writer, size: str) -> str:
    return w.op("Mul", size, w.ints(2))


def _half(w: Writer, size: str) -> str:
    return w.op("Div", size, w.ints(2))


def depth_to_space_crd(w: Writer) -> str:
    """torch's pixel_shuffle: [B, C, 2, 2, X, Y] to [B, C, X, 2, Y, 2]."""
    x, high, wide = _space(w)
    y = w.transpose(w.reshape(x, -1, 2, 2, 2, high, wide), 0, 1, 4, 2, 5, 3)
    return w.reshape(y, -1, 2, _twice(w, high), _twice(w, wide))


def depth_to_space_dcr(w: Writer) -> str:
    """TensorFlow's order: [B, 2, 2, C, X, Y] to [B, C, X, 2, Y, 2]."""
    x, high, wide = _space(w)
    y = w.transpose(w.reshape(x, -1, 2, 2, 2, high, wide), 0, 3, 4, 1, 5, 2)
    return w.reshape(y, -1, 2, _twice(w, high), _twice(w, wide))


def space_to_depth(w: Writer) -> str:
    """YOLO's reorg: [B, C, X, 2, Y, 2] to [B, 2, 2, C, X, Y]."""
    x, high, wide = _space(w)
    high, wide = _half(w, high), _half(w, wide)
    y = w.transpose(w.reshape(x, 0, CHANNELS, high, 2, wide, 2), 0, 3, 5, 1, 2, 4)
    return w.reshape(y, 0, 4 * CHANNELS, high, wide)


def _layout(
    op: str, name: str, write: object, gone: set[str], *wanted: str, n: int = 2
) -> Formula:
    assert callable(write)
    typed: Callable[[Writer], str] = write
    return Formula(op, name, typed, frozenset(wanted or PRODUCTS), frozenset(gone), manners=n)


_GONE = {"Einsum"}
FORMULAS: tuple[Formula, ...] = (
    _layout(
        "Einsum", "scores", einsum("bqhd,bkhd->bhqk", ("B", "S", 2, 8), ("B", "T", 2, 8)), _GONE
    ),
    _layout(
        "Einsum", "context", einsum("bhqk,bkhd->bqhd", ("B", 2, "S", "T"), ("B", "T", 2, 8)), _GONE
    ),
    _layout("Einsum", "batched", einsum("bij,bjk->bik", ("B", "S", 8), ("B", 8, "T")), _GONE),
    _layout("Einsum", "transposed", einsum("bij,bkj->bik", ("B", "S", 8), ("B", "T", 8)), _GONE),
    _layout("Einsum", "ellipsis", einsum("...ij,...jk->...ik", ("B", 3, "S", 8), ("B", 3, 8, 4)),
            _GONE),
    _layout("Einsum", "to heads", einsum_heads, _GONE),
    _layout("Einsum", "from heads", einsum_join, _GONE),
    _layout("Linear", "bias", gemm_bias, {"MatMul", "Add"}, "Gemm"),
    _layout("Linear", "transposed", gemm_transposed, {"MatMul", "Add", "Transpose"}, "Gemm"),
    _layout("Linear", "rows", gemm_reshaped, {"MatMul", "Add"}, "Gemm"),
    _layout("DepthToSpace", "columns", depth_to_space_crd, {"Transpose"}, "DepthToSpace", n=3),
    _layout("DepthToSpace", "depth", depth_to_space_dcr, {"Transpose"}, "DepthToSpace", n=3),

)  # fmt: skip
