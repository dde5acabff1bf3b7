"""The flags `--onnxruntime` and `--install`: which ONNX Runtimes a command runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortkit.runtime.installation import Installation


def installations(
    arguments: argparse.Namespace, progress: Callable[[str], None]
) -> list[tuple[Installation, str]]:
    """Return the ONNX Runtimes that are named, with what reports call them; none for no flag.

    Raises:
        UserError: One is not there, or does not load.
    """
    if not arguments.onnxruntime:
        return []
    from ortkit.cli.flags import names
    from ortkit.upgrades.find import find_installations, labels

    found = find_installations(
        names(arguments.onnxruntime, "--onnxruntime"),
        install=arguments.install,
        progress=progress,
    )
    return list(zip(found, labels(found), strict=True))
