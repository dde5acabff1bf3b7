"""The OrtkitExecutionProvider: what ONNX Runtime asks of it, answered."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit import __version__, env
from ortkit.errors import UserError
from ortkit.kernels.backend import Target
from ortkit.provider.base import ExecutionProvider
from ortkit.provider.graph_view import GraphView
from ortkit.provider.groups import Group
from ortkit.provider.kernel import Kernel
from ortkit.provider.own import failures
from ortkit.provider.own.building import FOLDER, build
from ortkit.provider.own.claims import Claim
from ortkit.provider.own.options import NAME, OwnOptions
from ortkit.provider.own.planning import Plan, plan

#: A group as its nodes are: operator, what it reads, what it makes.
_Shape = tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
_SHOWN = 6


@dataclass(frozen=True)
class _Ready:
    """A claimed group and what it runs."""

    symbol: str
    library: Path
    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    about: dict[str, str]
    weights: tuple[np.ndarray, ...]


class OrtkitExecutionProvider(ExecutionProvider):
    """Takes what generated kernels compute faster, and compiles it when a session is created."""

    name: ClassVar[str] = NAME
    version: ClassVar[str] = __version__
    drop_constants: ClassVar[bool] = True
    reads_contexts: ClassVar[bool] = True

    _options: OwnOptions
    _ready: dict[_Shape, list[_Ready]]

    def start(self) -> None:
        """Read the session's options.

        Raises:
            UserError: An option is unknown, or has a value that it cannot have.
        """
        self._ready = {}
        try:
            self._options = OwnOptions.of(self.session.options)
        except UserError as error:
            # onnxruntime in Python then tries again without this provider.
            failures.record(env.cache_dir() / FOLDER, "", str(error))
            raise

    def get_capability(self, graph: GraphView) -> Iterable[Group]:
        """Return the groups that kernels compute; see `ortkit.provider.own.planning`."""
        options = self._options
        is_context = self.session.config.get("ep.context_enable") == "1"
        if graph.parent_op is not None and is_context:
            self._say(graph, "in a model that is compiled ahead of time no body is claimed from")
            return []
        try:
            return self._claimed(graph)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            failures.record(options.cache / FOLDER, graph.model_path, message)
            raise

    def _claimed(self, graph: GraphView) -> list[Group]:
        options = self._options
        model = graph.to_model()
        # The copy's nodes stand in the order of the graph's.
        originals = dict(zip(model.graph, graph.handles, strict=True))
        target = Target("cpu", options.cpu)
        is_ahead = self.session.config.get("ep.context_enable") == "1"
        wanted = plan(model, target, options.level, options.kernels, is_ahead=is_ahead)
        built = build(wanted, target, options.kernels, options.cache)
        taken = {
            node: name
            for node, original in originals.items()
            if (name := graph.assigned_to(original))
        }
        made = built.plan.without_nodes(taken)
        groups: list[Group] = []
        for claim in made.claims:
            assert built.library is not None
            nodes = tuple(originals[node] for node in claim.nodes)
            self._ready.setdefault(_shape(nodes), []).append(_ready(claim, nodes, built.library))
            groups.append(Group(nodes, drop_constants=True))
        self._report(graph, made, built.compiled)
        return groups

    def compile(self, subgraph: GraphView) -> Kernel:
        """Return the kernel of a group that was claimed."""
        one = self._ready[_shape(subgraph)].pop(0)
        inputs = {value.name: index for index, value in enumerate(subgraph.inputs)}
        outputs = {value.name: index for index, value in enumerate(subgraph.outputs)}
        # What the program is handed: where its weights lie.
        held = (ctypes.c_void_p * len(one.weights))(*(each.ctypes.data for each in one.weights))
        return Kernel(
            user=ctypes.addressof(held) if one.weights else 0,
            keep=(held, one.weights) if one.weights else None,
            library=one.library,
            op=one.symbol,
            label=one.label,
            arguments=one.about,
            inputs=tuple(inputs[name] for name in one.inputs),
            outputs=tuple(outputs[name] for name in one.outputs),
        )

    def _report(self, graph: GraphView, made: Plan, compiled: int) -> None:
        nodes = sum(len(claim.nodes) for claim in made.claims)
        seconds = ", ".join(f"{stage} {value:.2f} s" for stage, value in made.seconds.items())
        self._say(
            graph,
            f"claims {len(made.claims)} groups with {nodes} of {len(graph)} nodes; "
            f"{compiled} kernels compiled; {seconds or 'nothing planned'}",
        )
        if self._options.verbosity < 2:
            return
        for claim in made.claims:
            self._say(graph, f"claimed {claim.program.name} at {claim.at!r}: {_ops(claim.nodes)}")
        for one in made.declined:
            self._say(graph, f"not claimed {one.kind} at {one.at!r}: {one.reason}")

    def _say(self, graph: GraphView, text: str) -> None:
        if self._options.verbosity:
            # As a warning: sessions do not show what is less.
            self.session.logger.warning(f"{NAME}, graph {graph.name!r}: {text}")


def _ready(claim: Claim, nodes: tuple[ir.Node, ...], library: Path) -> _Ready:
    about = {"region": claim.at, "nodes": _ops(nodes)}
    names = [node.name for node in nodes if node.name]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        about["stands_for"] = ", ".join(names[:_SHOWN]) + more
    return _Ready(
        claim.program.symbol, library, claim.program.name, claim.inputs, claim.outputs, about,
        claim.weights,
    )  # fmt: skip


def _shape(nodes: Iterable[ir.Node]) -> _Shape:
    found = (
        (
            f"{node.domain}:{node.op_type}",
            tuple("" if value is None else value.name or "" for value in node.inputs),
            tuple(value.name or "" for value in node.outputs),
        )
        for node in nodes
    )
    return tuple(sorted(found))


def _ops(nodes: Iterable[ir.Node]) -> str:
    """Return the operators of nodes, as "MatMul, 2 Add"."""
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return ", ".join(op if count == 1 else f"{count} {op}" for op, count in counts.items())
