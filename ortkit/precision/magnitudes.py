"""What magnitudes of values cannot exceed, by the norms, matrices and activations before them.

A norm leaves rows whose Euclidean norm is sqrt(n) at most, before its scale. So the product of
such rows with a column of a constant matrix has a limit that no input exceeds (Cauchy-Schwarz).
Activations and attention make nothing larger. With such a limit rows are rounded to eight bits
with one factor, which needs no data to calibrate with and saturates for no input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array, is_constant
from ortkit.graph.shapes.infer import Shapes
from ortkit.operators import where

#: Operators whose results are no larger than their first input, which may have a bias of one row.
_SHRINKING = frozenset({"Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Relu", "HardSwish", "Mish",
                        "Swish", "Identity", "Abs", "Neg"})  # fmt: skip
_BIASED = frozenset({"FastGelu", "BiasGelu"})
#: Operators whose results are 1 at most.
_UNIT = frozenset({"Erf", "Sigmoid", "Softmax", "Tanh"})
#: Norms of rows: where their scale and shift are.
_NORMS: Mapping[str, tuple[int, int | None]] = {
    "LayerNormalization": (1, 2), "RMSNormalization": (1, None),
    "SimplifiedLayerNormalization": (1, None), "SkipLayerNormalization": (2, 3),
    "SkipSimplifiedLayerNormalization": (2, None),
}  # fmt: skip
#: Attention without keys from before: where its values, their bias, and values from before are.
_ATTENTION: Mapping[tuple[str, str], tuple[int, int | None, int]] = {
    ("com.microsoft", "MultiHeadAttention"): (2, 3, 7),
    ("com.microsoft", "GroupQueryAttention"): (2, None, 4),
    ("", "Attention"): (2, None, 5),
}
_DOMAINS = ("", "com.microsoft")
#: Elements of a matrix that are looked at at once.
_PART = 2**17


@dataclass(frozen=True, eq=False)
class Magnitude:
    """What is known of a value's elements.

    Args:
        most: What no magnitude exceeds, of each element along the last axis, or of all: float64.
        usual: Their root mean square, of the same shape, where rows before the norms are noise.
        scale: Of rows that a norm makes, what it multiplies by; None for other values.
        shift: What it adds.
    """

    most: np.ndarray
    usual: np.ndarray
    scale: np.ndarray | None = None
    shift: np.ndarray | float = 0.0

    @property
    def limit(self) -> float:
        """What no element exceeds."""
        return float(self.most.max(initial=0.0))

    @property
    def spread(self) -> float:
        """How many times the usual size the limit is; infinite where that is 0."""
        usual = math.sqrt(float(np.mean(np.square(self.usual)))) if self.usual.size else 0.0
        return self.limit / usual if usual else math.inf

    @property
    def is_finite(self) -> bool:
        """Whether all that is known are numbers."""
        return bool(np.isfinite(self.most).all() and np.isfinite(self.usual).all())

    def whole(self) -> Magnitude:
        """Return what is known of elements in any order."""
        usual = np.sqrt(np.mean(np.square(self.usual)))
        return Magnitude(np.asarray(self.limit), np.asarray(usual))


def magnitudes(
    model: ir.Model, shapes: Shapes, wanted: Iterable[ir.Value] | None = None
) -> dict[ir.Value, Magnitude]:
    """Return what is known of the values of the main graph; those without a limit are left out.

    Args:
        model: The model.
        shapes: Shapes of its values.
        wanted: Values that are looked at, by default all. Others may be left out: matrices that
            only lead to these are not read.
    """
    found: dict[ir.Value, Magnitude] = {}
    reader = _Reader(model, shapes, found)
    needed = None if wanted is None else _needed(wanted)
    for node in model.graph:
        if node.domain not in _DOMAINS or not node.outputs:
            continue
        if needed is not None and node not in needed:
            continue
        read = _READERS.get(node.op_type)
        made = None if read is None else read(reader, node)
        parts = zip(node.outputs, _parts(reader, node, made), strict=False)
        found |= {value: part for value, part in parts if part.is_finite}
    return found


def _needed(wanted: Iterable[ir.Value]) -> set[ir.Node]:
    """Return the nodes on which what is known of values depends."""
    left, needed = list(wanted), set[ir.Node]()
    while left:
        node = left.pop().producer()
        if node is None or node in needed or node.op_type not in _READERS:
            continue
        needed.add(node)
        left += [value for value in _looked_at(node) if value is not None]
    return needed


def _looked_at(node: ir.Node) -> Sequence[ir.Value | None]:
    """Return the inputs on whose magnitudes those of a node's outputs depend."""
    if node.op_type in _NORMS or node.op_type in _UNIT:
        return ()  # whatever the rows are
    places = _ATTENTION.get((node.domain, node.op_type))
    if places is None:
        return node.inputs
    return [node.inputs[at] for at in places if at is not None and at < len(node.inputs)]


def _parts(reader: _Reader, node: ir.Node, made: Magnitude | None) -> Sequence[Magnitude]:
    """Return what is known of a node's outputs, given that of the first, or of what is split."""
    if made is None:
        return ()
    if node.op_type != "Split":
        return (made,)
    rank = reader.shapes.rank(node.outputs[0])
    widths = [(reader.shapes.shape(value) or (None,))[-1] for value in node.outputs]
    sizes = [size for size in widths if isinstance(size, int)]
    is_last = node.attributes.get_int("axis", 0) in (-1, (rank or 0) - 1)
    if not is_last or len(sizes) < len(widths) or sum(sizes) != made.most.size:
        return [made.whole()] * len(widths)
    ends = np.cumsum(sizes)[:-1]
    pairs = zip(np.split(made.most, ends), np.split(made.usual, ends), strict=True)
    return [Magnitude(most, usual) for most, usual in pairs]


@dataclass(frozen=True, eq=False)
class _Reader:
    """What is known where a node stands."""

    model: ir.Model
    shapes: Shapes
    found: Mapping[ir.Value, Magnitude]

    def input(self, node: ir.Node, index: int) -> ir.Value | None:
        return node.inputs[index] if index < len(node.inputs) else None

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """Return a constant in float64, a matrix as it is."""
        if value is None or not is_constant(value, self.model):
            return None
        array = constant_array(value)
        if array is None or array.dtype.kind in "OSUb":
            return None
        return array.astype(np.float64) if array.ndim < 2 else array

    def of(self, value: ir.Value | None) -> Magnitude | None:
        """Return what is known of a value, be it a constant."""
        if value is None:
            return None
        if value in self.found:
            return self.found[value]
        array = self.constant(value)
        if array is None or not array.size:
            return None
        if any(axis != 1 for axis in array.shape[:-1]):
            wide = array if array.dtype.kind in "fiu" else array.astype(np.float32)
            row = np.asarray(max(float(wide.max()), -float(wide.min())))
        else:
            size = np.abs(array.astype(np.float64))
            row = size.reshape(-1) if size.size > 1 else size.reshape(())
        return Magnitude(row, row)


def _norm(reader: _Reader, node: ir.Node) -> Magnitude | None:
    rank = reader.shapes.rank(node.outputs[0])
    axis = node.attributes.get_int("axis", -1)
    if axis != -1 and axis + 1 != rank:
        return None
    scale_at, shift_at = _NORMS[node.op_type]
    scale = reader.constant(reader.input(node, scale_at))
    if scale is None or not scale.ndim or not scale.size or scale.size != scale.shape[-1]:
        return None
    scale = scale.reshape(-1)
    given = None if shift_at is None else reader.input(node, shift_at)
    shift = np.zeros(scale.shape) if given is None else reader.constant(given)
    if shift is None or shift.size != scale.size:
        return None
    shift = shift.reshape(-1)
    most = math.sqrt(scale.size) * np.abs(scale) + np.abs(shift)
    return Magnitude(most, np.hypot(scale, shift), scale, shift)


def _product(reader: _Reader, node: ir.Node) -> Magnitude | None:
    x, matrix = reader.of(node.inputs[0]), reader.constant(reader.input(node, 1))
    if x is None or matrix is None or matrix.ndim != 2 or not matrix.size:
        return None
    attributes = node.attributes
    if node.op_type == "Gemm":
        factors = (attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0))
        if attributes.get_int("transA", 0) or factors != (1.0, 1.0):
            return None
        matrix = matrix.T if attributes.get_int("transB", 0) else matrix
    made = _multiplied(x, matrix)
    bias = reader.input(node, 2) if node.op_type == "Gemm" else None
    added = None if bias is None else reader.of(bias)
    if made is None or (bias is not None and added is None):
        return None
    return made if added is None else _sum(made, added)


def _multiplied(x: Magnitude, matrix: np.ndarray) -> Magnitude | None:
    """Return what rows times a matrix [depth, columns] are."""
    depth = len(matrix)
    if x.scale is not None and len(x.scale) == depth:
        squares, sums = _sums(matrix, np.square(x.scale), x.shift * np.ones(depth))
        across, along = np.sqrt(squares), np.abs(sums)
        return Magnitude(math.sqrt(depth) * across + along, np.hypot(across, along))
    if x.most.size not in (1, depth):
        return None
    most, usual = (each * np.ones(depth) for each in (x.most, x.usual))
    squares, sums = _sums(matrix, np.square(usual), most, of=np.abs)
    return Magnitude(sums, np.sqrt(squares))


def _sums(
    matrix: np.ndarray,
    by_square: np.ndarray,
    by: np.ndarray,
    of: Callable[[np.ndarray], np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return by_square @ matrix^2 and by @ of(matrix), [n], of a matrix [k, n] read once.

    It is computed in float32 in parts, and summed over them in float64.
    """
    count = matrix.shape[1]
    squares, sums = np.zeros(count), np.zeros(count)
    # Vectors are scaled, as what they hold may exceed float32.
    tops = [float(np.abs(each).max(initial=0.0)) for each in (by_square, by)]
    if not np.isfinite(tops).all():
        return np.full(count, np.inf), np.full(count, np.inf)
    one, other = (
        (each / (top or 1.0)).astype(np.float32)
        for each, top in zip((by_square, by), tops, strict=True)
    )
    for rows, columns in _cuts(matrix):
        part = matrix[rows, columns].astype(np.float32)
        if tops[1]:
            sums[columns] += other[rows] @ (part if of is None else of(part))
        squares[columns] += one[rows] @ np.square(part, out=part)
    return squares * tops[0], sums * tops[1]


def _cuts(matrix: np.ndarray) -> Iterator[tuple[slice, slice]]:
    """Cut a matrix in parts that lie in a row, small enough for a processor's cache."""
    depth, count = matrix.shape
    is_across = matrix.T.flags.c_contiguous
    length, width = (count, depth) if is_across else (depth, count)
    step = max(1, _PART // max(width, 1))
    for start in range(0, length, step):
        cut = slice(start, start + step)
        yield (slice(None), cut) if is_across else (cut, slice(None))


def _sum(one: Magnitude, other: Magnitude) -> Magnitude | None:
    if not _meet(one, other):
        return None
    return Magnitude(one.most + other.most, np.hypot(one.usual, other.usual))


def _meet(one: Magnitude, other: Magnitude) -> bool:
    """Say whether two are of rows of one length."""
    return one.most.ndim == 0 or other.most.ndim == 0 or one.most.shape == other.most.shape


def _added(reader: _Reader, node: ir.Node) -> Magnitude | None:
    one, other = (reader.of(value) for value in node.inputs)
    return None if one is None or other is None else _sum(one, other)


def _scaled(reader: _Reader, node: ir.Node) -> Magnitude | None:
    one, other = (reader.of(value) for value in node.inputs)
    if one is None or other is None or not _meet(one, other):
        return None
    return Magnitude(one.most * other.most, one.usual * other.usual)


def _divided(reader: _Reader, node: ir.Node) -> Magnitude | None:
    one, by = reader.of(node.inputs[0]), reader.constant(node.inputs[1])
    if one is None or by is None or by.size != 1 or not by.reshape(()):
        return None
    factor = 1 / abs(float(by.reshape(())))
    return Magnitude(one.most * factor, one.usual * factor)


def _split(reader: _Reader, node: ir.Node) -> Magnitude | None:
    return reader.of(node.inputs[0])


def _shrunk(reader: _Reader, node: ir.Node) -> Magnitude | None:
    made = reader.of(node.inputs[0])
    bias = reader.input(node, 1) if node.op_type in _BIASED else None
    if made is not None and bias is not None:
        added = reader.of(bias)
        made = None if added is None else _sum(made, added)
    if made is None or node.op_type == "Identity":
        return made
    return replace(made, scale=None)


def _cast(reader: _Reader, node: ir.Node) -> Magnitude | None:
    dtype = reader.shapes.dtype(node.outputs[0])
    return reader.of(node.inputs[0]) if dtype is not None and dtype.is_floating_point() else None


def _unit(reader: _Reader, node: ir.Node) -> Magnitude | None:  # noqa: ARG001
    return Magnitude(np.ones(()), np.ones(()))


def _moved(reader: _Reader, node: ir.Node) -> Magnitude | None:
    made = reader.of(node.inputs[0])
    return None if made is None else made.whole()


def _joined(reader: _Reader, node: ir.Node) -> Magnitude | None:
    parts = [reader.of(value) for value in node.inputs]
    known = [part.whole() for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None
    most, usual = (np.array([getattr(each, name) for each in known]) for name in ("most", "usual"))
    return Magnitude(most.max(keepdims=True).reshape(()), usual.min(keepdims=True).reshape(()))


def _attended(reader: _Reader, node: ir.Node) -> Magnitude | None:
    """Return what attention makes: sums of values with weights that add up to 1."""
    places = _ATTENTION.get((node.domain, node.op_type))
    if places is None:
        return None
    values_at, bias_at, past_at = places
    values, past = reader.input(node, values_at), reader.input(node, past_at)
    made = reader.of(values)
    if past is not None or made is None:
        return None
    made = made.whole()
    bias = None if bias_at is None else reader.input(node, bias_at)
    added = None if bias is None else reader.of(bias)
    if bias is None:
        return made
    return None if added is None else _sum(made, added.whole())


_Read = Callable[[_Reader, ir.Node], Magnitude | None]


def _named(read: _Read, names: Sequence[str] | frozenset[str]) -> dict[str, _Read]:
    return dict.fromkeys(names, read)


_READERS: Mapping[str, _Read] = {
    **_named(_moved, where(moves_only=True)), **_named(_norm, tuple(_NORMS)),
    **_named(_product, ("MatMul", "Gemm")),
    **_named(_added, ("Add", "Sub")), "Mul": _scaled, "Div": _divided, "Cast": _cast,
    **_named(_shrunk, _SHRINKING), **_named(_unit, _UNIT),
    "Concat": _joined, "Split": _split, **_named(_attended, tuple(name for _, name in _ATTENTION)),
}  # fmt: skip
