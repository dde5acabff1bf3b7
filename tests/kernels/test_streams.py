"""Memory that is asked for ahead of its use: what of it, how far, and once."""

from __future__ import annotations

import re

import pytest
from test_choices import REGIONS

from ortkit.kernels.tvm.backend import TvmBackend, _lowered
from ortkit.targets.target import Target

TARGET = Target("cpu", "x86-64-v4")
#: What is asked for: a parameter, and how many elements ahead.
_ASKED = re.compile(r"prefetch\(T\.address_of\((p\d)\[.*\+ T\.int64\((\d+)\)\]\)")


def asked(name: str, choices: str) -> list[tuple[str, int]]:
    pytest.importorskip("tvm")
    text = _lowered(REGIONS[name], TARGET, choices)[1].script()
    return [(found[1], int(found[2])) for found in _ASKED.finditer(text)]


def test_nothing_is_asked_for_by_default() -> None:
    assert all(asked(name, "") == [] for name in REGIONS)


def test_inputs_and_outputs_each_have_their_distance() -> None:
    """In elements of four bytes; a vector of 32 of them has two cache lines."""
    assert asked("flat", "fetch=1024,claim=4096") == [("p0", 256), ("p1", 1024)]
    assert asked("flat", "claim=1024") == [("p1", 256)]
    assert asked("flat", "fetch=1024,vector=32") == [("p0", 256), ("p0", 272)]


def test_what_is_read_again_and_again_is_not_asked_for() -> None:
    """Such as a bias: it stays in the cache."""
    assert asked("broadcast", "fetch=1024,claim=1024") == [("p0", 256), ("p2", 256)]


def test_a_row_is_asked_for_in_its_first_pass() -> None:
    """A softmax has three; this one takes four vectors at a time, and then one."""
    found = asked("rows", "fetch=1024,claim=1024")
    assert found == [("p0", 256), ("p1", 256)] * 2


@pytest.mark.parametrize("name", ["tiles", "rows side by side", "parts"])
def test_what_is_not_run_through_from_end_to_end_has_no_such_choice(name: str) -> None:
    assert not {"fetch"} & TvmBackend().parameters(REGIONS[name], TARGET).keys()
    assert asked(name, "fetch=1024") == []
