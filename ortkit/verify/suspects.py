"""Which rewrites may have made the values that verification found wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from ortkit.verify.rewrite_check import RewriteCheck
from ortkit.verify.steps import captured


def suspects(
    ids: Iterable[str],
    check: RewriteCheck,
    models: Sequence[ir.Model],
    cleared: Collection[str] = (),
) -> list[frozenset[str]]:
    """Return for each wrong value the rewrites that made it, or else those in its step.

    Args:
        ids: The rewrites that were done, as `pass:rule:output`.
        check: What verification found.
        models: The original and the candidate.
        cleared: Rewrites that were denied, and the value is wrong nevertheless.
    """
    by_output: dict[str, set[str]] = {}
    for each in ids:
        if each not in cleared:
            by_output.setdefault(_output(each), set()).add(each)
    found: list[frozenset[str]] = []
    for wrong in check.wrong:
        own = by_output.get(wrong.name, set())
        if not own:
            inside = _step(wrong.name, frozenset(check.compared), models)
            own = {each for name in inside for each in by_output.get(name, ())}
        found.append(frozenset(own))
    return found


def _output(identity: str) -> str:
    return identity.split(":", 2)[-1]


def _step(name: str, compared: frozenset[str], models: Sequence[ir.Model]) -> set[str]:
    """Return the names of the values between a value and the compared ones that it is made of."""
    found: set[str] = set()
    for model in models:
        waiting = [
            value
            for node in model.graph
            for value in node.outputs
            # Values are derived from others under names such as `x/nhwc` and `x/fused`.
            if value.name and (value.name == name or value.name.startswith(f"{name}/"))
        ]
        while waiting:
            value = waiting.pop()
            node, own = value.producer(), value.name or ""
            if node is None or own in found or (own in compared and own != name):
                continue
            found.add(own)
            waiting += [each for each in (*node.inputs, *captured(node)) if each is not None]
            waiting += [each for each in node.outputs if each.name and each.name not in compared]
    return found
