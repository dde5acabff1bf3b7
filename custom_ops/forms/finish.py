"""What follows a product whose results may be bfloat16: pointwise steps, and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from ortkit.kernels.signature import TensorSpec
from ortkit.refusal import Refused, needed, refusals

from .body import Body, integer
from .casts import BFLOAT16, wide_input
from .epilogue import Epilogue, Operand, Value, read_steps


@dataclass(frozen=True)
class Finish:
    """What is done to the sums, and which values of it are results.

    Args:
        epilogue: Its extras are inputs with one number a column, or of the results' shape.
        of_columns: Per extra whether it has one number a column.
        results: Per output the value it is.
    """

    epilogue: Epilogue
    of_columns: tuple[bool, ...]
    results: tuple[Value, ...]


@refusals
def read_finish(
    body: Body,
    start: str,
    shape: tuple[int | str, ...],
    before: Sequence[onnx.NodeProto] = (),
) -> Finish | Refused:
    """Read all nodes that depend on the product.

    Args:
        body: The region's.
        start: The product.
        shape: Of the results.
        before: Steps that the product's own operator takes, such as its bias.
    """
    nodes = body.dependent([start], before)
    made = {start, *(name for node in nodes for name in node.output)}
    extras: dict[str, int] = {}
    for node in nodes:
        for name in node.input:
            number = None if name in made or not name else wide_input(body, name)
            if number is not None:
                extras[name] = number
    kinds = [_is_of_columns(body.signature.inputs[extra], shape) for extra in extras.values()]
    if None in kinds:
        return Refused("an operand that has neither the result's shape nor one number a column")
    steps = [node for node in nodes if not _rounds(node)]
    known, epilogue = needed(read_steps(body, steps, start, extras))
    rounded = {node.output[0]: known.get(node.input[0]) for node in nodes if _rounds(node)}
    results = needed(_results(body, known, rounded, shape))
    of_columns = [_is_of_columns(body.signature.inputs[item], shape) for item in epilogue.extras]
    return Finish(epilogue, tuple(map(bool, of_columns)), results)


def _rounds(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and integer(node, "to", 0) == BFLOAT16


def _is_of_columns(spec: TensorSpec, shape: tuple[int | str, ...]) -> bool | None:
    """Say whether an operand has one number a column (True) or the result's shape (False)."""
    if spec.shape == shape:
        return False
    own = spec.shape[:-1]
    if not spec.shape or spec.shape[-1] != shape[-1] or len(own) >= len(shape):
        return None
    return True if all(size == 1 for size in own) else None


def _results(
    body: Body,
    known: Mapping[str, Operand],
    rounded: Mapping[str, Operand],
    shape: tuple[int | str, ...],
) -> tuple[Value, ...] | Refused:
    results: list[Value] = []
    for name, spec in zip(body.function.output, body.signature.outputs, strict=True):
        of = rounded if spec.dtype == "bfloat16" else known
        value = of.get(name)
        if not isinstance(value, Value) or name in body.inputs:
            return Refused("a result that is not made from the matrix product")
        if spec.dtype not in ("float32", "bfloat16") or spec.shape != shape:
            return Refused("a result of another shape or type than the matrix product has")
        results.append(value)
    return tuple(results)
