"""Decoders of `profile`, `memory` and `compare`: models and phases."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.errors import UserError

if TYPE_CHECKING:
    from ortkit.measure.decoding import CachedDecoder, Phase

_PAST = "past"


@dataclass(frozen=True)
class Decoding:
    """A decoder and how it is run.

    Args:
        source: The folder or file that was given.
        decoder: The model and its caches.
        phases: What is run, the prefill first.
        threads: Threads of the session; 0: ONNX Runtime decides.
    """

    source: Path
    decoder: CachedDecoder
    phases: tuple[Phase, ...]
    threads: int


def decodings_of(
    arguments: argparse.Namespace, models: Sequence[Path], sweeps: Mapping[str, Sequence[int]]
) -> tuple[Decoding, ...]:
    """Find the decoders, and check that they can run the phases.

    Args:
        arguments: With the flags of `add_decoding` and `--threads`.
        models: Folders of onnxruntime-genai, and files.
        sweeps: Sizes by name.

    Raises:
        UserError: A folder has no decoder in one file, a file has no caches, or a sequence is
            longer than a decoder takes.
        ModelError: A model is not valid.
    """
    from ortkit.genai.folder import read_folder
    from ortkit.measure.decoding import PROMPT, phases_of

    # A folder that is none of decoders is why others are taken for decoders.
    for path in models:
        if path.is_dir():
            read_folder(path)
    for name in sweeps:
        if name != _PAST:
            raise UserError(f"a decoder has no {name!r}", where="--sweep", fix="past=A,B,...")
    prompt = PROMPT if arguments.prompt is None else arguments.prompt
    phases = phases_of(prompt, sweeps.get(_PAST, ()))
    found = [_decoding(path, phases, arguments) for path in models]
    if all(each.decoder.share for each in found):
        return tuple(found)
    # All alike: writing a cache in place saves a copy that the others make.
    return tuple(_decoding(path, phases, arguments, shares=False) for path in models)


def _decoding(
    path: Path, phases: tuple[Phase, ...], arguments: argparse.Namespace, *, shares: bool = True
) -> Decoding:
    from ortkit.genai.folder import read_folder
    from ortkit.measure.decoding import decoder_of

    if not path.is_dir():
        threads = _given_threads(arguments)
        return Decoding(path, decoder_of(path, shares=shares), phases, threads)
    folder = read_folder(path)
    section = folder.decoder
    if section is None:
        raise UserError("has no text decoder in one file", where=str(path), fix="name the file")
    longest = max(phase.total for phase in phases)
    if folder.context is not None and longest > folder.context:
        raise UserError(
            f"takes sequences of {folder.context} tokens at most, not {longest}",
            where=str(path),
            fix="give a shorter --prompt or --sweep",
        )
    decoder = decoder_of(folder.model(section), shares=shares and folder.writes_caches_in_place)
    return Decoding(path, decoder, phases, _given_threads(arguments) or folder.decoder_threads)


def _given_threads(arguments: argparse.Namespace) -> int:
    threads: int | str = arguments.threads
    return threads if isinstance(threads, int) else 0
