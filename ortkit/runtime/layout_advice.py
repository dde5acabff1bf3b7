"""Options of the CUDA provider that a model's metadata advise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ortkit.kernels.metadata import CUDA_OPTIONS_KEY
from ortkit.runtime.targets import CUDA, Provider

#: What models may ask for: anything else in their metadata is left unread.
_ADVISED = frozenset({"prefer_nhwc", "fuse_conv_bias"})


def advised(provider: Provider, metadata: Mapping[str, str]) -> Provider:
    """Return the provider with the options that the model advises.

    Where the user has set one of them none is added: they only make sense together.
    """
    options = dict(
        entry.split("=", 1)
        for entry in metadata.get(CUDA_OPTIONS_KEY, "").split(",")
        if entry.count("=") == 1
    )
    known = {name: value for name, value in options.items() if name in _ADVISED}
    if provider.name != CUDA or not known or not _ADVISED.isdisjoint(provider.options):
        return provider
    if not all(value in ("0", "1") for value in known.values()):
        return provider
    return replace(provider, options={**known, **provider.options})
