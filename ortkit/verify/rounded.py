"""How far a model in half precision moves by the roundings of its own values.

ONNX Runtime's CPU provider has kernels in half precision for few nodes. It casts around the
others, takes the casts between two of them away, and computes a node between two of them in
float32 even if it has a kernel: what an original gives there was rounded only here and there.
Two nodes in a row that have kernels stay as they are, and round what passes them (1.31.1). So the
original is run once more with two such nodes behind each of its values: what that changes is what
no rewrite is to be blamed for, as rewrites move the places where values are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

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
) -> Path | None:
    """Run a copy of the original that rounds each of its values.

    Args:
        original: An ONNX file.
        feeds: Folders of input sets.
        folder: For all of it; made here.
        timeout_seconds: For all input sets.
        custom_ops: Libraries that the original needs to load at all.

    Returns:
        The results, a folder for each input set; None for a model that has no values in half
        precision, or does not run so.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    model = write_rounded(original, folder)
    if model is None:
        return None
    setting = Setting(model, folder / "results", False, custom_ops)
    (result,) = run_sessions([setting], feeds, len(feeds), folder / "job", timeout_seconds)
    return setting.results if len(result.done) == len(feeds) else None


def write_rounded(original: Path, folder: Path) -> Path | None:
    """Write a copy that rounds each of its values; None for a model without half precision.

    Args:
        original: An ONNX file.
        folder: For the copy; made here.
    """
    model = open_model(original)
    if model.functions:
        InlinePass()(model)
    shapes, names = Shapes.infer(model), names_in(model)
    found = [
        (node, value)
        for node in control_nodes_below(model.graph)
        for value in node.outputs
        if shapes.dtype(value) in _HALVES and value.uses()
    ]
    if not found:
        return None
    for node, value in found:
        assert node.graph is not None
        readers = tuple(value.uses())
        first = ir.node("Identity", [value])
        second = ir.node("Identity", [first.outputs[0]])
        for made in (first, second):
            made.outputs[0].name = take_name(names, f"{value.name}/rounded")
        node.graph.insert_after(node, [first, second])
        for use in readers:
            use.node.replace_input_with(use.idx, second.outputs[0])
    folder.mkdir(parents=True, exist_ok=True)
    return save_model(model, folder / "rounded.onnx").model
