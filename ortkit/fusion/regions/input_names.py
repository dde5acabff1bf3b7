"""What a region's inputs are called in its body: by what its nodes take them for."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortkit.fusion.regions.access import RESHAPES
from ortkit.fusion.regions.region import FusedRegion

_NORM = ("x", "scale", "bias")
_SKIP = ("x", "skip", "scale", "bias")
_ATTENTION = ("q", "k", "v", "mask", "past_k", "past_v")
#: Operator -> what its inputs are, where their places say it; empty: they say nothing.
_NAMES = {
    "Attention": _ATTENTION, "AveragePool": ("x",),
    "BatchNormalization": (*_NORM, "mean", "variance"), "Clip": ("x", "low", "high"),
    "Conv": ("x", "weight", "bias"), "ConvTranspose": ("x", "weight", "bias"),
    "GroupQueryAttention": ("q", "k", "v", "past_k", "past_v", "lengths", "total", "cos", "sin"),
    "MultiHeadAttention": ("q", "k", "v", "bias", "mask", "mask", "past_k", "past_v"),
    "Gather": ("table", "indices"), "Gemm": ("x", "weight", "bias"),
    "GroupNormalization": _NORM, "InstanceNormalization": _NORM, "LayerNormalization": _NORM,
    "PRelu": ("x", "slope"), "RMSNormalization": _NORM,
    "RotaryEmbedding": ("x", "cos", "sin"), "SimplifiedLayerNormalization": _NORM,
    "SkipLayerNormalization": _SKIP, "SkipSimplifiedLayerNormalization": _SKIP,
    "Where": ("condition", "x", "x"),
}  # fmt: skip
#: Of a bias and its like: what is added to, multiplied with or compared with is another value.
_PAIRED = {"Add": "bias", "Sub": "bias", "Mul": "factor", "Div": "divisor"}
_THROUGH = RESHAPES | {"Cast", "Transpose", "Identity", "Expand"}
_PLAIN = "x"


def input_names(region: FusedRegion) -> list[str]:
    """Return a name for each input, none twice: `q`, `weight`, `x`, `x_2`, ...

    They follow from the region's structure alone, so that regions with equal nodes in equal order
    get equal names.
    """
    softmax = _around_softmax(region.nodes)
    counts: dict[str, int] = {}
    names = []
    for value in region.inputs:
        name = _role(value, set(region.nodes), softmax)
        counts[name] = count = counts.get(name, 0) + 1
        names.append(name if count == 1 else f"{name}_{count}")
    return names


def _role(
    value: ir.Value, inside: set[ir.Node], softmax: tuple[set[ir.Node], set[ir.Node]]
) -> str:
    before, after = softmax
    is_constant = value.is_initializer()
    seen: set[ir.Value] = set()
    while value not in seen:
        seen.add(value)
        uses = [(node, index) for node, index in value.uses() if node in inside]
        node, index = next(iter(uses), (None, 0))
        if node is None:
            break
        if node.op_type == "MatMul" and node in before:
            return ("q", "k")[index]
        if node.op_type == "MatMul" and node in after and index == 1:
            return "v"
        if node in before and node.op_type in ("Add", "Where") and len(uses) == 1:
            return "mask"
        if node.op_type == "MatMul":
            return "weight" if index == 1 else _PLAIN
        if (names := _NAMES.get(node.op_type)) is not None:
            return names[index] if index < len(names) else _PLAIN
        if node.op_type in _PAIRED and is_constant:
            return _PAIRED[node.op_type]
        if node.op_type not in _THROUGH or index != 0:
            break
        value = node.outputs[0]
    return _PLAIN


def _around_softmax(nodes: Sequence[ir.Node]) -> tuple[set[ir.Node], set[ir.Node]]:
    """Return the nodes that a Softmax between two products depends on, and those behind it."""
    inside = set(nodes)
    before: set[ir.Node] = set()
    after: set[ir.Node] = set()
    for node in nodes:
        if node.op_type != "Softmax":
            continue
        _reach([node], before, inside, forward=False)
        _reach([node], after, inside, forward=True)
    products = [each for each in (before, after) if any(n.op_type == "MatMul" for n in each)]
    return (before, after) if len(products) == 2 else (set(), set())


def _reach(
    start: Sequence[ir.Node], found: set[ir.Node], inside: set[ir.Node], *, forward: bool
) -> None:
    todo = list(start)
    while todo:
        node = todo.pop()
        if forward:
            near = [user for value in node.outputs for user in value.consumers()]
        else:
            near = [made for value in node.inputs if value and (made := value.producer())]
        for each in near:
            if each in inside and each not in found:
                found.add(each)
                todo.append(each)
