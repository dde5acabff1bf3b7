"""A thin tape that writes an ONNX graph node by node, in the manner of a chosen exporter.

Values are names. The manner (`Spelling`) decides where constants live, how a dynamic size is
read and how things are called. What a layer is made of is decided in the layer's own file.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from models import naming

if TYPE_CHECKING:
    from collections.abc import Iterator

Size = Literal["tiny", "full"]
Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Attribute = (
    int | float | str | Sequence[int] | Sequence[float] | onnx.TensorProto | onnx.GraphProto
)


@dataclass(frozen=True)
class Spelling:
    """What one exporter does the same way in every model."""

    name: str
    opset: int
    ir_version: int
    producer: str
    has_constant_nodes: bool
    """Constants are nodes, one for each use; otherwise they are shared initializers."""
    shares_nodes: bool
    """Equal nodes on equal inputs are written once."""
    has_value_info: bool
    """Intermediate values carry their types and shapes."""


DYNAMO = Spelling("dynamo", 20, 10, "pytorch", False, True, True)
TS = Spelling("ts", 17, 8, "pytorch", True, False, False)
LEGACY = Spelling("legacy", 13, 7, "pytorch", True, False, False)
UNFUSED = Spelling("unfused", 17, 8, "pytorch", True, False, False)
UNFUSED_BIAS = Spelling("unfused-bias", 17, 8, "pytorch", True, False, False)
DYNAMO23 = Spelling("dynamo23", 23, 11, "pytorch", False, True, True)
KERAS = Spelling("keras", 15, 8, "tf2onnx", False, False, False)
ALL = {s.name: s for s in (DYNAMO, DYNAMO23, TS, LEGACY, UNFUSED, UNFUSED_BIAS, KERAS)}


@dataclass(frozen=True)
class Dim:
    """A size that is known only when the model runs, as the spelling holds it."""

    value: str
    is_scalar: bool
    """`value` has shape [] (it was gathered); otherwise [1] (it was sliced)."""


@dataclass
class Tape:
    """A graph under construction.

    Weights depend on the seed and on their own name only, so that every spelling of a model
    holds the same numbers.
    """

    name: str
    spelling: Spelling
    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    store: onnx.ModelProto = field(default_factory=onnx.ModelProto)
    """Where initializers are made, so that their bytes are not copied when the model is."""
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    _renamed: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[object, ...], tuple[str, ...]] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _scope: tuple[str, ...] = ()

    # ---- nodes ----

    def op(self, op_type: str, *inputs: str, **attributes: Attribute) -> str:
        """Write a node with one output and return the output's name."""
        return self.ops(op_type, *inputs, outputs=1, **attributes)[0]

    def ops(
        self, op_type: str, *inputs: str, outputs: int, **attributes: Attribute
    ) -> tuple[str, ...]:
        """Write a node and return the names of its outputs."""
        key: tuple[object, ...] = ()
        if self.spelling.shares_nodes:
            key = (op_type, inputs, outputs, *sorted(map(repr, attributes.items())))
            if key in self._known:
                return self._known[key]
        node_name, names = self._names(op_type, outputs)
        node = helper.make_node(op_type, list(inputs), list(names), name=node_name)
        node.attribute.extend(
            helper.make_attribute(attribute, value) for attribute, value in attributes.items()
        )
        self.nodes.append(node)
        if key:
            self._known[key] = names
        return names

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Give what is written inside the name of a submodule, such as "encoder.layer.0"."""
        outer = self._scope
        self._scope = (*outer, *naming.submodules(name))
        try:
            yield
        finally:
            self._scope = outer

    # ---- constants and weights ----

    def const(self, value: Array) -> str:
        """Write a constant tensor: a node or a shared initializer."""
        if self.spelling.has_constant_nodes:
            return self.op("Constant", value=numpy_helper.from_array(value))
        key = ("const", str(value.dtype), value.shape, value.tobytes())
        if key not in self._known:
            self._known[key] = (self._add_initializer(self._names("val", 1)[1][0], value),)
        return self._known[key][0]

    def ints(self, *values: int) -> str:
        """Write a 1-D int64 constant."""
        return self.const(np.array(values, np.int64))

    def scalar(self, value: float | bool) -> str:
        """Write a constant of shape []: bool, int64 or float32 after the Python type."""
        kind = np.bool_ if isinstance(value, bool) else np.int64
        return self.const(np.array(value, np.float32 if isinstance(value, float) else kind))

    def draw(
        self, name: str, *shape: int, scale: float | None = None, mean: float = 0.0
    ) -> FloatArray:
        """Draw float32 numbers from N(mean, scale²) that depend on the seed and `name`.

        Args:
            name: The parameter's name in the original module, such as "fc1.weight".
            shape: Its shape.
            scale: The standard deviation; by default 1/sqrt(shape[0]), for a [fan_in, ...]
                matrix that keeps the size of what it multiplies.
            mean: The mean.
        """
        random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        values = random.standard_normal(shape, dtype=np.float32)
        values *= np.float32(1 / math.sqrt(shape[0]) if scale is None else scale)
        if mean:
            values += np.float32(mean)
        return values

    def parameter(self, name: str, value: Array) -> str:
        """Write an initializer under its own name; the same name gives the same value."""
        if name in self.initializers:
            return name
        return self._add_initializer(name, value)

    def weight(self, name: str, *shape: int, scale: float | None = None, mean: float = 0.0) -> str:
        """Write a drawn parameter (see `draw`) under its own name."""
        if name in self.initializers:
            return name
        return self._add_initializer(name, self.draw(name, *shape, scale=scale, mean=mean))

    def folded_weight(self, op_type: str, value: Array) -> str:
        """Write a weight that the exporter has computed, such as a transposed matrix."""
        return self._add_initializer(
            naming.folded(self._counts, self.spelling.has_constant_nodes, op_type), value
        )

    # ---- sizes ----

    def dim(self, value: str, axis: int) -> Dim:
        """Read the size of one axis when the model runs."""
        if not self.spelling.has_constant_nodes:
            return Dim(self.op("Shape", value, start=axis, end=axis + 1), is_scalar=False)
        shape = self.op("Shape", value)
        return Dim(self.op("Gather", shape, self.scalar(axis), axis=0), is_scalar=True)

    def as_scalar(self, dim: Dim) -> str:
        """Return a size as a value of shape []."""
        return dim.value if dim.is_scalar else self.op("Squeeze", dim.value)

    def as_vector(self, dim: Dim) -> str:
        """Return a size as a value of shape [1]."""
        return self.unsqueeze(dim.value, 0) if dim.is_scalar else dim.value

    def shape(self, *dims: int | Dim) -> str:
        """Write a 1-D int64 shape out of constant and dynamic sizes."""
        known = [dim for dim in dims if not isinstance(dim, Dim)]
        if len(known) == len(dims):
            return self.ints(*known)
        parts = [self.as_vector(d) if isinstance(d, Dim) else self.ints(d) for d in dims]
        return self.op("Concat", *parts, axis=0)

    # ---- what every model needs ----

    def reshape(self, value: str, *dims: int | Dim) -> str:
        """Reshape; a size may be -1."""
        if self.spelling.has_constant_nodes:
            if self.spelling.opset < 14:
                return self.op("Reshape", value, self.shape(*dims))
            return self.op("Reshape", value, self.shape(*dims), allowzero=0)
        # torch.export writes the only unknown size as -1.
        if -1 not in dims and sum(isinstance(dim, Dim) for dim in dims) == 1:
            dims = tuple(-1 if isinstance(dim, Dim) else dim for dim in dims)
        return self.op("Reshape", value, self.shape(*dims), allowzero=1)

    def transpose(self, value: str, *perm: int) -> str:
        """Permute the axes."""
        return self.op("Transpose", value, perm=perm)

    def unsqueeze(self, value: str, *axes: int) -> str:
        """Insert axes of size 1."""
        return self.op("Unsqueeze", value, self.ints(*axes))

    def slice(self, value: str, start: str, end: str, axis: int) -> str:
        """Slice one axis with step 1; `start` and `end` are values of shape [1]."""
        return self.op("Slice", value, start, end, self.ints(axis), self.ints(1))

    def range(self, dim: Dim) -> str:
        """Count from 0 up to a size, in int64."""
        return self.op("Range", self.scalar(0), self.as_scalar(dim), self.scalar(1))

    def reduce_mean(self, value: str, *axes: int, keepdims: bool = True) -> str:
        """Average over axes, which are an input from opset 18 and an attribute before."""
        if self.spelling.opset >= 18:
            return self.op("ReduceMean", value, self.ints(*axes), keepdims=int(keepdims))
        return self.op("ReduceMean", value, axes=axes, keepdims=int(keepdims))

    # ---- graph ----

    def input(self, name: str, dtype: type[np.generic], *dims: int | str) -> str:
        """Declare a graph input; a string is a named dynamic size."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def output(self, value: str, name: str, dtype: type[np.generic], *dims: int | str) -> None:
        """Declare a graph output; the value takes the output's name."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.outputs.append(helper.make_tensor_value_info(name, kind, dims))
        self._renamed[value] = name

    def subgraph(self, name: str) -> Tape:
        """Start a subgraph: it may read every value of this tape.

        Its shared constants go to the outermost graph; constant nodes stay inside.
        """
        return Tape(
            name,
            self.spelling,
            self.seed,
            store=self.store,
            initializers=self.initializers,
            _known={k: v for k, v in self._known.items() if k[0] == "const"},
            _counts=self._counts,
            _scope=self._scope,
        )

    def graph(self) -> onnx.GraphProto:
        """Return what was written as a graph without initializers: a subgraph."""
        for node in self.nodes:
            naming.rename(node, self._renamed)
        return helper.make_graph(self.nodes, self.name, self.inputs, self.outputs)

    def model(self) -> onnx.ModelProto:
        """Return the finished model; the tape must not be used any more."""
        model = self.store
        model.ir_version = self.spelling.ir_version
        model.producer_name = self.spelling.producer
        model.opset_import.append(helper.make_opsetid("", self.spelling.opset))
        model.graph.MergeFrom(self.graph())
        if self.spelling.has_value_info:
            naming.add_value_info(model)
        return model

    # ---- private ----

    def _add_initializer(self, name: str, value: Array) -> str:
        tensor = self.store.graph.initializer.add()
        tensor.name = name
        tensor.data_type = helper.np_dtype_to_tensor_dtype(value.dtype)
        tensor.dims.extend(value.shape)
        tensor.raw_data = value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
        self.initializers[name] = tensor
        return name

    def _names(self, op_type: str, outputs: int) -> tuple[str, tuple[str, ...]]:
        if self.spelling.producer == "tf2onnx":
            return naming.keras(self._counts, self._scope, op_type, outputs)
        if self.spelling.has_constant_nodes:
            return naming.torchscript(self._counts, self._scope, op_type, outputs)
        return naming.dynamo(self._counts, op_type, outputs)
