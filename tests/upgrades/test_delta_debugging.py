"""Delta debugging: what is found cures it, and nothing of it is in vain."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortkit.upgrades.search import culprits, first_bad, sufficient

NAMES = [f"n{index}" for index in range(24)]
CAUSES = st.lists(st.sets(st.sampled_from(NAMES), min_size=1, max_size=3), min_size=1, max_size=3)

#: Other work on the machine makes no test fail.
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@RELAXED
@given(CAUSES, st.sets(st.sampled_from(NAMES), max_size=3))
def test_the_culprits_cure_it_and_each_is_needed(causes: list[set[str]], heals: set[str]) -> None:
    """`heals`: with all of these on, nothing is wrong, as disabling one lets others fire."""

    def is_bad(off: Collection[str]) -> bool:
        on = set(NAMES) - set(off)
        return any(cause <= on for cause in causes) and not (heals and heals <= on)

    if not is_bad(()):
        return
    found = culprits(NAMES, is_bad)
    assert not is_bad(found)
    for name in found:
        others = [item for item in found if item != name]
        assert is_bad(others), f"{name} of {found} is in vain"


@RELAXED
@given(CAUSES)
def test_what_it_takes_does_harm_alone(causes: list[set[str]]) -> None:
    def is_bad(off: Collection[str]) -> bool:
        return any(cause <= set(NAMES) - set(off) for cause in causes)

    found = culprits(NAMES, is_bad)
    others = found[1:]
    needed = sufficient(NAMES, found[0], is_bad, others)
    assert needed[0] == found[0]
    assert set(needed) in causes


def test_the_first_in_order_is_found_with_few_sessions() -> None:
    tried = 0

    def is_bad(off: Collection[str]) -> bool:
        nonlocal tried
        tried += 1
        return "n17" not in off

    assert first_bad(NAMES, (), is_bad) == "n17"
    assert tried <= 5
