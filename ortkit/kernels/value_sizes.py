"""Sizes of outputs that the value of an input tells: caches that grow where they have to."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of

# Of GroupQueryAttention: inputs with the caches before, outputs with them, and the input that says
# how many rows they have at least; they have their rows along this axis.
_CACHES, _TOTAL, _ROWS = ((3, 1), (4, 2)), 6, 2


@dataclass(frozen=True)
class ValueSize:
    """A size that is the larger of another one and of a number.

    Args:
        symbol: What it is called.
        least: The other size.
        tensor: The input, an int32, that is the number.
    """

    symbol: str
    least: Extent
    tensor: int


def value_sizes(signature: RegionSignature) -> tuple[ValueSize, ...]:
    """Return the sizes of a region's outputs that follow from a value, each once."""
    if "GroupQueryAttention" not in signature.body:
        return ()
    function = signature.function()
    found: dict[str, ValueSize] = {}
    for node in function.node:
        if (node.domain, node.op_type) == ("com.microsoft", "GroupQueryAttention"):
            found |= {
                value_size.symbol: value_size
                for value_size in _of_caches(signature, function, node)
            }
    return tuple(found.values())


def _of_caches(
    signature: RegionSignature, function: onnx.FunctionProto, node: onnx.NodeProto
) -> list[ValueSize]:
    inputs = {name: number for number, name in enumerate(function.input)}
    outputs = {name: number for number, name in enumerate(function.output)}
    names = [*node.input, *[""] * (_TOTAL + 1)]
    total = inputs.get(names[_TOTAL])
    if total is None or not _is_number(signature, total):
        return []
    found = []
    for index, result in _CACHES:
        past = inputs.get(names[index])
        made = outputs.get([*node.output, "", ""][result])
        if past is None or made is None:
            continue
        before, after = signature.inputs[past].shape, signature.outputs[made].shape
        if len(before) != len(after) or len(after) <= _ROWS:
            continue
        symbol = extent_of(after[_ROWS])
        if symbol.factor == 1 and len(symbol.symbols) == 1:
            found.append(ValueSize(symbol.symbols[0], extent_of(before[_ROWS]), total))
    return found


def _is_number(signature: RegionSignature, index: int) -> bool:
    spec = signature.inputs[index]
    return spec.dtype == "int32" and spec.shape in ((), (1,))
