"""Processes of a group end together, also those that are started later."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ortkit.isolation.ended import Crashed
from ortkit.isolation.group import ProcessGroup, begun, ending, in_current_group
from ortkit.isolation.run import run_isolated


def _sleep(_: int = 0) -> object:
    return run_isolated(time.sleep, 60.0, timeout_seconds=90.0)


def _two(_: int = 0) -> list[object]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(in_current_group(_sleep), range(2)))


def test_processes_of_threads_end_where_a_block_raises() -> None:
    group, started = ProcessGroup(), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(KeyboardInterrupt), ending(group):
            found = [pool.submit(group.call, each) for each in (_sleep, _two)]
            while len(group._processes) < 3:
                time.sleep(0.01)
            raise KeyboardInterrupt
        one, two = (each.result() for each in found)
    assert [type(each) for each in (one, *two)] == [Crashed] * 3  # type: ignore[misc]
    assert isinstance(group.call(_sleep), Crashed)
    assert time.monotonic() - started < 30.0


def test_other_processes_are_of_no_group() -> None:
    group = ProcessGroup()
    group.call(lambda: None)
    group.end()
    assert run_isolated(abs, -2, timeout_seconds=30.0) == 2
    assert not group._processes


def test_what_is_begun_ends_with_its_block() -> None:
    started = time.monotonic()
    with begun(_sleep):
        pass
    with begun(lambda: run_isolated(abs, -2, timeout_seconds=30.0)) as result:
        assert result() == 2
    assert time.monotonic() - started < 30.0
