"""Batches are judged beside the next run, in order, and their results are removed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Event

import pytest

from ortkit.verify.batch_judging import Judging
from ortkit.verify.rewrite_check import RewriteCheck


def _folder(parent: Path, number: int) -> Path:
    made = parent / str(number)
    made.mkdir()
    return made


@pytest.mark.parametrize("judges", [0, 1, 2])
def test_all_batches_are_judged_in_order(judges: int, tmp_path: Path) -> None:
    folders = [_folder(tmp_path, number) for number in range(4)]

    def judge(number: int) -> RewriteCheck:
        assert folders[number].exists()
        return RewriteCheck(compared=(str(number),))

    with Judging(judges) as judging:
        for number, folder in enumerate(folders):
            assert not judging.is_over
            # The run before gives what this one begins with.
            assert number == 0 or folders[number - 1].exists()
            judging.add(folder, partial(judge, number), None)
    assert [each.compared for each in judging.checks] == [("0",), ("1",), ("2",), ("3",)]
    assert not any(folder.exists() for folder in folders)


def test_a_run_goes_on_while_the_one_before_is_judged(tmp_path: Path) -> None:
    goes_on = Event()

    def judge() -> RewriteCheck:
        assert goes_on.wait(20)
        return RewriteCheck()

    with Judging(1) as judging:
        judging.add(_folder(tmp_path, 0), judge, None)
        assert not judging.is_over
        goes_on.set()


@pytest.mark.parametrize("problem", [RewriteCheck(late=("a",)), RewriteCheck(problem="bad")])
@pytest.mark.parametrize("is_of_run", [False, True])
def test_nothing_runs_after_a_problem(
    problem: RewriteCheck, is_of_run: bool, tmp_path: Path
) -> None:
    with Judging(0) as judging:
        judging.add(_folder(tmp_path, 0), lambda: problem, problem if is_of_run else None)
        assert judging.is_over
    assert judging.checks == [problem]


def test_an_error_of_a_judge_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    def judge() -> RewriteCheck:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), Judging(0) as judging:
        judging.add(_folder(tmp_path, 0), judge, None)
        assert judging.is_over
    assert list(tmp_path.iterdir()) == []
