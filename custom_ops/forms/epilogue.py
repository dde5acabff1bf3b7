"""The epilogue of a convolution, computed in registers: a chain of pointwise steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import onnx

from ortkit.kernels.region.ops import POINTWISE_OPS, Attributes
from ortkit.kernels.region.vectormath import factor
from ortkit.refusal import Refused, needed, refusals

from .body import TO_NCHW, Body

if TYPE_CHECKING:
    from ortkit.kernels.region.emitter import Emitter, Expr


@dataclass(frozen=True)
class Value:
    """Number 0 is the convolution's result, then come the extra inputs, then the steps."""

    index: int


Operand: TypeAlias = Value | float | None
#: Among the extras of an epilogue: the second half of a product's columns, and no input.
SECOND_HALF = -1


@dataclass(frozen=True)
class Step:
    """One operator; None among the operands is an absent optional input."""

    op_type: str
    operands: tuple[Operand, ...]
    attributes: Attributes


@dataclass(frozen=True)
class Epilogue:
    """The steps in order.

    Args:
        extras: Per further value the number of the region's input; all are of the result's shape.
            `SECOND_HALF` stands for columns of the product itself.
        steps: The last one's value is the result; none if there is no epilogue.
    """

    extras: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def flops(self) -> int:
        """The cost of one element in simple vector operations."""
        return sum(POINTWISE_OPS[step.op_type].flops for step in self.steps)

    @property
    def is_gated(self) -> bool:
        """Whether it reads the second half of the columns, beside the first one."""
        return SECOND_HALF in self.extras

    @property
    def picoseconds(self) -> int:
        """The time of one element: a simple vector operation takes 1/32 ns, on x86-64-v4."""
        return self.flops * 31

    def write(
        self, e: Emitter, result: Expr, extras: Sequence[Expr], *, is_fenced: bool = False
    ) -> Expr:
        """Emit all steps on the lanes of a vector loop and return the last one's value."""
        values = self.values(e, result, extras, is_fenced=is_fenced)
        return values[-1] if self.steps else values[0]

    def values(
        self,
        e: Emitter,
        result: Expr,
        extras: Sequence[Expr],
        kept: Collection[int] = (),
        *,
        is_fenced: bool = False,
    ) -> list[Expr]:
        """Emit all steps on the lanes of a vector loop and return each `Value`.

        Args:
            e: The emitter that writes the statements.
            result: The convolution's.
            extras: In the order of `self.extras`.
            kept: Values that are read in addition by steps; others may be missing from the list's
                places, whose value is then `result`.
            is_fenced: Whether products are rounded before they are added to, as ONNX Runtime's
                operators do one after the other.
        """
        values = [e.share(result), *(e.share(extra) for extra in extras)]
        for at in range(len(self.steps)):
            if len(values) not in kept and self._is_inside_silu(at):
                values.append(values[0])  # never read
                continue
            value = self._write_step(e, at, values)
            if is_fenced and self.steps[at].op_type == "Mul":
                value = e.fence(value)
            values.append(e.share(value))
        return values

    def _write_step(self, e: Emitter, at: int, values: Sequence[Expr]) -> Expr:
        step = self.steps[at]
        if (x := self._silu_of(at)) is not None:
            return POINTWISE_OPS["Swish"].write(e, {"alpha": 1.0}, [values[x.index]])
        operands = [
            operand if operand is None else self._operand(e, operand, values)
            for operand in step.operands
        ]
        return POINTWISE_OPS[step.op_type].write(e, step.attributes, operands)

    @staticmethod
    def _operand(e: Emitter, operand: Value | float, values: Sequence[Expr]) -> Expr:
        # Through `factor`: TVM makes x * 0 into 0, also where x is infinite or NaN.
        return values[operand.index] if isinstance(operand, Value) else factor(e, operand)

    def _silu_of(self, at: int) -> Value | None:
        """Return x if step `at` is x * Sigmoid(x) and nothing else reads that Sigmoid."""
        step, first = self.steps[at], 1 + len(self.extras)
        if step.op_type != "Mul":
            return None
        for x, gate in (step.operands, step.operands[::-1]):
            if not isinstance(x, Value) or not isinstance(gate, Value) or gate.index < first:
                continue
            made = self.steps[gate.index - first]
            if made.op_type == "Sigmoid" and made.operands == (x,) and self._reads(gate) == 1:
                return x
        return None

    def _is_inside_silu(self, at: int) -> bool:
        value = Value(1 + len(self.extras) + at)
        return self.steps[at].op_type == "Sigmoid" and any(
            self._silu_of(later) is not None and value in self.steps[later].operands
            for later in range(at + 1, len(self.steps))
        )

    def _reads(self, value: Value) -> int:
        return sum(step.operands.count(value) for step in self.steps)


@refusals
def read_epilogue(
    body: Body,
    start: str,
    end: str,
    dtype: str = "float32",
    permutation: tuple[int, ...] | None = TO_NCHW,
    images: Mapping[str, int] | None = None,
) -> Epilogue | Refused:
    """Return what lies between two values of the body, or why that is no epilogue.

    Args:
        body: The region's.
        start: The convolution's result.
        end: The region's result, in the same layout.
        dtype: Of all values.
        permutation: Of further operands, by a Transpose before they are read; None: none.
        images: Values that stand for the inputs that they are made of, by what these are.
    """
    images = images or {}
    nodes = [node for node in body.between(start, end) if node.output[0] not in images]
    made = {start, *images, *(name for node in nodes for name in node.output)}
    extras = {**images} | {
        name: number
        for node in nodes
        for name in node.input
        if name not in made and (number := body.input_through(name, permutation)) is not None
    }
    known, epilogue = needed(read_steps(body, nodes, start, extras, dtype))
    last = Value(len(epilogue.extras) + len(epilogue.steps)) if epilogue.steps else Value(0)
    if known.get(end) != last:
        return Refused("a result that is not the last step's")
    return epilogue


@refusals
def read_steps(
    body: Body,
    nodes: Sequence[onnx.NodeProto],
    start: str,
    extras: Mapping[str, int],
    dtype: str = "float32",
) -> tuple[dict[str, Operand], Epilogue] | Refused:
    """Return what each value of an epilogue is, and its steps.

    Args:
        body: The region's.
        nodes: The steps in order.
        start: What the first one reads.
        extras: The numbers of the inputs that further operands are.
        dtype: Of all values.
    """
    distinct = tuple(dict.fromkeys(extras.values()))
    known: dict[str, Operand] = {start: Value(0)}
    known |= {name: Value(1 + distinct.index(number)) for name, number in extras.items()}
    steps: list[Step] = []
    for node in nodes:
        steps.append(needed(read_step(body, node, known, dtype)))
        known[node.output[0]] = Value(len(distinct) + len(steps))
    return known, Epilogue(distinct, tuple(steps))


def read_step(
    body: Body, node: onnx.NodeProto, known: Mapping[str, Operand], dtype: str = "float32"
) -> Step | Refused:
    """Return a node of an epilogue, whose operands are `known` or scalar constants."""
    op = POINTWISE_OPS.get(node.op_type)
    if op is None or node.domain:
        return Refused(f"operator {node.op_type} in an epilogue")
    operands: list[Operand] = []
    for name in node.input:
        constant = body.constant(name) if name else None
        if name in known:
            operands.append(known[name])
        elif not name:
            operands.append(None)
        elif constant is not None and constant.size == 1 and constant.dtype.name == dtype:
            operands.append(float(constant.reshape(())))
        else:
            return Refused(f"{node.op_type} with an operand of another shape")
    if node.op_type == "Clip":
        operands += [None] * (3 - len(operands))
    attributes = dict(op.attributes)
    for each in node.attribute:
        value = onnx.helper.get_attribute_value(each)
        if each.name not in attributes:
            return Refused(f"{node.op_type} with attribute {each.name!r}")
        attributes[each.name] = value.decode() if isinstance(value, bytes) else value
    result = op.result([dtype for operand in operands if operand is not None], attributes)
    if result != dtype:
        return Refused(f"{node.op_type} with a result that is not {dtype}")
    return Step(node.op_type, tuple(operands), attributes)
