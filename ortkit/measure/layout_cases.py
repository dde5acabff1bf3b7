"""The convolutions and products of a model, at the sizes that they have in a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from ortkit.operators import where
from ortkit.runtime.profiling.trace.events import NodeEvent, TensorShape

Attribute: TypeAlias = int | float | str | tuple[int, ...]
OPS = frozenset({"Conv", "Gemm", "MatMul"})
FLOATS = frozenset({"float32", "float16"})
_STANDARD = ("", "ai.onnx")
#: What a weight may go through on its way to the node and still be one.
_TRANSPARENT = where(keeps_all=True) | {"Cast"}
_DEPTH = 8


@dataclass(frozen=True)
class LayoutCase:
    """One operator at given sizes."""

    op: str
    nodes: tuple[str, ...]
    """The nodes that run it at these sizes; names in the graph without optimizations."""
    inputs: tuple[TensorShape, ...]
    constant: tuple[bool, ...]
    """Which inputs are weights."""
    attributes: tuple[tuple[str, Attribute], ...]
    share: float
    """Part of the run without optimizations that these nodes take, 0 to 1."""

    @property
    def dtype(self) -> str:
        """Of the data."""
        return self.inputs[0][0]

    @property
    def described(self) -> str:
        """Inputs and window on one line: `[1, 64, 56, 56] x [64, 64, 3, 3], stride 2`."""
        text = " x ".join(str(list(dims)) for _, dims in self.inputs[:2])
        given = dict(self.attributes)
        for name, plain in (("strides", 1), ("dilations", 1)):
            values = given.get(name)
            if isinstance(values, tuple) and any(value != plain for value in values):
                text += f", {name[:-1]} {'x'.join(map(str, dict.fromkeys(values)))}"
        if isinstance(group := given.get("group"), int) and group != 1:
            text += f", {group} groups"
        return text


def layout_cases(ran: Sequence[tuple[NodeEvent, ir.Node | None]]) -> tuple[LayoutCase, ...]:
    """Return the cases of some traced runs, the one that takes most time first.

    Args:
        ran: Calls of nodes, each with its node in the graph that ran.
    """
    total = sum(event.duration_us for event, _ in ran) or 1
    names: dict[tuple[object, ...], dict[str, None]] = {}
    elapsed: dict[tuple[object, ...], int] = {}
    for event, node in ran:
        if node is None or node.op_type not in OPS or node.domain not in _STANDARD:
            continue
        if len(event.inputs) < 2 or event.inputs[0][0] not in FLOATS:
            continue
        if any(0 in dims for _, dims in event.inputs):
            continue
        given = [value for value in node.inputs if value is not None]
        if len(given) != len(event.inputs):
            continue
        constant = tuple(_is_weight(value) for value in given)
        attributes = dict(_attributes(node))
        if node.op_type == "Conv":
            attributes = written_padding(attributes, event.inputs)
        key = (node.op_type, event.inputs, constant, tuple(sorted(attributes.items())))
        names.setdefault(key, {})[event.name] = None
        elapsed[key] = elapsed.get(key, 0) + event.duration_us
    cases = [
        LayoutCase(key[0], tuple(found), key[1], key[2], key[3], elapsed[key] / total)  # type: ignore[arg-type]
        for key, found in names.items()
    ]
    return tuple(sorted(cases, key=lambda layout_case: -layout_case.share))


def written_padding(
    attributes: Mapping[str, Attribute], inputs: Sequence[TensorShape]
) -> dict[str, Attribute]:
    """Return a Conv's attributes with its padding in numbers, not by a rule.

    Source: ONNX Conv, `auto_pad`.
    """
    rule = attributes.get("auto_pad", "NOTSET")
    rest = {name: value for name, value in attributes.items() if name != "auto_pad"}
    sizes, kernel = inputs[0][1][2:], inputs[1][1][2:]
    if rule in ("NOTSET", "VALID"):
        return rest if rule == "NOTSET" else {**rest, "pads": (0,) * (2 * len(sizes))}
    begins, ends = [], []
    for axis, size in enumerate(sizes):
        stride, dilation = (_entry(rest, name, axis) for name in ("strides", "dilations"))
        reach = dilation * (kernel[axis] - 1) + 1
        total = max(0, (-(-size // stride) - 1) * stride + reach - size)
        smaller = total // 2
        begins.append(smaller if rule == "SAME_UPPER" else total - smaller)
        ends.append(total - begins[-1])
    return {**rest, "pads": (*begins, *ends)}


def _entry(attributes: Mapping[str, Attribute], name: str, axis: int) -> int:
    values = attributes.get(name)
    return values[axis] if isinstance(values, tuple) else 1


def _is_weight(value: ir.Value, depth: int = _DEPTH) -> bool:
    if value.const_value is not None:
        return True
    node = value.producer()
    if node is None or depth == 0:
        return False
    if node.op_type == "Constant":
        return True
    if node.op_type not in _TRANSPARENT:
        return False
    return all(_is_weight(value, depth - 1) for value in node.inputs if value is not None)


def _attributes(node: ir.Node) -> Iterator[tuple[str, Attribute]]:
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.INT:
            yield name, attribute.as_int()
        elif attribute.type == ir.AttributeType.INTS:
            yield name, tuple(attribute.as_ints())
        elif attribute.type == ir.AttributeType.FLOAT:
            yield name, attribute.as_float()
        elif attribute.type == ir.AttributeType.STRING:
            yield name, attribute.as_string()
