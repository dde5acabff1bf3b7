"""A folder of onnxruntime-genai in, one with optimized models and their kernels out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ortkit.errors import CheckError, OrtkitError, UserError
from ortkit.genai.agreement import Agreement
from ortkit.genai.consistency import check_decoder
from ortkit.genai.decoders import compare_folders, foreign_library, tokens_of
from ortkit.genai.folder import CONFIG, Change, GenaiFolder, Section, changed_config, read_folder
from ortkit.genai.layout import DecoderLayout, layout_of
from ortkit.graph.io.open import open_model
from ortkit.kernels.metadata import MADE_BY_KEY, library_path
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.optimization.report import Report
from ortkit.refusal import Refused
from ortkit.runtime.library_target import target_entry
from ortkit.runtime.model_folder import copy_others, files_of
from ortkit.temporary import TemporaryFolder

#: Options of sessions on a CPU. onnxruntime-genai takes half of the cores unless a number is set;
#: 0 leaves the number to ONNX Runtime.
_CPU_OPTIONS: Mapping[str, Any] = {"intra_op_num_threads": 0}


@dataclass(frozen=True)
class OptimizedModel:
    """One model of a folder.

    Args:
        name: Its place in the configuration, such as `decoder`.
        filename: In the folder.
        report: What was done to it; None if it was copied.
        kept: Why it was copied as it is; empty if it was not.
    """

    name: str
    filename: str
    report: Report | None
    kept: str = ""


@dataclass(frozen=True)
class OptimizedFolder:
    """What became of a folder.

    Args:
        path: The new folder.
        models: All that its configuration names.
        agreement: How the text decoder agrees with the original's, token by token; why that is
            not known; None if nothing is verified.
        notes: Numbers of the configuration that are not those of the model, and do no harm.
    """

    path: Path
    models: tuple[OptimizedModel, ...]
    agreement: Agreement | Refused | None
    notes: tuple[str, ...] = ()


def optimize_genai(
    folder: Path | str,
    output: Path | str,
    options: OptimizeOptions | None = None,
    *,
    text: Path | None = None,
) -> OptimizedFolder:
    """Optimize every model of a folder, and write a folder that onnxruntime-genai loads.

    Tokenizer and other files are copied. The configuration names the libraries of the kernels.
    The text decoder is run through its caches beside the original; see `compare_decoders`.

    Args:
        folder: With `genai_config.json`; not changed.
        output: The new folder. One that exists is replaced if its models were made by ortkit.
        options: How each model is optimized.
        text: A text, or an npy file of tokens, to compare the decoders on.

    Raises:
        UserError: The folder is none of genai's, or the output cannot be written.
        ModelError: The configuration or a model is damaged, or one does not fit the other.
        CheckError: The optimized decoder does not run, or chooses other tokens than the original.
        MissingDependencyError: A runtime that is needed is not installed.
    """
    source, target = Path(folder), Path(output)
    options = options or OptimizeOptions()
    given = read_folder(source)
    _check_output(source, target)
    notes = check_decoder(given)
    layout = layout_of(given)
    tokens = tokens_of(given, layout, text)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder("genai", inside=target.parent) as work:
        new = work / "new"
        _copy_rest(given, new)
        models, changes = [], {}
        for section in given.sections:
            model, change = _optimized(given, section, new, options)
            models.append(model)
            changes[section.filename] = change
        config = json.dumps(changed_config(given, changes), indent=4) + "\n"
        (new / CONFIG).write_text(config, encoding="utf-8")
        agreement = None
        if options.verify:
            agreement = _agreement(given, new, layout, tokens, work, options)
            models = [_with_tokens_compared(given, model, agreement) for model in models]
        _replace(new, target, work / "old")
    return OptimizedFolder(target, tuple(models), agreement, notes)


def _check_output(source: Path, target: Path) -> None:
    inside, outside = target.resolve(), source.resolve()
    if inside == outside or outside in inside.parents or inside in outside.parents:
        raise UserError(
            "the output is the input, or one is inside of the other", where=str(target),
            fix="name a folder elsewhere",
        )  # fmt: skip
    if not target.exists():
        return
    if not target.is_dir() or (any(target.iterdir()) and not _is_ours(target)):
        raise UserError(
            "exists and was not made by `ortkit optimize`", where=str(target),
            fix="name another folder",
        )  # fmt: skip


def _is_ours(path: Path) -> bool:
    """Say whether all models of a folder were made by ortkit."""
    try:
        found = read_folder(path)
        return all(
            MADE_BY_KEY in open_model(found.model(each)).metadata_props for each in found.sections
        )
    except OrtkitError:
        return False


def _copy_rest(folder: GenaiFolder, new: Path) -> None:
    """Copy what is no model of the folder, and no data or kernels of one."""
    config = folder.path / CONFIG
    own = [
        files_of(folder.model(section))
        for section in folder.sections
        if not foreign_library(folder, section)
    ]
    copy_others(folder.path, new, frozenset({config}).union(*own), config)


def _optimized(
    folder: GenaiFolder, section: Section, new: Path, options: OptimizeOptions
) -> tuple[OptimizedModel, Change]:
    """Optimize one model, and write it with its library; or keep it, already copied."""
    if library := foreign_library(folder, section):
        kept = f"its sessions register {library}, and there can be one library only"
        return OptimizedModel(section.name, section.filename, None, kept), Change(library)

    def progress(stage: str) -> None:
        options.progress(f"{section.name}: {stage}")

    done = optimize(folder.model(section), replace(options, progress=progress))
    path = new / section.filename
    path.parent.mkdir(parents=True, exist_ok=True)
    done.save(path)
    name = "" if done.library is None else str(library_path(path).relative_to(new))
    traits = options.machine.traits
    settings = dict(_CPU_OPTIONS) if traits.is_host else {}
    if name:
        settings |= [target_entry([traits.provider])]
    model = OptimizedModel(section.name, section.filename, done.report)
    return model, Change(name, settings)


def _agreement(
    original: GenaiFolder,
    new: Path,
    layout: DecoderLayout | Refused,
    tokens: tuple[int, ...],
    work: Path,
    options: OptimizeOptions,
) -> Agreement | Refused:
    """Compare the text decoders, if kernels for this machine are in the result.

    Raises:
        CheckError: The result chooses other tokens, in the precision of the original.
    """
    if not options.machine.traits.is_host:
        return Refused("kernels for another device than the CPU are not run token by token")
    options.progress("decode")
    found = compare_folders(original, read_folder(new), layout, tokens, work, is_ours=True)
    if isinstance(found, Agreement) and not found.agrees and options.precision == "fp32":
        raise CheckError(
            f"the optimized decoder chooses other tokens: {found.lines[0]}",
            where=str(original.path),
            fix="report it with the folder",
        )
    return found


def _with_tokens_compared(
    folder: GenaiFolder, model: OptimizedModel, agreement: Agreement | Refused
) -> OptimizedModel:
    """Return a model with its verdict; of the text decoder, also by its agreement."""
    decoder, report = folder.decoder, model.report
    if (
        decoder is None
        or model.filename != decoder.filename
        or not isinstance(agreement, Agreement)
    ):
        return model
    if report is None or report.verification is None:
        return model
    verification = agreement.with_tokens_compared(report.verification)
    return replace(model, report=replace(report, verification=verification))


def _replace(new: Path, target: Path, old: Path) -> None:
    """Let a folder take the place of another, or of nothing."""
    try:
        if target.exists():
            target.rename(old)
        new.rename(target)
    except OSError as error:
        if old.exists() and not target.exists():
            old.rename(target)
        raise UserError(f"cannot be written: {error.strerror}", where=str(target)) from error
