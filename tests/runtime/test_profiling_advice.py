"""Advice: each kind where the numbers speak for it, none where they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ortkit.runtime.profiling.advice import advice_on
from ortkit.runtime.profiling.peaks import Peaks
from ortkit.runtime.profiling.result import (
    About,
    Balance,
    Overall,
    Profile,
    Row,
    Times,
    Work,
)

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
PEAKS = Peaks(CPU, 4, "here", {"float32": 100.0}, ((10**9, 10.0),))
DATA = (("float32", (64, 64)),)
INDEX = (("int64", (4,)),)


def times(us: float) -> Times:
    return Times(8, us, us, us, us, us, us, us)


def row(
    op: str,
    us: float,
    *,
    provider: str = CPU,
    least: float | None = None,
    bound: str | None = None,
    balance: Balance | None = None,
    region: int | None = None,
    outputs: object = DATA,
    calls: float = 1,
    device: float | None = None,
) -> Row:
    attained = None if least is None else least / us
    work = Work(1, 1000, 1.0, 1.0, bound, attained, least)  # type: ignore[arg-type]
    return Row(
        op, op, "", provider, None, calls, us, 0.1, times(us), times(us), 0.0, DATA, outputs, 1,  # type: ignore[arg-type]
        4, work, balance, device, None, (), region,
    )  # fmt: skip


def profile(
    *rows: Row,
    plain: float | None = 1000.0,
    gaps: float = 0.0,
    outside: float = 0.0,
    device: float | None = None,
    tracing: float = 0.0,
    regions: dict[int, int] | None = None,
) -> Profile:
    covered = sum(item.own_us for item in rows)
    overall = Overall(
        times(covered + gaps + outside), None if plain is None else times(plain), covered, covered,
        covered, gaps, outside, device, None, None,
    )  # fmt: skip
    return Profile(
        About(threads=4), rows, (), overall, 8, None, None, replace(PEAKS, tracing_us=tracing), (),
        regions=regions or {},
    )  # fmt: skip


def titles(found: Profile) -> list[str]:
    return [item.title for item in advice_on(found)]


def test_products_near_the_peak_need_no_advice() -> None:
    near = row("MatMul", 900, least=800, bound="arithmetic", balance=Balance(1, 0.5, 0, ()))
    assert advice_on(profile(near)) == ()
    assert advice_on(profile()) == ()


@pytest.mark.parametrize(
    "balance, outputs, title, gain",
    [
        (Balance(0, 0, 0, (0,)), DATA, "MatMul: runs on one thread", 800),
        (Balance(1, 0.4, 0, (9,)), DATA, "MatMul: threads wait for each other", 360),
        (Balance(1, 0, 0, (9,)), (("float32", (2, 64)),), "MatMul: few rows", 800),
        (Balance(1, 0, 0, (9,)), DATA, None, 0),
    ],
)
def test_slow_products_are_told_why(
    balance: Balance, outputs: object, title: str | None, gain: float
) -> None:
    slow = row("MatMul", 900, least=100, bound="arithmetic", balance=balance, outputs=outputs)
    found = advice_on(profile(slow))
    assert [item.title for item in found] == ([title] if title else [])
    if title:
        assert found[0].gain_us == pytest.approx(gain) and found[0].rows == (0,)


def test_neighbours_gain_what_they_move_twice() -> None:
    rows = [
        row("Add", 300, least=100, bound="memory", region=0),
        row("MatMul", 290, least=280, bound="arithmetic"),
        row("Softmax", 200, least=100, bound="memory", region=0),
        row("Mul", 90, least=50, bound="memory"),
    ]
    (one,) = advice_on(profile(*rows, regions={0: 1_000_000}))
    # 1 MB at 10 GB/s takes 100 us.
    assert one.gain_us == pytest.approx(300 + 200 - 100) and one.rows == (0, 2)
    assert "2 nodes in 1 group (Add, Softmax) take 500 µs (50.0% of a run)" in one.detail
    assert "40% of what memory allows" in one.detail


def test_layouts_moves_and_sizes_are_told_apart() -> None:
    rows = [
        row("ReorderInput", 200), row("Transpose", 100), row("Gather", 60, outputs=INDEX),
        row("Shape", 50, outputs=INDEX), row("Transpose", 40), row("MatMul", 500),
    ]  # fmt: skip
    found = advice_on(profile(*rows))
    assert [(item.title, item.gain_us, item.rows) for item in found] == [
        ("data transposed between layouts", 200, (0,)),
        ("Transpose: nodes that only move data", 140, (1, 4)),
        ("nodes that compute sizes", 110, (2, 3)),
    ]


def test_what_tracing_adds_is_no_gain() -> None:
    rows = [row("Transpose", 30, calls=10), row("MatMul", 900)]
    (one,) = advice_on(profile(*rows, tracing=2.0))
    assert one.gain_us == pytest.approx(30 - 20)
    assert advice_on(profile(*rows, tracing=3.0)) == ()


def test_time_outside_of_nodes_is_bounded_by_what_was_seen() -> None:
    rows = [row("MatMul", 400, least=390, bound="arithmetic")]
    (one,) = advice_on(profile(*rows, gaps=500, outside=200))
    assert one.title == "time outside of nodes" and one.gain_us == pytest.approx(600)
    # Between the nodes of traced runs lies less than is missing: other processes took that.
    (one,) = advice_on(profile(*rows, gaps=50, outside=20))
    assert one.gain_us == pytest.approx(70)
    # Without runs that were not traced nothing is known.
    assert advice_on(profile(*rows, plain=None, gaps=500)) == ()
    # Nodes that take longer than the whole run: tracing made them so.
    assert advice_on(profile(row("MatMul", 1100, least=1090, bound="arithmetic"))) == ()


def test_devices_that_wait_are_told() -> None:
    rows = [
        row("MatMul", 50, provider=CUDA, device=300.0),
        row("MemcpyToHost", 40, provider=CUDA, device=30.0),
        row("NonZero", 80),
    ]
    found = {item.title: item for item in advice_on(profile(*rows, device=340.0))}
    assert found["the device waits for the host"].gain_us == pytest.approx(660)
    assert found["copies between CPU and device"].gain_us == pytest.approx(30)
    assert found["nodes on the CPU between those of the device"].rows == (2,)
    # How long a launch takes says nothing of what is launched.
    assert titles(profile(row("Transpose", 300, provider=CUDA))) == []
    # On the CPU alone nothing lies between devices.
    assert titles(profile(row("NonZero", 80))) == []


def test_five_are_given_the_largest_first() -> None:
    rows = [
        row(op, us)
        for us, op in enumerate(
            ("Transpose", "Slice", "Concat", "Pad", "Tile", "Split", "Reshape"), start=10
        )
    ]
    found = advice_on(profile(*rows, plain=90.0))
    assert [item.rows for item in found] == [(6,), (5,), (4,), (3,), (2,)]
    assert all(one.gain_us <= 90 for one in found)
    # Below one part in a hundred nothing is said.
    assert advice_on(profile(*rows, plain=9000.0)) == ()


def test_what_ortkit_made_is_not_sent_to_it_again() -> None:
    rows = [
        row("Add", 300, least=100, bound="memory", region=0), row("ReorderInput", 200),
        row("Softmax", 200, least=100, bound="memory", region=0), row("Transpose", 100),
        row("Gather", 60, outputs=INDEX), row("Shape", 50, outputs=INDEX),
    ]  # fmt: skip
    devices = [row("MatMul", 50, provider=CUDA, device=300.0), row("NonZero", 80)]
    seen = (
        profile(*rows, plain=2000.0, gaps=900),
        profile(*rows, gaps=400, outside=400, regions={0: 1_000_000}),
        profile(*devices, device=340.0),
    )
    for found in seen:
        assert any("`ortkit optimize`" in item.detail for item in advice_on(found, 9))
        made = replace(found, about=replace(found.about, made_by_ortkit=True))
        assert not any("optimize" in one.detail for one in advice_on(made, 9))
        assert len(advice_on(made, 9)) == len(advice_on(found, 9))
