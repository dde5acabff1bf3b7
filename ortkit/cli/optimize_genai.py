"""`ortkit optimize FOLDER`: all models of a folder of onnxruntime-genai, or of Optimum."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show, verdicts
from ortkit.cli.genai_page import agreement_json, show_agreement
from ortkit.cli.optimize_options import options_of
from ortkit.cli.optimize_tables import headline, show_summary, show_tables
from ortkit.errors import UserError
from ortkit.text import json_text

if TYPE_CHECKING:
    from ortkit.genai.optimize import OptimizedFolder
    from ortkit.optimization.call import OptimizeOptions

SCHEMA = "ortkit.optimize-genai/1"
#: Flags that are about one model.
_OF_ONE_MODEL = (
    "in_place", "calibrate", "embed_library", "inputs", "why", "dump_passes", "keep_source",
    "html",
)  # fmt: skip


def run_folder(arguments: argparse.Namespace) -> int:
    """Optimize the models, write the new folder, report."""
    for name in _OF_ONE_MODEL:
        if getattr(arguments, name):
            flag = "--" + name.replace("_", "-")
            raise UserError("is about one model, not a folder", where=flag, fix="drop it")
    if arguments.pack != "auto":
        raise UserError("is about one model, not a folder", where="--pack", fix="drop it")
    source: Path = arguments.model
    output: Path = arguments.output or source.resolve().parent / f"{source.resolve().name}.opt"
    has_document = arguments.json or arguments.report is not None
    schema = verdicts.json_schema(arguments, is_written=has_document)
    from ortkit.graph.io.atomic import write_whole

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        options = options_of(arguments, progress)
        done = _optimized(source, output, options, arguments.text)
    reports = [each.report for each in done.models if each.report is not None]
    worst = verdicts.worst(each.verification for each in reports if each.verification is not None)
    objections = [
        f"{model.name}: rewrites rolled back: {len(model.report.rolled_back)}"
        for model in done.models
        if arguments.strict and model.report is not None and model.report.rolled_back
    ]
    outcome = verdicts.outcome_of(
        worst, accepts=arguments.accept_unverified, objections=objections
    )
    document = {"schema": SCHEMA, **_json(done, schema), **outcome.to_json()}
    for note in done.notes:
        show.note(f"note: {note}")
    if arguments.report is not None:
        write_whole(arguments.report, json_text(document))
    if arguments.json:
        show.document(document)
    elif not arguments.quiet:
        _show(done, verbose=arguments.verbose)
    verdicts.say(outcome, worst)
    return outcome.code


def _optimized(
    source: Path, output: Path, options: OptimizeOptions, text: Path | None
) -> OptimizedFolder:
    """Optimize a folder with a configuration of genai as that, any other model by model."""
    from ortkit.genai.folder import is_genai_folder
    from ortkit.genai.optimize import OptimizedFolder, OptimizedModel, optimize_genai

    if is_genai_folder(source) or not any(source.glob("*.onnx")):
        return optimize_genai(source, output, options, text=text)
    if text is not None:
        raise UserError("is for folders of onnxruntime-genai", where="--text", fix="drop it")
    from ortkit.integrations.optimum import optimized_models, write_folder

    found = optimized_models(source, output, options)
    write_folder(source, output, found)
    models = tuple(
        OptimizedModel(Path(name).stem, name, each.report) for name, each in found.items()
    )
    return OptimizedFolder(output, models, None)


def _show(done: OptimizedFolder, *, verbose: bool) -> None:
    for model in done.models:
        if model.report is None:
            show.line(f"{model.filename}: kept as it is: {model.kept}")
            continue
        show.line(headline(model.report, model.filename))
        show.line()
        if verbose:
            show_tables(model.report)
        else:
            show_summary(model.report)
        for identity in model.report.rolled_back:
            show.note(f"warning: rolled back {identity}: with it the result is wrong")
        if (checked := model.report.verification) is not None:
            show.labelled("verified", f"{checked.verdict}: {checked.reason}")
        show.line()
    if done.agreement is not None:
        show_agreement(done.agreement)
    size = sum(each.stat().st_size for each in done.path.rglob("*") if each.is_file())
    show.line(f"wrote     {done.path} ({show.bytes_text(size)})")


def _json(done: OptimizedFolder, schema: int) -> dict[str, object]:
    models = [
        {
            "name": each.name,
            "file": each.filename,
            "kept": each.kept,
            "report": None if each.report is None else each.report.to_json(schema=schema),
        }
        for each in done.models
    ]
    return {
        "folder": str(done.path), "models": models, "agreement": agreement_json(done.agreement),
        "notes": list(done.notes),
    }  # fmt: skip
