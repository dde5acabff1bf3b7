"""Attention that our kernel computes on CUDA and no op of ONNX Runtime: one node for a while.

Capped scores with a mask, heads that share keys with a mask, queries without any key that give 0:
`fuse-attention` has no op for them. While regions are looked for they are an Attention of the
default domain, which says what is special about it (`Written`). What no kernel takes stays as it
was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import onnx_ir as ir

from ortkit.fusion.attention.cuda import function_of
from ortkit.fusion.attention.cuda_semantics import WRITTEN, Written
from ortkit.fusion.decompose.run import Decomposition, Surroundings, Wanted
from ortkit.fusion.regions.region import PASS
from ortkit.ops.attention import emit, mask_emit
from ortkit.ops.attention.find import find_core
from ortkit.ops.attention.forms import check_meaning
from ortkit.ops.attention.mask_values import Facts
from ortkit.ops.attention.sizes import measure_elsewhere
from ortkit.ops.attention.understand import understand
from ortkit.ops.attention.understood import Attention
from ortkit.refusal import RefusedError
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe


@dataclass(frozen=True)
class ComposeAttention(Decomposition):
    """Write attention that a kernel takes as one node.

    Skips:
        * What is no attention; `fuse-attention` says why.
        * Other types than float16, keys and values with a cache.
    """

    wanted: Wanted
    """Says of an attention whether a kernel takes it."""

    @classmethod
    def of(cls, around: Surroundings) -> Self:
        return cls(around.takes_attention)

    name: ClassVar[str] = PASS
    ops: ClassVar[Sequence[str]] = ("Softmax",)

    _facts: dict[Scope, Facts] = field(default_factory=dict, repr=False, compare=False)

    def rewrite(self, site: Site) -> None:
        scope = site.scope
        facts = self._facts.setdefault(scope, Facts(scope))
        core = find_core(site)
        attention, _ = understand(site, facts, core, _check)
        last = core.result.producer()
        assert last is not None
        there = Site(scope, last, self.name)
        made = emit.onnx_attention(there, attention, mask_emit.standard(there, attention, facts))
        node = made.producer()
        assert node is not None
        node.meta[WRITTEN] = Written(core.zeroes_nan)
        if not self.wanted(scope, node) or not there.claim("written-attention"):
            raise RefusedError("no kernel takes it")
        scope.forget_misses(describe(site.node))
        measure_elsewhere(there, core, attention.heads, facts)
        there.replace(emit.result(there, attention, made), attention.heads.result.value)

    def finish(self, scope: Scope) -> None:
        """Write attentions that parts of which went elsewhere as functions with their bodies."""
        for node in list(scope.root):
            if WRITTEN in node.meta:
                function_of(scope, node)


def _check(_: Site, attention: Attention) -> None:
    check_meaning(attention)
    if attention.heads.caches is not None or attention.dtype != ir.DataType.FLOAT16:
        raise RefusedError("no kernel takes it as it is written")
