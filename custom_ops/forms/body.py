"""Reading a region's body: who makes a value, and through which change of layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
from onnx import numpy_helper

from ortkit.kernels.prepack import Prepack
from ortkit.kernels.signature import RegionSignature, body_text, canonical_function

TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


@dataclass(frozen=True)
class Body:
    """The canonical body of a signature, by values."""

    signature: RegionSignature

    @cached_property
    def function(self) -> onnx.FunctionProto:
        """The body without names."""
        return canonical_function(self.signature.function())

    @cached_property
    def _producers(self) -> dict[str, onnx.NodeProto]:
        return {name: node for node in self.function.node for name in node.output if name}

    @cached_property
    def inputs(self) -> dict[str, int]:
        """The number of each input, by its name."""
        return {name: index for index, name in enumerate(self.function.input)}

    def nodes(self, op_type: str, domain: str = "") -> list[onnx.NodeProto]:
        """Return the nodes of one operator."""
        wanted = domain, op_type
        return [n for n in self.function.node if (n.domain, n.op_type) == wanted]

    def producer(self, name: str, op_type: str) -> onnx.NodeProto | None:
        """Return the node that makes `name` if it is of this operator."""
        node = self._producers.get(name)
        return node if node is not None and (node.domain, node.op_type) == ("", op_type) else None

    def maker(self, name: str) -> onnx.NodeProto | None:
        """Return the node that makes `name`; None for an input."""
        return self._producers.get(name)

    def computes(self, function: onnx.FunctionProto) -> bool:
        """Say whether a function of the same inputs has the same nodes and constants as the body.

        Constants may be written in other ways, and one may stand for several that are equal.
        """
        numbers: dict[object, int] = {}
        other = Body(replace(self.signature, body=body_text(function)))
        return self._numbered(numbers) == other._numbered(numbers)

    def _numbered(self, numbers: dict[object, int]) -> list[int]:
        """Return the numbers of the results: equal values of all bodies have one number."""
        known = {name: -1 - number for name, number in self.inputs.items()}
        for node in self.function.node:
            array, attributes = self.constant(node.output[0]), map(str, node.attribute)
            kind: tuple[object, ...] = (node.domain, node.op_type, *attributes)
            kind += tuple(known.get(name) for name in node.input)
            if array is not None:
                kind = (array.dtype, array.shape, array.tobytes())
            for index, name in enumerate(node.output):
                known[name] = numbers.setdefault((kind, index), len(numbers))
        return [known[name] for name in self.function.output]

    def constant(self, name: str) -> np.ndarray | None:
        """Return the data of a constant in the body."""
        node = self.producer(name, "Constant")
        if node is None:
            return None
        value = onnx.helper.get_attribute_value(node.attribute[0])
        if isinstance(value, onnx.TensorProto):
            return numpy_helper.to_array(value)
        return np.asarray(value, np.float32 if isinstance(value, float) else np.int64)

    def number(self, name: str) -> float | None:
        """Return a constant of one element; None if it is none."""
        array = self.constant(name)
        return float(array.reshape(())) if array is not None and array.size == 1 else None

    def between(self, start: str, end: str) -> list[onnx.NodeProto]:
        """Return the nodes that make `end` from `start`, in order.

        Neither constants nor Transposes, which are operands of theirs.
        """
        needed, pending = set(), [end]
        while pending:
            name = pending.pop()
            node = self._producers.get(name)
            if name == start or node is None or name in needed:
                continue
            if node.op_type not in ("Constant", "Transpose"):
                needed.add(name)
                pending += node.input
        return [node for node in self.function.node if needed & set(node.output)]

    def dependent(
        self, starts: Sequence[str], before: Sequence[onnx.NodeProto] = ()
    ) -> list[onnx.NodeProto]:
        """Return the nodes that read some values or what is made of them, in order.

        `before` are nodes that stand in front of the body's.
        """
        made, found = set(starts), []
        for node in (*before, *self.function.node):
            if made & set(node.input):
                made |= set(node.output)
                found.append(node)
        return found

    def axes(self, node: onnx.NodeProto) -> tuple[int, ...]:
        """Return the axes of a reduction, from its attribute or, since opset 18, its input."""
        if len(node.input) < 2:
            return integers(node, "axes", ())
        axes = self.constant(node.input[1])
        return () if axes is None else tuple(int(axis) for axis in axes.flat)

    def split_sizes(self, split: onnx.NodeProto, count: int) -> list[int] | None:
        """Return the sizes of the parts of a Split of `count`; None if they are not known."""
        if len(split.input) > 1 and split.input[1]:
            sizes_given = self.constant(split.input[1])
            sizes = [] if sizes_given is None else [int(size) for size in sizes_given.flat]
        else:
            each = -(-count // len(split.output))
            sizes = [each] * (len(split.output) - 1)
            sizes.append(count - sum(sizes))
        is_whole = len(sizes) == len(split.output) and sum(sizes) == count and min(sizes) >= 0
        return sizes if is_whole else None

    def transposed(self, name: str, *permutations: tuple[int, ...]) -> str | None:
        """Return what `name` is a Transpose of, by one of these permutations."""
        node = self.producer(name, "Transpose")
        if node is None or integers(node, "perm", ()) not in permutations:
            return None
        return str(node.input[0])

    def input_through(self, name: str, *permutations: tuple[int, ...] | None) -> int | None:
        """Return the number of the input that `name` is a Transpose of; None among them: is."""
        turned = [each for each in permutations if each is not None]
        source = self.transposed(name, *turned) if len(turned) == len(permutations) else name
        return None if source is None else self.inputs.get(source)

    def packed(self, name: str, layout: Prepack) -> int | None:
        """Return the number of the input that `name` is as a layout has it; None if it is not."""
        for op_type, numbers in reversed(layout.then):
            before = self._reshaped if op_type == "Reshape" else self.transposed
            if (found := before(name, numbers)) is None:
                return None
            name = found
        if layout.bounds:
            cut = self.producer(name, "Slice")
            if cut is None or not self._are(cut.input[1:], layout.bounds):
                return None
            name = cut.input[0]
        if layout.whole != layout.transposed:
            shaped = self._reshaped(name, layout.whole)
            if shaped is None:
                return None
            name = shaped
        source = self.transposed(name, layout.perm)
        cast = self.producer(source or "", "Cast") if layout.dtype else None
        if layout.dtype and (cast is None or integer(cast, "to", 0) != onnx.TensorProto.FLOAT):
            return None
        number = self.inputs.get(str(cast.input[0]) if cast is not None else source or "")
        if number is None:
            return None
        spec = self.signature.inputs[number]
        fits = spec.shape == layout.shape and layout.dtype in ("", spec.dtype)
        return number if fits else None

    def _reshaped(self, name: str, sizes: tuple[int, ...]) -> str | None:
        """Return what `name` is a Reshape of, to these sizes."""
        node = self.producer(name, "Reshape")
        if node is None or not self._are(node.input[1:], (sizes,)):
            return None
        return str(node.input[0])

    def _are(self, names: Sequence[str], wanted: Sequence[tuple[int, ...]]) -> bool:
        """Say whether values are constants of these numbers."""
        arrays = [self.constant(name) for name in names]
        return [None if array is None else tuple(array.flat) for array in arrays] == [*wanted]


def integers(node: onnx.NodeProto, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return an attribute that is a list of integers."""
    return next((tuple(each.ints) for each in node.attribute if each.name == name), default)


def integer(node: onnx.NodeProto, name: str, default: int) -> int:
    """Return an attribute that is an integer."""
    return next((int(each.i) for each in node.attribute if each.name == name), default)
