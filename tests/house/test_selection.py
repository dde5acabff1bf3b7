"""Which tests a change concerns, and which cases of sampled tests are run."""

from __future__ import annotations

import subprocess
from itertools import product

import pytest

from tests.sampling import draw
from tests.selection import ROOT, changed_files, pick_tests

pytest_plugins = ("pytester",)


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("ortkit/graph/walk.py", "tests/rewrite/test_names.py"),  # imported
        ("ortkit/passes/drop_identity.py", "tests/contract/test_passes.py"),  # in a catalog
        ("ortkit/cli/compare.py", "tests/cli/test_cli_compare.py"),  # called like it
        ("custom_ops/tvm/conv/winograd_transforms.py", "tests/kernels"),  # its package's folder
        ("tests/cli/conftest.py", "tests/cli"),
        ("tests/cli/test_cli_compare.py", "tests/cli/test_cli_compare.py"),
        ("tests/import_graph.py", "tests/house/test_imports.py"),  # a helper
        ("custom_ops/native/manifest.h", "tests/native"),
        ("docs/reference/cli.md", "tests/house"),
    ],
)
def test_a_change_concerns(file: str, test: str) -> None:
    assert (ROOT / file).is_file()
    assert test in pick_tests([file])


def test_a_change_does_not_concern_all() -> None:
    assert len(pick_tests(["ortkit/passes/drop_identity.py"])) < 12
    assert "tests/cli/test_cli_compare.py" not in pick_tests(["ortkit/cli/memory.py"])


def test_what_is_picked_exists() -> None:
    for test in pick_tests(["ortkit/errors.py", "README.md", "tests/gone/test_gone.py"]):
        assert (ROOT / test).exists(), test


def test_no_such_commit() -> None:
    with pytest.raises(SystemExit, match=r"error: .*no-such-commit"):
        changed_files("no-such-commit")


def test_changed_files_are_those_of_git() -> None:
    command = ("git", "diff", "--name-only", "HEAD")
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(said.stdout.splitlines()) <= set(changed_files())


def test_a_draw_has_every_value() -> None:
    cases = {
        f"{a}-{b}-{c}": {"a": a, "b": b, "c": c}
        for a, b, c in product(range(6), range(4), range(2))
    }
    drawn = draw(cases, 6, "seed")
    assert len(drawn) == 6
    for name, values in (("a", 6), ("b", 4), ("c", 2)):
        assert len({cases[each][name] for each in drawn}) == values
    assert drawn == draw(cases, 6, "seed")
    assert drawn != draw(cases, 6, "other")
    assert draw(cases, 100, "seed") == set(cases)


def test_sampled_cases_are_run(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    pytester.makeini("[pytest]\nmarkers =\n  sampled(count): some\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.sampled(3)
        @pytest.mark.parametrize("first", range(8))
        def test_some(first): pass

        def test_one(): pass
        """
    )
    pytester.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=4, deselected=5)
    pytester.runpytest("--every-case").assert_outcomes(passed=9)
    pytester.makepyfile("import pytest\n@pytest.mark.sampled(3)\ndef test_one(): pass\n")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_one: sampled, but it has no parameters*"])
