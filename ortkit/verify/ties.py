"""Near ties: integer and boolean outputs that pick one of several values as good.

An ArgMax over two logits that differ by one rounding may name either, and a pixel of 12.4999 may
become 12 or 13. To judge this, the values that are picked from or rounded are computed with the
reference, as extra outputs of the original.

Half precision is coarse: 16 of its epsilons are 4 of 255 levels. There a value may be off by one
epsilon, or by a multiple of what roundings move it in a run of the original (`rounded.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.verify.compare import TieCheck
from ortkit.verify.feeds import Value
from ortkit.verify.rows import as_rows
from ortkit.verify.tolerances import (
    HALVES,
    OWN_ERROR_FACTOR,
    SCALE_FLOOR,
    TOLERANCES,
    allowed_eps,
)

_PICKS = ("ArgMax", "ArgMin", "TopK")
_COMPARES = ("Greater", "Less", "GreaterOrEqual", "LessOrEqual")
#: Ops that keep every element in its place along the axis that was picked from.
_KEEPS = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape")
#: Ops between a rounding and an output that keep the order of numbers, and their places but for
#: the shape.
_PASSES = (*_KEEPS, "Flatten", "Clip")
_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Round": np.rint,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Cast": np.trunc,
    "QuantizeLinear": np.rint,
}
_INTEGERS = tuple(int(kind) for kind in ir.DataType if kind.is_integer())
#: A protobuf with weights inside that is larger than this is not copied to add outputs.
_COPY_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Roundings:
    """What is known of how far roundings in half precision move values.

    Args:
        moved: By name, the values of a run that rounds each; empty if there was none.
    """

    moved: Mapping[str, Value]


@dataclass(frozen=True)
class TieSource:
    """Which values an output picks from, and how."""

    op: str
    values: tuple[str, ...]
    axis: int = 0
    keeps_axis: bool = True
    moves: tuple[str | tuple[int, ...], ...] = ()
    """How a rounded value comes to lie as the output does: as which value its shape is, or by
    which permutation (none: the axes the other way round)."""

    @property
    def names(self) -> set[str]:
        """The values that judging needs."""
        return {*self.values, *(move for move in self.moves if isinstance(move, str))}


def tie_sources(model: ir.Model) -> dict[str, TieSource]:
    """Return, for each output that picks, the values that it picks from."""
    found = {}
    for output in model.graph.outputs:
        source = _source(output) or _rounding(output)
        if source is not None and output.name:
            found[output.name] = source
    return found


def _source(output: ir.Value) -> TieSource | None:
    node = output.producer()
    while node is not None and node.domain == "" and node.op_type in _KEEPS and node.inputs[0]:
        node = node.inputs[0].producer()
    if node is None or node.domain != "" or any(each is None for each in node.inputs):
        return None
    names = tuple(each.name or "" for each in node.inputs if each is not None)
    if node.op_type in _COMPARES:
        return TieSource("compare", names)
    if node.op_type not in _PICKS:
        return None
    axis = node.attributes.get_int("axis", -1 if node.op_type == "TopK" else 0)
    keeps = node.op_type == "TopK" or node.attributes.get_int("keepdims", 1) == 1
    return TieSource("pick", names[:1], axis, keeps)


def _rounding(output: ir.Value) -> TieSource | None:
    """Return what makes integers of floats, and the layout between it and the output."""
    node, found = output.producer(), None
    moves: list[str | tuple[int, ...]] = []
    while node is not None and node.domain == "" and node.inputs and node.inputs[0] is not None:
        source, kind = node.inputs[0], node.op_type
        names = (source.name or "",)
        if kind == "QuantizeLinear" and len(node.inputs) > 1 and node.inputs[1] is not None:
            return TieSource(kind, (*names, node.inputs[1].name or ""), moves=tuple(moves[::-1]))
        if kind in _ROUNDINGS and kind != "Cast":
            return TieSource(kind, names, moves=tuple(moves[::-1])) if found is not None else None
        if kind == "Cast" and node.attributes.get_int("to", 0) in _INTEGERS:
            found = TieSource(kind, names, moves=tuple(moves[::-1]))
        if kind == "Transpose":
            moves.append(tuple(node.attributes.get_ints("perm", ())))
        elif kind in _PASSES:
            moves.append(node.outputs[0].name or "")
        else:
            break
        node = source.producer()
    return found


def write_probe(model_path: Path, sources: Mapping[str, TieSource], probe: Path) -> bool:
    """Write a copy of a model that gives the picked-from values too; False if it is too large.

    External data is not copied: the copy must be loaded with the original's folder.
    """
    if model_path.stat().st_size > _COPY_LIMIT_BYTES:
        return False
    proto = onnx.load(model_path, load_external_data=False)
    have = {value.name for value in proto.graph.output}
    made = {name for node in proto.graph.node for name in node.output}
    wanted = {name for source in sources.values() for name in source.names}
    for name in sorted((wanted & made) - have):
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    probe.write_bytes(proto.SerializeToString())
    return True


def tie_check(
    source: TieSource,
    expected: Value,
    values: Mapping[str, Value],
    own_error_eps: float,
    computed_in: Mapping[str, str],
    stated: float = 0.0,
    roundings: Roundings | None = None,
) -> TieCheck | None:
    """Return what judges the differing elements of an output, None where it cannot be done.

    Args:
        source: What the output picks from.
        expected: The output in the reference.
        values: The reference's values by name.
        own_error_eps: The largest error that ONNX Runtime's own optimizations make.
        computed_in: By value, a coarser float type that it was computed in, if any.
        stated: An error that the user accepts, as a part of the output's largest magnitude.
        roundings: What values in half precision are held to; without it to their tolerance.
    """
    picked = [values.get(name) for name in source.values]
    tensors = [each for each in picked if isinstance(each, np.ndarray)]
    kinds = [each.dtype.name for each in tensors]
    arrays = [each.astype(np.float64) for each in tensors]
    if len(arrays) != len(picked) or not isinstance(expected, np.ndarray):
        return None
    if any(kind not in TOLERANCES for kind in kinds):
        return None
    coarse = next((computed_in[name] for name in source.values if name in computed_in), "")
    allowed = allowed_eps(
        kinds[0], own_error_eps, optimized=True, computed_in=coarse, stated=stated
    )
    room = _Room(TOLERANCES[kinds[0]].epsilon * allowed)
    half = coarse or kinds[0]
    if roundings is not None and half in HALVES and not stated:
        own = OWN_ERROR_FACTOR * own_error_eps * TOLERANCES[kinds[0]].epsilon
        others = [roundings.moved.get(name) for name in source.values]
        room = _Room(room.most, max(TOLERANCES[half].epsilon, own), _like(tensors, others))
    if source.op in _ROUNDINGS:
        return _rounding_check(arrays, source, expected, values, room)
    if source.op == "compare":
        return _compare_check(arrays[0], arrays[1], room)
    return _pick_check(arrays[0], source, expected, room)


@dataclass(frozen=True)
class _Room:
    """How far values may be off.

    Args:
        most: A part of their row's scale.
        least: The part that they may be off in any case; None for `most`.
        moved: The values as roundings move them, None if that is not known.
    """

    most: float
    least: float | None = None
    moved: Sequence[np.ndarray] | None = None

    def of(self, scale: np.ndarray, by: np.ndarray | None) -> np.ndarray:
        """Return how far the values of each row may be off.

        Args:
            scale: Of each row.
            by: How far roundings move a row at most, None if that is not known.
        """
        most: np.ndarray = self.most * np.maximum(scale, SCALE_FLOOR)
        if self.least is None:
            return most
        off = self.least * np.maximum(scale, SCALE_FLOOR)
        if by is not None and by.size:
            by = np.where(np.isfinite(by), by, np.inf)
            # A row of few values may happen not to move: it is taken to, as others usually do.
            off = np.maximum(off, OWN_ERROR_FACTOR * np.maximum(by, np.median(by)))
        return np.asarray(np.minimum(off, most))


def _like(tensors: Sequence[np.ndarray], others: Sequence[Value]) -> Sequence[np.ndarray] | None:
    """Return the values of another run, those that it does not have as they are."""
    given = [
        other if isinstance(other, np.ndarray) and other.shape == one.shape else one
        for one, other in zip(tensors, others, strict=True)
    ]
    is_known = any(other is not one for one, other in zip(tensors, given, strict=True))
    return [each.astype(np.float64) for each in given] if is_known else None


def _compare_check(left: np.ndarray, right: np.ndarray, room: _Room) -> TieCheck:
    left, right = np.broadcast_arrays(left, right)
    by = None
    if room.moved is not None:
        moved = np.abs((room.moved[0] - room.moved[1]) - (left - right))
        by = moved.max(axis=-1, keepdims=True, initial=0.0) if left.ndim else moved
    magnitude = np.maximum(np.abs(left), np.abs(right))
    magnitude = np.where(np.isfinite(magnitude), magnitude, 0.0)
    scale = magnitude.max(axis=-1, keepdims=True, initial=SCALE_FLOOR) if left.ndim else magnitude
    is_close = np.abs(left - right) <= room.of(scale, by)

    def check(actual: np.ndarray) -> np.ndarray:
        result: np.ndarray = is_close.reshape(actual.shape)
        return result

    return check


def _rounding_check(
    arrays: list[np.ndarray],
    source: TieSource,
    expected: np.ndarray,
    values: Mapping[str, Value],
    room: _Room,
) -> TieCheck | None:
    """Numbers may be what rounding makes of a value that is off by what is allowed."""
    given, step = arrays[0], arrays[1] if len(arrays) > 1 else np.ones(())
    if step.size != 1 or not given.size:
        return None
    rows = np.abs(as_rows(given)[1])
    scale = np.where(np.isfinite(rows), rows, 0.0).max(axis=-1, keepdims=True)
    by = None
    if room.moved is not None:
        by = np.abs(as_rows(room.moved[0] - given)[1]).max(axis=-1, keepdims=True)
    off = np.broadcast_to(room.of(scale, by), rows.shape)
    off, step, to = off.reshape(given.shape), step.reshape(()), _ROUNDINGS[source.op]
    lowest = to((given - off) / step) - to(given / step)
    highest = to((given + off) / step) - to(given / step)
    for move in source.moves:
        like = values.get(move) if isinstance(move, str) else None
        if isinstance(like, np.ndarray):
            lowest, highest = lowest.reshape(like.shape), highest.reshape(like.shape)
        elif isinstance(move, tuple):
            lowest, highest = (each.transpose(move or None) for each in (lowest, highest))
    if lowest.shape != expected.shape:
        return None

    def check(actual: np.ndarray) -> np.ndarray:
        moved = actual.astype(np.float64) - expected.astype(np.float64)
        result: np.ndarray = (lowest <= moved) & (moved <= highest)
        return result

    return check


def _pick_check(
    values: np.ndarray, source: TieSource, expected: np.ndarray, room: _Room
) -> TieCheck | None:
    axis = source.axis % values.ndim
    rest = int(np.prod(values.shape)) // max(values.shape[axis], 1)
    if rest == 0 or expected.size % rest:
        return None
    kept = [n if i != axis else expected.size // rest for i, n in enumerate(values.shape)]
    by = None
    if room.moved is not None:
        by = np.abs(room.moved[0] - values).max(axis=axis, keepdims=True)
    off = room.of(np.abs(values).max(axis=axis, keepdims=True), by)
    best = np.take_along_axis(values, expected.reshape(kept).astype(np.int64), axis)

    def check(actual: np.ndarray) -> np.ndarray:
        index = actual.reshape(kept).astype(np.int64)
        inside = (index >= 0) & (index < values.shape[axis])
        other = np.take_along_axis(values, np.where(inside, index, 0), axis)
        # Both values may have moved, towards each other.
        close = np.abs(best - other) <= 2 * off
        result: np.ndarray = (close & inside).reshape(actual.shape)
        return result

    return check
