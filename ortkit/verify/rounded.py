"""How far a model in half precision moves by the roundings of its own values.

ONNX Runtime's CPU provider has kernels in half precision for few nodes. It casts around the
others, takes the casts between two of them away, and computes a node between two of them in
float32 even if it has a kernel: what an original gives there was rounded only here and there.
Two nodes in a row that have kernels stay as they are, and round what passes them (1.31.1). So the
original is run once more with two such nodes behind each of its values: what that changes is what
no rewrite is to be blamed for, as rewrites move the places where values are rounded.

An original in float32 whose candidate computes in half precision is run with its values cast there
and back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.graph.inline import inline_functions
from ortkit.graph.open import open_model
from ortkit.graph.save import save_model
from ortkit.graph.shapes import Shapes
from ortkit.graph.walk import control_nodes_below, names_in, take_name
from ortkit.verify.sessions import Setting, run_sessions

_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def run_rounded(
    original: Path,
    feeds: Sequence[Path],
    folder: Path,
    timeout_seconds: float,
    custom_ops: tuple[Path, ...],
    *,
    half: str = "",
    wanted: Collection[str] = (),
) -> Path | None:
    """Run a copy of the original that rounds each of its values.

    Args:
        original: An ONNX file.
        feeds: Folders of input sets.
        folder: For all of it; made here.
        timeout_seconds: For all input sets.
        custom_ops: Libraries that the original needs to load at all.
        half: What values in float32 are rounded to, as numpy and ml_dtypes name it; empty for
            those in half precision, to their own type.
        wanted: Values that are results, too.

    Returns:
        The results, a folder for each input set; None for a model that has no such values, or
        does not run so.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    model = write_rounded(original, folder, half=half, wanted=wanted)
    if model is None:
        return None
    setting = Setting(model, folder / "results", False, custom_ops)
    (result,) = run_sessions([setting], feeds, len(feeds), folder / "job", timeout_seconds)
    return setting.results if len(result.done) == len(feeds) else None


def write_rounded(
    original: Path, folder: Path, *, half: str = "", wanted: Collection[str] = ()
) -> Path | None:
    """Write a copy that rounds each of its values; None for a model without any to round.

    Args:
        original: An ONNX file.
        folder: For the copy; made here.
        half: As for `run_rounded`.
        wanted: As for `run_rounded`.
    """
    model = open_model(original)
    if model.functions:
        inline_functions(model)
    shapes, names = Shapes.infer(model), names_in(model)
    types = frozenset({ir.DataType.FLOAT}) if half else _HALVES
    values = [value for node in control_nodes_below(model.graph) for value in node.outputs]
    if half:
        values += [value for value in model.graph.inputs if not value.is_initializer()]
    found = [value for value in values if shapes.dtype(value) in types and value.uses()]
    if not found:
        return None
    for value in found:
        readers, node = tuple(value.uses()), value.producer()
        steps = _steps(value, half)
        for made in steps:
            made.outputs[0].name = take_name(names, f"{value.name}/rounded")
        if node is None:
            model.graph.insert_before(model.graph[0], steps)
        else:
            assert node.graph is not None
            node.graph.insert_after(node, steps)
        for use in readers:
            if not _sets_size(use.node, use.idx):
                use.node.replace_input_with(use.idx, steps[-1].outputs[0])
    for value in list(model.graph.initializers.values()) if half else ():
        _round_weight(value, half)
    _give(model.graph, wanted)
    folder.mkdir(parents=True, exist_ok=True)
    return save_model(model, folder / "rounded.onnx").model


def _steps(value: ir.Value, half: str) -> list[ir.Node]:
    """Return what rounds a value: two nodes in a row."""
    if half:
        first = ir.node("Cast", [value], {"to": int(ir.DataType[half.upper()])})
        return [first, ir.node("Cast", [first.outputs[0]], {"to": int(ir.DataType.FLOAT)})]
    first = ir.node("Identity", [value])
    return [first, ir.node("Identity", [first.outputs[0]])]


def _round_weight(value: ir.Value, half: str) -> None:
    """Round a constant in float32, but for one that decides sizes."""
    array = constant_array(value)
    if (
        value.dtype != ir.DataType.FLOAT
        or array is None
        or any(_sets_size(*use) for use in value.uses())
    ):
        return
    rounded = array.astype(ir.DataType[half.upper()].numpy()).astype(np.float32)
    value.const_value = ir.tensor(rounded, name=value.name)


def _sets_size(node: ir.Node, index: int) -> bool:
    """Say whether an input is a factor by which an image grows: its roundings change shapes."""
    return node.op_type in ("Resize", "Upsample") and index > 0


def _give(graph: ir.Graph, wanted: Collection[str]) -> None:
    """Make values results."""
    graph.outputs.extend(
        value
        for node in graph
        for value in node.outputs
        if value.name in wanted and not value.is_graph_output()
    )
