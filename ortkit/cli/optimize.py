"""`ortkit optimize`: one command from a model to a smaller, verified one with a report."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show, verdicts
from ortkit.cli.flags import (
    add_tolerance,
    add_verification,
    beside,
    check_folders,
    check_written,
)
from ortkit.cli.optimize_options import options_of
from ortkit.cli.optimize_tables import headline, show_summary, show_tables, show_why, timing_text
from ortkit.cli.precision_page import check_page, is_page, write_page
from ortkit.cli.precision_tables import show_precision
from ortkit.cli.tree import suggestion
from ortkit.errors import UserError
from ortkit.targets.catalog import KINDS, traits_of
from ortkit.text import json_text

if TYPE_CHECKING:
    from ortkit.measure.result import Measurement, RegionTiming
    from ortkit.optimization.call import Optimized
    from ortkit.optimization.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="an ONNX file, or a folder of genai")
    add("-o", "--output", type=Path, metavar="OUT",
        help="default: MODEL.opt.onnx beside MODEL, FOLDER.opt beside a folder")  # fmt: skip
    add("--in-place", action="store_true", help="write over MODEL")
    add("--target", choices=KINDS, default="cpu", help="default: cpu")
    add("--level", type=int, choices=range(4), default=2, metavar="0..3",
        help="0 clean, 1 folds, 2 fusions that pay (default), 3 every fusion")  # fmt: skip
    add("--precision", choices=("fp32", "fp16", "bf16", "fp8", "int8", "int4"), default="fp32",
        help="compute float32 operators in a lower precision where verified "
        "(default: fp32)")  # fmt: skip
    add("--max-error", type=float, metavar="E",
        help="error allowed (on CPUs bf16: 0.02, int8: 0.05, int4: 0.35; fp8: 0.1)")  # fmt: skip
    add("--calibrate", type=Path, metavar="DATA",
        help="npz file or folder of them to find ranges on, for convolutions in int8")  # fmt: skip
    add("--calibration", choices=("auto", "minmax", "entropy", "percentile"), default="auto",
        help="how ranges are found (default: the best for each value)")  # fmt: skip
    add("--precision-io", choices=("keep", "convert"), default="keep",
        help="whether float32 inputs and outputs get it too (default: keep)")  # fmt: skip
    add("--passes", default="", metavar="SPEC",
        help="these passes: a,b{option=1}; or the level's and +a, without -b")  # fmt: skip
    add("--kernels", choices=("auto", "off", "tvm", "triton"), default="auto",
        help="generate kernels for fused regions (default: auto)")  # fmt: skip
    add("--embed-library", action="store_true",
        help="put the kernel library into the model's metadata, for ortkit.Session")  # fmt: skip
    add("--pack", choices=("auto", "no"), default="auto",
        help="auto: large weights in a file beside it; no: in the model")  # fmt: skip
    add("--cpu", default="native", metavar="LEVEL",
        help="CPU the kernels are for: native (default), x86-64-v3, x86-64-v4, ...")  # fmt: skip
    add("--db", type=Path, metavar="FILE",
        help="kernels as `ortkit tune --db` found them, beside those of the cache")  # fmt: skip
    add("--arch", default="native", metavar="ARCH,...",
        help="GPUs the kernels are for, such as sm_90,sm_100 (default: sm_80,sm_90)")  # fmt: skip
    add("--max-opset", type=int, default=23, metavar="N",
        help="newest opset that fusions may raise the model to (default: 23)")  # fmt: skip
    add("--fold-limit", type=int, default=1 << 20, metavar="BYTES",
        help="growth allowed for one folded constant (default: 1048576)")  # fmt: skip
    add_verification(parser, can_skip=True)
    add("--measure", action="store_true",
        help="time kernels and model here, and drop what does not pay")  # fmt: skip
    add("--no-timing", action="store_true",
        help="do not time a run before and after, which takes a second or two")  # fmt: skip
    add("--threads", type=int, default=0, metavar="N",
        help="threads of the timed sessions (default: ONNX Runtime decides)")  # fmt: skip
    add("--inputs", type=Path, metavar="DATA",
        help="verify on these inputs instead: npz, npy, a folder, ONNX test data")  # fmt: skip
    add("--text", type=Path, metavar="FILE",
        help="compare language models on this text, or npy file of tokens")  # fmt: skip
    add_tolerance(parser)
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a symbolic size in verification; may be repeated")  # fmt: skip
    add("--fix-shape", action="append", default=[], metavar="NAME=SIZE",
        help="write this number in place of a size (or INPUT[AXIS]); may be repeated")  # fmt: skip
    add("--skip-padding", default="", metavar="INPUT[=N]",
        help="leave out tokens where INPUT is N (0), outputs are 0 there; or proved")  # fmt: skip
    add(
        "--strict",
        action="store_true",
        help="exit 1 if a rewrite was rolled back or a pass failed",
    )
    add(
        "--deny",
        action="append",
        default=[],
        metavar="ID",
        help="a rewrite that must not happen, by its id in the report; may be repeated",
    )
    add("--why", metavar="WHAT",
        help="show what was refused: part of a pass or op, or a node or output")  # fmt: skip
    add("--ops", action="append", default=[], metavar="SOURCE",
        help="a file or module whose ops are put in where they are written out")  # fmt: skip
    add("--dump-passes", type=Path, metavar="DIR", help="save the model after each pass")
    add("--check-passes", action="store_true", help="check the model's structure after each pass")
    add("--keep-source", type=Path, metavar="DIR",
        help="save the generated code of the kernels, to read")  # fmt: skip
    add("--report", type=Path, metavar="FILE",
        help="write the whole report; .html: the trade-off of --precision")  # fmt: skip
    add("--html", type=Path, metavar="OUT.html",
        help="write a page: the graph before and after, and the report")  # fmt: skip
    add("--json", action="store_true", help="print the report as one JSON document")
    verdicts.add_flags(parser)
    add("-q", "--quiet", action="store_true", help="print nothing but errors")
    add("-v", "--verbose", action="store_true",
        help="also print tables of operators, rewrites and regions")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Optimize, save, report."""
    if arguments.model.is_dir():
        from ortkit.cli.optimize_genai import run_folder

        return run_folder(arguments)
    if arguments.text is not None:
        raise UserError("is for folders of onnxruntime-genai", where="--text", fix="drop it")
    output = _output(arguments)
    has_document = arguments.json or arguments.report is not None
    schema = verdicts.json_schema(arguments, is_written=has_document)
    from ortkit.graph.io.atomic import write_whole
    from ortkit.optimization.call import optimize

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        options = options_of(arguments, progress)
        if is_page(arguments.report):
            check_page(arguments.report, lowers=options.lowers_products)
        optimized = optimize(arguments.model, options)
        pages: tuple[Path, ...] = ()
        if arguments.html is not None:
            progress("page")  # before `--in-place` writes over the source
            pages = (optimized.save_html(arguments.html),)
        progress("save")
        files = optimized.save(output, embed_library=arguments.embed_library, pack=arguments.pack)
        _note_trust(optimized)
        if arguments.keep_source is not None:
            files += optimized.save_sources(arguments.keep_source)
        files += pages
    report = optimized.report
    for failed in report.failed_passes:
        show.note(f"ortkit: warning: {failed.text}")
    outcome = _ending(report, arguments, output)
    written: dict[str, object] = {"files": [str(path) for path in files]}
    if schema != 1:
        written |= outcome.to_json()
    if arguments.report is not None and is_page(arguments.report):
        assert report.precision is not None
        write_page(report.precision, arguments.model.name, arguments.report)
    elif arguments.report is not None:
        content = {**report.to_json(schema=schema), **written}
        write_whole(arguments.report, json_text(content))
    if arguments.json:
        show.document({**report.to_json(arguments.why, schema), **written})
    elif not arguments.quiet:
        _show(optimized, arguments.model.name, files, verbose=arguments.verbose)
        if arguments.why is not None:
            show_why(report, arguments.why)
    verdicts.say(outcome, report.verification)
    return outcome.code


def _note_trust(optimized: Optimized) -> None:
    """Say if later commands will not load the library, as its hash could not be kept."""
    if optimized.library is None:
        return
    from ortkit.kernels.trust import digest, unlisted

    if refusal := unlisted(digest(optimized.library.read_bytes())):
        fix = "run them with --trust, or set XDG_STATE_HOME or ORTKIT_TRUST"
        show.note(f"ortkit: later commands will find that the kernel library {refusal}; {fix}")


def _output(arguments: argparse.Namespace) -> Path:
    model: Path = arguments.model
    check_folders({"--keep-source": arguments.keep_source, "--dump-passes": arguments.dump_passes})
    if arguments.in_place:
        if arguments.output is not None:
            raise UserError("both --in-place and --output are given", fix="drop one of them")
        check_written({"--report": arguments.report, "--html": arguments.html}, (model,))
        return model
    output: Path = arguments.output or beside(model, ".opt.onnx")
    if output.exists() and model.exists() and output.samefile(model):
        raise UserError(
            "the output is the input", where=str(output), fix="name another, or say --in-place"
        )
    written = {"--output": output, "--report": arguments.report, "--html": arguments.html}
    check_written(written, (model, arguments.inputs, arguments.calibrate, arguments.db))
    return output


def _is_bf16_as_a_whole(arguments: argparse.Namespace) -> bool:
    how = traits_of(arguments.target).precisions.get("bf16")
    return arguments.precision == "bf16" and how is not None and not how.by_product


def _ending(report: Report, arguments: argparse.Namespace, output: Path) -> verdicts.Outcome:
    """Return how the command ends."""
    elsewhere = "the same command"
    if arguments.in_place or _is_bf16_as_a_whole(arguments):
        elsewhere = ""  # the original is gone; or values are in float32 there as well
    elif arguments.precision == "fp32":
        command = shlex.join(["ortkit", "verify", str(arguments.model), str(output)])
        elsewhere = f"`{command}`"
    return verdicts.outcome_of(
        report.verification,
        accepts=arguments.accept_unverified,
        objections=_objections(report) if arguments.strict else (),
        elsewhere=elsewhere,
    )


def _objections(report: Report) -> list[str]:
    """Return what `--strict` does not accept."""
    counts = {"rewrites rolled back": report.rolled_back, "passes failed": report.failed_passes}
    return [f"{what}: {len(found)}" for what, found in counts.items() if found]


def _show(optimized: Optimized, name: str, files: tuple[Path, ...], *, verbose: bool) -> None:
    from ortkit.kernels.cache_files import is_said

    report = optimized.report
    show.line(headline(report, name))
    show.line()
    if verbose:
        show_tables(report)
    else:
        show_summary(report)
    _show_left_out(report)
    if report.measurement is not None:
        _show_measurement(report.measurement)
    if report.precision is not None:
        show_precision(report.precision)
    if report.kernel_note and not is_said(report.kernel_note):
        what = "no kernels" if optimized.library is None else "note"
        show.note(f"{what}: {report.kernel_note}")
    if report.sizes_note:
        show.note(f"note: {report.sizes_note}")
    if report.calibration:
        show.line(f"costs     as `ortkit calibrate` measured them here: {report.calibration}")
    if report.source_kernels:
        show.note(f"source: {report.source_kernels}")
    if report.provider_options:
        listed = ", ".join(f"{name}={value}" for name, value in report.provider_options.items())
        show.note(f"layout: sessions give the CUDA provider {listed} ({report.layout_note})")
    if report.padding:
        show.note(report.padding)
    for identity in report.rolled_back:
        show.note(f"warning: rolled back {identity}: with it the result is wrong or does not load")
    for identity in report.denied_in_vain:
        near = suggestion(identity, [hit.id for hit in report.hits])
        show.note(f"warning: --deny {identity}: there is no such rewrite{near}")
    show.labelled("verified", _verdict(report))
    if report.timing is not None:
        show.labelled("timed", timing_text(report.timing))
    if report.load_check != "yes":
        show.labelled("loads", report.load_check)
    elapsed = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in report.seconds.items())
    show.labelled("time", elapsed)
    for path in files:
        show.line(f"wrote     {path} ({show.bytes_text(path.stat().st_size)})")


def _show_measurement(found: Measurement) -> None:
    rows = [
        (
            region.op,
            len(region.nodes),
            region.body_us,
            region.kernel_us,
            region.ratio,
            _outcome(region),
        )
        for region in found.regions
    ]
    if rows:
        columns = ("kernel", "nodes", "without, µs", "with, µs", "ratio", "")
        show.table("", columns, rows)
    if (model := found.model) is not None:
        show.line(
            f"measured  {model.before_ms:.3f} ms before, {model.after_ms:.3f} ms after: "
            f"{model.ratio:.3f} times as fast, {model.verdict} (noise {model.noise:.1%})"
        )
    if (top := found.ceiling) is not None:
        closed = "" if found.gap_closed is None else f"; {found.gap_closed:.0%} of the way to it"
        show.line(f"ceiling   {top.speedup:.3f} if all but heavy operators were free{closed}")
    for note in found.notes:
        show.note(f"note      {note}")


def _outcome(region_timing: RegionTiming) -> str:
    if region_timing.problem:
        return f"kept, not timed: {region_timing.problem}"
    known = ", known from before" if region_timing.from_cache else ""
    verdict = "kept" if region_timing.kept else "dropped"
    return f"{verdict} (noise {region_timing.noise or 0:.1%}{known})"


def _show_left_out(report: Report) -> None:
    """Say which GPUs have no code of their own for some kernel."""
    alike = Counter((region.kind, text) for region in report.regions for text in region.left_out)
    for (kind, text), nodes in alike.items():
        show.note(f"warning: the kernel of {kind} (places: {nodes}): {text}")


def _verdict(report: Report) -> str:
    checked = report.verification
    if checked is None:
        return "no (--no-verify)"
    return f"{checked.verdict}: {checked.reason}"
