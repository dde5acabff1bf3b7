"""What a kernel backend gets of a region: its body as ONNX text, its inputs and outputs.

The body is one ONNX function in text form, as `onnx.printer.to_text` writes a `FunctionProto` and
`onnx.parser.parse_function` reads it:

    <opset_import: ["" : 20]> bias_gelu (X, B) => (Y) { S = Add (X, B)  Y = Gelu (S) }

Its inputs and outputs are the signature's, by position; their names, the function's name and its
domain mean nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx
import onnx.parser
import onnx.printer

from ortkit.errors import InternalError
from ortkit.kernels.sizes import Extent, extent_of

DOMAIN = "ortkit.fused"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that enters or leaves a region.

    Args:
        name: For messages only.
        dtype: numpy's name of the element type, such as "float32" or "bool".
        shape: Sizes; a string names a size known at run time. Equal names are equal sizes.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class RegionSignature:
    """All that a backend may look at: equal signatures get the same kernel.

    Args:
        name: A readable word for the region, an identifier such as "bias_gelu".
        body: The region as an ONNX function in text form (see the module's docstring).
        inputs: The function's inputs, by position.
        outputs: The function's outputs, by position.
    """

    name: str
    body: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InternalError(f"region name {self.name!r} is no identifier")

    @cached_property
    def digest(self) -> str:
        """64 hex digits that depend on the meaning only, not on any name."""
        function = canonical_function(self.function())
        content = function.SerializeToString(deterministic=True)
        symbols: dict[str, str] = {}
        for tensor in (*self.inputs, *self.outputs):
            dims = [canonical_dim(dim, symbols) for dim in tensor.shape]
            content += f"\n{tensor.dtype}[{','.join(dims)}]".encode()
        return hashlib.sha256(content).hexdigest()

    @property
    def key(self) -> str:
        """The first twelve digits of `digest`."""
        return self.digest[:12]

    @property
    def op_type(self) -> str:
        """The fused node's op type in the domain `ortkit.fused`."""
        return f"{self.name}_{self.key}"

    def function(self) -> onnx.FunctionProto:
        """Return the body as the model-local function of the fused node.

        Raises:
            InternalError: The body does not parse, or does not fit the inputs and outputs.
        """
        try:
            function = onnx.parser.parse_function(self.body)
        except onnx.parser.ParseError as error:
            problem = f"the body of region {self.name!r} does not parse: {error}"
            raise InternalError(problem) from error
        if (len(function.input), len(function.output)) != (len(self.inputs), len(self.outputs)):
            raise InternalError(
                f"the body of region {self.name!r} has {len(function.input)} inputs and "
                f"{len(function.output)} outputs, its signature {len(self.inputs)} and "
                f"{len(self.outputs)}"
            )
        return function


def signature_of(
    name: str,
    nodes: Iterable[onnx.NodeProto],
    opset: int,
    inputs: Mapping[str, TensorSpec],
    outputs: Mapping[str, TensorSpec],
) -> RegionSignature:
    """Return the signature of a region whose body is written.

    Args:
        name: Of the region.
        nodes: The body's.
        opset: Of the default domain; others have version 1.
        inputs: By their names in the body.
        outputs: Likewise.
    """
    function = onnx.FunctionProto(name=name, domain=DOMAIN, input=[*inputs], output=[*outputs])
    function.node.extend(nodes)
    function.opset_import.add(domain="", version=opset)
    for domain in sorted({node.domain for node in function.node} - {""}):
        function.opset_import.add(domain=domain, version=1)
    return RegionSignature(name, body_text(function), (*inputs.values(),), (*outputs.values(),))


def by_key(
    signatures: Iterable[RegionSignature],
) -> tuple[dict[str, RegionSignature], dict[str, str]]:
    """Return signatures by their keys, without keys that different signatures share.

    Returns:
        The signatures, and for each shared key the reason why it gets no kernel. A key is 48 bits
        long: a model can be made so that two of its regions share one, and either kernel would
        run on tensors of the other's shapes.
    """
    found: dict[str, RegionSignature] = {}
    shared: dict[str, str] = {}
    for signature in signatures:
        if found.setdefault(signature.key, signature).digest != signature.digest:
            shared[signature.key] = f"another region has the key {signature.key}"
    return {key: item for key, item in found.items() if key not in shared}, shared


def body_text(function: onnx.FunctionProto) -> str:
    """Return `function` as the text that a signature holds.

    Raises:
        InternalError: The text form would lose something, such as digits of a constant.
    """
    text = onnx.printer.to_text(function)
    assert isinstance(text, str)
    again = onnx.parser.parse_function(text)
    if canonical_function(again) != canonical_function(function):
        raise InternalError(f"the text form of function {function.name!r} is not exact")
    return text


def canonical_function(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Return the same computation without names: what equal regions have in common.

    Values are numbered, nodes stand in the order in which the outputs need them (unneeded ones are
    left out), attributes in the order of their names, constants in one encoding.
    """
    result = onnx.FunctionProto()
    names = {name: f"i{index}" for index, name in enumerate(function.input)}
    result.input.extend(names.values())
    for opset in sorted(function.opset_import, key=lambda opset: opset.domain):
        result.opset_import.add(domain=opset.domain, version=opset.version)
    for node in _needed_nodes(function):
        for output in node.output:
            names[output] = f"v{len(names)}" if output else ""
        copy = result.node.add(op_type=node.op_type, domain=node.domain)
        copy.input.extend(names.get(name, "") for name in node.input)
        copy.output.extend(names[name] for name in node.output)
        for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
            copy.attribute.append(_canonical_attribute(attribute))
    result.output.extend(names.get(name, "") for name in function.output)
    return result


def _needed_nodes(function: onnx.FunctionProto) -> list[onnx.NodeProto]:
    """Return the nodes that the outputs need, in depth-first order from them."""
    producers = {name: node for node in function.node for name in node.output if name}
    ordered: list[onnx.NodeProto] = []
    seen: set[int] = set()
    stack = [(producers[name], False) for name in reversed(function.output) if name in producers]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            ordered.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            inputs = (producers[name] for name in reversed(node.input) if name in producers)
            stack += [(producer, False) for producer in inputs]
    return ordered


def _canonical_attribute(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    copy = onnx.AttributeProto()
    copy.CopyFrom(attribute)
    copy.ClearField("doc_string")
    if attribute.type == onnx.AttributeProto.TENSOR:
        copy.t.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(attribute.t)))
    return copy


def canonical_dim(dim: int | str, symbols: dict[str, str]) -> str:
    """Return a size with its names numbered, in the order in which kernels are given them."""
    if isinstance(dim, int):
        return str(dim)
    extent = extent_of(dim)
    names = (symbols.setdefault(symbol, f"s{len(symbols)}") for symbol in extent.symbols)
    return str(Extent(extent.factor, tuple(names)))
