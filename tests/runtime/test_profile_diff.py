"""Comparing profiles: which nodes correspond, and what is claimed of their times."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from ortkit.cli.profile_diff_tables import show_diff
from ortkit.graph.analysis.provenance import Alignment, Group
from ortkit.runtime.intervals import Speedup
from ortkit.runtime.profiling.diff import Side, Work, diff_profiles
from ortkit.runtime.profiling.diff_interval import lower_rank, median_interval
from ortkit.runtime.profiling.diff_match import Match, match


@pytest.mark.parametrize(
    ("count", "rank"), [(1, None), (5, None), (6, 0), (10, 1), (20, 5), (50, 17), (100, 39)]
)
def test_ranks_are_those_of_the_tables(count: int, rank: int | None) -> None:
    # Source: Conover, "Practical Nonparametric Statistics", intervals of the median at 95 %.
    assert lower_rank(count, 0.95) == rank


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    times = np.random.default_rng(0).exponential(1, (4000, 31))
    found = median_interval(times)
    assert found.low is not None and found.high is not None
    held = (found.low <= np.log(2)) & (np.log(2) <= found.high)
    assert 0.945 < held.mean() < 0.985
    wider = median_interval(times, confidence=0.999)
    assert wider.low is not None and (wider.low <= found.low).all()


def test_too_few_times_have_no_interval() -> None:
    found = median_interval(np.array([[3.0, 1.0, 2.0]]))
    assert (found.median.tolist(), found.low, found.high) == ([2.0], None, None)


def work(name: str, *origins: str, op: str = "Add", size: int | None = 8) -> Work:
    return Work(name, op, origins, size)


def side(nodes: Sequence[Work], *processes: Sequence[Sequence[float]]) -> Side:
    """Return a side of which `processes` hold the times of each node by run."""
    times = tuple(np.array(process, float) for process in processes)
    medians = median_interval(np.hstack(times))
    run = float(medians.median.sum())
    return Side("m.onnx", tuple(nodes), times, medians, {"median": run}, 1000)


def around(center: float, *, runs: int = 40, spread: float = 1.0, seed: int = 0) -> list[float]:
    random = np.random.default_rng(seed)
    return (center + random.uniform(-spread, spread, runs)).tolist()  # type: ignore[no-any-return]


NO_SPEEDUP = Speedup(1.0, 0.9, 1.1, 0.95, "no difference")
GROUPS = Alignment(
    (Group(("a", "b", "c"), ("fused",)), Group(("d",), ("d",)), Group(("e",), ()),
     Group((), ("new",))),
    frozenset(),
)  # fmt: skip


class TestMatch:
    def test_many_nodes_are_one(self) -> None:
        before = [("A", ["a"]), ("BC", ["b", "c"]), ("D", ["d"]), ("E", ["e"])]
        after = [("new", ["new"]), ("F", ["fused"]), ("D", ["d"])]
        assert set(match(before, after, GROUPS)) == {
            Match((0, 1), (1,)), Match((2,), (2,)), Match((3,), ()), Match((), (0,)),
        }  # fmt: skip

    def test_a_row_that_stands_for_nodes_of_two_groups_joins_them(self) -> None:
        before = [("ABCD", ["a", "b", "c", "d"])]
        after = [("F", ["fused"]), ("D", ["d"])]
        assert match(before, after, GROUPS) == (Match((0,), (0, 1)),)

    def test_without_models_equal_labels_match(self) -> None:
        found = match([("x", ["a"]), ("y", ["b"])], [("z", ["b"]), ("w", ["c"])])
        assert set(found) == {Match((0,), ()), Match((1,), (0,)), Match((), (1,))}

    def test_equal_labels_of_two_models_are_not_the_same_node(self) -> None:
        groups = Alignment((Group(("a",), ("b",)), Group(("b",), ("a",))), frozenset())
        found = match([("1", ["a"]), ("2", ["b"])], [("1", ["a"]), ("2", ["b"])], groups)
        assert set(found) == {Match((0,), (1,)), Match((1,), (0,))}

    def test_what_the_runtime_added_is_matched_by_name(self) -> None:
        found = match([("Reorder_1", []), ("Reorder_2", [])], [("Reorder_2", [])], GROUPS)
        assert set(found) == {Match((0,), ()), Match((1,), (0,))}


class TestDiff:
    def test_a_gain_beyond_the_noise_is_claimed(self) -> None:
        before = side(
            [work("A", "a"), work("BC", "b", "c"), work("D", "d")],
            [around(30), around(30, seed=1), around(50, seed=2)],
        )
        after = side(
            [work("F", "fused", size=4), work("D", "d")],
            [around(20, seed=3), around(50, seed=4)],
        )
        found = diff_profiles(before, after, NO_SPEEDUP, GROUPS, in_turns=True)
        gain, same = found.changes
        assert [name for name, _ in gain.before] == ["A", "BC"]
        assert [name for name, _ in gain.after] == ["F"]
        assert gain.direction == "faster"
        assert gain.gain_us == pytest.approx(40, abs=1)
        assert gain.low_us is not None and gain.high_us is not None
        assert 38 < gain.low_us <= gain.gain_us <= gain.high_us < 42
        assert (gain.before_us, gain.after_us) == (
            pytest.approx(60, abs=1), pytest.approx(20, abs=1),
        )  # fmt: skip
        assert (gain.before_bytes, gain.after_bytes) == (16, 4)
        assert same.direction == "no difference"

    def test_what_slows_both_down_is_no_difference(self) -> None:
        load = np.linspace(1, 3, 40)
        times = (100 * load).tolist()
        slower = (102 * load).tolist()
        before = side([work("D", "d")], [times])
        found = diff_profiles(before, side([work("D", "d")], [slower]), NO_SPEEDUP, None,
                              in_turns=True)  # fmt: skip
        assert found.changes[0].direction == "slower"
        apart = diff_profiles(before, side([work("D", "d")], [slower]), NO_SPEEDUP, None,
                              in_turns=False)  # fmt: skip
        assert apart.changes[0].direction == "no difference"

    def test_processes_that_disagree_are_noise(self) -> None:
        before = side([work("D", "d")], [around(100)], [around(100, seed=1)])
        after = side([work("D", "d")], [around(90, seed=2)], [around(110, seed=3)])
        found = diff_profiles(before, after, NO_SPEEDUP, None, in_turns=True)
        assert found.changes[0].direction == "no difference"
        low, high = found.changes[0].low_us, found.changes[0].high_us
        assert low is not None and high is not None and low < -9 and high > 9

    def test_of_many_equal_nodes_none_is_claimed(self) -> None:
        random = np.random.default_rng(0)
        nodes = [work(f"n{index}", f"n{index}") for index in range(500)]
        before = side(nodes, random.exponential(10, (500, 40)))
        after = side(nodes, random.exponential(10, (500, 40)))
        found = diff_profiles(before, after, NO_SPEEDUP, None, in_turns=True)
        assert {change.direction for change in found.changes} == {"no difference"}

    def test_too_few_runs_claim_nothing(self) -> None:
        before, after = side([work("D")], [[9.0] * 4]), side([work("D")], [[1.0] * 4])
        found = diff_profiles(before, after, NO_SPEEDUP, None, in_turns=True)
        assert (found.changes[0].direction, found.changes[0].gain_us) == ("not known", 8.0)

    def test_what_only_one_does_is_its_own(self) -> None:
        before = side([work("E", "e")], [around(5)])
        after = side([work("new", "new", size=None)], [around(7)])
        found = diff_profiles(before, after, NO_SPEEDUP, GROUPS, in_turns=True)
        gone, new = found.changes
        assert (gone.after, gone.direction, gone.after_us) == ((), "faster", 0)
        assert (new.before, new.direction, new.after_bytes) == ((), "slower", None)

    def test_times_of_launching_are_said_to_be_that(self) -> None:
        node = Work("A", "Add", ("a",), 8, "CUDAExecutionProvider")
        found = diff_profiles(side([node], [around(5)]), side([work("A", "a")], [around(5)]),
                              NO_SPEEDUP, None, in_turns=True)  # fmt: skip
        assert any("CUDAExecutionProvider are the host's" in note for note in found.notes)

    def test_json_is_one_plain_document(self) -> None:
        before = side([work("A", "a")], [around(5)])
        found = diff_profiles(before, before, NO_SPEEDUP, None, in_turns=True)
        document = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert document["schema"] == "ortkit.profile-diff/1"
        assert document["changes"][0]["before"] == [{"name": "A", "op": "Add"}]

    def test_slower_by_is_the_near_end(self) -> None:
        before = side([work("A", "a")], [around(5)])
        slower = Speedup(0.8, 0.75, 0.9, 0.95, "slower")
        found = diff_profiles(before, before, slower, None, in_turns=True)
        assert found.slower_by() == pytest.approx(1 / 0.9 - 1)


class TestTables:
    def test_gains_and_losses_are_shown_apart(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "240")
        before = side(
            [work("/layer.0/A", "a"), work("/layer.0/B", "b", op="Mul"), work("D", "d")],
            [around(30), around(30, seed=1), around(50, seed=2)],
        )
        after = side(
            [work("F", "fused", op="ortkit.fused::add_mul_0123456789ab"), work("D", "d"),
             work("N", "new")],
            [around(20, seed=3), around(50, seed=4), around(7, seed=5)],
        )  # fmt: skip
        show_diff(diff_profiles(before, after, NO_SPEEDUP, GROUPS, in_turns=True), 5)
        said = capsys.readouterr().out
        gains, _, losses = said.partition("slower in B")
        assert "2 -> 1: Add, Mul -> add_mul at /layer.0" in gains
        assert "+40." in gains and "16 B -> 8 B" in gains
        assert "only in B: Add at N" in losses
        assert "no difference beyond the noise: 1 piece of work" in losses

    def test_what_is_not_shown_is_counted(self, capsys: pytest.CaptureFixture[str]) -> None:
        nodes = [work(f"n{index}", f"n{index}") for index in range(12)]
        before = side(nodes, [around(50, seed=index) for index in range(12)])
        after = side([work("other", "other")], [around(5)])
        found = diff_profiles(before, after, NO_SPEEDUP, None, in_turns=True)
        for top, left in ((2, 10), (0, 12)):
            show_diff(found, top)
            assert f"and {left} pieces of work more, " in capsys.readouterr().out

    def test_too_few_runs_are_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        before, after = side([work("D")], [[9.0] * 4]), side([work("D")], [[1.0] * 4])
        show_diff(diff_profiles(before, after, NO_SPEEDUP, None, in_turns=True), 5)
        assert "too few runs" in capsys.readouterr().out
