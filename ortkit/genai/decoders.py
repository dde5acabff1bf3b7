"""The text decoders of two folders beside each other, with the libraries that may be loaded."""

from __future__ import annotations

from pathlib import Path

from ortkit.errors import UserError
from ortkit.genai.agreement import STEPS, Agreement, compare_decoders
from ortkit.genai.folder import GenaiFolder, Section
from ortkit.genai.layout import DecoderLayout
from ortkit.genai.tokens import read_tokens
from ortkit.graph.io.open import open_model
from ortkit.graph.walk import nodes_below, roots
from ortkit.kernels.metadata import LIBRARY_KEY
from ortkit.kernels.signature import DOMAIN
from ortkit.refusal import Refused, RefusedError, refusals
from ortkit.runtime.libraries import library_of
from ortkit.runtime.opening import SessionPlan

#: Domains whose operators ONNX Runtime and our libraries bring.
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", DOMAIN})


def tokens_of(
    folder: GenaiFolder, layout: DecoderLayout | Refused, text: Path | None
) -> tuple[int, ...]:
    """Return the tokens of a text, none without one.

    Raises:
        UserError: The text cannot be read, or no text decoder is known.
        MissingDependencyError: Nothing that reads tokenizers is installed.
    """
    if text is None:
        return ()
    if isinstance(layout, Refused):
        raise UserError(f"no decoder reads a text here: {layout.reason}", where=f"--text {text}")
    return read_tokens(folder, text, layout.vocabulary)


@refusals
def compare_folders(
    original: GenaiFolder,
    candidate: GenaiFolder,
    layout: DecoderLayout | Refused,
    tokens: tuple[int, ...],
    work: Path,
    *,
    steps: int = STEPS,
    is_ours: bool = False,
) -> Agreement:
    """Run the text decoders of two folders on the same tokens; see `compare_decoders`.

    Args:
        original: What is right by definition.
        candidate: What is compared.
        layout: How the original's decoder is called.
        tokens: Tokens of a text; none: made up.
        work: For files; exists.
        steps: Tokens that the decoders add to them.
        is_ours: Whether the candidate's library was built by this process.

    Raises:
        ModelError: A decoder is not valid.
    """
    if isinstance(layout, Refused):
        raise RefusedError(layout.reason)
    logits = work / "logits"
    logits.mkdir()
    plans = _plan(original), _plan(candidate, is_trusted=is_ours)
    found = compare_decoders(*plans, layout, logits, text=tokens, steps=steps)
    if isinstance(found, Refused):
        raise RefusedError(found.reason)
    return found


def foreign_library(folder: GenaiFolder, section: Section) -> str:
    """Return the library of the user's own operators that a model needs; empty if it needs none.

    onnxruntime-genai registers one library for a session.
    """
    if not section.library:
        return ""
    model = open_model(folder.model(section))
    if model.metadata_props.get(LIBRARY_KEY) == Path(section.library).name:
        return ""
    domains = {node.domain for root in roots(model) for node in nodes_below(root)}
    own = domains - _KNOWN_DOMAINS - {key[0] for key in model.functions}
    return section.library if own else ""


def _plan(folder: GenaiFolder, *, is_trusted: bool = False) -> SessionPlan:
    """Return a decoder's session, with its kernels if they may be loaded."""
    section = folder.decoder
    if section is None:
        raise RefusedError(f"{folder.path} has no decoder in one file")
    if library := foreign_library(folder, section):
        raise RefusedError(f"the decoder needs {library}, which is not loaded")
    path = folder.model(section)
    loaded = library_of(path, trust=is_trusted).loaded
    return SessionPlan(path, () if loaded is None else (loaded,))
