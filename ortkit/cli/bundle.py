"""`ortkit bundle triton`: a model's folder for the repository of Triton Inference Server."""

from __future__ import annotations

import argparse
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import add_trust, sizes
from ortkit.text import plural

if TYPE_CHECKING:
    from ortkit.integrations.triton import TritonBundle

SCHEMA = "ortkit.bundle/1"
_SUMMARY = "write a model's folder for the repository of Triton Inference Server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand `triton` and its flags."""
    servers = parser.add_subparsers(dest="server", metavar="SERVER", required=True)
    sub = servers.add_parser("triton", help=_SUMMARY, description=_SUMMARY, allow_abbrev=False)
    sub.set_defaults(parser=sub)
    add = sub.add_argument
    add("model", type=Path, metavar="MODEL", help="an ONNX file that `ortkit optimize` wrote")
    add("--repository", type=Path, required=True, metavar="DIR",
        help="the server's folder of models; MODEL gets a folder in it")  # fmt: skip
    add("--mount", type=PurePosixPath, metavar="PATH",
        help="where the server sees DIR; KServe: /mnt/models (default: DIR)")  # fmt: skip
    add("--name", default="", metavar="NAME",
        help="the model's name on the server (default: that of its file)")  # fmt: skip
    add("--max-batch", type=int, metavar="ROWS",
        help="join requests to this many rows, 0 for none"
        " (default: 8 if rows are proven to be independent)")  # fmt: skip
    add("--delay", type=int, default=100, metavar="MICROSECONDS",
        help="how long a request waits for others (default: 100)")  # fmt: skip
    add("--instances", type=int, default=1, metavar="N",
        help="sessions that run at the same time (default: 1)")  # fmt: skip
    add("--threads", type=int, default=0, metavar="N",
        help="threads of each run (default: one for each core)")  # fmt: skip
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size when the server warms up; may be repeated")  # fmt: skip
    add("--kernels", action=argparse.BooleanOptionalAction, default=True,
        help="bring the kernel library (default: on)")  # fmt: skip
    add_trust(sub)
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Write the folder, and say what is in it."""
    from ortkit.integrations.triton import TritonOptions, bundle

    options = TritonOptions(
        name=arguments.name,
        mount=arguments.mount,
        instances=arguments.instances,
        threads=arguments.threads,
        max_batch=arguments.max_batch,
        delay_us=arguments.delay,
        kernels=arguments.kernels,
        trust=arguments.trust,
    )
    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        found = bundle(
            arguments.model,
            arguments.repository,
            options,
            sizes=sizes(arguments.shape),
            progress=progress,
        )
    if arguments.json:
        show.document({"schema": SCHEMA, "model": str(arguments.model), **found.to_json()})
    else:
        _show(found)
    return 0


def _show(found: TritonBundle) -> None:
    shapes = (f"{name} {list(shape)}" for name, shape in found.warmup.items())
    rows = [
        ("written", f"{found.folder} ({plural(len(found.files), 'file')})"),
        ("batches", f"up to {found.max_batch} rows" if found.max_batch else "none"),
        ("kernels", found.library or "none: plain ONNX"),
    ]
    if found.least_onnxruntime:
        rows.append(("needs", f"a server with ONNX Runtime {found.least_onnxruntime} or later"))
    rows.append(("warm-up", ", ".join(shapes)))
    rows.extend(("note", note) for note in found.notes)
    show.pairs(rows)
