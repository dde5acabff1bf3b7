"""Writes small models node by node, in one of the manners in which exporters write them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.e2e.suites import run
from tests.spelling.manner import SIZES, Kind, Manner, size_of, values_of

Array = np.ndarray
Feeds = Mapping[str, np.ndarray]
Attribute = int | float | str | Sequence[int] | onnx.TensorProto

#: Reductions take their axes as an input from this opset on; ReduceSum since 13.
AXES_AS_INPUT = 18
#: Split takes the number of its outputs, and Shape a part of the axes, from these on.
SPLIT_WITH_COUNT = 18
SHAPE_WITH_PART = 15


@dataclass
class Writer:
    """A graph under construction; values are names."""

    manner: Manner
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[tuple[onnx.ValueInfoProto, Kind]] = field(default_factory=list)
    _count: int = 0

    @property
    def opset(self) -> int:
        """The version of the default domain."""
        return self.manner.opset

    # ---- values from outside ----

    def input(
        self,
        name: str,
        *dims: int | str,
        kind: Kind = "normal",
        dtype: type[np.generic] = np.float32,
    ) -> str:
        """Declare an input; text is one of the names of `SIZES`, or such a sum as `P+S`."""
        sizes = dims if self.manner.dynamic else [size_of(dim, SIZES[0]) for dim in dims]
        number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append((helper.make_tensor_value_info(name, number, sizes), kind))
        return name

    def number(self, value: float, dtype: type[np.generic] = np.float32) -> str:
        """Write one number."""
        shape = (1,) if self.manner.constants == "vector" else ()
        return self.array(np.full(shape, value, dtype))

    def ints(self, *values: int) -> str:
        """Write a 1-D int64 constant."""
        return self.array(np.array(values, np.int64))

    def array(self, value: Array) -> str:
        """Write a constant."""
        name = self._name("c")
        if self.manner.constants == "node":
            self.nodes.append(
                helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
            )
        else:
            self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, *shape: int, mean: float = 0.0, dtype: type[np.generic] = np.float32) -> str:
        """Write random numbers, which are always an initializer; N(0, 1 / rows) of a matrix."""
        name = self._name("w")
        random = np.random.default_rng(zlib.crc32(name.encode()))
        deviation = 0.3 if len(shape) == 1 else shape[0] ** -0.5
        values = (mean + deviation * random.standard_normal(shape)).astype(dtype)
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    # ---- nodes ----

    def op(self, op_type: str, *inputs: str, **attributes: Attribute) -> str:
        """Write a node with one output."""
        return self.ops(op_type, *inputs, outputs=1, **attributes)[0]

    def ops(
        self, op_type: str, *inputs: str, outputs: int, **attributes: Attribute
    ) -> tuple[str, ...]:
        """Write a node with several outputs."""
        names = tuple(self._name(op_type.lower()) for _ in range(outputs))
        node = helper.make_node(op_type, list(inputs), list(names))
        node.attribute.extend(helper.make_attribute(key, v) for key, v in attributes.items())
        self.nodes.append(node)
        return names

    def add(self, left: str, right: str) -> str:
        """Write a sum."""
        return self._commuting("Add", left, right)

    def mul(self, left: str, right: str) -> str:
        """Write a product."""
        return self._commuting("Mul", left, right)

    def sub(self, left: str, right: str) -> str:
        """Write a difference."""
        return self.op("Sub", left, right)

    def div(self, left: str, right: str) -> str:
        """Write a quotient."""
        return self.op("Div", left, right)

    def minimum(self, left: str, right: str) -> str:
        """Write the smaller of two."""
        return self._commuting("Min", left, right)

    def maximum(self, left: str, right: str) -> str:
        """Write the larger of two."""
        return self._commuting("Max", left, right)

    def linear(self, x: str, width: int, out: int, *, bias: bool = True) -> str:
        """Write x @ W + b over the last axis."""
        y = self.op("MatMul", x, self.weight(width, out))
        return self.add(y, self.weight(out)) if bias else y

    def reduce(self, op_type: str, x: str, *axes: int, keepdims: int = 1) -> str:
        """Write a reduction over axes."""
        if self.opset >= AXES_AS_INPUT or op_type == "ReduceSum":
            return self.op(op_type, x, self.ints(*axes), keepdims=keepdims)
        return self.op(op_type, x, axes=axes, keepdims=keepdims)

    def cast(self, x: str, dtype: type[np.generic]) -> str:
        """Write a Cast."""
        return self.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def clip(self, x: str, low: float | None, high: float | None) -> str:
        """Write a Clip."""
        ends = ["" if end is None else self._scalar(end) for end in (low, high)]
        return self.op("Clip", x, *(ends if ends[1] else ends[:1]))

    def split(self, x: str, axis: int, *sizes: int) -> tuple[str, ...]:
        """Write a Split: of equal parts without their sizes where the opset has that."""
        if len(set(sizes)) == 1 and self.opset >= SPLIT_WITH_COUNT:
            return self.ops("Split", x, outputs=len(sizes), axis=axis, num_outputs=len(sizes))
        return self.ops("Split", x, self.ints(*sizes), outputs=len(sizes), axis=axis)

    def slice(self, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Write a Slice of one axis."""
        return self.op(
            "Slice", x, self.ints(start), self.ints(end), self.ints(axis), self.ints(step)
        )

    def transpose(self, x: str, *perm: int) -> str:
        """Write a Transpose."""
        return self.op("Transpose", x, perm=perm)

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Insert axes of size one."""
        return self.op("Unsqueeze", x, self.ints(*axes))

    def squeeze(self, x: str, *axes: int) -> str:
        """Remove axes of size one."""
        return self.op("Squeeze", x, self.ints(*axes))

    def dim(self, x: str, axis: int) -> str:
        """Read one size, [1]."""
        if self.opset >= SHAPE_WITH_PART and self.manner.constants != "node":
            return self.op("Shape", x, start=axis, end=axis + 1)
        shape = self.op("Shape", x)
        scalar = self.op("Gather", shape, self.array(np.array(axis, np.int64)), axis=0)
        return self.unsqueeze(scalar, 0)

    def dim_scalar(self, x: str, axis: int) -> str:
        """Read one size, []."""
        return self.squeeze(self.dim(x, axis), 0)

    def sizes(self, *dims: int | str) -> str:
        """Write a shape of numbers and of sizes that were read."""
        known = [dim for dim in dims if isinstance(dim, int)]
        if len(known) == len(dims):
            return self.ints(*known)
        parts = [dim if isinstance(dim, str) else self.ints(dim) for dim in dims]
        return self.op("Concat", *parts, axis=0)

    def reshape(self, x: str, *dims: int | str) -> str:
        """Write a Reshape to numbers and sizes that were read."""
        return self.op("Reshape", x, self.sizes(*dims))

    # ---- the end ----

    def model(self, *results: str) -> onnx.ModelProto:
        """Return the finished model."""
        outputs = []
        for index, result in enumerate(results):
            last = "Sin" if self.manner.read else "Identity"
            name = f"y{index}" if index else "y"
            if last == "Identity":
                self._rename(result, name)
            else:
                self.nodes.append(helper.make_node(last, [result], [name]))
            outputs.append(name)
        graph = helper.make_graph(
            self.nodes, "g", [info for info, _ in self.inputs], [], self.initializers
        )
        imports = [helper.make_opsetid("", self.opset)]
        version = max(8, helper.find_min_ir_version_for(imports))
        model = helper.make_model(graph, opset_imports=imports, ir_version=version)
        model.graph.output.extend(self._declared(model, outputs))
        return model

    def _declared(
        self, model: onnx.ModelProto, names: Sequence[str]
    ) -> Sequence[onnx.ValueInfoProto]:
        """Return types and shapes of the outputs, as exporters declare them."""
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        types = {info.name: info for info in inferred.graph.value_info}
        found = [types.get(name) for name in names]
        known = [info for info in found if info and info.type.tensor_type.HasField("shape")]
        if len(known) == len(names):
            return known
        undeclared = onnx.ModelProto()
        undeclared.CopyFrom(model)
        undeclared.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        is_fixed = not self.manner.dynamic
        return [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(value.dtype),
                value.shape if is_fixed else [None] * value.ndim,
            )
            for name, value in zip(names, run(undeclared, self.feeds()[0]), strict=True)
            if isinstance(value, np.ndarray)
        ]

    def feeds(self) -> tuple[Feeds, Feeds]:
        """Return inputs of two sizes, or two sets of one size if the sizes are fixed."""
        first, second = SIZES if self.manner.dynamic else (SIZES[0], SIZES[0])
        return self._feeds(first, 1), self._feeds(second, 2)

    def _feeds(self, sizes: Mapping[str, int], seed: int) -> Feeds:
        random = np.random.default_rng(seed)
        found = {}
        for info, kind in self.inputs:
            tensor = info.type.tensor_type
            dims = [
                size_of(dim.dim_param, sizes) if dim.dim_param else dim.dim_value
                for dim in tensor.shape.dim
            ]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            found[info.name] = values_of(random, kind, dims).astype(dtype)
        return found

    # ---- private ----

    def _commuting(self, op_type: str, left: str, right: str) -> str:
        pair = (right, left) if self.manner.swapped else (left, right)
        return self.op(op_type, *pair)

    def _scalar(self, value: float) -> str:
        return self.array(np.array(value, np.float32))

    def _rename(self, old: str, new: str) -> None:
        for node in self.nodes:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name == old:
                        names[index] = new

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"
