"""Reading attention of packed rows: rows are put in their places, attended to and taken again.

    y = Gather(attention(Gather(q, places), ..., mask), indices)

Without the Gathers the body is an attention, which `read_attention` reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx

from ortkit.kernels.signature import RegionSignature, body_text
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.refusal import Refused

from .attention import read_attention
from .attention_cuda import AttentionForm
from .body import Body

_SIZES = ("int64",)


@dataclass(frozen=True)
class PackedForm:
    """An attention of packed rows.

    Args:
        form: Of samples of equal length; tensors are numbers of `inner`, see `tensor`.
        tensors: The region's number of each tensor of the form, the result's last.
        positions: The input [samples, length]: the row of each position.
        indices: The input [1, rows]: the position of each row, counted through all samples.
        rows: How many there are.
    """

    form: AttentionForm
    tensors: tuple[int, ...]
    positions: int
    indices: int
    rows: Extent

    def tensor(self, number: int) -> int:
        """Return the region's number of a tensor of the form."""
        return self.tensors[number]


def read_packed(signature: RegionSignature) -> PackedForm | Refused | None:
    """Return the region as attention of packed rows; None if it is something else."""
    if "Softmax" not in signature.body or "Gather" not in signature.body:
        return None
    body = Body(signature)
    function = body.function
    last = body.producer(function.output[0], "Gather")
    if len(function.output) != 1 or last is None:
        return None
    flat = body.producer(last.input[0], "Reshape")
    gathers = {
        node.output[0]: source
        for node in body.nodes("Gather")
        if node is not last and (source := _packed(body, node)) is not None
    }
    positions = {node.input[1] for node in body.nodes("Gather") if node.output[0] in gathers}
    if flat is None or len(positions) != 1 or len(gathers) + 1 != len(body.nodes("Gather")):
        return None
    at, of = body.inputs.get(positions.pop()), body.inputs.get(last.input[1])
    if at is None or of is None:
        return None
    specs = signature.inputs
    if {specs[at].dtype, specs[of].dtype} != set(_SIZES) or len(specs[at].shape) != 2:
        return None
    kept = [index for index in range(len(specs)) if index not in (at, of)]
    packed = {body.inputs[name] for name in gathers.values()}
    samples = tuple(specs[at].shape)
    inputs = tuple(
        replace(specs[index], shape=(*samples, *specs[index].shape[2:]))
        if index in packed else specs[index]
        for index in kept
    )  # fmt: skip
    output = replace(signature.outputs[0], shape=(*samples, *signature.outputs[0].shape[2:]))
    inner = _without_gathers(function, gathers, flat.input[0], kept)
    found = read_attention(RegionSignature(signature.name, body_text(inner), inputs, (output,)))
    if not isinstance(found, AttentionForm):
        return found
    rows = extent_of(signature.outputs[0].shape[1])
    return PackedForm(found, (*kept, len(specs)), at, of, rows)


def _packed(body: Body, gather: onnx.NodeProto) -> str | None:
    """Return the input whose rows a Gather puts in their places."""
    flat = body.producer(gather.input[0], "Reshape")
    return flat.input[0] if flat is not None and flat.input[0] in body.inputs else None


def _without_gathers(
    function: onnx.FunctionProto, gathers: dict[str, str], result: str, kept: list[int]
) -> onnx.FunctionProto:
    inner = onnx.FunctionProto()
    inner.CopyFrom(function)
    del inner.node[:], inner.input[:], inner.output[:]
    inner.input.extend(function.input[index] for index in kept)
    inner.output.append(result)
    for node in function.node:
        if node.op_type == "Gather":
            continue
        changed = inner.node.add()
        changed.CopyFrom(node)
        changed.input[:] = [gathers.get(name, name) for name in node.input]
    return inner
