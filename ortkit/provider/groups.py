"""Groups of nodes that a provider claims, checked before ONNX Runtime sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.provider.graph_view import GraphView
from ortkit.provider.partition import producers

_SHOWN = 3


@dataclass(frozen=True)
class Group:
    """Nodes to run as one."""

    nodes: tuple[ir.Node, ...]
    """Of the graph that `get_capability` was shown, in any order."""
    drop_constants: bool | None = None
    """Whether the kernel does without the initializers, which `compile` then copies; None: as
    the provider's `drop_constants` says."""


#: What `get_capability` may return several of: a node for itself, or nodes to run as one.
Claim = ir.Node | Sequence[ir.Node] | Group


def check_claims(view: GraphView, claims: Iterable[Claim]) -> list[ir.Node | Group]:
    """Return what was claimed: nodes for themselves, and groups.

    Raises:
        UserError: A node is not in the graph or claimed twice; a group is empty; or groups
            wait for each other, as one does whose results come back to it through other nodes.
    """
    if isinstance(claims, (str, bytes, ir.Node, ir.Value)) or not isinstance(claims, Iterable):
        raise UserError(
            f"get_capability returned {_kind(claims)}",
            fix="return a list of nodes, or of lists of nodes",
        )
    found = [_claim(claim) for claim in claims]
    owner: dict[ir.Node, int] = {}
    for index, claim in enumerate(found):
        nodes = claim.nodes if isinstance(claim, Group) else (claim,)
        for node in nodes:
            _check_node(view, node)
            if node in owner:
                both = "twice in a group" if owner[node] == index else "in two groups"
                raise UserError(f"get_capability claims {label(node)} {both}")
            owner[node] = index
    _check_order(view, found, owner)
    return found


def label(node: ir.Node) -> str:
    """Return how messages call a node."""
    if node.name:
        return f"{node.op_type} {node.name!r}"
    made = node.outputs[0].name if node.outputs else ""
    return f"the {node.op_type} that makes {made!r}"


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _claim(claim: object) -> ir.Node | Group:
    if isinstance(claim, ir.Node):
        return claim
    group = claim
    if not isinstance(claim, Group):
        if isinstance(claim, (str, bytes)) or not isinstance(claim, Iterable):
            raise UserError(
                f"get_capability returned a list that holds {_kind(claim)}",
                fix="return a list of nodes, or of lists of nodes",
            )
        group = Group(tuple(claim))
    assert isinstance(group, Group)
    if not group.nodes:
        raise UserError("get_capability returned a group without nodes")
    return group


def _check_node(view: GraphView, node: object) -> None:
    if not isinstance(node, ir.Node):
        raise UserError(f"get_capability returned a group that holds {_kind(node)}, not a node")
    if node not in view.handles:
        raise UserError(
            f"get_capability claims {label(node)}, which is not a node of graph {view.name!r}",
            fix="return nodes of the graph that it was called with, not of a copy or a subgraph",
        )


def _check_order(
    view: GraphView, claims: Sequence[ir.Node | Group], owner: Mapping[ir.Node, int]
) -> None:
    """Check that the graph still has an order once each group is one node; linear in its size."""
    count = len(claims)
    unit = {node: owner.get(node, count + position) for position, node in enumerate(view.handles)}
    after: dict[int, set[int]] = {}
    waiting = dict.fromkeys(unit.values(), 0)
    for node, own in unit.items():
        for producer in producers(node):
            before = unit.get(producer, own)
            if before != own and own not in after.setdefault(before, set()):
                after[before].add(own)
                waiting[own] += 1
    ready = deque(one for one, number in waiting.items() if not number)
    while ready:
        one = ready.popleft()
        del waiting[one]
        for following in after.get(one, ()):
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    stuck = [item for item in waiting if item < count and isinstance(claims[item], Group)]
    if waiting:
        raise UserError(_cycle(claims, unit, after, waiting, stuck))


def _cycle(
    claims: Sequence[ir.Node | Group],
    unit: Mapping[ir.Node, int],
    after: Mapping[int, set[int]],
    waiting: Mapping[int, int],
    stuck: Sequence[int],
) -> str:
    """Say which group waits for itself, and through what."""
    for group in stuck:
        path = _way_back(group, after, waiting)
        if path is None:
            continue
        nodes: dict[int, ir.Node] = {}
        for node, number in unit.items():
            nodes.setdefault(number, node)
        through = ", ".join(label(nodes[item]) for item in path[:_SHOWN])
        more = f" and {len(path) - _SHOWN} more" if len(path) > _SHOWN else ""
        claim = claims[group]
        assert isinstance(claim, Group)
        labels = ", ".join(label(node) for node in claim.nodes[:_SHOWN])
        rest = f" and {len(claim.nodes) - _SHOWN} more" if len(claim.nodes) > _SHOWN else ""
        return (
            f"get_capability claims a group that waits for itself: what it makes comes back "
            f"through {through}{more} (the group: {labels}{rest})"
        )
    return "get_capability claims groups that wait for each other"


def _way_back(
    start: int, after: Mapping[int, set[int]], waiting: Mapping[int, int]
) -> list[int] | None:
    """Return what lies on a shortest way from a unit back to itself."""
    came: dict[int, int] = {}
    queue = deque([start])
    while queue:
        number = queue.popleft()
        for following in sorted(after.get(number, ())):
            if following == start:
                path: list[int] = []
                while number != start:
                    path.append(number)
                    number = came[number]
                return path[::-1]
            if following in waiting and following not in came:
                came[following] = number
                queue.append(following)
    return None
