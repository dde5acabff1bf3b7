"""From the rewritten graphs to fused nodes and the one library of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from ortkit.fusion.attention.cpu import attention_candidates
from ortkit.fusion.attention.cuda import (
    cuda_attention_candidates,
    takes_attention,
    without_readers,
)
from ortkit.fusion.body_check import invalid_body
from ortkit.fusion.conv.chains import Chain, find_chains
from ortkit.fusion.conv.cuda_layout import advise, beside_convolutions
from ortkit.fusion.conv.plan import settle_chain
from ortkit.fusion.decompose.attention import decomposed_attention
from ortkit.fusion.decompose.conv_bias import split_biases
from ortkit.fusion.decompose.gate_up import split_gate_up
from ortkit.fusion.decompose.pretranspose import pretransposed_weights
from ortkit.fusion.decompose.rotary import decomposed_rotations
from ortkit.fusion.decompose.skip_norm import split_skip_norms
from ortkit.fusion.gemm.cpu_bf16 import product_candidates
from ortkit.fusion.gemm.cpu_fp32_cost import multiplies
from ortkit.fusion.gemm.cpu_fp32_regions import ProductRegions
from ortkit.fusion.gemm.cuda import (
    cuda_product_candidates,
    prefers_split_gate_up,
    prefers_transposed_weight,
    takes_sum,
)
from ortkit.fusion.gemm.cuda_batched import batched_candidates
from ortkit.fusion.gemm.cuda_fp8 import fp8_candidates
from ortkit.fusion.gemm.cuda_split_k import split_k_candidates
from ortkit.fusion.kept import find_kept, settle_kept
from ortkit.fusion.regions.cost_model import CostModel
from ortkit.fusion.regions.cuda_cost_model import CudaCostModel
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.lower import drop_unread, lower_region, restore_order
from ortkit.fusion.regions.region import PASS
from ortkit.fusion.regions.report import RegionReport
from ortkit.fusion.regions.select import Accepts, candidates
from ortkit.graph.walk import control_bodies
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.signature import RegionSignature, by_key
from ortkit.kernels.tuning.calibration import load_calibration
from ortkit.kernels.tuning.database import Chooser
from ortkit.refusal import Refused
from ortkit.rewrite.log import DENIED
from ortkit.rewrite.scope import Scope
from ortkit.targets.target import Target

_PRODUCTS_ON_CUDA = (
    fp8_candidates,
    split_k_candidates,
    cuda_product_candidates,
    batched_candidates,
)


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

    def accepts(signature: RegionSignature) -> Refused | None:
        return refusal(signature, target, kernels) or invalid_body(signature, opsets)

    def supports_attention(scope: Scope, node: ir.Node) -> bool:
        cost = CudaCostModel(scope, load_calibration())
        return takes_attention(scope, node, accepts, cost)

    # Bodies import the versions of the model.
    opsets = {"": scopes[0].opset()} if scopes else {}
    graphs = [(scope, scope.root) for scope in scopes if isinstance(scope.root, ir.Graph)]
    chains = [
        (scope, one) for scope, graph in graphs for one in find_chains(scope, graph, accepts)
    ]
    excluded = frozenset(node for _, chain in chains if not chain.reason for node in chain.nodes)
    with ExitStack() as split:
        if target.kind == "cuda":
            if advise(scopes, excluded).options:
                excluded |= frozenset(
                    node for scope in scopes for node in beside_convolutions(scope)
                )
            else:
                split.enter_context(split_biases(scopes, excluded))
            split.enter_context(decomposed_attention(scopes, supports_attention))
            split.enter_context(split_skip_norms(scopes, takes_sum))
            split.enter_context(split_gate_up(scopes, prefers_split_gate_up))
            split.enter_context(pretransposed_weights(scopes, prefers_transposed_weight))
            split.enter_context(decomposed_rotations(scopes, supports_attention))
        made = _compile(
            scopes, path, kernels, target, count, sources, chooser, accepts, chains, excluded,
            bodies or {},
        )  # fmt: skip
    for scope in scopes if target.kind == "cuda" else ():
        drop_unread(scope)
    return made


def _compile(
    scopes: Sequence[Scope],
    path: Path,
    kernels: str,
    target: Target,
    count: Callable[[int, int], None],
    sources: Path | None,
    chooser: Chooser | None,
    accepts: Accepts,
    chains: Sequence[tuple[Scope, Chain]],
    excluded: frozenset[ir.Node],
    bodies: Mapping[str, onnx.FunctionProto],
) -> tuple[tuple[RegionReport, ...], Path | None, str]:
    """Do the rest once chains of convolutions are found, see `compile_regions`."""
    found = [
        (scope, one)
        for scope in scopes
        for one in find_candidates(scope, accepts, target, excluded)
    ]
    kept = list(find_kept(scopes, bodies, accepts, target)) if bodies else []
    signatures = [each for _, chain in chains for each in chain.signatures.values()]
    signatures += [one.signature for _, one in found if one.signature is not None]
    signatures += [one.signature for one in kept if one.signature is not None]
    wanted, shared = by_key(signatures)
    reports: list[RegionReport] = []
    replaced: dict[ir.Value, ir.Value] = {}
    built = None
    if wanted:
        built = build_library(
            list(wanted.values()), target, path, kernels, count=count, sources=sources,
            chooser=chooser,
        )  # fmt: skip
    refused = dict(shared)
    if built is not None:
        refused |= {each.key: reason for each, reason in built.refused}
    left_out = {
        each.key: each.left_out_lines()
        for each in (() if built is None else built.kernels)
        if isinstance(each, CudaKernel)
    }
    for scope, chain in chains:
        reports += settle_chain(scope, chain, refused, replaced)
    for scope, one in found:
        at, signature, reason = one.region.at, one.signature, one.reason
        if signature is not None:
            reason = refused.get(signature.key, "")
            if any(node.graph is None for node in one.region.nodes):
                reason = "nothing reads all of it any more"
            if not reason and not lower_region(scope, one.region, signature, replaced):
                reason = "rolled back or out of fuel"
        emitted = None if reason or signature is None else signature.op_type
        missing = () if emitted is None or signature is None else left_out.get(signature.key, ())
        reports.append(replace(_report(one, at, reason, emitted), left_out=missing))
    reports += settle_kept(kept, bodies, refused)
    for scope in scopes:
        restore_order(scope)
    if built is None:
        return tuple(reports), None, ""
    files = {
        signature.op_type: built.sources[key]
        for key, signature in wanted.items()
        if key in built.sources
    }
    reports = [replace(one, sources=files.get(one.emitted_as or "", ())) for one in reports]
    library = None if built.library is None else built.library.path
    return tuple(reports), library, built.note


def find_candidates(
    scope: Scope, accepts: Accepts, target: Target, excluded: frozenset[ir.Node] = frozenset()
) -> Iterator[Candidate]:
    """Yield the regions of a main graph and of what is nested in it; see `Candidate`."""
    if not isinstance(scope.root, ir.Graph):
        return
    is_cpu = scope.target.kind == "cpu"
    cost = (CostModel if is_cpu else CudaCostModel)(scope, load_calibration())
    products = ProductRegions(scope, accepts) if is_cpu and multiplies(target) else None
    for graph in (scope.root, *_bodies(scope.root)):
        for one in product_candidates(scope, graph, accepts, excluded) if is_cpu else ():
            yield _allowed(scope, one)
            excluded |= frozenset(() if one.signature is None else one.region.nodes)
        for found in () if products is None else products.candidates(graph, excluded):
            yield (one := _allowed(scope, found))
            excluded |= frozenset(() if one.signature is None else one.region.nodes)
        find_attention = attention_candidates if is_cpu else cuda_attention_candidates
        attended = []
        for found in find_attention(scope, graph, accepts, cost, excluded):
            yield (one := _allowed(scope, found))
            attended += [] if one.signature is None else [one.region]
        excluded |= {node for region in attended for node in region.nodes}
        excluded |= without_readers(attended)
        for find_products in () if is_cpu else _PRODUCTS_ON_CUDA:
            made = []
            for found in find_products(scope, graph, accepts, cost, excluded):
                yield (one := _allowed(scope, found))
                made += [] if one.signature is None else [one.region]
            excluded |= {node for region in made for node in region.nodes} | without_readers(made)
        for one in candidates(scope, graph, accepts, cost, excluded):
            yield _allowed(scope, one)


def _allowed(scope: Scope, one: Candidate) -> Candidate:
    """Return a candidate that is denied without its signature: no kernel is made for it."""
    at = one.region.at
    if one.signature is None or not scope.log.is_denied(PASS, one.region.kind, at):
        return one
    return replace(one, signature=None, reason=DENIED)


def _bodies(graph: ir.Graph) -> Iterator[ir.Graph]:
    for node in graph:
        for body in control_bodies(node):
            yield body
            yield from _bodies(body)


def _report(one: Candidate, at: str, reason: str, emitted: str | None) -> RegionReport:
    region, prediction = one.region, one.prediction
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
    )
