"""Programs and the nodes of the original that they stand for: disjoint, closed, without cycles."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from ortkit.fusion.regions.describe import known_spec
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.packed import Panels
from ortkit.fusion.regions.search import PACKED
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.signature import TensorSpec
from ortkit.kernels.tuning.calibration import load_calibration
from ortkit.provider.own import aliased_storage
from ortkit.provider.own.acyclic import in_cycles
from ortkit.provider.own.assembly import Assembler
from ortkit.provider.own.claim_set import Claim, ClaimSet, Declined
from ortkit.provider.own.original_cost import OriginalCost
from ortkit.provider.own.program_builder import Assembled, array_of
from ortkit.provider.own.subgraph_cut import Cut, Cuts
from ortkit.provider.own.weights import Origin, aligned
from ortkit.refusal import Refused, needed, refusals


@dataclass
class _Waiting:
    """A program that reads values that the original has not, and its cut."""

    root: Candidate
    made: Assembled
    cut: Cut
    extras: tuple[ir.Value, ...]
    """What the cut reads and the program has no use for."""
    carried: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Values of the copy -> the original's values that carry them."""


class Claimer:
    """Settles the claims on one graph."""

    def __init__(self, original: ir.Model, cuts: Cuts, assembler: Assembler) -> None:
        """Claim from the main graph of a model.

        Args:
            original: Whose main graph is claimed from.
            cuts: Of that graph.
            assembler: Makes programs of candidates.
        """
        self._original = original
        self._cuts = cuts
        self._assembler = assembler
        self._claims: list[Claim] = []
        self._declined: list[Declined] = []
        self._owned: set[ir.Node] = set()
        self._bundles = 0

    @cached_property
    def _shapes(self) -> Shapes:
        return Shapes.infer(self._original)

    @cached_property
    def _worth(self) -> OriginalCost:
        return OriginalCost(self._original, self._shapes, load_calibration())

    @refusals
    def claim(self, made: Assembled | Refused) -> Refused | None:
        """Claim a program before others are known; or say why that cannot be."""
        lost = made if isinstance(made, Refused) else self._assembler.lacks(made)
        if lost is not None or isinstance(made, Refused):
            return lost
        cut = needed(self._cut(made.inputs, made.outputs))
        return self._own([self._claim(made, cut)])

    def run(self, doubtful: Container[Candidate] = ()) -> ClaimSet:
        """Return what is claimed, of what the assembler has taken too.

        Args:
            doubtful: Candidates that may pay only against the form that the original has.
        """
        waiting: list[_Waiting] = []
        for root in self._assembler.taken:
            found = self._settle(root)
            smaller = self._assembler.without_recomputed(root)
            if isinstance(found, Refused) and smaller is not None:
                again = self._settle(smaller)
                found = found if isinstance(again, Refused) else again
            if root in doubtful:
                found = self._judged(found)
            if isinstance(found, Refused):
                self._decline(root, found.reason)
            elif isinstance(found, _Waiting):
                waiting.append(found)
            else:
                self._take([found], root)
        self._carry(waiting)
        self._break_cycles()
        inside = {at for claim in self._claims for at in claim.regions}
        declined = [item for item in self._declined if item.at not in inside]
        return ClaimSet(tuple(self._claims), tuple(declined))

    @refusals
    def _settle(self, root: Candidate) -> Claim | _Waiting | Refused:
        made = needed(self._assembler.assemble(root))
        cut = self._cut(made.inputs, made.outputs)
        if isinstance(cut, Cut):
            return self._claim(made, cut)
        waits = self._wait(root, made)
        return cut if isinstance(waits, Refused) else waits

    def _judged(self, found: Claim | _Waiting | Refused) -> Claim | _Waiting | Refused:
        """Refuse what does not pay against the nodes of the original that it stands for."""
        if isinstance(found, Refused):
            return found
        nodes = found.cut.nodes if isinstance(found, _Waiting) else found.nodes
        after = found.made.prediction if isinstance(found, _Waiting) else found.prediction
        worth = self._worth.predict(nodes, after.after_ns)
        if isinstance(worth, str):
            return Refused(worth)
        if isinstance(found, Claim):
            return replace(found, prediction=worth)
        return replace(found, made=replace(found.made, prediction=worth))

    def _decline(self, root: Candidate, reason: str) -> None:
        self._declined.append(Declined(root.region.at, root.region.kind, reason))

    def _cut(self, inputs: Iterable[ir.Value], outputs: Iterable[ir.Value]) -> Cut | Refused:
        return self._cuts.find(_names(inputs), _names(outputs))

    def _claim(self, made: Assembled, cut: Cut) -> Claim:
        weights = tuple(
            aligned(array_of(self._assembler.scope, weight)) for weight in made.weights
        )
        return Claim(
            made.at, made.program, cut.nodes, _names(made.inputs), _names(made.outputs),
            made.prediction, tuple(part.region.at for part in made.parts), weights=weights,
            origins=tuple(map(_origin_of, made.weights)),
        )  # fmt: skip

    def _take(self, claims: Sequence[Claim], root: Candidate) -> None:
        """Take claims together, or none of them."""
        if refused := self._own(claims):
            self._decline(root, refused.reason)

    def _own(self, claims: Sequence[Claim]) -> Refused | None:
        """Add claims that go together; or say why that cannot be."""
        nodes = [node for claim in claims for node in claim.nodes]
        if len(set(nodes)) < len(nodes) or not self._owned.isdisjoint(nodes):
            return Refused("nodes of it belong to another group")
        self._owned.update(nodes)
        self._bundles += 1
        self._claims += [replace(claim, bundle=self._bundles) for claim in claims]
        return None

    @refusals
    def _wait(self, root: Candidate, made: Assembled) -> _Waiting | Refused:
        """Assemble a program again that is given what it shares with others."""
        shared = {
            v for candidate in self._assembler.shared(made) for v in candidate.region.outputs
        }
        if not shared:
            return Refused("")
        again = needed(self._assembler.assemble(root, frozenset(shared)))
        given = [value for value in again.inputs if value not in shared]
        cut = needed(self._cut(given, again.outputs))
        own = set(_names(given))
        extras = tuple(value for value in cut.inputs if value.name not in own)
        carried = [value for value in again.inputs if value in shared]
        return _Waiting(root, again, cut, extras, dict.fromkeys(carried, ir.Value(name="")))

    # ---- values that several programs share

    def _carry(self, waiting: Sequence[_Waiting]) -> None:
        """Find carriers for what programs wait for, and take those that get all."""
        makers = {
            v: candidate for candidate in self._assembler.taken for v in candidate.region.outputs
        }
        wanted = {makers[value]: None for item in waiting for value in item.carried}
        made: dict[ir.Value, Claim] = {}
        reasons: dict[ir.Value, str] = {}
        for maker in wanted:
            users = [one for one in waiting if any(makers[v] is maker for v in one.carried)]
            claim = self._carrying(maker, users)
            for value in maker.region.outputs:
                if isinstance(claim, Refused):
                    reasons[value] = claim.reason
                else:
                    made[value] = claim
        self._take_together(waiting, made, reasons)

    def _take_together(
        self,
        waiting: Sequence[_Waiting],
        made: dict[ir.Value, Claim],
        reasons: dict[ir.Value, str],
    ) -> None:
        """Take what hangs together by carriers: one without its reader would be wrong."""
        bundles: list[list[_Waiting]] = []
        for one in waiting:
            values = _made_together(one, made)
            joined = [
                each for each in bundles if any(values & _made_together(u, made) for u in each)
            ]
            users = [one, *(user for each in joined for user in each)]
            bundles = [*(each for each in bundles if each not in joined), users]
        for users in bundles:
            wanted = dict.fromkeys(value for user in users for value in user.carried)
            if refused := next((reasons[value] for value in wanted if value in reasons), None):
                # One that stays as it is would read from a carrier what is not in it.
                for user in users:
                    self._decline(user.root, refused)
                continue
            claims = list({id(made[value]): made[value] for value in wanted}.values())
            self._take([*claims, *map(self._reading, users)], users[0].root)

    @refusals
    def _carrying(self, maker: Candidate, users: Sequence[_Waiting]) -> Claim | Refused:
        """Return the claim that computes a region for all its users, into carriers."""
        made = needed(self._assembler.assemble(maker, is_maker=True))
        offered = self._offered(users)
        wanted = [self._assembler.spec(value) for value in made.outputs]
        specs = [item for item in wanted if isinstance(item, TensorSpec)]
        offers = [self._spec(value) for value in offered]
        usable = [value for value, spec in zip(offered, offers, strict=True) if spec is not None]
        chosen = aliased_storage.choose(specs, [spec for spec in offers if spec is not None])
        if chosen is None or len(specs) < len(wanted):
            name = made.outputs[0].name
            return Refused(f"{name!r}, which it shares with others, is not in the original")
        carrier = {value: usable[chosen[i]] for i, value in enumerate(made.outputs)}
        cut = needed(self._cuts.find(_names(made.inputs), _names(carrier.values())))
        for user in users:
            user.carried |= {v: carrier[v] for v in user.carried if v in carrier}
        at = made.program.outputs
        written = {
            index: self._spec(carrier[v]) for index, v in zip(at, made.outputs, strict=True)
        }
        program = aliased_storage.writing(made.program, {k: s for k, s in written.items() if s})
        return replace(self._claim(made, cut), program=program, outputs=_names(carrier.values()))

    def _offered(self, users: Sequence[_Waiting]) -> list[ir.Value]:
        """Return values that all users' nodes read, nobody else, and no program needs."""
        replaced = {node for user in users for node in user.cut.nodes}
        needed = {name for user in users for name in _names(user.made.inputs)}
        taken = {value for user in users for value in user.carried.values()}
        common = [v for v in users[0].extras if all(v in user.extras for user in users)]
        return [
            value
            for value in common
            if value.producer() is not None
            and value.name not in needed
            and value not in taken
            and not value.is_graph_output()
            and all(node in replaced for node in self._cuts.readers(value))
        ]

    def _reading(self, user: _Waiting) -> Claim:
        """Return the claim of a program that finds values in carriers."""
        offers = dict(zip(user.made.inputs, user.made.program.inputs, strict=True))
        given = {offers[value]: self._spec(item) for value, item in user.carried.items()}
        program = aliased_storage.reading(user.made.program, {k: s for k, s in given.items() if s})
        inputs = _names(user.carried.get(value, value) for value in user.made.inputs)
        return replace(self._claim(user.made, user.cut), program=program, inputs=inputs)

    def _spec(self, value: ir.Value) -> TensorSpec | None:
        """Return type and sizes of a value of the original, None if they are not known."""
        return known_spec(self._shapes, value)

    # ---- all of them together

    def _break_cycles(self) -> None:
        """Give up claims, the least gain first, until each can be one node."""
        while True:
            groups = [self._cuts.indices(claim.nodes) for claim in self._claims]
            stuck = in_cycles(groups, self._cuts.feeders())
            if not stuck:
                return
            worst = min(stuck, key=lambda number: _saved(self._claims[number]))
            bundle = self._claims[worst].bundle
            for claim in [item for item in self._claims if item.bundle == bundle]:
                self._claims.remove(claim)
                kind = claim.program.name
                reason = "with another group it would wait for itself"
                self._declined.append(Declined(claim.at, kind, reason))


def _saved(claim: Claim) -> float:
    return claim.prediction.before_ns - claim.prediction.after_ns


def _made_together(user: _Waiting, made: Mapping[ir.Value, Claim]) -> set[object]:
    """Return what tells that two users hang together: values, or the claims that make them."""
    return {id(made[value]) if value in made else value for value in user.carried}


def _origin_of(weight: ir.Value) -> Origin | None:
    """Return what a matrix was packed from; None if that is not all."""
    packed = weight.meta.get(PACKED)
    if not isinstance(packed, Panels) or packed.factor != 1.0:
        return None
    if len(packed.packing.result) != 2:
        return None  # panels of the two halves of a gated product are not made again
    width = packed.packing.shape[-1]
    return Origin(packed.weight.name or "", packed.is_transposed, width, packed.weight.const_value)


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(value.name or "" for value in values)
