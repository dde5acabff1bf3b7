"""How far roundings move the values of a model: its conditioning on the inputs that are tried.

A copy of the model multiplies every float value with 1 + r, with another random r for each element
and each run. The spread of a few runs around the exact one is what any other order of the same
computation may move, and elements that choose or round otherwise in some run are near ties.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from ortkit.graph.shapes import Shapes
from ortkit.graph.walk import control_nodes_below, names_in, take_name

#: Runs whose spread is taken.
RUNS = 8
#: The largest r, in epsilons of the value's type. A fused computation rounds a few times where the
#: model rounds once, and a spread of eight draws is smaller than the largest of many elements.
ROUNDINGS = 4.0


def perturb(model: ir.Model, epsilon: float, *, exact: Collection[ir.Value] = ()) -> None:
    """Let all consumers of each float value read it perturbed, in place.

    Args:
        model: Its functions are inlined. Inputs are perturbed too, constants and results are not.
        epsilon: Of the type that values are rounded to.
        exact: Values that are read as they are.
    """
    shapes, names = Shapes.infer(model), names_in(model)
    values = [value for value in model.graph.inputs if not value.is_initializer()]
    values += [value for node in control_nodes_below(model.graph) for value in node.outputs]
    for value in values:
        dtype = shapes.dtype(value)
        if dtype in _DRAWN and value not in exact and value.uses():
            _perturb(model, value, dtype, ROUNDINGS * epsilon, names)


def perturb_constants(model: ir.Model, constants: Mapping[str, float]) -> None:
    """Let all consumers of float32 constants of the main graph read them perturbed, in place.

    Args:
        model: Its functions are inlined.
        constants: By name, the epsilon of the type that their numbers were rounded to.
    """
    names = names_in(model)
    made = {value.name: value for node in model.graph for value in node.outputs}
    for name, epsilon in constants.items():
        value = model.graph.initializers.get(name, made.get(name))
        if value is not None and value.uses():
            # A number is off by half an epsilon at most.
            _perturb(model, value, ir.DataType.FLOAT, ROUNDINGS * epsilon / 2, names)


#: Types that ONNX Runtime draws random numbers of.
_DRAWN = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


def _perturb(
    model: ir.Model, value: ir.Value, dtype: ir.DataType, part: float, names: set[str]
) -> None:
    readers = [use for use in value.uses() if not _sets_size(use.node, use.idx)]
    drawn = ir.node(
        "RandomUniformLike",
        [value],
        {"dtype": int(dtype), "low": 1.0 - part, "high": 1.0 + part, "seed": float(len(names))},
    )
    product = ir.node("Mul", [value, drawn.outputs[0]])
    for new, what in ((drawn, "drawn"), (product, "perturbed")):
        new.outputs[0].name = take_name(names, f"{value.name}/{what}")
    node = value.producer()
    if node is None:
        model.graph.insert_before(model.graph[0], [drawn, product])
    else:
        assert node.graph is not None
        node.graph.insert_after(node, [drawn, product])
    for use in readers:
        use.node.replace_input_with(use.idx, product.outputs[0])


def _sets_size(node: ir.Node, index: int) -> bool:
    """Say whether an input is a factor by which an image grows: a perturbation changes shapes."""
    return node.op_type in ("Resize", "Upsample") and index > 0
