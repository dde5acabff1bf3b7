"""From the rewritten graphs to fused nodes and the one library of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import onnx_ir as ir

from ortkit.fusion.attention.cuda import without_readers
from ortkit.fusion.body_check import invalid_body
from ortkit.fusion.conv.chains import Chain, find_chains
from ortkit.fusion.conv.cuda_layout import advise, beside_convolutions
from ortkit.fusion.conv.plan import settle_chain
from ortkit.fusion.decompose.run import Decomposition, Surroundings, decomposed
from ortkit.fusion.kept import KeptNode, find_kept, settle_kept
from ortkit.fusion.regions import select
from ortkit.fusion.regions.anchors import grown
from ortkit.fusion.regions.cost_model import CostModel, cost_model_of
from ortkit.fusion.regions.duplicate import Accepts, Candidate, asked_once
from ortkit.fusion.regions.lower import lower_region, restore_order
from ortkit.fusion.regions.region import PASS
from ortkit.fusion.regions.report import RegionReport, op_types
from ortkit.fusion.regions.search import Search
from ortkit.graph.walk import control_bodies
from ortkit.kernels.build.library import LibraryBuild, build_library, refusal
from ortkit.kernels.signature import RegionSignature, by_key
from ortkit.kernels.tuning.database import Chooser
from ortkit.refusal import Refused
from ortkit.rewrite.log import DENIED
from ortkit.rewrite.scope import Scope
from ortkit.targets.catalog import load
from ortkit.targets.target import Target


def compile_regions(
    scopes: Sequence[Scope],
    path: Path,
    kernels: str,
    target: Target,
    count: Callable[[int, int], None],
    sources: Path | None = None,
    chooser: Chooser | None = None,
    bodies: Mapping[str, onnx.FunctionProto] | None = None,
) -> tuple[tuple[RegionReport, ...], Path | None, str]:
    """Find regions, compile them into one library at `path`, and put fused nodes in their place.

    Nothing is replaced before all kernels are there.

    Args:
        scopes: The graphs, rewritten for the same kind of target.
        path: Where the library is written.
        kernels: A backend's name, or `auto`.
        target: What the kernels are for.
        count: Called with how many kernels are compiled, and of how many.
        sources: The folder that the kernels' code is written into for reading, if it is to be.
        chooser: See `build_library`.
        bodies: Of the fused nodes that are kept as they are, by op type.

    Returns:
        A report for each region; the library, None if no region has a kernel; and what there is
        to say about the build.

    Raises:
        MissingDependencyError: No toolchain for the kernels is installed.
        KernelError: A toolchain failed.
    """

    @asked_once
    def accepts(signature: RegionSignature) -> Refused | None:
        return refusal(signature, target, kernels) or invalid_body(signature, opsets)

    # Bodies import the versions of the model.
    opsets = {"": scopes[0].opset()} if scopes else {}
    planners = [
        Planner(scope, accepts, cost_model_of(scope), settle=_Allowed(scope)) for scope in scopes
    ]
    chains = [(planner.scope, chain) for planner in planners for chain in planner.chains()]
    excluded = frozenset(node for _, chain in chains if not chain.reason for node in chain.nodes)
    has_layout = target.traits.has_nhwc_option and bool(advise(scopes, excluded).options)
    decompositions = _decompositions(target, Surroundings(accepts, excluded, has_layout))
    for scope in scopes if has_layout else ():
        excluded |= frozenset(beside_convolutions(scope))
    with decomposed(scopes, decompositions):
        plan = _Plan(
            chains,
            [(item.scope, each) for item in planners for each in item.candidates(excluded)],
            list(find_kept(scopes, bodies, accepts, target)) if bodies else [],
            bodies or {},
        )  # fmt: skip
        wanted, shared = by_key(plan.signatures())
        built = None
        if wanted:
            built = build_library(
                list(wanted.values()), target, path, kernels, count=count, sources=sources,
                chooser=chooser,
            )  # fmt: skip
        reports = list(plan.lower(built, shared))
    for scope in scopes:
        restore_order(scope)
    if built is None:
        return tuple(reports), None, ""
    files = {
        signature.op_type: built.sources[key]
        for key, signature in wanted.items()
        if key in built.sources
    }
    reports = [
        replace(report, sources=files.get(report.emitted_as or "", ())) for report in reports
    ]
    library = None if built.library is None else built.library.path
    return tuple(reports), library, built.note


def _decompositions(target: Target, around: Surroundings) -> Sequence[Decomposition]:
    """Return what is decomposed for a target, in order."""
    made = [load(name).of(around) for name in target.traits.decompositions]
    return [item for item in made if item is not None]


@dataclass(frozen=True)
class _Plan:
    """What may become fused nodes, as it was found; nothing is replaced yet."""

    chains: Sequence[tuple[Scope, Chain]]
    found: Sequence[tuple[Scope, Candidate]]
    kept: Sequence[KeptNode]
    bodies: Mapping[str, onnx.FunctionProto]

    def signatures(self) -> Iterator[RegionSignature]:
        """Yield what there are to be kernels for."""
        for _, chain in self.chains:
            yield from chain.signatures.values()
        for signature in (
            *(candidate.signature for _, candidate in self.found),
            *(kept_node.signature for kept_node in self.kept),
        ):  # fmt: skip
            if signature is not None:
                yield signature

    def lower(
        self, built: LibraryBuild | None, shared: Mapping[str, str]
    ) -> Iterator[RegionReport]:
        """Put fused nodes in the place of what has a kernel, and report on each region.

        Args:
            built: What became of the signatures, None if there were none.
            shared: Why there is no kernel for these keys.
        """
        refused, replaced = dict(shared), dict[ir.Value, ir.Value]()
        left_out = dict[str, tuple[str, ...]]()
        if built is not None:
            refused |= {each.key: reason for each, reason in built.refused}
            left_out = {each.key: each.left_out_lines() for each in built.kernels}
        for scope, chain in self.chains:
            yield from settle_chain(scope, chain, refused, replaced)
        for scope, candidate in self.found:
            yield _lower(scope, candidate, refused, replaced, left_out)
        yield from settle_kept(self.kept, self.bodies, refused)


def _lower(
    scope: Scope,
    candidate: Candidate,
    refused: Mapping[str, str],
    replaced: dict[ir.Value, ir.Value],
    left_out: Mapping[str, tuple[str, ...]],
) -> RegionReport:
    at, signature, reason = candidate.region.at, candidate.signature, candidate.reason
    if signature is not None:
        reason = refused.get(signature.key, "")
        if any(node.graph is None for node in candidate.region.nodes):
            reason = "nothing reads all of it any more"
        if not reason and not lower_region(scope, candidate.region, signature, replaced):
            reason = "rolled back or out of fuel"
    emitted = None if reason or signature is None else signature.op_type
    missing = () if emitted is None or signature is None else left_out.get(signature.key, ())
    return replace(_report(candidate, at, reason, emitted), left_out=missing)


@dataclass(frozen=True)
class Planner:
    """Finds what of a scope may become kernels: for `ortkit optimize`, and for its provider.

    Chains of convolutions come first. Then come the families of the target's row, in order, and
    the pointwise regions of what is left.

    Args:
        scope: Whose graph is planned.
        accepts: Says why there would be no kernel for a region.
        cost: Says when a prediction is not good enough.
        settle: See `Search`.
        in_place: See `Search`; if so, graphs that are nested in the scope's are planned too.
    """

    scope: Scope
    accepts: Accepts
    cost: CostModel
    settle: Callable[[Candidate], Candidate]
    in_place: bool = True

    def chains(self) -> list[Chain]:
        """Return the chains of convolutions, those that are not taken too."""
        root = self.scope.root
        if not isinstance(root, ir.Graph):
            return []
        return find_chains(self.scope, root, self.accepts, spares=self.in_place)

    def candidates(self, excluded: Collection[ir.Node] = ()) -> Iterator[Candidate]:
        """Yield the regions without nodes that are `excluded`; see `Candidate`."""
        root = self.scope.root
        if not isinstance(root, ir.Graph):
            return
        search = Search(
            self.scope, root, self.accepts, self.cost, set(excluded), settle=self.settle,
            in_place=self.in_place,
        )  # fmt: skip
        for graph in (root, *(_bodies(root) if self.in_place else ())):
            yield from _in_graph(replace(search, graph=graph))


def _in_graph(search: Search) -> Iterator[Candidate]:
    for name in search.scope.traits.families:
        found = list(grown(search, load(name)))
        made = [each.region for each in found if each.signature is not None]
        search.excluded.update(without_readers(made))
        yield from found
    yield from select.family(search)


@dataclass(frozen=True)
class _Allowed:
    """Refuses what is denied: no kernel is made for it."""

    scope: Scope

    def __call__(self, candidate: Candidate) -> Candidate:
        if not self.scope.log.is_denied(PASS, candidate.region.kind, candidate.region.at):
            return candidate
        return replace(candidate, signature=None, reason=DENIED)


def _bodies(graph: ir.Graph) -> Iterator[ir.Graph]:
    for node in graph:
        for body in control_bodies(node):
            yield body
            yield from _bodies(body)


def _report(candidate: Candidate, at: str, reason: str, emitted: str | None) -> RegionReport:
    region, prediction = candidate.region, candidate.prediction
    return RegionReport(
        kind=region.kind,
        at=at,
        nodes=len(region.nodes),
        emitted_as=emitted,
        reason=reason,
        inputs=len(region.inputs),
        outputs=len(region.outputs),
        predicted_before_ns=round(prediction.before_ns),
        predicted_after_ns=round(prediction.after_ns),
        ops=op_types(region.nodes),
    )
