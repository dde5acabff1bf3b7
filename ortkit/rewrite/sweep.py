"""Node passes over one worklist, to a fixed point."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import onnx_ir as ir

from ortkit.rewrite.failures import NOT_OF_A_PASS, FailedPass, PassError
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe

#: Rewrites per node of the graph before a set of passes counts as one that never settles.
BOUND_PER_NODE = 40


def sweep(scope: Scope, passes: Sequence[NodePass]) -> None:
    """Try `passes` at every node, and again at every node that a rewrite touched.

    Raises:
        PassError: A pass raised, or undoes the work of others so that they never settle.
    """
    table, anywhere = _by_op(passes)
    scope.touched.clear()
    queue = deque(scope.nodes())
    queued = {id(node) for node in queue}
    bound = len(scope.log.hits) + BOUND_PER_NODE * (len(queue) + 100)
    while queue:
        node = queue.popleft()
        queued.discard(id(node))
        if node.graph is None:
            continue
        before = len(scope.log.hits)
        for node_pass in table.get((node.domain, node.op_type), anywhere):
            try:
                node_pass.rewrite(Site(scope, node, node_pass.name))
            except NOT_OF_A_PASS:
                raise
            except Exception as error:
                raise PassError.of(error, node_pass.name, describe(node)) from error
            if len(scope.log.hits) > before:
                break
        if len(scope.log.hits) > before and node.graph is not None:
            scope.touched.append(node)
        if len(scope.log.hits) > bound:
            raise _unsettled(scope, passes)
        for touched in scope.touched:
            if touched.graph is not None and id(touched) not in queued:
                queued.add(id(touched))
                queue.append(touched)
        scope.touched.clear()


def _unsettled(scope: Scope, passes: Sequence[NodePass]) -> PassError:
    """Blame the latest of these passes for a worklist that never gets empty."""
    names = {pass_.name for pass_ in passes}
    last = next(hit for hit in reversed(scope.log.hits) if hit.pass_name in names)
    message = f"the passes do not settle; last: {last.id}"
    return PassError(FailedPass(last.pass_name, "InternalError", message, last.node, "sweep.py"))


def _by_op(
    passes: Sequence[NodePass],
) -> tuple[dict[tuple[str, str], list[NodePass]], list[NodePass]]:
    """Return the passes for each (domain, op type), in order, and those for all others."""
    anywhere = [pass_ for pass_ in passes if "*" in pass_.ops]
    named = {op for node_pass in passes for op in node_pass.ops if op != "*"}
    table: dict[tuple[str, str], list[NodePass]] = {}
    for op in named:
        domain, _, op_type = op.rpartition("::")
        table[domain, op_type] = [item for item in passes if op in item.ops or "*" in item.ops]
    return table, anywhere


def is_default(node: ir.Node, *op_types: str) -> bool:
    """Say whether `node` is an op of the default domain with one of these types."""
    return node.domain == "" and node.op_type in op_types
