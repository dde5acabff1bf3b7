"""The sets of operators that the table derives are those that were written out before it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import pytest

from ortkit.operators import operator, where

MS = "com.microsoft"
POINTWISE = where(access="elementwise")
MOVES = where(moves_only=True)
RESHAPES = where(reshapes=True)
COMPARISONS = where(access="elementwise", dtype="bool", broadcasts=True)
HEAVY = frozenset({"attention", "conv", "matmul", "recurrent"})
GATHERS = frozenset({"Compress", "Gather", "GatherElements", "GatherND"})


@dataclass(frozen=True)
class Same:
    """`module.name` is `derived`, but for what only one of them has."""

    place: str
    derived: frozenset[str]
    less: str = ""
    """In `derived` only."""
    more: str = ""
    """In the literal only."""
    why: str = ""


_NOT_KNOWN = "nobody looked at these operators: they may join"
SAME = [
    Same(
        "extend.declare.variants._POINTWISE",
        POINTWISE | where(domain=MS, access="elementwise"),
        less="Acos Acosh Asin Asinh Atan Atanh BiasGelu BitShift BitwiseAnd BitwiseNot BitwiseOr "
        "BitwiseXor CastLike Cosh IsInf IsNaN Shrink Sinh",
        more="Constant",
        why=_NOT_KNOWN,
    ),
    Same(
        "runtime.profiling.advice._MOVES",
        MOVES - GATHERS,
        less="Flatten ReverseSequence",
        more="Cast Pad",
        why=_NOT_KNOWN,
    ),
    Same(
        "verify.inputs.relations._BROADCASTING",
        where(broadcasts=True),
        less="BitShift Mean PRelu",
        why=_NOT_KNOWN,
    ),
    Same(
        "verify.lowered.unrounded._MOVES",
        MOVES,
        less="Compress DepthToSpace GatherElements GatherND ReverseSequence SpaceToDepth Split",
        more="MaxPool",
        why=_NOT_KNOWN,
    ),
]


@pytest.mark.parametrize("same", SAME, ids=lambda same: same.place)
def test_derived_sets_are_the_literals(same: Same) -> None:
    module, _, name = same.place.rpartition(".")
    found = getattr(import_module(f"ortkit.{module}"), name)
    less, more = frozenset(same.less.split()), frozenset(same.more.split())
    assert less <= same.derived and not more & same.derived, "an exception is in vain"
    assert frozenset(found) == (same.derived - less) | more
    assert bool(same.why) == bool(less | more)


def test_unknown_facts_are_errors() -> None:
    with pytest.raises(TypeError, match="no such fact: colour"):
        where(colour="green")


def test_all_that_is_asked_for_holds() -> None:
    assert where(access="control", inputs=(1, 1)) == {"If"}
    assert where(domain=MS, access={"conv", "rotary"}, integer=False) >= {"FusedConv"}
    row = operator("ai.onnx", "Where")
    assert row is not None and row.data_inputs == (1, 2)
    assert operator("com.example", "Add") is None
