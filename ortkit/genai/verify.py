"""Two folders of onnxruntime-genai compared: each model, and the decoders token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ortkit.errors import UserError
from ortkit.genai.agreement import STEPS, Agreement
from ortkit.genai.consistency import check_decoder
from ortkit.genai.decoders import compare_folders, tokens_of
from ortkit.genai.folder import read_folder
from ortkit.genai.layout import layout_of
from ortkit.refusal import Refused
from ortkit.temporary import TemporaryFolder
from ortkit.verify.verification import Verification

Compare = Callable[[Path, Path], Verification]
"""Verifies one model, the original first."""


@dataclass(frozen=True)
class VerifiedFolder:
    """What the comparison of two folders found.

    Args:
        models: By their place in the configuration.
        agreement: Agreement of the text decoders, or why they were not compared.
    """

    models: tuple[tuple[str, Verification], ...]
    agreement: Agreement | Refused


def verify_genai(
    original: Path,
    candidate: Path,
    compare: Compare,
    *,
    text: Path | None = None,
    steps: int = STEPS,
) -> VerifiedFolder:
    """Compare the models of two folders, and their text decoders.

    Args:
        original: What is right by definition.
        candidate: The folder to judge, with the same models.
        compare: Verifies one model.
        text: A text, or an npy file of tokens, to compare the decoders on.
        steps: Tokens that the decoders add to it.

    Raises:
        UserError: A folder is none of genai's, or the models are others.
        ModelError: A configuration or a model is damaged, or one does not fit the other.
    """
    first, second = read_folder(original), read_folder(candidate)
    there = {each.keys: each for each in second.sections}
    missing = [each.name for each in first.sections if each.keys not in there]
    if missing:
        raise UserError(f"has no model for {', '.join(missing)}", where=str(candidate))
    for folder in (first, second):
        check_decoder(folder)
    layout = layout_of(first)
    tokens = tokens_of(first, layout, text)
    models = tuple(
        (each.name, compare(first.model(each), second.model(there[each.keys])))
        for each in first.sections
    )
    with TemporaryFolder("genai") as work:
        agreement = compare_folders(first, second, layout, tokens, work, steps=steps)
    if isinstance(agreement, Agreement):
        decoder = "" if first.decoder is None else first.decoder.name
        models = tuple(
            (name, agreement.with_tokens_compared(model) if name == decoder else model)
            for name, model in models
        )
    return VerifiedFolder(models, agreement)
