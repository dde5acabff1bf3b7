"""`ortkit verify`: does one model compute what another computes?"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import genai_page, show, verdicts
from ortkit.cli.flags import (
    add_tolerance,
    add_trust,
    add_verification,
    coverage,
    sizes,
    tolerance,
)
from ortkit.errors import UserError

if TYPE_CHECKING:
    from ortkit.verify.compare import OutputComparison
    from ortkit.verify.verification import Verification

SCHEMA = "ortkit.verify/"
FOLDER_SCHEMA = "ortkit.verify-genai/1"
_PRECISIONS = ("fp16", "bf16", "fp8", "int8", "int4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add(
        "original",
        type=Path,
        metavar="A",
        help="the model that is right by definition, or a folder of genai",
    )
    add("candidate", type=Path, metavar="B", help="the model or folder to judge")
    add_verification(parser)
    add("--inputs", type=Path, metavar="DATA",
        help="compare on these inputs instead: npz, npy, a folder, ONNX test data")  # fmt: skip
    add("--text", type=Path, metavar="FILE",
        help="compare language models on this text, or npy file of tokens")  # fmt: skip
    add("--steps", type=int, metavar="N",
        help="tokens that language models decode behind it (default: 40)")  # fmt: skip
    add_tolerance(parser)
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size; may be repeated")  # fmt: skip
    add("--library", type=Path, metavar="FILE.so",
        help="kernel library of B (default: B's .ops.so, if it was built here)")  # fmt: skip
    add("--precision", choices=_PRECISIONS,
        help="what B computes float32 in, if A does not")  # fmt: skip
    add("--max-error", type=float, metavar="E",
        help="with --precision: what the error of a value may be")  # fmt: skip
    add_trust(parser)
    add("--json", action="store_true", help="print one JSON document")
    verdicts.add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run both models on the same inputs; 1 if they differ, 3 if that cannot be found out."""
    schema = verdicts.json_schema(arguments, is_written=arguments.json)
    compare = _comparison(arguments)
    if arguments.original.is_dir():
        return _run_folders(arguments, compare, schema)
    for name in ("text", "steps"):
        if getattr(arguments, name) is not None:
            where = f"--{name}"
            raise UserError("is for folders of onnxruntime-genai", where=where, fix="drop it")
    from ortkit.graph.io.open import open_model
    from ortkit.optimization.padding import PADDING_KEY

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        progress("check the models")
        models = [open_model(path) for path in (arguments.original, arguments.candidate)]
        said = [model.metadata_props.get(PADDING_KEY, "") for model in models]
        progress("run both")
        found = compare(arguments.original, arguments.candidate)
    outcome = verdicts.outcome_of(
        found, accepts=arguments.accept_unverified, elsewhere="the same command"
    )
    if arguments.json:
        content: dict[str, object] = {
            "schema": f"{SCHEMA}{schema}",
            "original": str(arguments.original),
            "candidate": str(arguments.candidate),
            **found.to_json(schema),
        }
        show.document(content if schema == 1 else {**content, **outcome.to_json()})
    else:
        _show(found)
        if said[0] != said[1]:
            a, b = (show.harmless(text) or "kept" for text in said)
            show.line(f"padding   A: {a}; B: {b}")
    verdicts.say(outcome, found)
    return outcome.code


def _comparison(arguments: argparse.Namespace) -> Callable[[Path, Path], Verification]:
    """Return what verifies one model as the flags say.

    Raises:
        UserError: The flags ask for something that cannot be.
    """
    shapes = sizes(arguments.shape)
    allowed = tolerance(arguments.atol, arguments.rtol)
    computed_in, stated = _lowering(arguments.precision, arguments.max_error)
    level = coverage(arguments)

    def compare(original: Path, candidate: Path) -> Verification:
        from ortkit.runtime.libraries import library_of
        from ortkit.verify.pair import verify_models

        library = library_of(candidate, arguments.library or "auto", trust=arguments.trust)
        return verify_models(
            original,
            candidate,
            samples=arguments.samples,
            coverage=level,
            is_usual=arguments.precision is not None,
            seconds=arguments.verify_seconds,
            memory_mib=arguments.verify_memory,
            computed_in=computed_in,
            stated=stated,
            inputs=arguments.inputs,
            tolerance=allowed,
            shapes=shapes,
            library=library.loaded,
            refusal=library.refusal,
        )

    return compare


def _run_folders(
    arguments: argparse.Namespace, compare: Callable[[Path, Path], Verification], schema: int
) -> int:
    """Compare the models of two folders of onnxruntime-genai, and their decoders."""
    for name in ("library", "inputs"):
        if getattr(arguments, name) is not None:
            raise UserError("is about one model, not a folder", where=f"--{name}", fix="drop it")
    if arguments.steps is not None and arguments.steps < 1:
        raise UserError(f"{arguments.steps} is not at least 1", where="--steps")
    from ortkit.genai.agreement import STEPS
    from ortkit.genai.verify import verify_genai

    steps = arguments.steps or STEPS
    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        progress("run both")
        found = verify_genai(
            arguments.original, arguments.candidate, compare, text=arguments.text, steps=steps
        )
    worst = verdicts.worst(model for _, model in found.models)
    chooses = genai_page.other_choices(found.agreement, lowered=arguments.precision is not None)
    outcome = verdicts.outcome_of(worst, accepts=arguments.accept_unverified, objections=chooses)
    if arguments.json:
        show.document({
            "schema": FOLDER_SCHEMA,
            "original": str(arguments.original),
            "candidate": str(arguments.candidate),
            "models": {name: model.to_json(schema) for name, model in found.models},
            "agreement": genai_page.agreement_json(found.agreement),
            **outcome.to_json(),
        })  # fmt: skip
    else:
        for name, model in found.models:
            show.line(f"{name}:")
            _show(model)
        genai_page.show_agreement(found.agreement)
    verdicts.say(outcome, worst)
    return outcome.code


def _lowering(precision: str | None, max_error: float | None) -> tuple[str, float]:
    """Return the type in half precision that B computes in, and the error that it may make.

    Raises:
        UserError: The error is no part of a value, or there is no precision.
    """
    if max_error is not None and precision is None:
        raise UserError("says nothing alone", where="--max-error", fix="add --precision")
    if max_error is not None and not 0 < max_error < 1:
        raise UserError(f"{max_error:g} is not between 0 and 1", where="--max-error")
    if precision is None:
        return "", 0.0
    if max_error is None and precision in ("fp16", "bf16"):
        return ("float16" if precision == "fp16" else "bfloat16"), 0.0
    from ortkit.precision.lowering import MAX_ERROR

    return "", max_error if max_error is not None else MAX_ERROR[precision]


def _show(found: Verification) -> None:
    names = {output.name for output in found.outputs}
    values = [value for value in found.values.wrong if value.name not in names]
    for kind, compared in (("output", found.outputs), ("value", values)):
        if compared:
            columns = (kind, "type", "error in epsilons", "allowed", "near ties", "equal")
            show.table("", columns, [_row(each) for each in compared])
        for each in compared:
            if not each.equal:
                show.line(f"{each.name}: {each.reason}")
    show.line(f"verified  {found.verdict}: {found.reason}")


def _row(output: OutputComparison) -> tuple[str, str, float, float, int, str]:
    return (
        output.name,
        output.dtype,
        output.max_error_eps,
        output.allowed_eps,
        output.near_ties,
        "yes" if output.equal else "no",
    )
