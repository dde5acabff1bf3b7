"""The order in which kernels are tried."""

from __future__ import annotations

from ortkit.tune.search import next_choices, space_size

PARAMETERS = {"vector": (16, 8, 32), "keep": (1, 0), "accumulators": (4, 1, 2, 8)}


def test_each_parameter_is_changed_alone_at_first() -> None:
    found = next_choices(PARAMETERS, {}, 6)
    assert found == [
        "vector=8", "vector=32", "keep=0", "accumulators=1", "accumulators=2", "accumulators=8",
    ]  # fmt: skip


def test_nothing_is_tried_twice_and_everything_once() -> None:
    tried: dict[str, float | None] = {}
    while batch := next_choices(PARAMETERS, tried, 5):
        assert len(batch) <= 5
        assert not set(batch) & set(tried)
        tried |= dict.fromkeys(batch, 1.0)
    assert len(tried) == space_size(PARAMETERS) == 3 * 2 * 4 - 1
    assert "" not in tried


def test_what_was_good_alone_comes_together_next() -> None:
    effects = {"vector=32": 1.2, "keep=0": 1.3, "accumulators=8": 1.1}
    tried: dict[str, float | None] = {
        choice: effects.get(choice, 0.9) for choice in next_choices(PARAMETERS, {}, 6)
    }
    assert next_choices(PARAMETERS, tried, 1) == ["vector=32,keep=0,accumulators=8"]


def test_one_in_four_is_taken_without_regard_to_what_was_found() -> None:
    parameters = {name: tuple(range(8)) for name in "xyz"}
    alone = next_choices(parameters, {}, 21)
    tried: dict[str, float | None] = {**dict.fromkeys(alone, 0.9), "x=3": 2.0}
    batch = next_choices(parameters, tried, 4)
    assert ["x=3" in item for item in batch] == [True, True, True, False]
    assert batch == next_choices(parameters, tried, 4)


def test_failures_and_foreign_choices_are_no_data() -> None:
    tried = {"keep=0": None, "wings=2": 3.0, "vector=64": 3.0, "vector=8": 0.9}
    batch = next_choices(PARAMETERS, tried, 100)
    assert len(batch) == space_size(PARAMETERS) - 2
