"""Which claimed groups pay on this machine: each is timed beside the nodes that it stands for.

Every group is a model of its own for that, in a process of its own: once as ONNX Runtime runs its
nodes, once as the program that would be run. Sizes that only a run tells are what people usually
give a model (see `ortkit.measure.inputs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.graph.io.npz import write_npz
from ortkit.isolation.run import stream_isolated
from ortkit.measure.inputs import write_inputs
from ortkit.measure.result import compare
from ortkit.provider.own.claim_set import Claim
from ortkit.provider.own.measured_child import GroupsJob, GroupTimes, TimedGroup, time_groups
from ortkit.temporary import TemporaryFolder

_ROUNDS, _TURN_SECONDS, _TIMEOUT_SECONDS = 3, 0.05, 60


def slow_groups(claims: Sequence[Claim], library: Path) -> dict[str, str]:
    """Return why claims do not pay, by the names of their programs' functions.

    What is taken only together with other groups is not timed, nor what cannot be run alone.

    Args:
        claims: On one graph.
        library: Of their programs.
    """
    together = Counter(claim.bundle for claim in claims)
    alone = {c.program.symbol: c for c in claims if together[c.bundle] == 1}
    with TemporaryFolder("measure") as folder:
        groups = [
            group
            for number, claim in enumerate(alone.values())
            if (group := _group(claim, library, folder / str(number))) is not None
        ]
        timed = _timed(groups)
    reasons: dict[str, str] = {}
    for times in timed:
        found = compare(times.nodes, times.program) if not times.problem else None
        if found is not None and found.verdict != "faster":
            reasons[times.symbol] = f"measured: {found.ratio:.2f} times as fast as its nodes"
    return reasons


def group_model(claim: Claim) -> ir.Model:
    """Return the nodes of a claim as a model, with the constants that they read."""
    made = {value.name: value for node in claim.nodes for value in node.outputs}
    read = dict.fromkeys(
        value for node in claim.nodes for value in node.inputs if value and value.name not in made
    )
    graph = claim.nodes[0].graph
    assert isinstance(graph, ir.Graph)
    group = ir.GraphView(
        [value for value in read if value.const_value is None],
        [made[name] for name in claim.outputs],
        nodes=claim.nodes,
        initializers=[value for value in read if value.const_value is not None],
        opset_imports=graph.opset_imports,
        name="group",
    )
    return ir.Model(group.clone(), ir_version=10)


def _group(claim: Claim, library: Path, folder: Path) -> TimedGroup | None:
    """Write what a group needs; None if there are no inputs for it."""
    folder.mkdir()
    alone = group_model(claim)
    try:
        feeds = write_inputs(alone, None, {}, folder)
    except ModelError:
        return None
    if not feeds:
        return None
    ir.save(alone, folder / "group.onnx")
    write_npz(folder / "weights.npz", {str(i): weight for i, weight in enumerate(claim.weights)})
    return TimedGroup(
        folder / "group.onnx",
        tuple(feeds),
        folder / "weights.npz",
        library,
        claim.program.symbol,
        tuple(claim.inputs),
        tuple(claim.outputs),
    )


def _timed(groups: Sequence[TimedGroup]) -> list[GroupTimes]:
    """Time groups; those after one that crashes are left out."""
    job = GroupsJob(tuple(groups), _ROUNDS, _TURN_SECONDS)
    seconds = _TIMEOUT_SECONDS + len(groups)
    timings = stream_isolated(time_groups, job, timeout_seconds=seconds)
    return [times for times in timings if isinstance(times, GroupTimes)]
