"""A verifier that is made while kernels are compiled: it is taken once, and always ended."""

from __future__ import annotations

from typing import Any, Self

import pytest

from ortkit.optimization.ahead import VerifierAhead


class Noted:
    """A verifier that notes what is done with it."""

    def __init__(self, done: list[str], problem: str = "") -> None:
        self._done, self._problem = done, problem

    def __enter__(self) -> Self:
        if self._problem == "no such input":
            raise ValueError(self._problem)
        self._done.append("run")
        return self

    def prepare(self) -> None:
        if self._problem == "not prepared":
            raise ValueError(self._problem)

    def __exit__(self, *_: object) -> None:
        self._done.append("end")


def ahead(done: list[str], problem: str = "") -> VerifierAhead:
    made: Any = lambda: Noted(done, problem)  # noqa: E731
    return VerifierAhead(made)


@pytest.mark.parametrize("begins", [False, True])
def test_each_verifier_runs_and_ends_once(begins: bool) -> None:
    done: list[str] = []
    with ahead(done) as verifiers:
        if begins:
            verifiers.begin()
        for _ in range(2):
            with verifiers.verifier():
                assert done.count("run") == done.count("end") + 1
    assert done == ["run", "end"] * 2


def test_one_that_is_not_asked_for_ends() -> None:
    done: list[str] = []
    with pytest.raises(KeyError), ahead(done) as verifiers:
        verifiers.begin()
        raise KeyError
    assert done == ["run", "end"]


def test_its_error_is_raised_where_it_is_asked_for() -> None:
    with ahead([], "no such input") as verifiers:
        verifiers.begin()
        with pytest.raises(ValueError, match="no such input"), verifiers.verifier():
            pass
    with ahead([], "no such input") as verifiers:
        verifiers.begin()  # nobody asks
    done: list[str] = []
    with ahead(done, "not prepared") as verifiers:
        verifiers.begin()
        with pytest.raises(ValueError, match="not prepared"), verifiers.verifier():
            pass
    assert done == ["run", "end"]
