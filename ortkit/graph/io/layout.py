"""Which tensors go to a data file beside the model, and where in it they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir
from onnx import TensorProto

from ortkit.graph.check.tensors import bytes_of
from ortkit.graph.io.encode import Payload, header_of, span_of, write_tensor

# Smaller ones stay in the model: shapes and axes are read while the graph is loaded.
EXTERNAL_FROM_BYTES = 1024
# ONNX Runtime maps a tensor that starts at a page; the rest is aligned for vector loads.
_PAGE_BYTES = 4096
_PAGED_FROM_BYTES = 64 << 10
_ALIGNED_BYTES = 64


@dataclass
class DataLayout:
    """The content of one data file, tensor by tensor. Equal spans are stored once."""

    location: str = ""
    """The file's name, known when its content is; tensors are placed before."""
    size_bytes: int = 0
    offsets: list[tuple[ir.TensorProtocol, int]] = field(default_factory=list)
    _known: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def takes(self, tensor: ir.TensorProtocol) -> bool:
        """Say whether `tensor` belongs into the data file."""
        return tensor.dtype != ir.DataType.STRING and _size(tensor) >= EXTERNAL_FROM_BYTES

    def offset_of(self, tensor: ir.TensorProtocol) -> int:
        """Give `tensor` a place, if it has none, and return where it begins in the file."""
        size = _size(tensor)
        span = span_of(tensor)
        key = (id(tensor), 0, size) if span is None else (id(span.file), span.offset, size)
        if key not in self._known:
            unit = _PAGE_BYTES if size >= _PAGED_FROM_BYTES else _ALIGNED_BYTES
            offset = -(-self.size_bytes // unit) * unit
            self.offsets.append((tensor, offset))  # also keeps the ids in the keys alive
            self.size_bytes = offset + size
            self._known[key] = offset
        return self._known[key]

    def payload(self, tensor: ir.TensorProtocol, name: str) -> Payload:
        """Return what the model file says of a tensor that has a place."""
        header = header_of(tensor, name)
        self.refer(header, tensor)
        return Payload.whole(header)

    def refer(self, header: TensorProto, tensor: ir.TensorProtocol) -> None:
        """Write the place of `tensor` into `header`."""
        offset = self.offset_of(tensor)
        header.data_location = TensorProto.EXTERNAL
        del header.external_data[:]
        for key, value in (
            ("location", self.location),
            ("offset", str(offset)),
            ("length", str(_size(tensor))),
        ):
            header.external_data.add(key=key, value=value)

    def write(self, target: int) -> None:
        """Write the data file to descriptor `target`; see `Encoded.write`."""
        for tensor, offset in self.offsets:
            write_tensor(tensor, target, offset)


def nested_external(
    model: ir.Model, proto: onnx.ModelProto
) -> Iterator[tuple[ir.ExternalTensor, TensorProto]]:
    """Yield the external tensors inside nodes, with their counterparts in the serialized model."""
    yield from _of_nodes(model.graph, proto.graph)
    for function, written in zip(model.functions.values(), proto.functions, strict=True):
        yield from _of_nodes(function, written)


def inline(header: TensorProto, tensor: ir.TensorProtocol) -> None:
    """Put the bytes of `tensor` into `header`."""
    header.ClearField("external_data")
    header.ClearField("data_location")
    header.raw_data = tensor.tobytes()


def _of_nodes(
    body: ir.Graph | ir.Function, written: onnx.GraphProto | onnx.FunctionProto
) -> Iterator[tuple[ir.ExternalTensor, TensorProto]]:
    for node, node_proto in zip(body, written.node, strict=True):
        for attribute, proto in zip(node.attributes.values(), node_proto.attribute, strict=True):
            if not attribute.is_ref():
                yield from _of_attribute(attribute, proto)


def _of_attribute(
    attribute: ir.Attr, proto: onnx.AttributeProto
) -> Iterator[tuple[ir.ExternalTensor, TensorProto]]:
    kinds = ir.AttributeType
    if attribute.type == kinds.TENSOR:
        yield from _external([(attribute.as_tensor(), proto.t)])
    elif attribute.type == kinds.TENSORS:
        yield from _external(zip(attribute.as_tensors(), proto.tensors, strict=True))
    elif attribute.type == kinds.GRAPH:
        yield from _of_graph(attribute.as_graph(), proto.g)
    elif attribute.type == kinds.GRAPHS:
        for graph, written in zip(attribute.as_graphs(), proto.graphs, strict=True):
            yield from _of_graph(graph, written)


def _of_graph(
    graph: ir.Graph, written: onnx.GraphProto
) -> Iterator[tuple[ir.ExternalTensor, TensorProto]]:
    tensors = [v.const_value for v in graph.initializers.values() if v.const_value is not None]
    yield from _external(zip(tensors, written.initializer, strict=True))
    yield from _of_nodes(graph, written)


def _external(
    pairs: Iterable[tuple[ir.TensorProtocol, TensorProto]],
) -> Iterator[tuple[ir.ExternalTensor, TensorProto]]:
    for tensor, proto in pairs:
        if isinstance(tensor, ir.ExternalTensor):
            yield tensor, proto


def _size(tensor: ir.TensorProtocol) -> int:
    return bytes_of(tensor.dtype, tensor.size)
