"""The OrtkitExecutionProvider: what ONNX Runtime asks of it, answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import onnx_ir as ir

from ortkit import env
from ortkit.errors import UserError
from ortkit.provider.base import ExecutionProvider
from ortkit.provider.graph_view import GraphView
from ortkit.provider.groups import Group
from ortkit.provider.kernel import Kernel
from ortkit.provider.native import KernelLibrary
from ortkit.provider.own import failures
from ortkit.provider.own.kernels import kernel_of
from ortkit.provider.own.options import FOLDER, NAME, OwnOptions
from ortkit.provider.own.plan_cache import Kept, constants_of, had_again, key_of, recall, remember
from ortkit.provider.own.weights import sources_of
from ortkit.targets.target import Target
from ortkit.version import __version__

if TYPE_CHECKING:
    from ortkit.provider.own.claim_set import Claim
    from ortkit.provider.own.planning import Plan

#: A group as its nodes are: operator, what it reads, what it makes.
_Shape = tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
_SHOWN = 6


@dataclass(frozen=True)
class _Ready:
    """A claimed group and what it runs."""

    claim: Kept
    library: Path
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
    _opened: dict[Path, KernelLibrary]

    def start(self) -> None:
        """Read the session's options.

        Raises:
            UserError: An option is unknown, or has a value that it cannot have.
        """
        self._ready = {}
        self._opened = {}
        try:
            self._options = OwnOptions.of(self.session.options)
        except UserError as error:
            # onnxruntime in Python then tries again without this provider.
            failures.record(env.cache_dir() / FOLDER, "", str(error))
            raise

    def get_capability(self, graph: GraphView) -> Iterable[Group]:
        """Return the groups that kernels compute; see `ortkit.provider.own.planning`."""
        options = self._options
        if graph.parent_op is not None and self._is_ahead:
            self._say(graph, "in a model that is compiled ahead of time no body is claimed from")
            return []
        try:
            return self._claimed(graph)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            failures.record(options.cache / FOLDER, graph.model_path, message)
            raise

    def _claimed(self, graph: GraphView) -> list[Group]:
        # What is said of each claim is only known when it is planned.
        options = self._options
        is_kept = options.verbosity < 2 and options.claims and not self._is_ahead
        key = key_of(graph, options) if is_kept else None
        folder = options.cache / FOLDER
        nodes = list(graph)
        known = None if key is None else recall(folder, key)
        if known is not None and not any(map(graph.assigned_to, nodes)):
            cached_plan = had_again(known, graph)
            if cached_plan is not None:
                count = len(known.claims)
                self._say(graph, f"claims {count} groups, as it did of the same graph")
                return [
                    self._group(claim, nodes, known.library, weights)
                    for claim, weights in zip(known.claims, cached_plan, strict=True)
                ]
        return self._planned(graph, key)

    def _planned(self, graph: GraphView, key: str | None) -> list[Group]:
        """Plan and build; what is claimed is remembered under `key`."""
        # A session whose graph is known needs none of these.
        from ortkit.provider.own.building import build
        from ortkit.provider.own.planning import plan

        options = self._options
        model, nodes = graph.to_model(), list(graph)
        # The copy's nodes stand in the order of the graph's.
        indices = {node: index for index, node in enumerate(model.graph)}
        target = Target("cpu", options.cpu)
        wanted = plan(model, target, options.level, options.kernels, is_ahead=self._is_ahead)
        built = build(wanted, target, options.kernels, options.cache)
        paying = built.plan
        if options.measure and built.library is not None:
            from ortkit.provider.own.measured import slow_groups

            paying = paying.without_programs(slow_groups(paying.claims, built.library))
        claimed = {
            node: name
            for node, index in indices.items()
            if (name := graph.assigned_to(nodes[index]))
        }
        made = paying.without_nodes(claimed)
        kept = [_kept(claim, indices) for claim in made.claims]
        groups = [
            self._group(item, nodes, built.library, claim.weights)
            for item, claim in zip(kept, made.claims, strict=True)
        ]
        # A kernel that was not made may be made the next time.
        is_whole = len(built.plan.claims) == len(wanted.claims) and not claimed
        if key is not None and is_whole:
            self._remember(graph, key, made, kept, built.library)
        self._report(graph, made, built.compiled)
        return groups

    def _remember(
        self, graph: GraphView, key: str, made: Plan, kept: Sequence[Kept], library: Path | None
    ) -> None:
        weights = [(claim.weights, claim.origins) for claim in made.claims]
        found = sources_of(weights, constants_of(graph))
        if found is not None:
            sources, content = found
            whole = [replace(item, weights=each) for item, each in zip(kept, sources, strict=True)]
            remember(self._options.cache / FOLDER, key, whole, library, content)

    @property
    def _is_ahead(self) -> bool:
        """Whether the session writes a model with its kernels inside."""
        return self.session.config.get("ep.context_enable") == "1"

    def _group(
        self,
        kept: Kept,
        graph: Sequence[ir.Node],
        library: Path | None,
        weights: tuple[np.ndarray, ...],
    ) -> Group:
        assert library is not None
        nodes = tuple(graph[index] for index in kept.nodes)
        ready = _Ready(kept, library, _about(kept, nodes), weights)
        self._ready.setdefault(_shape(nodes), []).append(ready)
        return Group(nodes, drop_constants=True)

    def compile(self, subgraph: GraphView) -> Kernel:
        """Return the kernel of a group that was claimed."""
        ready = self._ready[_shape(subgraph)].pop(0)
        claim = ready.claim
        return kernel_of(
            subgraph, self._library(ready.library), claim.symbol, claim.inputs, claim.outputs,
            ready.weights, claim.name, ready.about,
        )  # fmt: skip

    def _library(self, path: Path) -> KernelLibrary:
        if path not in self._opened:
            self._opened[path] = KernelLibrary(path)
        return self._opened[path]

    def close(self) -> None:
        """Let go of the libraries; the kernels that are made keep them."""
        for kernel_library in self._opened.values():
            kernel_library.close()

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
        for declined in made.declined:
            self._say(graph, f"not claimed {declined.kind} at {declined.at!r}: {declined.reason}")

    def _say(self, graph: GraphView, text: str) -> None:
        if self._options.verbosity:
            # As a warning: sessions do not show what is less.
            self.session.logger.warning(f"{NAME}, graph {graph.name!r}: {text}")


def _kept(claim: Claim, indices: Mapping[ir.Node, int]) -> Kept:
    nodes = tuple(indices[node] for node in claim.nodes)
    program = claim.program
    return Kept(claim.at, program.name, program.symbol, nodes, claim.inputs, claim.outputs)


def _about(claim: Kept, nodes: Sequence[ir.Node]) -> dict[str, str]:
    """Return what the trace says of a group."""
    about = {"region": claim.at, "nodes": _ops(nodes)}
    names = [node.name for node in nodes if node.name]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        about["stands_for"] = ", ".join(names[:_SHOWN]) + more
    return about


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
