"""A source that was optimized before: its fused nodes are inlined and formed again, or kept.

Inlined bodies are seen by every pass, so that the result is what today's version makes of the
model. Where something of a body is left without a kernel, as weights that were packed for one may
be, its fused node is kept instead. Its kernel is made again from the body. All are kept where the
result would have more nodes than the source: some kernels need the layout that was chosen before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from ortkit.fusion.kept import KEPT
from ortkit.fusion.regions.access import VIEWS
from ortkit.fusion.regions.region import PASS
from ortkit.graph.analysis.summary import Summary
from ortkit.graph.walk import nodes_below
from ortkit.kernels.metadata import LIBRARY_TARGET_KEY
from ortkit.kernels.signature import DOMAIN
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.options import OptimizeOptions
from ortkit.passes.inline_functions import InlineFunctions
from ortkit.rewrite.pipeline import Pipeline
from ortkit.text import kind_of_op

#: How often more of them are kept, before all of them are.
_MOST_ROUNDS = 4

#: The metadata of nodes, while a model is rewritten: the fused operator whose body they are of.
_MARK = "ortkit.fused.from"
#: Nodes that cost nothing, or that every graph has beside its kernels.
_MOVES = VIEWS | {"Cast", "CastLike", "Constant", "Identity", "Shape", "Size"}


@dataclass
class FusedSource:
    """The fused nodes of one source, and which of them stay.

    Args:
        bodies: By op type.
        counts: How many nodes there are of each.
        refusal: Why none of them is kept, empty if they may be.
        nodes: How many nodes the source has, fused ones counted once.
    """

    bodies: Mapping[str, onnx.FunctionProto]
    counts: Mapping[str, int]
    refusal: str = ""
    nodes: int = 0

    def __post_init__(self) -> None:
        self.kept: set[str] = set()
        self._refused: dict[str, str] = {}
        self._rounds = 0

    @classmethod
    def of(cls, model: ir.Model, options: OptimizeOptions) -> FusedSource:
        """Return what `model` has, before it is rewritten."""
        if all(domain != DOMAIN for domain, _, _ in model.functions):
            return cls({}, {})
        bodies = fused_bodies(model)
        calls = (node.op_type for node in nodes_below(model.graph) if node.domain == DOMAIN)
        made_for = model.metadata_props.get(LIBRARY_TARGET_KEY, options.target)
        refusal = ""
        if options.kernels == "off":
            refusal = "--kernels off"
        elif not options.has_regions:
            refusal = f"level {options.level} makes no kernels"
        elif made_for != options.target:
            refusal = f"their kernels were for {made_for}"
        counts = Counter(op for op in calls if op in bodies)
        return cls(bodies, counts, refusal, Summary.of(model).nodes)

    def kept_but(self, denied: Set[str]) -> dict[str, onnx.FunctionProto]:
        """Return the bodies of the operators that are kept, but for those whose id is denied."""
        if not self.kept:
            return {}
        return {op: self.bodies[op] for op in self.kept if f"{PASS}:{KEPT}:{op}" not in denied}

    def keep_more(self, candidate: Candidate) -> bool:
        """Say whether a candidate must be made again, with other fused nodes kept."""
        if self.refusal or not self.bodies:
            return False
        if candidate.library is None and candidate.kernel_note:
            self.refusal = candidate.kernel_note
            again, self.kept = bool(self.kept), set()
            return again
        failed = {
            region.kept_from: region.reason
            for region in candidate.regions
            if region.kept_from and region.emitted_as is None
        }
        rest = set(self.bodies) - self.kept - set(self._refused)
        more = rest & candidate.left
        self._rounds += 1
        is_worse = not more and not failed and Summary.of(candidate.model).nodes > self.nodes
        if is_worse or (more and self._rounds > _MOST_ROUNDS):
            more = rest
        self._refused |= failed
        self.kept = (self.kept | more) - set(failed)
        return bool(failed or more)

    def note(self, candidate: Candidate) -> str:
        """Say what became of them, in one line; empty if there were none."""
        if not self.bodies:
            return ""
        stay = {
            region.kept_from
            for region in candidate.regions
            if region.kept_from and region.emitted_as
        }
        left = candidate.left - stay
        total = sum(self.counts.values())
        lines = [f"{total} fused nodes that it had were inlined"]
        if not self.refusal:
            lines[0] += " and formed again"
        if stay:
            lines.append(f"kept, with kernels made again: {self._listed(stay)}")
        by_reason: dict[str, set[str]] = {}
        for op in left:
            reason = self.refusal or self._refused.get(op, "rolled back, or denied by its id")
            by_reason.setdefault(reason, set()).add(op)
        lines += [
            f"without a kernel now: {self._listed(ops)}: {reason}"
            for reason, ops in sorted(by_reason.items())
        ]
        return "; ".join(lines)

    def _listed(self, ops: Set[str]) -> str:
        kinds: Counter[str] = Counter()
        for op in sorted(ops):
            kinds[kind_of_op(op)] += self.counts[op]
        return ", ".join(f"{kind} ({count})" for kind, count in kinds.items())


def fused_bodies(model: ir.Model) -> dict[str, onnx.FunctionProto]:
    """Return the bodies of the fused operators that the model's graphs call, by op type."""
    called = {node.op_identifier() for node in nodes_below(model.graph) if node.domain == DOMAIN}
    return {
        identifier[1]: ir.serde.serialize_function(function)
        for identifier, function in model.functions.items()
        if identifier in called
    }


def mark_calls(model: ir.Model) -> None:
    """Let each fused node say its operator; the nodes of its body say it once it is inlined."""
    for node in nodes_below(model.graph):
        node.metadata_props.pop(_MARK, None)
        if node.domain == DOMAIN and node.op_identifier() in model.functions:
            node.metadata_props[_MARK] = node.op_type


def take_marks(model: ir.Model, emitted: frozenset[str]) -> frozenset[str]:
    """Remove the marks; return the operators of which something runs without a kernel now.

    Args:
        model: Rewritten, its regions replaced.
        emitted: Fused operators that have a kernel.
    """
    left: set[str] = set()
    for node in nodes_below(model.graph):
        op_type = node.metadata_props.pop(_MARK, None)
        if op_type is None:
            continue
        if node.domain == DOMAIN:
            left |= set() if node.op_type in emitted else {op_type}
        elif node.op_type not in _MOVES:
            left.add(op_type)
    return frozenset(left)


def keeping(pipeline: Pipeline, ops: Set[str]) -> Pipeline:
    """Return a pipeline that does not inline these fused operators."""
    if not ops:
        return pipeline
    names = "+".join(sorted(f"{DOMAIN}::{op}" for op in ops))
    passes = tuple(
        replace(pass_, keep="+".join(filter(None, (pass_.keep, names))))
        if isinstance(pass_, InlineFunctions)
        else pass_
        for pass_ in pipeline.passes
    )
    return replace(pipeline, passes=passes)
