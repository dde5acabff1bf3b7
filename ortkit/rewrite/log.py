"""What a rewrite did, what it refused and why; and the two ways to hold it back."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

#: Why what `RewriteLog.denied` names is not done.
DENIED = "rolled back, or denied by its id"


@dataclass(frozen=True)
class Hit:
    """One rewrite that was applied."""

    id: str
    """Stable across runs: `pass:rule:output`, output being the first one of the node rewritten."""
    pass_name: str
    rule: str
    node: str
    """The op type and name of the node it was found at."""


@dataclass(frozen=True)
class Miss:
    """One rewrite that was considered and refused."""

    pass_name: str
    node: str
    reason: str
    outputs: tuple[str, ...] = ()
    """The names of all outputs of the node, where it is one node."""
    rule: str = ""
    """What was to be put there, where the pass says."""


@dataclass
class RewriteLog:
    """Counts rewrites, keeps reasons, and says which rewrites may happen.

    `denied` rolls single rewrites back by their id; `fuel` stops after that many (None: no end).
    Any fuel leaves a valid model, so a wrong rewrite can be found by bisection.
    """

    denied: frozenset[str] = frozenset()
    fuel: int | None = None
    hits: list[Hit] = field(default_factory=list)
    misses: dict[Miss, None] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)
    """Those of `denied` that some rewrite has."""

    def is_denied(self, pass_name: str, rule: str, output: str) -> bool:
        """Say whether `claim` would refuse because of the rewrite's id."""
        identity = f"{pass_name}:{rule}:{output}"
        if identity not in self.denied:
            return False
        self.met.add(identity)
        return True

    def claim(self, pass_name: str, rule: str, output: str, node: str) -> bool:
        """Record a rewrite and say whether it may be done; after True it must be done."""
        identity = f"{pass_name}:{rule}:{output}"
        if self.is_denied(pass_name, rule, output):
            self.miss(pass_name, node, DENIED, (output,))
            return False
        if self.fuel is not None and len(self.hits) >= self.fuel:
            return False
        self.hits.append(Hit(identity, pass_name, rule, node))
        return True

    def retract(self, hits: Sequence[Hit]) -> None:
        """Drop hits of rewrites that were undone; equal ones of others stay."""
        gone = {id(hit) for hit in hits}
        self.hits[:] = [hit for hit in self.hits if id(hit) not in gone]

    def miss(
        self,
        pass_name: str,
        node: str,
        reason: str,
        outputs: tuple[str, ...] = (),
        rule: str = "",
    ) -> None:
        """Record why a rewrite that was considered at `node` is not done."""
        self.misses[Miss(pass_name, node, reason, outputs, rule)] = None

    def forget_gone(self, present: Container[str]) -> None:
        """Drop the reasons of nodes that are no longer there: later passes took them.

        Args:
            present: How the nodes that are there are described; see `ortkit.rewrite.site`.
        """
        kept = (miss for miss in self.misses if not miss.outputs or miss.node in present)
        self.misses = dict.fromkeys(kept)
