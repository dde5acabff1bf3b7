"""Which execution provider runs which node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ortkit.errors import UserError
from ortkit.runtime.targets import short_name


@dataclass(frozen=True)
class Placed:
    """A node as ONNX Runtime assigned it, after the optimizations that come before that."""

    node: str
    op: str
    domain: str
    provider: str


def read_placement(session: Any) -> tuple[Placed, ...]:
    """Ask a session which provider took which node.

    Raises:
        UserError: This ONNX Runtime does not record it (1.24 is the first that does).
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        raise UserError(
            "this ONNX Runtime does not say which provider runs which node",
            fix="use 1.24 or newer",
        )
    return tuple(
        Placed(node.name, node.op_type, node.domain, part.ep_name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


def providers_text(placed: Iterable[Placed]) -> str:
    """Return `cuda 120 nodes, cpu 3 nodes (Shape, Gather)`: ops where they are few."""
    counts = Counter(item.provider for item in placed)
    return ", ".join(
        f"{short_name(provider)} {count} node{'s' if count != 1 else ''}"
        for provider, count in counts.most_common()
    )
