"""How a model says which kernel library belongs to it: keys of its metadata."""

from __future__ import annotations

#: The file's name beside the model, its SHA-256, and the whole file in base64 if it is embedded.
LIBRARY_KEY = "ortkit.library"
LIBRARY_HASH_KEY = "ortkit.library.sha256"
EMBEDDED_KEY = "ortkit.library.data"
#: What its kernels are for: `cpu` or `cuda`.
LIBRARY_TARGET_KEY = "ortkit.library.target"
#: Options that sessions give the CUDA provider, `name=value` separated by commas.
CUDA_OPTIONS_KEY = "ortkit.cuda.options"
LIBRARY_SUFFIX = ".ops.so"
