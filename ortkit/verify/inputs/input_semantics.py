"""What an input's numbers mean, read off the nodes that consume them and off its name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.operators import where

Meaning: TypeAlias = Literal[
    "free", "index", "mask", "additive mask", "position", "length", "target shape", "ones",
    "axes", "start", "divisor", "trips", "iterations", "corners", "unit",
    "positive", "narrow", "at least one", "total length", "last key", "counted mask",
]  # fmt: skip
#: What masks of keys mean.
MASKS: tuple[Meaning, ...] = ("mask", "additive mask", "counted mask")
Bound: TypeAlias = int | str
"""A size: a number, or the name or expression of a dynamic one."""


@dataclass(frozen=True)
class InputUse:
    """What an input means, and below what its values must stay (empty: not known)."""

    meaning: Meaning = "free"
    bounds: tuple[Bound, ...] = ()
    shift: int = 0  # a constant that is added before the values are used as indices
    counts_back: bool = False
    """Whether negative indices count from the end, wherever the values are used."""
    is_counted_with: bool = False
    """Whether integers are no size, index or choice: only what is computed of them comes out."""

    ignored: int | None = None
    """An index that a loss leaves out, whatever its bounds."""

    @property
    def takes_negative(self) -> bool:
        """Whether indices may be negative, as far as their smallest is known."""
        return (
            self.meaning == "index" and self.counts_back and bool(self.bounds) and not self.shift
        )


#: Ops that hand a value on, with the inputs for which they do: it may change its shape or type.
_CARRIERS: dict[str, tuple[int, ...]] = {
    "Identity": (0,), "Cast": (0,), "CastLike": (0,), "Reshape": (0,), "Unsqueeze": (0,),
    "Squeeze": (0,), "Flatten": (0,), "Transpose": (0,), "Expand": (0,), "Slice": (0,),
    "Split": (0,), "Tile": (0,), "Where": (1, 2), "Clip": (0,), "Abs": (0,),
    "Concat": tuple(range(64)), "Add": (0, 1), "Max": (0, 1), "Min": (0, 1), "Dropout": (0,),
    "GatherElements": (0,), "Pad": (0,), "OptionalGetElement": (0,),
}  # fmt: skip
#: Those through which floats are followed: what is computed from a float has another meaning.
_RESHAPERS = (where(keeps_all=True) - {"Concat"}) | {"Cast"}

#: op: (input that holds indices, input that is indexed, attribute with the axis, its default)
_INDEXED: dict[str, tuple[tuple[int, int, str, int], ...]] = {
    "Gather": ((1, 0, "axis", 0),),
    "GatherElements": ((1, 0, "axis", 0),),
    "ScatterElements": ((1, 0, "axis", 0),),
    "GatherBlockQuantized": ((1, 0, "gather_axis", 0),),
    "GatherND": ((1, 0, "batch_dims", 0),),
    "ScatterND": ((1, 0, "", 0),),
    "RoiAlign": ((2, 0, "", 0),),
    "ArrayFeatureExtractor": ((1, 0, "", -1),),
    "SoftmaxCrossEntropyLoss": ((1, 0, "", 1),),
    "NegativeLogLikelihoodLoss": ((1, 0, "", 1),),
    "EmbedLayerNormalization": ((0, 2, "", 0), (1, 4, "", 0), (8, 3, "", 0)),
    "TensorScatter": ((2, 0, "axis", -2),),
}
#: Those of ONNX's own whose index -1 is the last one.
_COUNTING_BACK = frozenset(
    {"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"}
)
#: The two ops of one name take their inputs in different orders, so the domain decides.
_ROTARY = {"": (3, 1, "", 0), "com.microsoft": (1, 2, "", 0)}

#: (op, input): what the values must be for the node to run at all, or to give finite numbers.
_MEANINGS: dict[tuple[str, int], Meaning] = {
    ("Reshape", 1): "target shape", ("Expand", 1): "ones", ("Tile", 1): "ones",
    ("ConstantOfShape", 0): "ones", ("Slice", 1): "start", ("Slice", 2): "trips",
    ("Slice", 3): "axes", ("Slice", 4): "ones", ("Pad", 1): "start", ("TopK", 1): "ones",
    ("Unsqueeze", 1): "axes", ("CumSum", 1): "axes", ("Loop", 0): "iterations",
    ("Range", 0): "start", ("Range", 1): "trips", ("Range", 2): "ones", ("OneHot", 1): "trips",
    ("Resize", 2): "ones", ("Resize", 3): "ones", ("Upsample", 1): "ones",
    ("ReduceSum", 1): "axes", ("ReduceMean", 1): "axes", ("ReduceMax", 1): "axes",
    ("ReduceMin", 1): "axes", ("ReduceProd", 1): "axes", ("ReduceL1", 1): "axes",
    ("ReduceL2", 1): "axes", ("ReduceSumSquare", 1): "axes", ("ReduceLogSum", 1): "axes",
    ("ReduceLogSumExp", 1): "axes", ("CumProd", 1): "axes", ("DFT", 2): "axes", ("Pad", 3): "axes",
    ("Dropout", 1): "unit", ("SequenceAt", 1): "start", ("Trilu", 1): "start",
    ("Attention", 6): "length",
    ("GroupQueryAttention", 5): "last key", ("GroupQueryAttention", 6): "total length",
    ("NonMaxSuppression", 0): "corners", ("NonMaxSuppression", 1): "unit",
    ("NonMaxSuppression", 2): "trips", ("NonMaxSuppression", 3): "unit",
    ("NonMaxSuppression", 4): "unit", ("RoiAlign", 1): "corners",
    ("Div", 1): "divisor", ("Mod", 1): "divisor", ("Reciprocal", 0): "divisor",
    ("Log", 0): "positive", ("Sqrt", 0): "positive",
    ("Bernoulli", 0): "unit", ("Acos", 0): "narrow", ("Asin", 0): "narrow",
    ("Atanh", 0): "narrow", ("Acosh", 0): "at least one", ("BatchNormalization", 4): "positive",
}  # fmt: skip
#: (op, input) of lengths: the attribute that names the time axis of input 0, and its default.
#: `layout` is that axis too: 0 is [time, batch, d], 1 is [batch, time, d].
_TIMED: dict[tuple[str, int], tuple[str, int]] = {
    ("LSTM", 4): ("layout", 0), ("GRU", 4): ("layout", 0), ("RNN", 4): ("layout", 0),
    ("ReverseSequence", 1): ("time_axis", 0),
}  # fmt: skip
#: Numbers of keys by row, and what leads from a mask to them.
_COUNTS = frozenset({("GroupQueryAttention", 5), ("Attention", 6)})
_COUNTING = frozenset({"Add", "Cast", "Identity", "ReduceSum", "Reshape", "Squeeze", "Sub"})
_COMPARISONS = where(access="elementwise", dtype="bool", broadcasts=True) | {"And", "Not", "Or"}
_FLOATS_BY_MEANING = ("unit", "positive", "narrow", "at least one", "divisor", "corners", "ones")


def input_use(value: ir.Value, model: ir.Model) -> InputUse:
    """Work out what a graph input means.

    Indices are followed through casts and reshapes, into the bodies of If, Loop and Scan and
    into functions, to the axis that they index.
    """
    if _is_counted(value):
        return InputUse("counted mask")
    found = list(_uses(value, model))
    indexed = [use for use in found if use.meaning == "index"]
    named = _by_name(value)
    if indexed:
        use = InputUse(
            "index",
            tuple(bound for each in indexed for bound in each.bounds),
            max(each.shift for each in indexed),
            all(each.counts_back for each in found),
            ignored=next((each.ignored for each in indexed if each.ignored is not None), None),
        )
        return replace(use, meaning=named) if named in ("position", "length") else use
    for each in found:
        if each.meaning != "mask":
            return each
    if named == "mask" and is_float(value):
        return InputUse("mask" if found else "additive mask")
    if named is not None:
        return InputUse(named)
    if found and _rank(value) >= 2:
        return InputUse("mask")
    return InputUse(is_counted_with=not is_float(value) and _is_counted_with(value))


def _is_counted_with(value: ir.Value) -> bool:
    """Say whether integers are only computed with: any of them is one that the model takes."""
    waiting, seen = [value], {value}
    while waiting:
        current = waiting.pop()
        for node, index in current.uses():
            if node.domain or node.op_type not in _ARITHMETIC:
                return False
            if index and node.op_type in _MOVES | _REDUCTIONS and node.op_type != "Concat":
                return False
            is_bounded = node.op_type == "Mod" and not index and _is_one_number(node.inputs[1])
            if is_bounded or node.op_type in _COMPARISONS:
                continue
            new = [each for each in node.outputs if not is_float(each) and each not in seen]
            seen.update(new)
            waiting += new
    return True


_MOVES = where(moves_only=True)
_REDUCTIONS = frozenset({"ReduceMax", "ReduceMin", "ReduceSum"})
_ARITHMETIC = where(access="elementwise") | _MOVES | _REDUCTIONS | {"Cast"}


def _is_one_number(value: ir.Value | None) -> bool:
    array = constant_array(value, limit=1) if value is not None else None
    return array is not None and array.size == 1


def _is_counted(value: ir.Value) -> bool:
    """Say whether the ones of a mask are counted, and attention reads the numbers."""
    waiting = [(value, False)]
    seen: set[tuple[ir.Value, bool]] = set()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for node, index in current[0].uses():
            if current[1] and (node.op_type, index) in _COUNTS:
                return True
            if index == 0 and node.op_type in _COUNTING:
                counted = current[1] or node.op_type == "ReduceSum"
                waiting += [(each, counted) for each in node.outputs]
    return False


def _by_name(value: ir.Value) -> Meaning | None:
    """Return what the input's name says; names are how exporters pass such meanings on."""
    name = (value.name or "").lower()
    if "mask" in name:
        return "mask"
    if is_float(value) or value.dtype == ir.DataType.BOOL:
        return None
    if "position" in name or re.search(r"(^|_)pos(_|$)", name):
        return "position"
    if re.search(r"token_type|segment", name):
        return "mask"
    return "length" if re.search(r"lengths?$|_lens?$|seqlen", name) else None


def _uses(value: ir.Value, model: ir.Model) -> Iterator[InputUse]:
    """Follow a value to the nodes that give its numbers a meaning."""
    waiting = [(value, 0)]
    seen: set[ir.Value] = set()
    arguments: dict[ir.Value, ir.Value | None] = {}  # what stands for a body's inputs
    while waiting:
        current, shift = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for node, index in current.uses():
            use = _use(node, index, value, arguments)
            if use is not None:
                yield replace(use, shift=shift) if use.meaning == "index" else use
            if is_float(value) and node.op_type not in _RESHAPERS:
                continue
            more = shift + _added(node, index)
            parameters = _parameters(node, model)
            arguments.update(zip(parameters, node.inputs, strict=False))
            waiting += [(each, more) for each in parameters[index : index + 1]]
            if index in _CARRIERS.get(node.op_type, ()) and not parameters:
                waiting += [(each, more) for each in node.outputs]


def _use(
    node: ir.Node,
    index: int,
    source: ir.Value,
    arguments: Mapping[ir.Value, ir.Value | None],
) -> InputUse | None:
    """Return what one use says about the values of `source`."""
    rows = _INDEXED.get(node.op_type, ())
    if node.op_type == "RotaryEmbedding" and node.domain in _ROTARY:
        rows = (_ROTARY[node.domain],)
    for indices, data, attribute, default in rows:
        if index == indices:
            axis = node.attributes.get_int(attribute, default) if attribute else default
            counts_back = not node.domain and node.op_type in _COUNTING_BACK
            size = _axis_size(node.inputs[data], axis, arguments)
            ignores = "ignore_index" in node.attributes
            ignored = node.attributes.get_int("ignore_index", 0) if ignores else None
            return InputUse("index", size, counts_back=counts_back, ignored=ignored)
    if node.op_type == "OneHot" and index == 0:
        return InputUse("index", _constant_bound(node.inputs[1]), counts_back=True)
    if (node.op_type, index) in _TIMED:
        attribute, default = _TIMED[node.op_type, index]
        axis = node.attributes.get_int(attribute, default) if attribute else default
        return InputUse("length", _axis_size(node.inputs[0], axis, arguments))
    is_compared = node.op_type in _COMPARISONS and _rank(source) >= 2 and _asks_flags(node, index)
    is_cast = node.op_type == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.BOOL
    is_complement = node.op_type == "Sub" and index == 1 and _is_one(node.inputs[0])
    is_chosen = node.op_type == "Where" and index == 0
    if (is_compared and not is_float(source)) or is_cast or is_complement or is_chosen:
        return InputUse("mask")
    meaning = _MEANINGS.get((node.op_type, index))
    if meaning is None or (is_float(source) and meaning not in _FLOATS_BY_MEANING):
        return None
    return InputUse(meaning)


def _parameters(node: ir.Node, model: ir.Model) -> tuple[ir.Value, ...]:
    """Return the values that stand for a node's inputs in the function or body it runs."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return tuple(function.inputs)
    if node.op_type in ("Loop", "Scan") and node.domain == "" and "body" in node.attributes:
        # Loop gives its body the iteration number and the condition first, as its own inputs
        # are the trip count and the condition; Scan's inputs stand one for one.
        return tuple(node.attributes["body"].as_graph().inputs)
    return ()


def _added(node: ir.Node, index: int) -> int:
    """Return the largest constant that an Add adds: position tables often start at two."""
    if node.op_type != "Add" or len(node.inputs) != 2:
        return 0
    other = node.inputs[1 - index]
    array = constant_array(other, limit=4096) if other is not None else None
    if array is None or array.dtype.kind not in "iu" or array.size == 0:
        return 0
    return max(0, int(array.max()))


#: Operators whose result has the shape of their first input.
_KEEPING_SHAPE = where(access="elementwise", broadcasts=False) | {
    "BatchNormalization", "Cast", "DequantizeLinear", "Identity", "LayerNormalization", "Softmax",
}  # fmt: skip


def _axis_size(
    value: ir.Value | None, axis: int, arguments: Mapping[ir.Value, ir.Value | None]
) -> tuple[Bound, ...]:
    """Return the size of an axis, looked up through nodes that keep the shape."""
    while value is not None:
        constant = value.const_value
        shape = value.shape if constant is None else constant.shape
        if shape is not None and -len(shape) <= axis < len(shape):
            size = shape[axis]
            if isinstance(size, int):
                return (size,)
            return (size.value,) if size.value else ()
        if value in arguments:
            value = arguments[value]
            continue
        node = value.producer()
        if node is None or node.op_type not in _KEEPING_SHAPE or not node.inputs:
            return ()
        value = node.inputs[0]
    return ()


def _constant_bound(value: ir.Value | None) -> tuple[Bound, ...]:
    array = constant_array(value, limit=1) if value is not None else None
    return (int(array.reshape(-1)[0]),) if array is not None and array.size == 1 else ()


def _asks_flags(node: ir.Node, index: int) -> bool:
    """Say whether a comparison is with no constant but 0 and 1, as far as that is known."""
    given = (value for at, value in enumerate(node.inputs) if at != index and value is not None)
    arrays = (constant_array(value, limit=4096) for value in given)
    return all(array is None or bool(np.isin(array, (0, 1)).all()) for array in arrays)


def _is_one(value: ir.Value | None) -> bool:
    array = constant_array(value, limit=1) if value is not None else None
    return array is not None and array.size == 1 and bool(np.all(array == 1))


def is_float(value: ir.Value) -> bool:
    """Say whether a value's elements are floats."""
    return value.dtype is not None and value.dtype.is_floating_point()


def _rank(value: ir.Value) -> int:
    return len(value.shape) if value.shape is not None else 0
