"""Which output of a model may be written where one of its inputs lies: caches of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from ortkit.errors import UserError

#: Ops that write rows into a copy of an input: (domain, op) -> input -> output. ONNX Runtime
#: copies the input first if the output lies elsewhere, and only writes the rows if it does not.
_WRITERS: Mapping[tuple[str, str], Mapping[int, int]] = {
    ("", "Scatter"): {0: 0},
    ("", "ScatterElements"): {0: 0},
    ("", "ScatterND"): {0: 0},
    ("", "TensorScatter"): {0: 0},
    ("com.microsoft", "GroupQueryAttention"): {3: 1, 4: 2},
}
#: Around them: all of it is read before any of it is written.
_MOVES = frozenset({"Identity", "Transpose"})
#: They read no element of it.
_OF_SHAPE = frozenset({"Shape", "Size"})


def check_shared(model: ir.Model, share: Mapping[str, str]) -> None:
    """Check that each input may be overwritten by its output while the model runs.

    Args:
        model: What runs.
        share: Inputs to outputs.

    Raises:
        UserError: An input is read by something that might come after the output is written, or
            that writes it in another order than it reads it.
    """
    if len(set(share.values())) < len(share):
        raise UserError("one output cannot lie in two inputs", where="share")
    inputs = {value.name: value for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    for name, result in share.items():
        for given, known, kind in ((name, inputs, "input"), (result, outputs, "output")):
            if given not in known:
                raise UserError(
                    f"there is no {kind} {given!r}", where="share",
                    fix=f"the {kind}s are {', '.join(map(str, known))}",
                )  # fmt: skip
        problem = _problem(model, inputs[name], outputs[result])
        if problem:
            raise UserError(
                f"output {result!r} cannot lie in input {name!r}: {problem}", where="share",
                fix="share caches of a fixed size, into which the model writes rows",
            )  # fmt: skip


def _problem(model: ir.Model, start: ir.Value, end: ir.Value) -> str:
    """Return why `end` may not be written where `start` lies; empty if it may."""
    readers = [use for use in start.uses() if use.node.op_type not in _OF_SHAPE]
    if start.is_graph_output():
        return "it is an output as it is"
    if len(readers) != 1:
        ops = sorted(use.node.op_type for use in readers)
        return f"it is read by {' and '.join(ops) or 'nothing'}, and not by one node"
    ((node, index),) = readers
    if node.op_type in _MOVES and not node.domain:
        return _problem(model, node.outputs[0], end)
    function = model.functions.get(node.op_identifier())
    if function is not None:
        made = [out for out in node.outputs if _leads(out, end)]
        if not made:
            return f"{node.op_type} does not make it"
        result = function.outputs[list(node.outputs).index(made[0])]
        return _problem(model, function.inputs[index], result)
    output = _WRITERS.get((node.domain, node.op_type), {}).get(index)
    if output is None:
        return f"it is read by {node.op_type}, which writes no rows into it"
    if output >= len(node.outputs) or not _leads(node.outputs[output], end):
        return f"what {node.op_type} makes of it is something else"
    return ""


def _leads(value: ir.Value, end: ir.Value) -> bool:
    """Say whether a value is another one, as it is or transposed."""
    return any(item is end for item in _same(value))


def _same(value: ir.Value) -> Iterator[ir.Value]:
    yield value
    for use in value.uses():
        if use.node.op_type in _MOVES and not use.node.domain:
            yield from _same(use.node.outputs[0])
