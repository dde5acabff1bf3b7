"""What is made of a trace: own times, gaps, shares, balance, rates, and what counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ortkit.errors import UserError
from ortkit.runtime.profiling.build import profile_of, read_profile
from ortkit.runtime.profiling.call_work import CallWork
from ortkit.runtime.profiling.context import Context, Joined
from ortkit.runtime.profiling.document import profile_from, read_profile_document
from ortkit.runtime.profiling.overall import _near_median
from ortkit.runtime.profiling.peaks import Peaks
from ortkit.runtime.profiling.times import times_of, typical
from ortkit.runtime.profiling.trace.devices import attach_kernels
from ortkit.runtime.profiling.trace.events import DeviceEvent
from ortkit.runtime.profiling.trace.read import read_trace
from tests.runtime.traces import MEMORY, SCHEDULING, node, run, written

PEAKS = Peaks("CPUExecutionProvider", 2, "here", {"float32": 100.0}, ((1000, 50.0), (10**9, 10.0)))


def test_own_times_gaps_and_shares_add_up_to_the_run(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        run(0, 10),
        node("MatMul", 110, 40), node("Add", 155, 10), node("MatMul", 170, 20), run(100, 100),
        node("MatMul", 310, 60), node("Add", 375, 10), node("MatMul", 390, 20), run(300, 120),
    )  # fmt: skip
    found = read_profile(path, warmup=1)
    assert found.runs == 2 and found.counted == (1, 2)
    (matmul, add) = found.rows
    assert (matmul.op, matmul.calls, matmul.own_us) == ("MatMul", 2, 70)
    assert (add.calls, add.own_us, add.gap_us) == (1, 10, 5)
    assert matmul.share == pytest.approx(70 / 80) and add.share == pytest.approx(10 / 80)
    assert (matmul.call.count, matmul.call.least_us, matmul.call.most_us) == (4, 20, 60)
    assert matmul.run.median_us == 70
    whole = found.overall
    # 10 us before the first node; 5 + 5 between them; 10 and 20 after the last.
    assert (whole.covered_us, whole.gaps_us, whole.outside_us) == (80, 10, 20)
    assert whole.covered_us + whole.gaps_us + whole.outside_us == whole.profiled.mean_us
    # The fastest of each node, and the 30 us between them in the fastest run.
    assert found.share(frozenset({"MatMul"})) == pytest.approx(60 / (60 + 10 + 30))
    assert found.run_times is not None
    assert found.run_times.tolist() == [[60, 80], [10, 10]]
    assert found.row_of is not None
    assert found.row_of.tolist() == [0, 1, 0, 0, 1, 0]


def test_bodies_do_not_count_twice_and_lie_under_their_holder(tmp_path: Path) -> None:
    def body(begin: int) -> list[str]:
        return [
            node("Conv", begin + 20, 30), node("Conv", begin + 55, 20),
            node("Add", begin + 95, 4), node("If", begin + 10, 80),
        ]  # fmt: skip

    path = written(tmp_path, *body(100), run(100, 110), *body(300), run(300, 110))
    found = read_profile(path, warmup=0)
    rows = {row.op: row for row in found.rows}
    assert rows["If"].own_us == 30 and rows["If"].holder is None
    assert (rows["Conv"].own_us, rows["Conv"].calls) == (50, 2)
    assert rows["Conv"].holder is not None
    assert found.rows[rows["Conv"].holder].op == "If"
    assert rows["Add"].own_us == 4 and rows["Add"].holder is None
    assert found.overall.covered_us == 84


def test_nodes_of_one_name_in_two_holders_are_two_rows(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        node("Add", 115, 5, name="same", index=0), node("If", 110, 20, name="a", index=1),
        node("Add", 145, 9, name="same", index=0), node("If", 140, 20, name="b", index=2),
        run(100, 100),
    )  # fmt: skip
    found = read_profile(path, warmup=0)
    same = [row for row in found.rows if row.name == "same"]
    assert [row.own_us for row in same] == [9, 5]
    assert [found.rows[row.holder].name for row in same if row.holder is not None] == ["b", "a"]


def test_nodes_that_run_at_the_same_time_are_covered_once(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        node("A", 110, 50, thread=7), node("B", 120, 20, thread=9), node("C", 165, 10, thread=9),
        run(100, 100, thread=7),
    )  # fmt: skip
    whole = read_profile(path, warmup=0).overall
    assert (whole.kernels_us, whole.covered_us, whole.gaps_us, whole.outside_us) == (80, 60, 5, 35)


def test_the_slower_half_of_the_runs_is_left_out_if_asked(tmp_path: Path) -> None:
    events = []
    for number, taken in enumerate((10, 10, 20, 500, 900)):
        start = 1000 * (number + 1)
        events += [node("Relu", start + 1, taken), run(start, taken + 2)]
    path = written(tmp_path, *events)
    assert read_profile(path, quiet_half=True).counted == (1, 2)
    assert read_profile(path, quiet_half=True).rows[0].own_us == 15
    # Without it, the middle half of the four is what a node typically takes.
    assert read_profile(path).rows[0].own_us == (20 + 500) / 2


def test_runs_without_nodes_are_replays_of_a_graph_and_do_not_count(tmp_path: Path) -> None:
    captured = [node("MatMul", 110, 40), run(100, 100), node("MatMul", 310, 50), run(300, 100)]
    replays = [run(500 + 100 * number, 10) for number in range(5)]
    found = read_profile(written(tmp_path, *captured, *replays), warmup=1)
    assert found.runs == 1 and found.rows[0].own_us == 50
    assert "5 of 6 runs show no nodes" in found.notes[0]
    found = read_profile(written(tmp_path, *captured, *replays), warmup=3)
    assert found.runs == 1 and found.rows[0].own_us == 50
    assert "those of the last run that does" in found.notes[0]


def test_runs_of_a_model_without_nodes_count(tmp_path: Path) -> None:
    found = read_profile(written(tmp_path, run(100, 5), run(200, 7)), warmup=1)
    assert found.runs == 1 and found.rows == () and found.ops == ()
    assert found.overall.outside_us == 7


def test_too_few_runs_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, node("Relu", 2, 1), run(0, 10))
    with pytest.raises(UserError, match="holds 1 runs and 1 are warm-up"):
        read_profile(path)
    with pytest.raises(UserError, match="-1 runs cannot be left out"):
        read_profile(path, warmup=-1)


def test_threads_are_weighed_by_the_time_of_their_nodes(tmp_path: Path) -> None:
    later = json.loads(json.dumps(SCHEDULING))
    later["sub_threads"]["140"]["num_run"] = 20
    path = written(
        tmp_path,
        node("MatMul", 110, 70, thread_scheduling_stats=SCHEDULING),
        node("Add", 190, 10, thread_scheduling_stats=later), run(100, 100),
    )  # fmt: skip
    rows = {row.op: row.balance for row in read_profile(path, warmup=0).rows}
    assert rows["MatMul"] is not None and rows["Add"] is not None
    assert rows["MatMul"].waiting == pytest.approx(7 / 70)
    assert rows["MatMul"].handing_out == pytest.approx((3 + 2 + 1) / 70)
    assert rows["MatMul"].parallel == 1
    # The counter stands at 12 after the first node and at 20 after the second.
    assert rows["Add"].tasks == (8,)


def test_memory_is_the_sum_of_the_arenas(tmp_path: Path) -> None:
    other = {**MEMORY, "mem_bytes_in_use": "9000"}
    path = written(
        tmp_path,
        node("A", 110, 5, **MEMORY), node("B", 120, 5, **{**other, "provider": "CUDA"}),
        node("C", 130, 5, **{**MEMORY, "mem_bytes_in_use": "700"}), run(100, 100),
    )  # fmt: skip
    assert read_profile(path, warmup=0).overall.peak_bytes == 9700
    without = written(tmp_path, node("A", 110, 5), run(100, 100))
    assert read_profile(without, warmup=0).overall.peak_bytes is None


def test_rates_are_held_against_the_peaks(tmp_path: Path) -> None:
    path = written(tmp_path, node("MatMul", 110, 40), node("Add", 155, 20), run(100, 100))
    trace = read_trace(path)
    work = [
        CallWork(2_000_000, 1000, 800, "float32", ()),
        CallWork(100, 100_000, 0, "float32", ()),
    ]
    known = Joined(work, ["", ""], [(), ()], [None, None], {})
    found = profile_of(trace, Context(peaks=PEAKS, joined=known), warmup=0)
    matmul, add = (row.work for row in found.rows)
    assert matmul.gflops == pytest.approx(50) and matmul.bound == "arithmetic"
    assert matmul.least_us == pytest.approx(20) and matmul.attained == pytest.approx(0.5)
    assert add.bound == "memory" and add.gbs == pytest.approx(5)
    assert add.least_us == pytest.approx(10) and add.attained == pytest.approx(0.5)
    # A type without a peak, or without a count, is held against nothing.
    for other in (replace(work[0], dtype="float64"), replace(work[0], flops=None)):
        known = Joined([other, work[1]], ["", ""], [(), ()], [None, None], {})
        found = profile_of(trace, Context(peaks=PEAKS, joined=known), warmup=0)
        assert found.rows[0].work.attained is None and found.rows[0].work.bound is None


def test_weights_beyond_the_caches_come_from_the_memory_each_time(tmp_path: Path) -> None:
    path = written(tmp_path, node("MatMul", 110, 40), node("Gemm", 155, 20), run(100, 100))
    work = [CallWork(1, 900, 900, "float32", ()), CallWork(1, 10**6, 10**6, "float32", ())]
    known = Joined(work, ["", ""], [(), ()], [None, None], {})
    found = profile_of(read_trace(path), Context(peaks=PEAKS, joined=known), warmup=0)
    # 900 bytes would fit into the cache, were there no others: 10 and not 50 bytes per ns.
    assert found.rows[0].work.least_us == pytest.approx(900 / 10 / 1e3)


def test_what_a_device_does_is_told_from_what_launches_it(tmp_path: Path) -> None:
    cuda = {"provider": "CUDAExecutionProvider"}
    path = written(
        tmp_path, node("MatMul", 110, 4, **cuda), node("Add", 120, 4, **cuda), run(100, 200)
    )
    events = [
        DeviceEvent("kernel", "gemm", 130, 60, "7", launch_us=111, thread=7),
        DeviceEvent("kernel", "add", 185, 10, "8", launch_us=121, thread=7),
        DeviceEvent("copy", "Memcpy", 101, 5, "7", bytes=64, launch_us=100, thread=7),
    ]
    trace = attach_kernels(read_trace(path), events)
    work = [CallWork(6000, 10, 0, "float32", ())] * 2
    known = Joined(work, ["", ""], [(), ()], [None, None], {})
    found = profile_of(trace, Context(joined=known, device_times=True), warmup=0)
    matmul, add = found.rows
    assert (matmul.own_us, matmul.device_us, add.device_us) == (4, 60, 10)
    assert matmul.work.gflops == pytest.approx(6000 / 60 / 1e3)
    assert found.overall.device_us == 60 + 5 + 5
    assert found.overall.copies_us == 5
    assert [(kernel.name, kernel.calls, kernel.us) for kernel in found.kernels] == [
        ("gemm", 1, 60), ("add", 1, 10), ("Memcpy", 1, 5)
    ]  # fmt: skip
    assert found.kernels[2].bytes == 64
    # Without them a rate would be that of launching.
    bare = profile_of(read_trace(path), Context(joined=known), warmup=0)
    assert bare.rows[0].work.gflops is None and bare.rows[0].device_us is None


def test_a_document_says_all_that_the_profile_does(tmp_path: Path) -> None:
    path = written(
        tmp_path, node("If", 110, 40, thread_scheduling_stats=SCHEDULING, **MEMORY),
        node("Add", 120, 10, inputs=[{"float": [2, 3]}]), run(100, 100),
    )  # fmt: skip
    found = profile_of(read_trace(path), Context(peaks=PEAKS, plain_us=[90.0] * 8), warmup=0)
    saved = tmp_path / "profile.json"
    saved.write_text(json.dumps(found.to_json()), encoding="utf-8")
    again = read_profile_document(saved)
    for name in ("about", "rows", "ops", "overall", "peaks", "notes", "kernels", "runs"):
        assert getattr(again, name) == getattr(found, name), name
    assert again.trace is None


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "is no JSON document"),
        ("[]", "its schema is None"),
        ('{"schema": "ortkit.profile/0"}', "its schema is 'ortkit.profile/0'"),
        ('{"schema": "ortkit.profile/1", "about": {}}', "lacks or misstates a field"),
    ],
)
def test_what_is_no_document_of_a_profile_is_refused(
    text: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=problem):
        read_profile_document(path)
    with pytest.raises(UserError, match="cannot read the profile: No such file"):
        read_profile_document(tmp_path / "none.json")


def test_percentiles_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).gamma(2.0, 50.0, 37)
    found = times_of(values)
    assert found.median_us == pytest.approx(np.median(values))
    assert found.p95_us == pytest.approx(np.percentile(values, 95))
    assert found.mean_us == pytest.approx(values.mean())
    assert found.low_us is not None and found.high_us is not None
    assert found.least_us < found.low_us < found.median_us < found.high_us < found.most_us
    assert times_of([3.0]).low_us is None
    # The middle half, by hand.
    assert typical([1.0, 2.0, 3.0, 100.0]) == 2.5
    assert typical([5.0]) == 5.0


def test_a_profile_is_not_a_document() -> None:
    with pytest.raises(UserError):
        profile_from({"schema": "ortkit.profile/1", "about": None})


def test_parts_of_a_run_are_those_of_runs_near_the_median() -> None:
    durations = np.array([10.0, 11, 12, 13, 90, 80, 70, 14])
    near = durations[_near_median(durations)]
    assert sorted(near) == [12, 13, 14]
    assert _near_median(np.array([5.0])).tolist() == [0]
