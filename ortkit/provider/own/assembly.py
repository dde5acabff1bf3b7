"""From regions of the rewritten copy to programs between values that the original has too."""

from __future__ import annotations

from functools import cached_property

import onnx_ir as ir

from ortkit.fusion.regions.cost_model import CostModel, Prediction
from ortkit.fusion.regions.describe import describe_region
from ortkit.fusion.regions.duplicate import Accepts, Candidate
from ortkit.fusion.regions.members import Members, is_reshape
from ortkit.fusion.regions.region import region_of
from ortkit.fusion.regions.search import PACKED
from ortkit.kernels.signature import TensorSpec
from ortkit.provider.own.program_builder import Assembled, ProgramBuilder, spec_of
from ortkit.refusal import Refused, needed, refusals
from ortkit.rewrite.scope import Scope

#: A program of more kernels is refused: what it would compute twice is no detail any more.
MAX_STEPS = 8


class Known:
    """The values that the original has under names that still mean the same."""

    def __init__(self, graph: ir.Graph, scope: Scope) -> None:
        """Compare with the original graph, as it was before `scope` was rewritten."""
        self._scope = scope
        self._values: dict[str, ir.Value] = {v.name: v for v in graph.inputs if v.name}
        for node in graph:
            self._values |= {value.name: value for value in node.inputs if value and value.name}
            self._values |= {value.name: value for value in node.outputs if value.name}

    def has(self, value: ir.Value) -> bool:
        """Say whether the original has this value: the name, with its type and rank."""
        other = self._values.get(value.name or "")
        if other is None:
            return False
        dtype, shape = self._scope.shapes.dtype(value), self._scope.shapes.shape(value)
        if other.dtype is not None and dtype is not None and other.dtype != dtype:
            return False
        if other.shape is None or shape is None:
            return True
        if len(other.shape) != len(shape):
            return False
        pairs = zip(other.shape, shape, strict=True)
        return all(not (isinstance(a, int) and isinstance(b, int) and a != b) for a, b in pairs)


def is_held(candidate: Candidate) -> bool:
    """Say whether a session holds a region's constants: one is in a layout of the kernel's own."""
    return any(PACKED in value.meta for value in candidate.region.inputs)


def is_constant(scope: Scope, value: ir.Value) -> bool:
    """Say whether a value is a constant, in the graph or in none."""
    is_loose = value.graph is None and value.producer() is None
    return scope.is_constant(value) or (is_loose and value.const_value is not None)


class Assembler:
    """Makes programs of the candidates of one graph."""

    def __init__(self, scope: Scope, known: Known, accepts: Accepts, cost: CostModel) -> None:
        self.scope = self._scope = scope
        self._known = known
        self._accepts = accepts
        self._cost = cost
        self._members = Members(scope)
        self.taken: list[Candidate] = []
        """The candidates that are taken."""

    @cached_property
    def _makers(self) -> dict[ir.Value, Candidate]:
        return {v: candidate for candidate in self.taken for v in candidate.region.outputs}

    def shared(self, made: Assembled) -> list[Candidate]:
        """Return the regions in a program that others than its last one read from, too."""
        inside = {node for part in made.parts for node in part.region.nodes}
        return [
            candidate
            for candidate in made.parts
            if candidate in self.taken
            and not any(self._known.has(value) for value in candidate.region.outputs)
            and any(use.node not in inside for v in candidate.region.outputs for use in v.uses())
        ]

    def spec(self, value: ir.Value) -> TensorSpec | Refused:
        """Return the type and sizes of a value of the copy."""
        return spec_of(self._scope, value)

    def lacks(self, made: Assembled) -> Refused | None:
        """Say which end of a program the original has not; None if it has all."""
        values = (*made.inputs, *made.outputs)
        lost = next((value.name for value in values if not self._known.has(value)), None)
        if lost is None:
            return None
        return Refused(f"{lost!r} is no value of the model as it was handed over")

    def held(self, candidate: Candidate) -> Assembled | Refused:
        """Return the program of a candidate alone, for which the session holds its constants."""
        free = [value for value in candidate.region.inputs if not is_constant(self._scope, value)]
        assert candidate.signature is not None
        draft = ProgramBuilder(self._scope)
        for value, spec in zip(candidate.region.inputs, candidate.signature.inputs, strict=True):
            if value in free:
                draft.enter(value)
            else:
                draft.hold(value, spec)
        return draft.add_part(candidate) or draft.assembled(candidate.region.outputs, candidate)

    @refusals
    def assemble(
        self,
        root: Candidate,
        carried: frozenset[ir.Value] = frozenset(),
        *,
        is_maker: bool = False,
    ) -> Assembled | Refused:
        """Return the program of a candidate, or why there is none.

        Args:
            root: One of `taken`.
            carried: Values of the copy that the original has not, which the program gets all the
                same: see `carriers`.
            is_maker: Whether it makes such values: the original has no results of it.
        """
        draft = ProgramBuilder(self._scope, carried=carried)
        ends: list[tuple[ir.Value, ir.Value]] = []
        for value in root.region.outputs:
            end = value if is_maker else needed(self._end(value))
            ends.append((value, end))
        for value, end in ends:
            if refused := self._need(draft, value, root):
                return refused
            draft.follow(value, end)
        return draft.assembled([end for _, end in ends], root)

    def without_recomputed(self, root: Candidate) -> Candidate | None:
        """Return a candidate that reads what it would compute as other regions do too.

        None if there is no kernel for what is left, or if nothing was computed twice.
        """
        kept = [node for node in root.region.nodes if node not in root.region.recomputed]
        if not kept or len(kept) == len(root.region.nodes):
            return None
        region = region_of(self._scope, kept)
        prediction = self._cost.predict(region)
        if self._cost.refusal(region, prediction) is not None:
            return None
        signature = describe_region(self._scope, region)
        if self._accepts(signature) is not None:
            return None
        return Candidate(region, signature, prediction, "")

    def _end(self, value: ir.Value) -> ir.Value | Refused:
        """Return what stands for a result in the original: itself, or what it is reshaped to."""
        if self._known.has(value):
            return value
        reached = value
        while not self._known.has(reached):
            readers = [use.node for use in reached.uses()]
            if len(readers) != 1 or not is_reshape(readers[0]) or reached.is_graph_output():
                return Refused(f"{value.name!r} is no value of the model as it was handed over")
            reached = readers[0].outputs[0]
        return reached

    def _need(
        self, draft: ProgramBuilder, value: ir.Value, root: Candidate | None = None
    ) -> Refused | None:
        """Let the draft have `value`, a result of `root` if that is given; or say why not."""
        if draft.has(value):
            return None
        if self._scope.is_constant(value):
            return draft.bake(value)
        if root is None and (value in draft.carried or self._known.has(value)):
            draft.enter(value)
            return None
        if len(draft.steps) >= MAX_STEPS:
            return Refused(f"more than {MAX_STEPS} kernels in a row")
        maker = root or self._makers.get(value)
        if maker is not None and maker.signature is not None:
            return self._step(draft, maker)
        node = value.producer()
        if node is None:
            return Refused(f"{value.name!r} is no value of the model as it was handed over")
        if is_reshape(node) and node.inputs[0] is not None:
            if refused := self._need(draft, node.inputs[0]):
                return refused
            draft.view(value, node.inputs[0])
            return None
        return self._lone(draft, node)

    def _lone(self, draft: ProgramBuilder, node: ir.Node) -> Refused | None:
        """Compute a node that is in no region, by a kernel of its own."""
        access = self._members.access(node)
        what = f"{node.outputs[0].name!r}, which the original has not,"
        if access is None or isinstance(access, Refused):
            reason = "" if access is None else f": {access.reason}"
            return Refused(f"{what} is made by {node.op_type}{reason}")
        region = region_of(self._scope, (node,))
        if not region.outputs or self._cost.refusal(region, Prediction(1e9, 0.0)):
            return Refused(f"{what} is too small for a kernel")
        signature = describe_region(self._scope, region)
        if (verdict := self._accepts(signature)) is not None:
            return Refused(f"{what} has no kernel: {verdict.reason}")
        prediction = self._cost.predict(region)
        return self._step(draft, Candidate(region, signature, prediction, ""))

    def _step(self, draft: ProgramBuilder, candidate: Candidate) -> Refused | None:
        for value in candidate.region.inputs:
            if refused := self._need(draft, value):
                return refused
        return draft.add_part(candidate)
