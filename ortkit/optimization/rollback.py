"""Rolling back rewrites that break a model: first those that verification names, else a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from ortkit.optimization.candidate import Candidate
from ortkit.verify.bisect import find_breaking_rewrites
from ortkit.verify.kernels.report import KernelReport
from ortkit.verify.suspects import suspects
from ortkit.verify.verification import Verification

#: Denied rewrites make room for others, and wrong values may hide the next: rounds of naming.
_MAX_ROUNDS = 3


@dataclass(frozen=True)
class Attempt:
    """A candidate, and what verification found."""

    candidate: Candidate
    verification: Verification
    kernels: KernelReport | None = None
    """Its kernels beside their bodies, if it has any."""


Try: TypeAlias = Callable[[frozenset[str]], Attempt]
"""Makes a candidate without some rewrites and verifies it."""


@dataclass(frozen=True)
class RolledBack:
    """The good result, and the rewrites that it does without."""

    ids: tuple[str, ...]
    best: Attempt


def roll_back(broken: Attempt, attempt: Try, original: Callable[[], ir.Model]) -> RolledBack:
    """Find few rewrites without which the result is right.

    Args:
        broken: The candidate with all rewrites, and the "no" on it.
        attempt: Costly; called once per set of ids.
        original: Opens the original.

    Raises:
        CheckError: The result is wrong with every rewrite denied, too.
    """
    return _Rollback(broken, attempt, original).run()


class _Rollback:
    """One call of `roll_back`."""

    def __init__(self, broken: Attempt, attempt: Try, original: Callable[[], ir.Model]) -> None:
        self.ids = [hit.id for hit in broken.candidate.log.hits]
        self.tried: dict[frozenset[str], bool] = {frozenset(): False}
        self.latest = broken
        self.best = broken
        self.best_denied: frozenset[str] = frozenset()
        """The smallest set without which the result is good; empty while none is known."""
        self.attempt = attempt
        self.original = original

    def run(self) -> RolledBack:
        named, is_certain = self._named()
        if not is_certain:
            find_breaking_rewrites(self._order(named) if named else self.ids, self._is_good)
        return RolledBack(tuple(self._order(self.best_denied)), self.best)

    def _named(self) -> tuple[frozenset[str], bool]:
        """Deny what made wrong values until the result is good.

        Returns:
            What was denied, empty if that does not help, and whether all of it is breaking: each
            is then the only rewrite that made a value that is wrong.
        """
        denied: frozenset[str] = frozenset()
        for _ in range(_MAX_ROUNDS):
            candidate, values = self.latest.candidate, self.latest.verification.values
            ids = [hit.id for hit in candidate.log.hits]
            each = suspects(ids, values, (self.original(), candidate.model), denied)
            found = frozenset[str]().union(*each)
            if not found:
                break
            is_certain = all(len(rewrites) <= 1 for rewrites in each)
            # What was denied before may have been right, and hidden what was wrong.
            for tried in dict.fromkeys((found, denied | found)):
                if self._is_good(tried):
                    return tried, is_certain and tried == found
            denied |= found
        return frozenset(), False

    def _order(self, named: frozenset[str]) -> list[str]:
        """Return ids in the order in which they are applied; rewrites of later attempts last."""
        known = [each for each in self.ids if each in named]
        return [*known, *sorted(named.difference(known))]

    def _is_good(self, denied: frozenset[str]) -> bool:
        if denied not in self.tried:
            self.latest = self.attempt(denied)
            self.tried[denied] = self.latest.verification.is_good
            is_first = not self.best_denied
            if self.tried[denied] and (is_first or len(denied) < len(self.best_denied)):
                self.best, self.best_denied = self.latest, denied
        return self.tried[denied]
