"""Graphs of a decoder's step: attention over keys from before."""

from __future__ import annotations

from ortkit.rewrite.scope import Scope

#: Operators that may have keys from before, and which of their inputs these are.
_PAST_KEYS = {
    ("com.microsoft", "GroupQueryAttention"): 3,
    ("com.microsoft", "MultiHeadAttention"): 6,
    ("", "Attention"): 4,
}


def reads_caches(scope: Scope) -> bool:
    """Say whether a graph is a decoder's step: it has attention over keys from before.

    Its rows are those of a prompt or of one token.
    """
    for node in scope.root:
        past = _PAST_KEYS.get((node.domain, node.op_type))
        if past is not None and len(node.inputs) > past and node.inputs[past] is not None:
            return True
    return False
