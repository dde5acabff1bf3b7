"""Activation functions that the ends of a quantized range stand for.

Tools leave a Relu or Clip out where its result is quantized, as numbers beyond the range saturate.
The name of its result is then that of the number before:

    original     c = Conv(x, W)    r = Relu(c)    y = Conv(r, V)
    candidate    r = Conv(x, W)    q = QuantizeLinear(r, scale, 0)    ...
"""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.walk import names_in, take_name
from ortkit.verify.lowered.unrounded import axes_of

_CUTTING = frozenset({"Clip", "Relu"})


def saturate(candidate: ir.Model, original: ir.Model) -> None:
    """Let such results be what is quantized of them, in place. What is computed stays the same.

    Args:
        candidate: The candidate, changed in place.
        original: Its results of `Clip` and `Relu` are looked for.
    """
    cutting = {node.outputs[0].name for node in original.graph if node.op_type in _CUTTING}
    names = names_in(candidate)
    for node in list(candidate.graph):
        value = node.outputs[0]
        if value.name not in cutting or node.op_type in _CUTTING or value.is_graph_output():
            continue
        readers = [use.node for use in value.uses()]
        if len(readers) != 1 or readers[0].op_type != "QuantizeLinear":
            continue
        attributes = {each.name: each for each in readers[0].attributes.values()}
        again = ir.node("QuantizeLinear", [value, *readers[0].inputs[1:]], attributes)
        scales = readers[0].inputs[1:]
        back = ir.node("DequantizeLinear", [*again.outputs, *scales], axes_of(readers[0]))
        for made, like in ((again.outputs[0], readers[0].outputs[0]), (back.outputs[0], value)):
            made.name, made.type = take_name(names, f"{value.name}/saturated"), like.type
        value.name, back.outputs[0].name = back.outputs[0].name, value.name
        readers[0].replace_input_with(0, back.outputs[0])
        candidate.graph.insert_after(node, [again, back])
