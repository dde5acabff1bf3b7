"""The sets of operators that the table derives are those that were written out before it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import pytest

from ortkit.analysis.float64_eval import OPS
from ortkit.graph.shapes.numpy_ops import EXACT
from ortkit.kernels.region.ops import POINTWISE_OPS
from ortkit.kernels.region.views import VIEWS
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
    Same("fusion.regions.access.POINTWISE", POINTWISE),
    Same("fusion.regions.access.POINTWISE", POINTWISE & POINTWISE_OPS.keys()),
    Same("fusion.regions.access.RESHAPES", RESHAPES),
    Same("fusion.regions.access.VIEWS", where(access="view") & VIEWS.keys()),
    Same("fusion.regions.access.REDUCTIONS", where(access="reduction")),
    Same("fusion.regions.access.NORMS", where(access="normalization")),
    Same(
        "fusion.regions.access.RUNTIME_OWN",
        where(domain=MS, access={"elementwise", "normalization"}),
    ),
    Same("fusion.regions.members._QUANTIZED", where(access="quantize")),
    Same("fusion.regions.cuda_cost_model._NORMS", where(row_norm=True)),
    Same("fusion.gemm.cuda.NORMS", where(row_norm=True)),
    Same(
        "fusion.gemm.cpu_fp32._OWN_STEPS",
        where(domain=MS, access="elementwise"),
        less="BiasGelu",
        why="its bias is a second input",
    ),
    Same(
        "fusion.attention.cuda_masks._MOVES",
        RESHAPES,
        more="Cast Expand Identity",
        why="a mask is repeated, and a condition cast",
    ),
    Same("analysis.cones.AFFINE", where(affine=True)),
    Same("analysis.cones.POINTWISE", POINTWISE & OPS.keys()),
    Same(
        "analysis.cones.CONTRIB",
        where(domain=MS, access="elementwise"),
        less="BiasGelu",
        why="its bias is a second input",
    ),
    Same(
        "analysis.affine.LAYOUT",
        MOVES,
        less="Compress Concat Identity ReverseSequence Split",
        why="Concat and Split have several values; " + _NOT_KNOWN,
    ),
    Same(
        "analysis.affine.ARITHMETIC",
        where(affine=True),
        less="Cast Identity Mean Sum",
        why="no scale and no shift, or any number of operands",
    ),
    Same(
        "analysis.permutation.UNARY",
        where(access="elementwise", broadcasts=False),
        less="Acos Acosh Asin Asinh Atan Atanh BitwiseNot CastLike Cosh Shrink Sinh Swish Tan",
        why=_NOT_KNOWN,
    ),
    Same(
        "analysis.permutation.BROADCASTING",
        where(broadcasts=True),
        less="BitShift BitwiseAnd BitwiseOr BitwiseXor",
        why=_NOT_KNOWN,
    ),
    Same(
        "analysis.permutation.REDUCTIONS",
        where(access="reduction", dtype="input"),
        less="ReduceLogSum",
        why=_NOT_KNOWN,
    ),
    Same("analysis.row_functions.REDUCTIONS", where(access="reduction") & OPS.keys()),
    Same(
        "analysis.random_ops.RANDOM",
        where(random=True),
        less="Dropout",
        why="only in training, which its inputs say",
    ),
    Same(
        "runtime.cuda_graphs._RANDOM",
        where(random=True),
        less="Dropout",
        why="it does nothing where a model is run",
    ),
    Same("provider.conformance.judge._RANDOM", where(random=True)),
    Same(
        "verify.random_ops._RANDOM",
        where(random=True) | where(domain=MS, random=True),
        less="BiasDropout BitmaskBiasDropout Dropout",
        why="Dropout's inputs say whether; the others were forgotten",
    ),
    Same(
        "comparison.inside._OPEN",
        where(access="control"),
        less="SequenceMap",
        why="its body makes sequences",
    ),
    Same("graph.walk.CONTROL_FLOW", where(access="control")),
    Same("runtime.profiling.events.HOLDERS", where(access="control")),
    Same(
        "runtime.profiling.call_work._VIEWS",
        where(access="control") | RESHAPES,
        more="Identity",
        why="no reshape, but it shares memory too",
    ),
    Same(
        "runtime.memory.buffers.VIEWS",
        RESHAPES,
        more="Dropout Identity",
        why="no reshapes, but they share memory too",
    ),
    Same(
        "graph.analysis.cost._VIEWS",
        where(access="control") | RESHAPES,
        more="Constant Dropout Identity Shape Size",
        why="no reshapes, but they move nothing too",
    ),
    Same("graph.shapes.reshape.RESHAPES", RESHAPES),
    Same(
        "graph.shapes.numpy_ops.MOVES",
        MOVES & EXACT.keys(),
        more="Shape Where",
        why="a size, and a choice: no element is computed either",
    ),
    Same(
        "extend.body.match._COMMUTATIVE",
        where(commutative=True),
        less="BitwiseAnd BitwiseOr BitwiseXor",
        why=_NOT_KNOWN,
    ),
    Same(
        "extend.declare.variants._POINTWISE",
        POINTWISE | where(domain=MS, access="elementwise"),
        less="Acos Acosh Asin Asinh Atan Atanh BiasGelu BitShift BitwiseAnd BitwiseNot BitwiseOr "
        "BitwiseXor CastLike Cosh IsInf IsNaN Shrink Sinh",
        more="Constant",
        why=_NOT_KNOWN,
    ),
    Same("passes.fold_affine_into_norm.ROW_NORMS", where(row_norm=True)),
    Same("passes.fold_casts_into_norm.FoldCastsIntoNorm.ops", where(row_norm=True)),
    Same("passes.fuse_skip_norm.FuseSkipNorm.ops", where(row_norm=True)),
    Same(
        "passes.drop_zero_state.KEEP_ZERO",
        MOVES,
        less="Compress Concat DepthToSpace Flatten GatherElements GatherND ReverseSequence "
        "SpaceToDepth",
        more="Cast",
        why="Concat has several values; " + _NOT_KNOWN,
    ),
    Same(
        "passes.normalize_operands.COMMUTATIVE",
        where(commutative=True, inputs=(2, 2)),
        less="BitwiseAnd BitwiseOr BitwiseXor",
        why=_NOT_KNOWN,
    ),
    Same(
        "passes.normalize_operands.BINARY",
        where(broadcasts=True, inputs=(2, 2)),
        less="BitShift BitwiseAnd BitwiseOr BitwiseXor Mod PRelu",
        why="the slope of PRelu is a weight; " + _NOT_KNOWN,
    ),
    Same(
        "ops.attention.value_ranges.FIRST",
        MOVES,
        less="Compress Concat DepthToSpace ReverseSequence SpaceToDepth Split",
        why="Concat and Split have several values; " + _NOT_KNOWN,
    ),
    Same("precision.smooth._NORMS", where(row_norm=True)),
    Same("precision.products.QUANTIZED", where(access="quantize")),
    Same("precision.static._MOVED", RESHAPES, more="MaxPool Transpose", why="as tables of scales"),
    Same(
        "runtime.heavy.HEAVY",
        where(access=HEAVY) | where(domain=MS, access=HEAVY),
        less="PackedAttention",
        more="MoE",
        why="MoE is several products; PackedAttention was forgotten",
    ),
    Same("runtime.heavy.INTEGER", where(integer=True) | where(domain=MS, integer=True)),
    Same(
        "runtime.profiling.advice._MOVES",
        MOVES - GATHERS,
        less="Flatten ReverseSequence",
        more="Cast Pad",
        why=_NOT_KNOWN,
    ),
    Same("verify.inputs.guard_coverage._COMPARISONS", COMPARISONS),
    Same(
        "verify.inputs.input_semantics._COMPARISONS",
        COMPARISONS,
        more="And Not Or",
        why="they read flags",
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
    if name == "ops":
        module, _, holder = module.rpartition(".")
        found = getattr(import_module(f"ortkit.{module}"), holder).ops
    else:
        found = getattr(import_module(f"ortkit.{module}"), name)
    less, more = frozenset(same.less.split()), frozenset(same.more.split())
    assert less <= same.derived and not more & same.derived, "an exception is in vain"
    assert frozenset(found) == (same.derived - less) | more
    assert bool(same.why) == bool(less | more)


def test_parameters_are_those_of_views() -> None:
    from ortkit.fusion.regions.parameters import _PARAMETER_INPUTS

    for op_type in where(access="view") & VIEWS.keys():
        row = operator("", op_type)
        assert row is not None
        assert row.parameter_inputs == _PARAMETER_INPUTS.get(op_type, ())


def test_unknown_facts_are_errors() -> None:
    with pytest.raises(TypeError, match="no such fact: colour"):
        where(colour="green")


def test_all_that_is_asked_for_holds() -> None:
    assert where(access="control", inputs=(1, 1)) == {"If"}
    assert where(domain=MS, access={"conv", "rotary"}, integer=False) >= {"FusedConv"}
    row = operator("ai.onnx", "Where")
    assert row is not None and row.data_inputs == (1, 2)
    assert operator("com.example", "Add") is None
