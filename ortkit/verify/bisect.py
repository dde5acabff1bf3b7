"""Finding the rewrites that break a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortkit.errors import CheckError

IsGood = Callable[[frozenset[str]], bool]
"""Given the ids to deny, run the pipeline without them and verify the result."""


def find_breaking_rewrites(
    rewrite_ids: Sequence[str], is_good: IsGood, *, max_checks: int = 100
) -> tuple[str, ...]:
    """Find few rewrites whose denial makes the result good.

    Each culprit is found by bisection over prefixes: allow the first k rewrites, deny the
    rest, and narrow k down between a good and a bad result. That needs no monotonicity, only
    that nothing allowed is good and everything allowed is bad. Then members that the others
    make unnecessary are dropped again, so that no single one can be spared.

    Args:
        rewrite_ids: In the order in which they are applied. With none denied the result must
            be bad; this is not checked again.
        is_good: Costly; called once per set of ids.
        max_checks: After this many calls the smallest set known to be good is returned, which
            may deny more than is necessary.

    Returns:
        The ids to deny, in the order given. One culprit of n takes about log2(n) + 2 calls.

    Raises:
        CheckError: The result is bad even with every rewrite denied.
    """
    search = _Search(list(dict.fromkeys(rewrite_ids)), is_good, max_checks)
    if not search.ask(frozenset(search.ids)):
        raise CheckError(
            "the result is wrong even with every rewrite denied",
            fix="report it with the model, as no rewrite is to blame",
        )
    search.collect()
    search.shrink()
    return tuple(each for each in search.ids if each in search.best)


class _Search:
    """The ids, the calls made, and the smallest set whose denial is known to be enough."""

    def __init__(self, ids: list[str], is_good: IsGood, max_checks: int) -> None:
        self.ids = ids
        self.is_good = is_good
        self.checks_left = max_checks
        self.known: dict[frozenset[str], bool] = {frozenset(): False}
        self.best = frozenset(ids)

    def ask(self, denied: frozenset[str]) -> bool:
        """Say whether denying these is enough; False without asking when no call is left."""
        if denied in self.known:
            return self.known[denied]
        if self.checks_left <= 0:
            return False
        self.checks_left -= 1
        good = self.known[denied] = self.is_good(denied)
        if good and len(denied) < len(self.best):
            self.best = denied
        return good

    def collect(self) -> None:
        """Find one culprit after the other, until denying those found is enough."""
        breaking: frozenset[str] = frozenset()
        low = 0  # the first `low` ids may be allowed, with all later ones denied
        while not self.ask(breaking) and self.checks_left > 0:
            high = len(self.ids)
            while high - low > 1:
                middle = (low + high) // 2
                if self.ask(breaking | frozenset(self.ids[middle:])):
                    low = middle
                else:
                    high = middle
            breaking |= {self.ids[low]}
            low += 1

    def shrink(self) -> None:
        """Drop members of the best set that can be spared."""
        for each in self.ids:
            if each in self.best and len(self.best) > 1:
                self.ask(self.best - {each})
