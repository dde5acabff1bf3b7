"""From a graph as ONNX Runtime hands it over to what is claimed of it.

The graph is rewritten as `ortkit optimize` would, on a copy, and cut into regions. What a region
computes is known there by the names of values, so it can be claimed between these names in the
original; see `assembly`, `cuts` and `claims`. Nothing of the copy is kept but the regions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortkit.fusion.plan import Planner
from ortkit.fusion.regions.cost_model import CostModel, Prediction
from ortkit.fusion.regions.duplicate import Candidate, asked_once
from ortkit.fusion.regions.region import FusedRegion
from ortkit.graph.io.convert import paused_collector
from ortkit.kernels.build.library import refusal
from ortkit.kernels.signature import RegionSignature, by_key
from ortkit.kernels.tuning.calibration import load_calibration
from ortkit.passes.presets import preset
from ortkit.passes.select import load_pass
from ortkit.provider.own.assembly import Assembler, Known, is_held
from ortkit.provider.own.claim_set import Claim, Declined
from ortkit.provider.own.claims import Claimer
from ortkit.provider.own.conv_groups import chain_program
from ortkit.provider.own.options import CLAIMS_SINCE_LEVEL
from ortkit.provider.own.sizes import unsolved
from ortkit.provider.own.subgraph_cut import Cuts
from ortkit.refusal import Refused
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from ortkit.rewrite.scope import Scope
from ortkit.targets.target import Target

#: From this level on those, too, that are not predicted to pay.
EVERYTHING_SINCE_LEVEL = 3
#: Passes that change the weights of products and convolutions, which stay as they are, or move
#: work across them: what they leave could not be found in the original.
_LEFT_OUT = frozenset(
    {
        "fold-affine-into-conv", "fold-affine-into-matmul", "fold-transpose-into-gemm",
        "merge-linear", "unwrap-batch-norm", "unwrap-gemm", "widen-convolutions",
    }
)  # fmt: skip
#: Nothing here is verified beside the original, infinities included.
_OPTIONS = {"fuse-softmax": {"keeps_infinities": "true"}}


@dataclass(frozen=True)
class Plan:
    """What is claimed of one graph.

    Args:
        claims: With the nodes of the model that was planned for.
        declined: Regions that are not claimed, and why.
        seconds: By stage.
    """

    claims: tuple[Claim, ...]
    declined: tuple[Declined, ...]
    seconds: Mapping[str, float]

    @property
    def saved_ns(self) -> float:
        """What all claims together are predicted to save of a run."""
        return sum(claim.prediction.before_ns - claim.prediction.after_ns for claim in self.claims)

    @property
    def signatures(self) -> dict[str, RegionSignature]:
        """The kernels that are wanted, by key."""
        return by_key(self._signatures())[0]

    def with_own_keys(self) -> Plan:
        """Return the plan without claims whose kernels share a key with different ones."""
        return self.without(by_key(self._signatures())[1])

    def _signatures(self) -> Iterator[RegionSignature]:
        return (step.signature for claim in self.claims for step in claim.program.steps)

    def without(self, refused: Mapping[str, str]) -> Plan:
        """Return the plan without the claims that need a kernel that there is not.

        Args:
            refused: By the key of a signature the reason.
        """
        return self._without(
            lambda claim: next(
                (
                    refused[step.signature.key]
                    for step in claim.program.steps
                    if step.signature.key in refused
                ),
                "",
            )
        )

    def without_programs(self, slow: Mapping[str, str]) -> Plan:
        """Return the plan without the claims of some programs.

        Args:
            slow: By the name of a program's function the reason.
        """
        return self._without(lambda claim: slow.get(claim.program.symbol, ""))

    def without_nodes(self, taken: Mapping[ir.Node, str]) -> Plan:
        """Return the plan without the claims on nodes that are another provider's.

        ONNX Runtime would drop such groups alone, and keep those that go together with them.

        Args:
            taken: Nodes, and the providers that have them.
        """
        return self._without(
            lambda claim: next(
                (f"{taken[node]} has one of its nodes" for node in claim.nodes if node in taken),
                "",
            )
        )

    def without_unsolved(self) -> Plan:
        """Return the plan without the claims whose sizes cannot be inferred."""
        return self._without(
            lambda claim: lost.reason if (lost := unsolved(claim.program)) else ""
        )

    def _without(self, reason_of: Callable[[Claim], str]) -> Plan:
        lost = {claim.bundle: reason for claim in self.claims if (reason := reason_of(claim))}
        kept = tuple(claim for claim in self.claims if claim.bundle not in lost)
        gone = [
            Declined(claim.at, claim.program.name, lost[claim.bundle])
            for claim in self.claims
            if claim.bundle in lost
        ]
        return Plan(kept, (*self.declined, *gone), self.seconds)


def plan(
    model: ir.Model, target: Target, level: int, kernels: str = "auto", *, is_ahead: bool = False
) -> Plan:
    """Return what to claim of a model's main graph.

    Args:
        model: As ONNX Runtime hands it over; not changed. Names of values are unique.
        target: What the kernels are for.
        level: As of `ortkit optimize`; below 2 nothing is claimed, at 3 whatever has a kernel.
        kernels: A backend's name, or "auto".
        is_ahead: Whether the kernel library must hold all that programs read, for a model that is
            compiled ahead of time.
    """
    if level < CLAIMS_SINCE_LEVEL or kernels == "off":
        return Plan((), (), {})
    request = _Request(model, target, level, kernels, is_ahead)
    first = _attempt(request)
    # Rotations that are recognized may stand where no kernel takes them, before an attention; and
    # what an attention that is left would have taken in may be in other regions.
    if not any(declined.kind.endswith("attention") for declined in first.declined):
        return first
    second = _attempt(replace(request, doubts=False), frozenset({"fuse-rotary"}))
    return max((first, second), key=lambda one: one.saved_ns)


@dataclass(frozen=True)
class _Request:
    """What `plan` is asked; see there."""

    model: ir.Model
    target: Target
    level: int
    kernels: str
    is_ahead: bool
    doubts: bool = True
    """Whether attention is looked at that only pays against the form that the original has."""


def _attempt(request: _Request, but: frozenset[str] = frozenset()) -> Plan:
    """Plan with some passes left out."""
    started = time.perf_counter()
    model = request.model
    scope = _rewritten(model, request.target, but)
    rewritten = time.perf_counter()
    accepts = asked_once(lambda signature: refusal(signature, request.target, request.kernels))
    takes_all = request.level >= EVERYTHING_SINCE_LEVEL
    cost = _Cost(scope, takes_all=takes_all, takes_attention=takes_all)
    assert isinstance(scope.root, ir.Graph)
    cuts = Cuts(model)
    assembler = Assembler(scope, Known(model.graph, scope), accepts, cost)
    claimer = Claimer(model, cuts, assembler)
    taken, declined = set[ir.Node](), list[Declined]()

    def settle(candidate: Candidate) -> Candidate:
        """Claim what holds a packed matrix at once: what cannot be is left to other regions."""
        if not is_held(candidate):
            return candidate
        # A library that holds the matrices of a model would be as large as the model.
        in_file = Refused("its matrix would be in the library") if request.is_ahead else None
        lost = claimer.claim(in_file or assembler.held(candidate))
        return (
            candidate if lost is None else replace(candidate, signature=None, reason=lost.reason)
        )

    lenient = _Cost(scope, takes_all=takes_all, takes_attention=takes_all or request.doubts)
    planner = Planner(scope, accepts, lenient, settle, in_place=False)
    for chain in planner.chains():
        if chain.reason:
            continue
        made = chain_program(scope, chain, accepts, bakes=request.is_ahead)
        if (lost := claimer.claim(made)) is None:
            taken |= chain.nodes
        else:
            declined.append(Declined("", "convolutions", lost.reason))
    found = list(planner.candidates(taken))
    assembler.taken = [item for item in found if item.signature is not None and not is_held(item)]
    attention = [one for one in assembler.taken if _is_attention(one.region)]
    doubtful = [one for one in attention if cost.refusal(one.region, one.prediction)]
    settled = claimer.run(doubtful)
    refused = [
        Declined(one.region.at, one.region.kind, one.reason)
        for one in found
        if one.signature is None and one.reason
    ]
    seconds = {"rewrite": rewritten - started, "plan": time.perf_counter() - rewritten}
    every = Plan(settled.claims, (*declined, *settled.declined, *refused), seconds)
    return every.without_unsolved()


def _rewritten(model: ir.Model, target: Target, but: frozenset[str]) -> Scope:
    """Rewrite a copy and return its main graph's scope.

    Into the forms of level 2, at level 3 too: there attention takes in the products before it,
    which no kernel here computes.
    """
    names = [name for name in preset(CLAIMS_SINCE_LEVEL) if name not in _LEFT_OUT | but]
    passes = tuple(load_pass(name, _OPTIONS.get(name)) for name in names)
    with paused_collector():
        copy = model.clone()
        return Pipeline(passes).run(copy, RewriteOptions(target, CLAIMS_SINCE_LEVEL)).scopes[0]


class _Cost(CostModel):
    """Takes all that has a kernel, or attention whatever it gains.

    Attention may pay against the form that the original has.
    """

    def __init__(self, scope: Scope, *, takes_all: bool, takes_attention: bool) -> None:
        super().__init__(scope, load_calibration())
        self._takes_all = takes_all
        self._takes_attention = takes_attention

    def refusal(self, region: FusedRegion, prediction: Prediction) -> str | None:
        if self._takes_all or (self._takes_attention and _is_attention(region)):
            return None
        return super().refusal(region, prediction)


def _is_attention(region: FusedRegion) -> bool:
    return any(node.op_type == "Attention" for node in region.nodes)
