"""`ortkit inspect`: what a model consists of and what it costs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import check_written, sizes
from ortkit.text import plural, with_short_keys

if TYPE_CHECKING:
    from ortkit.graph.analysis.cost import Cost
    from ortkit.graph.analysis.inspection import Inspection, Interface


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="an ONNX file")
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size for the cost (else 1); may be repeated")  # fmt: skip
    add("--html", type=Path, metavar="OUT.html", help="write a page: the graph, and what it costs")
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Read the model and print what it is."""
    check_written({"--html": arguments.html}, (arguments.model,))
    given = sizes(arguments.shape)
    from ortkit.graph.analysis.inspection import inspect_model

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        progress("read the model")
        inspection = inspect_model(arguments.model, given)
        if arguments.html is not None:
            _write_page(arguments, inspection)
    if arguments.json:
        show.document(inspection.to_json())
    else:
        _show(inspection)
    return 0


def _write_page(arguments: argparse.Namespace, inspection: Inspection) -> None:
    from ortkit.graph.io.open import open_model
    from ortkit.page.graph.compared import page_of_inspection
    from ortkit.page.graph.write import write_page

    write_page(page_of_inspection(open_model(arguments.model), inspection), arguments.html)


def _show(found: Inspection) -> None:
    opsets = ", ".join(f"{name or 'ai.onnx'} {version}" for name, version in found.opsets.items())
    weights = ", ".join(f"{show.bytes_text(size)} {kind}" for kind, size in found.dtypes.items())
    rows = [
        ("model", found.source),
        ("producer", found.producer or "not stated"),
        ("opsets", f"{opsets} (IR version {found.ir_version})"),
        ("nodes", f"{found.summary.nodes:,}"),
        ("parameters", f"{found.summary.parameters:,}"),
        ("weights", weights or "none"),
        ("external", ", ".join(_external(found)) or "none"),
        ("functions", ", ".join(_functions(found)) or "none"),
        ("subgraphs", ", ".join(f"{n} in {op}" for op, n in found.subgraphs.items()) or "none"),
        ("metadata", ", ".join(f"{key}={text}" for key, text in found.metadata.items()) or "none"),
    ]
    show.pairs([(name, value) for name, value in rows if value != "none" or name == "weights"])
    inputs = [("input", *_row(value)) for value in found.inputs]
    outputs = [("output", *_row(value)) for value in found.outputs]
    show.table("", ("", "name", "type", "shape"), [*inputs, *outputs])
    for name, axes in found.dynamic.items():
        known = "a size without a name" if axes == (name,) else ", ".join(axes)
        show.labelled("dynamic", f"{name}: {known}")
    _show_cost(found.cost)


def _show_cost(cost: Cost) -> None:
    rows = [
        (
            op.op,
            op.nodes,
            op.parameters,
            _known(show.count_text(op.flops), op.uncounted, op.nodes),
            _known(show.bytes_text(op.bytes), op.uncounted, op.nodes),
        )
        for op in cost.ops
    ]
    show.table("", ("op", "nodes", "parameters", "FLOPs", "bytes moved"), rows)
    flops, moved = show.count_text(cost.flops), show.bytes_text(cost.bytes)
    show.line(f"total     {flops} FLOPs, {moved} moved")
    sizes_used = [f"{name}={size}" for name, size in cost.given.items()]
    sizes_used += [f"{name}={size} (assumed)" for name, size in cost.assumed.items()]
    if sizes_used:
        show.line(f"for       {', '.join(sizes_used)}")
    if cost.assumed:
        show.line(f"          set them: --shape {next(iter(cost.assumed))}=SIZE")
    if cost.uncounted:
        why = "own operators, or sizes that the data decides"
        show.line(f"not known the cost of {plural(cost.uncounted, 'node')}: {why}")


def _known(text: str, uncounted: int, nodes: int) -> str:
    if uncounted == nodes:
        return "not known"
    return f"{text} + {plural(uncounted, 'node')}" if uncounted else text


def _row(value: Interface) -> tuple[str, str, str]:
    shape = "unknown" if value.shape is None else f"[{', '.join(map(str, value.shape))}]"
    default = " (default)" if value.has_default else ""
    return value.name, value.dtype or "unknown", shape + default


def _external(found: Inspection) -> list[str]:
    return [
        f"{external_file.location}: {external_file.tensors} tensors, "
        f"{show.bytes_text(external_file.bytes)}"
        for external_file in found.external
    ]


def _functions(found: Inspection) -> list[str]:
    return with_short_keys(
        f"{function.name} ({plural(function.nodes, 'node')}, {plural(function.calls, 'call')})"
        for function in found.functions
    )
