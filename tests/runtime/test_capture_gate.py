"""Captures are alone; everything else is not held back by its like."""

from __future__ import annotations

import threading
import time

import pytest

from ortkit.runtime.capture_gate import CaptureGate, gated


def test_users_are_together() -> None:
    gate, meeting = CaptureGate(), threading.Barrier(3)

    def use() -> None:
        with gate, gate:  # nested as well
            meeting.wait(timeout=10)

    threads = [threading.Thread(target=use, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    with gate:
        meeting.wait(timeout=10)
    for thread in threads:
        thread.join()


def test_a_capture_is_alone() -> None:
    gate = CaptureGate()
    inside: list[str] = []
    overlaps: list[tuple[str, ...]] = []

    def work(is_capture: bool) -> None:
        for _ in range(40):
            with gate.alone() if is_capture else gate:
                name = "capture" if is_capture else "use"
                inside.append(name)
                with gate:  # a capture uses the device itself
                    time.sleep(0.0005)
                if "capture" in inside and len(inside) > 1:
                    overlaps.append(tuple(inside))
                inside.remove(name)

    threads = [
        threading.Thread(target=work, args=(number < 2,), daemon=True) for number in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    assert overlaps == []


def test_users_that_never_pause_do_not_keep_a_capture_out() -> None:
    gate, is_over = CaptureGate(), threading.Event()

    def use() -> None:
        while not is_over.is_set():
            with gate:
                time.sleep(0.001)

    threads = [threading.Thread(target=use, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    entered = threading.Event()

    def capture() -> None:
        with gate.alone():
            entered.set()

    last = threading.Thread(target=capture, daemon=True)
    last.start()
    was_let_in = entered.wait(timeout=10)
    is_over.set()
    for thread in (*threads, last):
        thread.join()
    assert was_let_in


def test_an_error_opens_the_gate() -> None:
    gate = CaptureGate()
    with pytest.raises(ValueError, match="once"), gate.alone():
        raise ValueError("once")
    with pytest.raises(ValueError, match="twice"), gate:
        raise ValueError("twice")
    with gate.alone():
        pass
    assert gated(lambda x, *, y: x + y)(1, y=2) == 3
