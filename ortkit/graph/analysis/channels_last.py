"""Values with their channels as the last axis, given in the usual layout under the usual name."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.analysis.value_names import CHANNELS_LAST, name_in_other_layout
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import names_in


def restore_channels_first(model: ir.Model, like: ir.Model) -> set[ir.Node]:
    """Compute values named `x/nhwc` in the layout of `x` on the way, under the name `x`.

    A transpose makes `x` of `x/nhwc`, and another one makes what the consumers of `x/nhwc` read.
    Where the model has that `x` already, beside the consumers of `x/nhwc`, these read it too.

    Args:
        model: Changed in place.
        like: The model whose names decide: only values that it computes are restored.

    Returns:
        The new nodes.
    """
    theirs = {value.name: value for node in like.graph for value in node.outputs}
    mine = names_in(model)
    shapes = Shapes.infer(model)
    added: set[ir.Node] = set()
    for node in list(model.graph):
        for value in node.outputs:
            name = name_in_other_layout(value)
            shape = shapes.shape(value)
            if name not in theirs or shape is None or value.is_graph_output():
                continue
            if not (value.name or "").startswith(f"{name}{CHANNELS_LAST}") or len(shape) < 3:
                continue
            rank = len(shape)
            back = [0, rank - 1, *range(1, rank - 1)]
            usual = _transposed(value, name, back)
            if usual is not None:
                model.graph.remove(usual)
            elif name in mine:
                continue
            else:
                usual = ir.node("Transpose", [value], {"perm": back})
                usual.name = usual.outputs[0].name = name
                added.add(usual)
            mine.add(name)
            again = ir.node("Transpose", usual.outputs, {"perm": [0, *range(2, rank), 1]})
            again.name = again.outputs[0].name = f"{value.name}/again"
            uses = [(user, index) for user, index in value.uses() if user is not usual]
            for user, index in uses:
                user.replace_input_with(index, again.outputs[0])
            model.graph.insert_after(node, [usual, again])
            added.add(again)
    return added


def _transposed(value: ir.Value, name: str, perm: list[int]) -> ir.Node | None:
    """Return the Transpose of a value that makes the one called `name`, None if there is none."""
    for node in value.consumers():
        if node.op_type != "Transpose" or node.domain or node.outputs[0].name != name:
            continue
        given = node.attributes.get("perm")
        is_own = node.graph is not None and value.producer() in node.graph
        if is_own and given is not None and list(given.as_ints()) == perm:
            return node
    return None
