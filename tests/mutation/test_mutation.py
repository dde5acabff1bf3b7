"""The tool that changes sources: what it changes, and what the tests of a sample say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutation.lines import Measured, running
from tests.mutation.mutants import Mutant, function_at, mutants_of
from tests.mutation.runs import (
    PACKAGES,
    ROOT,
    Run,
    Runner,
    Verdicts,
    cheapest,
    files_of_tests,
    folder_of,
    sample,
    table,
)

SOURCE = '''"""Compare 1 with 2."""
def f(é, n: int = 3) -> list[int]:
    if not n or é <= n and n in é:
        return None
    return é + [n]


@dataclass(frozen=True)
class C:
    """Holds nothing."""
'''
#: The share of changes that tests must notice, in percent, in each package.
FLOOR = 50.0
_COUNT = 300


def test_what_is_changed() -> None:
    found = mutants_of(SOURCE)
    assert [each.what for each in found] == [
        "3 becomes (2)",
        "3 becomes 4",
        "not dropped",
        "or becomes and",
        "<= becomes <",
        "and becomes or",
        "in becomes not in",
        "é + [n] becomes None",
        "+ becomes -",
    ]
    texts = {each.of(SOURCE) for each in found}
    assert SOURCE.replace("é <= n", "é < n") in texts
    assert SOURCE.replace("not n", "n") in texts
    assert SOURCE.replace("return é + [n]", "return None") in texts
    assert len(texts) == len(found)


def test_a_sample_is_the_same_each_time_and_of_all_packages() -> None:
    found = sample(30, seed=4)
    assert found == sample(30, seed=4)
    assert len(found) == 30
    assert all(sum(file.startswith(each) for file, _ in found) == 10 for each in PACKAGES)


def test_tests_of_the_packages_are_run_and_those_that_import_a_source() -> None:
    own = files_of_tests([])
    assert "tests/kernels/test_signature.py" in own
    assert set(files_of_tests(["ortkit/fusion/regions/partition.py"])) - set(own) == {
        "tests/passes/test_fuse_bias_gelu.py"
    }


def test_tests_that_run_the_line_are_chosen_the_shortest_first() -> None:
    source = "A = 1\ndef f(n):\n    if n:\n        return 2\n    return 3\n"
    tests = [
        Measured("t.py::slow", 55.0, {"a.py": frozenset({1, 3, 4})}),
        Measured("t.py::other", 1.5, {"a.py": frozenset({3, 5})}),
        *(Measured(f"t.py::quick[{n}]", n, {"a.py": frozenset({4})}) for n in (3.0, 2.0, 1.0)),
    ]

    def names(line: int) -> list[str]:
        found = cheapest(running(tests, "a.py", line, function_at(source, line)))
        return [test.name.removeprefix("t.py::") for test in found]

    assert names(5) == ["other"]
    assert names(4) == ["quick[1.0]", "quick[2.0]", "slow"]  # together a minute at most
    assert names(1) == ["quick[1.0]", "other", "quick[2.0]", "slow"]
    assert running(tests, "b.py", 1, range(0)) == []


def test_a_change_reaches_the_tests_and_not_the_tree(tmp_path: Path) -> None:
    file = "ortkit/kernels/signature.py"
    source = (ROOT / file).read_text(encoding="utf-8")
    (mutant,) = (each for each in mutants_of(source) if each.what.startswith("self.digest[:12] "))
    with Runner(tmp_path) as runner:
        tests = runner.tests(["tests/kernels/test_signature.py"])
        found = runner.run(file, mutant, tests)
        assert found.verdict == "killed"
        unchanged = Mutant(mutant.line, mutant.start, mutant.start, "", "nothing")
        assert runner.run(file, unchanged, tests).verdict == "survived"
        assert runner.run("ortkit/kernels/cuda.py", unchanged, []).verdict == "not run"
        Verdicts(tmp_path / "verdicts").add(found)
        assert Verdicts(tmp_path / "verdicts").of(file, mutant) == found
    assert (ROOT / file).read_text(encoding="utf-8") == source


@pytest.mark.slow
def test_a_sample_of_changes(record_property: Callable[[str, object], None]) -> None:
    with Runner(folder_of(*PACKAGES, "tests")) as runner:
        found: list[Run] = list(runner.run_all(sample(_COUNT)))
    record_property("table", table(found))
    for package in PACKAGES:
        own = [each for each in found if each.package == package]
        killed = sum(each.is_killed for each in own)
        assert 100 * killed >= FLOOR * len(own), package
