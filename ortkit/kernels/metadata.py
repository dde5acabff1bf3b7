"""How a model says which kernel library belongs to it: keys of its metadata, and a file's name."""

from __future__ import annotations

from pathlib import Path

#: The file's name beside the model, its SHA-256, and the whole file in base64 if it is embedded.
LIBRARY_KEY = "ortkit.library"
LIBRARY_HASH_KEY = "ortkit.library.sha256"
EMBEDDED_KEY = "ortkit.library.data"
#: What its kernels are for: `cpu` or `cuda`.
LIBRARY_TARGET_KEY = "ortkit.library.target"
#: Options that sessions give the CUDA provider, `name=value` separated by commas.
CUDA_OPTIONS_KEY = "ortkit.cuda.options"
LIBRARY_SUFFIX = ".ops.so"


def library_path(model: Path) -> Path:
    """Return where the kernel library of a model lies: `m.opt.ops.so` for `m.opt.onnx`."""
    return model.parent / (model.stem + LIBRARY_SUFFIX)  # also of "" and "/"
