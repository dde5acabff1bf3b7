"""Tokens of a text, by the tokenizer of a folder."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortkit.errors import MissingDependencyError, UserError
from ortkit.genai.folder import GenaiFolder


def read_tokens(folder: GenaiFolder, text: Path, vocabulary: int) -> tuple[int, ...]:
    """Return the tokens of a text.

    Args:
        folder: With its tokenizer.
        text: A text in UTF-8, or an npy file of tokens.
        vocabulary: Tokens that there are.

    Raises:
        UserError: The file cannot be read, or holds no tokens of this vocabulary.
        MissingDependencyError: Nothing that reads tokenizers is installed.
    """
    try:
        if text.suffix == ".npy":
            found = np.load(text, allow_pickle=False).reshape(-1)
        else:
            found = np.asarray(_tokenized(folder, text.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read: {error}", where=f"--text {text}") from error
    if found.dtype.kind not in "iu" or not len(found):
        raise UserError("holds no tokens", where=f"--text {text}", fix="give a longer text")
    if found.min() < 0 or found.max() >= vocabulary:
        raise UserError(
            f"token {max(found.max(), -found.min())} is not in the vocabulary of {vocabulary}",
            where=f"--text {text}",
        )
    return tuple(int(token) for token in found)


def _tokenized(folder: GenaiFolder, text: str) -> list[int]:
    try:
        return _by_package(folder, text)
    except MissingDependencyError:
        raise
    except Exception as error:  # both packages raise what has no narrower type
        line = " ".join(str(error).split())
        raise UserError(f"its tokenizer cannot be used: {line}", where=str(folder.path)) from error


def _by_package(folder: GenaiFolder, text: str) -> list[int]:
    """Tokenize by what is installed: Hugging Face's package, or the one that serves the folder.

    The latter loads the models. With them it would load native libraries, trusted or not.
    """
    file = folder.path / "tokenizer.json"
    if find_spec("tokenizers") is not None and file.is_file():
        tokenizer = import_module("tokenizers").Tokenizer.from_file(str(file))
        return list(tokenizer.encode(text).ids)
    if find_spec("onnxruntime_genai") is not None and not folder.loads_native_code:
        genai = import_module("onnxruntime_genai")
        return [int(each) for each in genai.Tokenizer(genai.Model(str(folder.path))).encode(text)]
    raise MissingDependencyError(
        "no tokenizer is installed",
        where="--text",
        fix="pip install tokenizers, or give an npy file of tokens",
    )
