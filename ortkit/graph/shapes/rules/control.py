"""If, Loop and Scan: what their bodies give, joined over branches and iterations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from ortkit.graph.shapes.rules.call import NOTHING, Call, Fact, Rule, UnknownError, normal_axis
from ortkit.graph.symbolic.dims import Dim, Size

#: Rounds after which what still varies is taken as unknown.
_ROUNDS = 8

INT64, BOOL = ir.DataType.INT64, ir.DataType.BOOL


# ---- If ----------------------------------------------------------------------------------


def _if(call: Call) -> None:
    condition = call.fact(0).elements
    if condition == (1,) or condition == (0,):
        branch = "then_branch" if condition == (1,) else "else_branch"
        for index, fact in enumerate(call.body(branch, (), once=True)):
            call.put(index, fact)
        other = "else_branch" if branch == "then_branch" else "then_branch"
        call.body(other, ())
        return
    start = call.fresh()
    left, right = call.body("then_branch", ()), call.body("else_branch", ())
    for index, (first, second) in enumerate(zip(left, right, strict=True)):
        call.put(index, _joined(call, first, second, start))


def _joined(call: Call, first: Fact, second: Fact, start: Dim) -> Fact:
    """Return what holds whichever of two values it is."""
    dtype = first.dtype if first.dtype == second.dtype else None
    if first.shape is None or second.shape is None or len(first.shape) != len(second.shape):
        return Fact(dtype)
    shape = tuple(
        size if size == other and not _is_inner(size, start) else call.fresh()
        for size, other in zip(first.shape, second.shape, strict=True)
    )
    same = first.shape == shape and first.elements == second.elements
    kept = same and not any(_is_inner(e, start) for e in first.elements or ())
    return Fact(dtype, shape, first.elements if kept else None)


def _is_inner(size: object, start: Dim) -> bool:
    """Say whether a size depends on an unknown that was made after `start`."""
    if not isinstance(size, Dim):
        return False
    first = max(int(atom.label) for atom in start.atoms())
    return any(atom.kind in ("size", "value") and int(atom.label) > first for atom in size.atoms())


# ---- Loop --------------------------------------------------------------------------------


def _loop(call: Call) -> None:
    carried = [call.fact(index) for index in range(2, call.inputs)]
    index = Fact(INT64, (), None)
    condition = Fact(BOOL, ())
    start = call.fresh()

    def run(states: Sequence[Fact]) -> list[Fact]:
        return call.body("body", (index, condition, *states))[1:]

    states, found = _settle(call, carried, run)
    _put_states(call, states, start)
    for position, fact in enumerate(found[len(states) :], start=len(states)):
        call.put(position, _stacked(call, fact, call.fresh(), 0, start))


def _settle(
    call: Call, first: Sequence[Fact], run: Callable[[Sequence[Fact]], list[Fact]]
) -> tuple[list[Fact], list[Fact]]:
    """Find types and shapes of carried values that hold in every iteration.

    Returns:
        The states, and what the body gives for them.
    """
    states = [Fact(fact.dtype, fact.shape) for fact in first]
    varying: set[tuple[int, int]] = set()
    found: list[Fact] = []
    for _ in range(_ROUNDS):
        found = run(states)
        if len(found) < len(states):
            raise UnknownError
        wider = [
            _widened(call, position, state, after, varying)
            for position, (state, after) in enumerate(zip(states, found, strict=False))
        ]
        if wider == states:
            return states, found
        states = wider
    states = [NOTHING] * len(states)
    return states, run(states)


def _widened(
    call: Call, position: int, state: Fact, after: Fact, varying: set[tuple[int, int]]
) -> Fact:
    dtype = state.dtype if state.dtype == after.dtype else None
    if state.shape is None or after.shape is None or len(state.shape) != len(after.shape):
        return Fact(dtype)
    shape: list[Size] = []
    for axis, (size, other) in enumerate(zip(state.shape, after.shape, strict=True)):
        if size == other or (position, axis) in varying:
            shape.append(size)
            continue
        varying.add((position, axis))
        shape.append(call.fresh())
    return Fact(dtype, tuple(shape))


def _put_states(call: Call, states: Sequence[Fact], start: Dim) -> None:
    for position, state in enumerate(states):
        shape = None
        if state.shape is not None:
            shape = tuple(call.fresh() if _is_inner(size, start) else size for size in state.shape)
        call.put(position, Fact(state.dtype, shape))


def _stacked(call: Call, fact: Fact, length: Size, axis: int, start: Dim) -> Fact:
    """Return what is known of one value of each iteration, put together along `axis`."""
    if fact.shape is None:
        return Fact(fact.dtype)
    shape: list[Size] = [call.fresh() if _is_inner(s, start) else s for s in fact.shape]
    shape.insert(normal_axis(axis, len(shape) + 1), length)
    return Fact(fact.dtype, tuple(shape))


# ---- Scan --------------------------------------------------------------------------------


def _scan(call: Call) -> None:
    if call.version < 9:
        raise UnknownError
    scanned = call.integer("num_scan_inputs", 0)
    number = call.inputs - scanned
    in_axes = call.integers("scan_input_axes") or (0,) * scanned
    slices: list[Fact] = []
    length: Size | None = None
    for position, axis in enumerate(in_axes):
        fact = call.fact(number + position)
        if fact.shape is None:
            slices.append(Fact(fact.dtype))
            continue
        at = normal_axis(axis, len(fact.shape))
        if length is None or isinstance(length, Dim):
            length = fact.shape[at]
        slices.append(Fact(fact.dtype, fact.shape[:at] + fact.shape[at + 1 :]))
    start = call.fresh()

    def run(states: Sequence[Fact]) -> list[Fact]:
        return call.body("body", (*states, *slices))

    states, found = _settle(call, [call.fact(index) for index in range(number)], run)
    _put_states(call, states, start)
    _put_scanned(call, found[number:], number, call.fresh() if length is None else length, start)


def _put_scanned(call: Call, found: Sequence[Fact], number: int, length: Size, start: Dim) -> None:
    axes = call.integers("scan_output_axes") or (0,) * len(found)
    for position, (fact, axis) in enumerate(zip(found, axes, strict=True)):
        call.put(number + position, _stacked(call, fact, length, axis, start))


RULES: dict[str, Rule] = {"If": _if, "Loop": _loop, "Scan": _scan}
