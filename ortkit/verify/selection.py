"""Models that pick inside: a candidate is compared with the picks that the original made.

Behind a TopK over values that are as good as equal a candidate may gather other rows than the
original, and everything that is computed of them is other. Both are right. So such models are
compared in parts. These are the values that they pick from, what they pick, as any output that
picks (`ties.py`), and what they compute from the original's picks, which both get as inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from ortkit.graph.inline import inline_functions
from ortkit.graph.io.save import save_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import names_in
from ortkit.kernels.signature import DOMAIN
from ortkit.verify.budget import Budget
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.feeds import Feeds
from ortkit.verify.sessions import Setting, run_within

#: Which output says where the values lie that are picked.
_PICKS = {"TopK": 1, "ArgMax": 0, "ArgMin": 0}
#: Picks of any number: of these only what they pick from is compared.
_SELECTS = ("NonMaxSuppression",)
#: What is compared as float32; nothing lowers a float64.
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
#: The first opset with GatherElements, which gives the values of a TopK at other places.
_GATHERS_FROM = 11


def inner_picks(model: ir.Model) -> dict[str, ir.Node]:
    """Return, by the value that says what is picked, the nodes of the main graph that pick floats.

    Only those whose picks other nodes read: what is an output and nothing else is judged as such.
    """
    nodes = {pick.name: node for node in model.graph if (pick := _picked(node)) and pick.uses()}
    if not nodes or model.graph.opset_imports.get("", 0) < _GATHERS_FROM:
        return {}
    shapes = Shapes.infer(model)
    return {
        name: node
        for name, node in nodes.items()
        if name and node.inputs[0] is not None and shapes.dtype(node.inputs[0]) in _FLOATS
    }


def shared_picks(original: ir.Model, candidate: ir.Model) -> tuple[str, ...]:
    """Return the names of the picks that both models make by one rule."""
    made = _values(candidate)
    used = names_in(original) | names_in(candidate)
    return tuple(
        name
        for name, node in inner_picks(original).items()
        if name in made and _picks_alike(node, made[name]) and given_name(name) not in used
    )


def expose_picks(model: ir.Model) -> None:
    """Put the bodies of fused nodes that pick in their place; in place.

    A kernel that picks is compared with its body bit for bit when kernels are run alone.
    """
    inline_functions(
        model,
        lambda function: function.domain == DOMAIN and any(map(_is_selection, function)),
    )


def give_picks(model: ir.Model, names: Sequence[str]) -> None:
    """Make a model read what it picks from inputs, see `given_name`; in place.

    What it picks itself, and what it picks from, become outputs.

    Args:
        model: One of those whose `shared_picks` hold `names`.
        names: Of the values that say what is picked.
    """
    made = _values(model)
    for name in names:
        pick = made[name]
        node = pick.producer()
        assert node is not None
        given = ir.Value(
            name=given_name(name), type=ir.TensorType(ir.DataType.INT64), shape=pick.shape
        )
        model.graph.inputs.append(given)
        _read(pick, given)
        if node.op_type == "TopK" and node.outputs[0].uses():
            axis = node.attributes.get_int("axis", -1)
            gather = ir.node("GatherElements", [node.inputs[0], given], {"axis": axis})
            gather.outputs[0].name = f"{name}/values"
            _read(node.outputs[0], gather.outputs[0])
            model.graph.insert_after(node, gather)
        results = [] if node.op_type in _SELECTS or pick.is_graph_output() else [pick]
        for number, value in enumerate(node.inputs):
            if value is not None:
                # A candidate in a lower precision may pick from fewer.
                is_data = number == 0 and node.op_type in _PICKS
                to = {"to": int(ir.DataType.FLOAT)}
                copy = ir.node("Cast", [value], to) if is_data else ir.node("Identity", [value])
                copy.outputs[0].name = f"{name}/from{number}"
                model.graph.insert_after(node, copy)
                results.append(copy.outputs[0])
        model.graph.outputs.extend(results)


def run_picks(
    original: ir.Model,
    names: Sequence[str],
    feeds: Sequence[Path],
    folder: Path,
    budget: Budget,
    custom_ops: tuple[Path, ...],
) -> list[Feeds] | None:
    """Run the original for what it picks; return the input sets with it, see `given_name`.

    It is None where the original does not run so.

    Args:
        original: As it is.
        names: Of its `inner_picks`.
        feeds: Folders of input sets on which it runs.
        folder: For all of it; made here.
        budget: The time that is left.
        custom_ops: Libraries that it needs to load at all.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    model = original.clone()
    made = _values(model)
    model.graph.outputs.extend(made[n] for n in names if not made[n].is_graph_output())
    folder.mkdir(parents=True)
    path = save_model(model, folder / "picks.onnx", external_data=True, is_temporary=True).model
    setting = Setting(path, folder / "results", False, custom_ops)
    (result,) = run_within(budget, [setting], feeds, len(feeds))
    if len(result.done) < len(feeds):
        return None
    found = [(each, read_values(setting.results / each.name)) for each in feeds]
    return [
        {**read_values(each), **{given_name(name): values[name] for name in names}}
        for each, values in found
    ]


def given_name(name: str) -> str:
    """Return the input that a pick is read from."""
    return f"{name}/given"


def _is_selection(node: ir.Node) -> bool:
    return not node.domain and node.op_type in _SELECTS


def _picked(node: ir.Node) -> ir.Value | None:
    """Return the value of a node that says what it picks; None if it picks nothing."""
    if node.domain or not node.inputs:
        return None
    index = 0 if node.op_type in _SELECTS else _PICKS.get(node.op_type)
    return None if index is None or index >= len(node.outputs) else node.outputs[index]


def _picks_alike(ours: ir.Node, pick: ir.Value) -> bool:
    """Say whether what makes `pick` in another model does it by the same rule."""
    theirs = pick.producer()
    if theirs is None or theirs.op_type != ours.op_type or _picked(theirs) is not pick:
        return False
    mine, other = ours.attributes, theirs.attributes
    return all(mine.get_int(name, -1) == other.get_int(name, -1) for name in {*mine, *other})


def _values(model: ir.Model) -> dict[str, ir.Value]:
    """Return what the nodes of the main graph make, by name."""
    return {value.name: value for node in model.graph for value in node.outputs if value.name}


def _read(value: ir.Value, other: ir.Value) -> None:
    """Let the readers of a value read another."""
    for use in tuple(value.uses()):
        use.node.replace_input_with(use.idx, other)
