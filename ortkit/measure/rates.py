"""What our kernels of heavy operators take on this machine, beside what their templates predict.

Templates predict times by rates of the processors that they were measured on; only the ratio to
ONNX Runtime's time decides. Here both run chains of one operator: what a chain takes longer than a
short one is free of what a run costs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortkit.kernels.anchor import Anchor, ProductSizes
from ortkit.kernels.conv_anchor import ConvAnchor, ConvSizes
from ortkit.kernels.prepack import Array, Prepack
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec
from ortkit.targets.catalog import load
from ortkit.targets.target import Target

#: Nodes of the short chain, of which the long one has more: at least `_LEAST_MORE`, and as many as
#: take `_LONGER_NS` in ONNX Runtime. A depthwise convolution takes 50 us, and the fixed cost of a
#: chain differs by as much between processes.
SHORT = 2
_LEAST_MORE, _LONGER_NS = 4, 1e6
#: By kind of convolution: the filters that stand for all, [M, C / groups, kh, kw], and how far
#: their taps are apart.
_FILTERS: Mapping[str, tuple[tuple[int, int, int, int], int]] = {
    "pointwise_conv": ((128, 128, 1, 1), 1),
    "winograd_conv": ((64, 64, 3, 3), 1),
    "conv": ((64, 64, 3, 3), 2),
    "depthwise_conv": ((256, 1, 3, 3), 1),
}
_SIDE = 28
#: Rows of products, and the sides of the matrix.
_ROWS, _COLUMNS = 128, 768
_FIRST, _LAST = (0, 3, 1, 2), (0, 2, 3, 1)
_OPSET, _IR_VERSION = 20, 10
_Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Heavy:
    """A heavy operator whose result is as large as what it reads, by both kernels.

    Args:
        kind: Of the template's anchor.
        shape: What it reads, as ONNX Runtime's operator does.
        is_image: Whether our kernel reads it with channels last.
        node: ONNX Runtime's operator, and its attributes.
        weight: Its constant, random.
        layout: How our kernel reads that.
        predicted: Nanoseconds, ONNX Runtime's and ours.
    """

    kind: str
    shape: _Shape
    is_image: bool
    node: tuple[str, Mapping[str, Any]]
    weight: Array
    layout: Prepack
    predicted: tuple[float, float]

    @property
    def long(self) -> int:
        """Nodes of the long chain."""
        return SHORT + max(_LEAST_MORE, ceil(_LONGER_NS / self.predicted[0]))

    @property
    def signature(self) -> RegionSignature:
        """The operator as a region."""
        steps: list[str] = []
        unpacked = self.layout.write("w", _writer(steps), _constants(steps))
        op, attributes = self.node
        given = ", ".join(f"{name} = {value}" for name, value in attributes.items())
        made = f"{op} <{given}>" if given else op
        if self.is_image:
            steps.append(f"first = Transpose <perm = {[*_FIRST]}> (x)")
            steps.append(f"made = {made} (first, {unpacked})")
            steps.append(f"y = Transpose <perm = {[*_LAST]}> (made)")
        else:
            steps.append(f"y = {made} (x, {unpacked})")
        text = f'<opset_import: ["" : {_OPSET}]> f (x, w) => (y) {{ {"  ".join(steps)} }}'
        shape = tuple(self.shape[axis] for axis in _LAST) if self.is_image else self.shape
        inputs = TensorSpec("x", "float32", shape), TensorSpec("w", "float32", self.layout.shape)
        return RegionSignature(self.kind, text, inputs, (TensorSpec("y", "float32", shape),))

    def chain(self, nodes: int, *, is_ours: bool) -> onnx.ModelProto:
        """Return the operator `nodes` times by either kernel, first on the one number `x0`."""
        op, attributes = self.node
        made, source = [helper.make_node("Expand", ["x0", "shape"], ["begin"])], "begin"
        if is_ours and self.is_image:
            made.append(helper.make_node("Transpose", [source], ["last"], perm=_LAST))
            source = "last"
        for number in range(nodes):
            names = [source, "w"], [source := f"x{number + 1}"]
            if is_ours:
                made.append(helper.make_node(self.signature.op_type, *names, domain=DOMAIN))
            else:
                made.append(helper.make_node(op, *names, **attributes))
        weight = np.ascontiguousarray(self.layout.pack(self.weight)) if is_ours else self.weight
        constants = {"w": weight, "shape": np.array(self.shape, np.int64)}
        given = helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1])
        result = helper.make_tensor_value_info(source, TensorProto.FLOAT, None)
        initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
        graph = helper.make_graph(made, "chain", [given], [result], initializers)
        imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)

    def factor(self, runtime_ns: float, ours_ns: float) -> float:
        """Return what ours take beside ONNX Runtime's, as a multiple of what is predicted."""
        before, after = self.predicted
        return ours_ns / runtime_ns * before / after


def heavy_operators(target: Target) -> Iterator[Heavy]:
    """Yield an operator for each template of a target's level whose times decide."""
    level, traits = target.resolved().level, target.traits
    for name in traits.families:
        anchor = load(name)
        if isinstance(anchor, Anchor) and _is_product(anchor) and level.startswith(anchor.level):
            yield from _product(anchor, level)
    for name in traits.conv_anchors:
        anchor = load(name)
        if isinstance(anchor, ConvAnchor) and anchor.kind in _FILTERS:
            yield from _convolution(anchor)


def _is_product(anchor: Anchor) -> bool:
    return anchor.dtype == "float32" and anchor.packed is not None and anchor.estimate is not None


def _product(anchor: Anchor, level: str) -> Iterator[Heavy]:
    assert anchor.packed is not None
    assert anchor.estimate is not None
    predicted = anchor.estimate(level, ProductSizes(_ROWS, _COLUMNS, _COLUMNS))
    if predicted is not None:
        layout, weight = (
            anchor.packed.layout(level, _COLUMNS, _COLUMNS),
            _random((_COLUMNS, _COLUMNS)),
        )
        shape = (_ROWS, _COLUMNS)
        yield Heavy(anchor.kind, shape, False, ("MatMul", {}), weight, layout, predicted)


def _convolution(anchor: ConvAnchor) -> Iterator[Heavy]:
    filters, separate_ns = _FILTERS[anchor.kind]
    columns, depth, side, _ = filters
    image, pad = (1, columns, _SIDE, _SIDE), separate_ns * (side // 2)
    groups = 1 if depth == columns else columns
    sizes = ConvSizes(
        image,
        image,
        filters,
        dilations=(separate_ns, separate_ns),
        pads=(pad, pad, pad, pad),
        groups=groups,
    )
    if anchor.estimate is None or anchor.layout is None or anchor.takes(sizes) is not True:
        return
    attributes = {
        "group": groups, "kernel_shape": [side, side], "pads": [pad] * 4,
        "dilations": [separate_ns, separate_ns],
    }  # fmt: skip
    yield Heavy(
        anchor.kind, image, True, ("Conv", attributes), _random(filters),
        anchor.layout(filters), anchor.estimate(sizes),
    )  # fmt: skip


def _random(shape: _Shape) -> Array:
    """Return weights that keep the size of what they are applied to."""
    depth = shape[0] if len(shape) == 2 else prod(shape[1:])
    scale = np.float32(depth**-0.5)
    return np.random.default_rng(0).standard_normal(shape, np.float32) * scale


def _writer(steps: list[str]) -> Callable[..., str]:
    def write(role: str, op: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> str:
        given = ", ".join(f"{name} = {value}" for name, value in attributes.items())
        name = f"{role}_w"
        steps.append(f"{name} = {op} <{given}> ({', '.join(inputs)})".replace(" <>", ""))
        return name

    return write


def _constants(steps: list[str]) -> Callable[[str, Sequence[int]], str]:
    def write(role: str, numbers: Sequence[int]) -> str:
        name = f"{role}_w"
        steps.append(f"{name} = Constant <value_ints = {[*numbers]}> ()")
        return name

    return write
