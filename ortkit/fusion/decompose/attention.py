"""Attention that our kernel computes on CUDA and no op of ONNX Runtime: one node for a while.

Capped scores with a mask, heads that share keys with a mask, queries without any key that give 0:
`fuse-attention` has no op for them. While regions are looked for they are an Attention of the
default domain, which says what is special about it (`Written`). What no kernel takes stays as it
was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from ortkit.fusion.attention.cuda import function_of
from ortkit.fusion.attention.cuda_semantics import WRITTEN, Written
from ortkit.fusion.regions.lower import drop_initializer
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


@contextmanager
def decomposed_attention(
    scopes: Sequence[Scope], wanted: Callable[[Scope, ir.Node], bool]
) -> Iterator[None]:
    """Write attentions that a kernel takes as one node; those that still are become functions.

    Args:
        scopes: Whose graphs are looked at.
        wanted: Says of an attention whether a kernel takes it.
    """
    found = [(scope, node) for scope in scopes for node in _all_written(scope, wanted)]
    try:
        yield
    finally:
        for scope, node in found:
            if node.graph is not None:
                function_of(scope, node)


def _all_written(scope: Scope, wanted: Callable[[Scope, ir.Node], bool]) -> Iterator[ir.Node]:
    if not isinstance(scope.root, ir.Graph):
        return
    facts = Facts(scope)
    for node in list(scope.root):
        if node.graph is None or (node.domain, node.op_type) != ("", "Softmax"):
            continue
        try:
            made = _written(Site(scope, node, PASS), facts, wanted)
        except RefusedError:
            continue  # `fuse-attention` said why
        if made is not None:
            yield made


def _written(site: Site, facts: Facts, wanted: Callable[[Scope, ir.Node], bool]) -> ir.Node | None:
    scope, core = site.scope, find_core(site)
    attention, _ = understand(site, facts, core, _check)
    last = core.result.producer()
    assert last is not None
    there = Site(scope, last, PASS)
    before = set(last.graph.initializers) if isinstance(last.graph, ir.Graph) else set()
    mask = mask_emit.standard(there, attention, facts)
    made = emit.onnx_attention(there, attention, mask)
    node = made.producer()
    assert node is not None
    node.meta[WRITTEN] = Written(core.zeroes_nan)
    if wanted(scope, node) and there.claim("written-attention"):
        refused = describe(site.node)
        for miss in [one for one in scope.log.misses if one.node == refused]:
            del scope.log.misses[miss]
        measure_elsewhere(there, core, attention.heads, facts)
        there.replace(emit.result(there, attention, made), attention.heads.result.value)
        return node
    scope.drop_if_unused(node)
    assert isinstance(scope.root, ir.Graph)
    for name in [name for name in scope.root.initializers if name not in before]:
        drop_initializer(scope.root.initializers[name])
    return None


def _check(_: Site, attention: Attention) -> None:
    check_meaning(attention)
    if attention.heads.caches is not None or attention.dtype != ir.DataType.FLOAT16:
        raise RefusedError("no kernel takes it as it is written")
