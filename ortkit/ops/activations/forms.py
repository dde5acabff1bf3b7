"""What an activation is written as: the nodes that are fastest on a target, as data.

Times are of ONNX Runtime 1.31.1 on an AVX-512 core, one thread, 512 Ki float32 elements (2026-11),
in units of one Add; each CUDA kernel reads and writes memory once and counts alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.ops.activations.reference import Match
from ortkit.targets.catalog import load
from ortkit.targets.target import Target

CONTRIB = "com.microsoft"
X = "x"
#: The input, the place of an earlier step, a number, or nothing.
Argument: TypeAlias = str | int | float | None


@dataclass(frozen=True)
class Step:
    """One node of a form."""

    op_type: str
    inputs: tuple[Argument, ...] = (X,)
    """`X`, an int for the result of that step, a float for a constant of the input's type."""
    attributes: Mapping[str, float | str] = field(default_factory=dict)
    domain: str = ""


Form: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True)
class Activations:
    """What activations are on one kind of target."""

    times: Mapping[str, float]
    """Of operators that do not take one Add."""
    dtypes: frozenset[ir.DataType]
    """What kernels take."""
    others: Mapping[str, frozenset[ir.DataType]]
    """What those of some take instead."""
    has_fast_softplus: bool
    """Also of double."""


#: What differs from one Add on CPU; none of Softplus, Elu and PRelu is vectorized.
_CPU_TIMES: Mapping[str, float] = {
    "Celu": 6, "Elu": 5, "Erf": 1.5, "FastGelu": 2, "Gelu": 1.8, "Greater": 0.8,
    "GreaterOrEqual": 0.8, "HardSwish": 2, "Less": 0.8, "LessOrEqual": 0.8, "Log": 5, "Mish": 33,
    "PRelu": 13, "Pow": 1.2, "QuickGelu": 2.2, "Relu": 0.9, "Selu": 5, "Softplus": 30,
    "Swish": 3.5, "Where": 3.3,
}  # fmt: skip
#: Mish and Swish have no kernel on CUDA: they run as their functions.
_CUDA_TIMES: Mapping[str, float] = {"Mish": 3, "Relu": 0.9, "Swish": 3}
#: Up to here a form counts as no slower than another: the noise of the table.
NEUTRAL = 1.1

_HALF_AND_FLOAT = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
_FLOATS = _HALF_AND_FLOAT | {ir.DataType.DOUBLE}
_GELUS = frozenset({"Gelu", "FastGelu", "QuickGelu"})
#: Composed of ops that have kernels of double on CPU, or such an op itself.
_CPU_DOUBLE = frozenset({"Clip", "Mish", "Sigmoid", "SquaredRelu", "Tanh"})
#: Half on CPU: the session puts casts around both the written ops and these.
ON_CPU = Activations(
    times=_CPU_TIMES,
    dtypes=_HALF_AND_FLOAT,
    others={
        **dict.fromkeys(_CPU_DOUBLE, _FLOATS),
        "Celu": frozenset({ir.DataType.FLOAT}),
    },
    has_fast_softplus=False,
)
ON_CUDA = Activations(
    times=_CUDA_TIMES,
    dtypes=_FLOATS,
    others={**dict.fromkeys(_GELUS, _FLOATS | {ir.DataType.BFLOAT16}), "Celu": frozenset()},
    has_fast_softplus=True,
)
#: Where e(e + 2), e = exp x, has no more to say: the ratio is 1 to the type's last bit, and
#: nothing overflows.
_MISH_CUT = {ir.DataType.FLOAT16: 5.0}


def form_of(
    match: Match, *, target: Target, level: int, opset: int, dtype: ir.DataType
) -> Form | str:
    """Return the nodes to write, or the reason why there are none on this target."""
    name, given = match.name, match.parameters
    there = _activations(target)
    if dtype not in there.others.get(name, there.dtypes):
        return f"no kernel of {name} on {target.kind} takes {dtype.name.lower()}"
    match name:
        case "Gelu" | "FastGelu":
            return (_gelu(name, opset),)
        case "QuickGelu":
            return (Step(name, attributes={"alpha": float(np.float32(given[0]))}, domain=CONTRIB),)
        case "Clip":
            return (_clip(given, opset),)
        case "SquaredRelu":
            return Step("Relu"), Step("Mul", (0, 0))
        case "HardSwish" if opset < 14:
            return _hard_sigmoid((1 / 6, 0.5)), Step("Mul", (0, X))
        case "HardSigmoid":
            return (_hard_sigmoid(given),)
        case "Mish":
            return _mish(there, level, opset, dtype)
        case "Selu":
            return (Step(name, attributes={"alpha": given[0], "gamma": given[1]}),)
        case "LeakyRelu" | "Elu" | "Celu" | "ThresholdedRelu":
            if opset < {"Celu": 12, "ThresholdedRelu": 10}.get(name, 0):
                return f"{name} is not in opset {opset}"
            return (Step(name, attributes={"alpha": given[0]}),)
    return (Step(name),)


def _activations(target: Target) -> Activations:
    found = load(target.traits.activations)
    assert isinstance(found, Activations)
    return found


def _gelu(name: str, opset: int) -> Step:
    if opset >= 20:
        return Step("Gelu", attributes={"approximate": "tanh"} if name == "FastGelu" else {})
    return Step(name, domain=CONTRIB)


def _clip(limits: tuple[float, ...], opset: int) -> Step:
    low, high = limits
    if (low, high) == (0, math.inf):
        return Step("Relu")
    # Not a Clip without a limit: that one would make the largest finite number of infinity.
    if high == math.inf:
        return Step("Max", (X, low))
    if low == -math.inf:
        return Step("Min", (X, high))
    if opset < 11:
        return Step("Clip", attributes={"min": low, "max": high})
    return Step("Clip", (X, low, high))


def _hard_sigmoid(given: tuple[float, ...]) -> Step:
    return Step("HardSigmoid", attributes={"alpha": given[0], "beta": given[1]})


def _mish(there: Activations, level: int, opset: int, dtype: ir.DataType) -> Form:
    """Return x * n / (n + 2) with n = e * (e + 2) and e = exp x, or the op.

    Source:
        tanh(log(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1).
    """
    # As its function it takes Softplus, which may have no double and be slow.
    takes_softplus = there.has_fast_softplus or (level >= 3 and dtype != ir.DataType.DOUBLE)
    if takes_softplus and opset >= 18:
        return (Step("Mish"),)
    if takes_softplus:
        return Step("Softplus"), Step("Tanh", (0,)), Step("Mul", (1, X))
    return (
        Step("Min", (X, _MISH_CUT.get(dtype, 20.0))),
        Step("Exp", (0,)),
        Step("Add", (1, 2.0)),
        Step("Mul", (1, 2)),
        Step("Add", (3, 2.0)),
        Step("Div", (3, 4)),
        Step("Mul", (X, 5)),
    )


def time_of(nodes: Iterable[ir.Node | Step], target: Target) -> float:
    """Return about how long `nodes` take, in units of one Add."""
    times = _activations(target).times
    total = 0.0
    for node in nodes:
        time = times.get(node.op_type, 1.0)
        total += 1.0 if node.op_type == "QuickGelu" and _alpha(node) == 1 else time
    return total


def _alpha(node: ir.Node | Step) -> float:
    alpha = node.attributes.get("alpha", 1.702)
    if isinstance(alpha, ir.Attr):
        return alpha.as_float()
    return float(alpha)


def pays(old: Iterable[ir.Node], new: Form, *, target: Target, level: int) -> bool:
    """Say whether `new` is worth writing in place of `old`.

    At level 3 that is fewer nodes, then less time; below, no more time and one of them less.
    """
    old = tuple(old)
    before, after = time_of(old, target), time_of(new, target)
    if len(new) < len(old):
        return level >= 3 or after <= NEUTRAL * before
    return after < before / NEUTRAL and (level < 3 or len(new) == len(old))
