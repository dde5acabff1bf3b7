"""`ortkit compare` of decoders: the phases of generation in place of batches."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli.decoding import decodings_of
from ortkit.cli.decoding_flags import refuse_with
from ortkit.cli.flags import sweeps

if TYPE_CHECKING:
    from ortkit.comparison.comparing import CompareOptions

_UNSUPPORTED: Mapping[str, object] = {
    "batch": "", "inputs": None, "shape": [], "concurrency": "", "nodes": False, "advise": False,
}  # fmt: skip


def check_decoding(arguments: argparse.Namespace) -> None:
    """Refuse flags that decoders do not take.

    Raises:
        UserError: One of them is given.
    """
    refuse_with(arguments, _UNSUPPORTED)


def of_decoders(
    arguments: argparse.Namespace, models: Sequence[Path], options: CompareOptions
) -> tuple[list[Path], CompareOptions]:
    """Return the decoders' files, and the options with their phases.

    Raises:
        UserError: One of the models has no caches, or not the same phases.
        ModelError: One is not valid.
    """
    found = decodings_of(arguments, models, sweeps(arguments.sweep))
    return [each.decoder.path for each in found], replace(
        options,
        phases=found[0].phases,
        decoders={each.decoder.path: each.decoder for each in found},
        usual_threads={each.decoder.path: each.threads for each in found},
    )
