"""The tool that changes sources: what it changes, and what the tests of a sample say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutation.mutants import mutants_of
from tests.mutation.runs import PACKAGES, ROOT, Run, relevant_tests, run, runs, sample, table

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
    assert all(relevant_tests(file) for file, _ in found)


@pytest.mark.parametrize(
    ("tests", "verdict"),
    [("tests/kernels/test_signature.py", "killed"), ("tests/graph/test_dims.py", "survived")],
)
def test_a_change_reaches_the_tests_and_not_the_tree(tests: str, verdict: str) -> None:
    file = "ortkit/kernels/signature.py"
    source = (ROOT / file).read_text(encoding="utf-8")
    (mutant,) = (each for each in mutants_of(source) if each.what.startswith("self.digest[:12] "))
    assert run(file, mutant, [tests]).verdict == verdict
    assert (ROOT / file).read_text(encoding="utf-8") == source


@pytest.mark.slow
def test_a_sample_of_changes(record_property: Callable[[str, object], None]) -> None:
    found: list[Run] = list(runs(_COUNT))
    record_property("table", table(found))
    for package in PACKAGES:
        own = [each for each in found if each.package == package]
        killed = sum(each.verdict != "survived" for each in own)
        assert 100 * killed >= FLOOR * len(own), package
