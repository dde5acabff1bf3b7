"""How a model says which kernel library belongs to it: keys of its metadata, and a file's name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: The file's name beside the model, its SHA-256, and the whole file in base64 if it is embedded.
LIBRARY_KEY = "ortkit.library"
LIBRARY_HASH_KEY = "ortkit.library.sha256"
EMBEDDED_KEY = "ortkit.library.data"
#: What its kernels are for: `cpu` or `cuda`.
LIBRARY_TARGET_KEY = "ortkit.library.target"
#: Options that sessions give the CUDA provider, `name=value` separated by commas.
CUDA_OPTIONS_KEY = "ortkit.cuda.options"
#: Values that hold the indices of tokens that are no padding, as JSON: each of a NonZero.
TOKENS_KEY = "ortkit.padding.tokens"
#: The version of ortkit that optimized the model.
MADE_BY_KEY = "ortkit.version"
LIBRARY_SUFFIX = ".ops.so"


def is_made_by_ortkit(metadata: Mapping[str, str]) -> bool:
    """Say whether a model's metadata is that of one that `ortkit optimize` wrote."""
    return any(key in metadata for key in (MADE_BY_KEY, LIBRARY_KEY, LIBRARY_HASH_KEY))


def library_path(model: Path) -> Path:
    """Return where the kernel library of a model lies: `m.opt.ops.so` for `m.opt.onnx`."""
    return model.parent / (model.stem + LIBRARY_SUFFIX)  # also of "" and "/"
