"""The schedule of what users write in TE, if they give none: rows in a loop, then vectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from ortkit.extend.tvm.choices import DEFAULTS, Choices

# tvm has no types that mypy could follow.
Expr: TypeAlias = Any

_SYMBOL = "main"


def scheduled(
    function: Expr,
    schedule: Callable[[Any], None] | None,
    split: str,
    choices: Choices = DEFAULTS,
    note: Callable[[str], None] = lambda _: None,
) -> Expr:
    """Return a function of TE with its loops in order.

    Args:
        function: As `te.create_prim_func` makes it.
        schedule: The user's: changes a `tvm.s_tir.Schedule` in place; None for the default one.
        split: The size that units are counted along, or empty.
        choices: Of the default one.
        note: Called with what it could not do: the kernel is right then, and slower.
    """
    import tvm
    from tvm import s_tir

    made = s_tir.Schedule(
        tvm.IRModule({_SYMBOL: function.with_attr("global_symbol", _SYMBOL)}),
        error_render_level="fast",
    )
    made.work_on(_SYMBOL)
    if schedule is not None:
        schedule(made)
    else:
        _default(made, choices, note, has_rows=bool(split))
    for block in _blocks(made):
        _begin_before(made, block)
    return made.mod[_SYMBOL]


def _begin_before(made: Expr, block: Expr) -> None:
    """Begin sums in front of their loop: it has no turn where nothing is summed."""
    loops = made.get_loops(block)
    if not _is_reduction(made, block) or all(hasattr(made.get(o).extent, "value") for o in loops):
        return
    for loop in reversed(loops):  # the innermost that can be: what is above sums nothing
        if not _tried(partial(made.decompose_reduction, block, loop)):
            return


def _default(made: Expr, choices: Choices, note: Callable[[str], None], *, has_rows: bool) -> None:
    """Inline what is computed element by element, reduce where a row needs it, then vectorize."""
    outputs = made.get_output_blocks(made.get_sblock("root"))
    names = {made.get(output).name_hint for output in outputs}
    inner = [block for block in _blocks(made) if made.get(block).name_hint not in names]
    for one in inner:
        if not _is_reduction(made, one):
            _tried(partial(made.compute_inline, one))
    for block in reversed(_blocks(made)):
        if made.get(block).name_hint in names:
            continue
        for consumer in made.get_consumers(block):
            loops = made.get_loops(consumer)
            if has_rows and loops:
                _tried(partial(made.compute_at, block, loops[0]))
    for output in outputs:
        if _is_reduction(made, output):
            _tried(partial(_sum_in_lanes, made, output, choices))
        elif problem := _vectorized(made, output, choices):
            note(f"{made.get(output).name_hint} is computed without vectors: {problem}")


def _vectorized(made: Expr, block: Expr, choices: Choices) -> str:
    """Compute a block in vectors; return why that cannot be done, empty if it was."""
    loops = made.get_loops(block)
    return _tried(partial(_in_lanes, made, loops[-1], choices)) if loops else ""


def _sum_in_lanes(made: Expr, block: Expr, choices: Choices) -> None:
    """Compute sums of neighbouring columns side by side, where what is summed lies so."""
    found = made.get(block)
    kinds = [int(var.iter_type) for var in found.iter_vars]
    if kinds.count(_REDUCTION) != len(kinds) - kinds.index(_REDUCTION):
        return
    column = kinds.index(_REDUCTION) - 1
    last = [read.region[-1].min for read in found.reads]
    if column < 0 or not any(item.same_as(found.iter_vars[column].var) for item in last):
        return
    loops = made.get_loops(block)
    if len(loops) != len(kinds):
        return
    outer, lanes = made.split(loops[column], [None, choices.vector * choices.unroll])
    made.reorder(outer, *loops[column + 1 :], lanes)
    made.vectorize(lanes)
    made.annotate(outer, "pragma_loop_partition_hint", 1)


def _in_lanes(made: Expr, loop: Expr, choices: Choices) -> None:
    outer, *several, lanes = made.split(
        loop, [None, *([choices.unroll] if choices.unroll > 1 else []), choices.vector]
    )
    made.vectorize(lanes)
    for one in several:
        made.unroll(one)
    made.annotate(outer, "pragma_loop_partition_hint", 1)


def has_reduction(function: Expr) -> bool:
    """Say whether a function of TE, as `te.create_prim_func` makes it, adds up anything."""
    import tvm
    from tvm import s_tir

    made = s_tir.Schedule(tvm.IRModule({_SYMBOL: function}))
    made.work_on(_SYMBOL)
    return any(_is_reduction(made, block) for block in _blocks(made))


def _blocks(made: Expr) -> list[Expr]:
    return list(made.get_child_blocks(made.get_sblock("root")))


def _is_reduction(made: Expr, block: Expr) -> bool:
    kinds = [int(var.iter_type) for var in made.get(block).iter_vars]
    return any(kind == _REDUCTION for kind in kinds)


#: tirx.IterVar.CommReduce
_REDUCTION = 2


def _tried(change: Callable[[], None]) -> str:
    """Change a schedule; return why that cannot be done, and what it was stays then."""
    try:
        change()
    except Exception as error:  # noqa: BLE001  TVM's own class
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[-1] if lines else type(error).__name__
    return ""
