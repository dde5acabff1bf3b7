"""A pytest plugin: the node cases of the ONNX standard as tests of a provider.

    @pytest.mark.onnx_node_cases("my_package:MyProvider", only="test_add*")
    def test_conformance(onnx_node_case):
        onnx_node_case.check()

A process judges the cases of one provider; one that it dies of fails that test alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ortkit.provider.conformance.pool import Bench
    from ortkit.provider.conformance.subject import Subject
    from ortkit.provider.conformance.verdict import Verdict

MARK = "onnx_node_cases"
_ARGUMENTS = ("library", "options", "only", "sample", "seconds")


@dataclass(frozen=True)
class NodeCase:
    """One case, for one provider.

    Args:
        name: As onnx has it.
        bench: Where it is judged.
    """

    name: str
    bench: Bench

    def verdict(self) -> Verdict:
        """Judge the case: what the provider did with it."""
        return self.bench.judge(self.name)

    def check(self) -> None:
        """Fail if the provider is wrong, fails or crashes; skip what it does not claim."""
        __tracebackhide__ = True
        found = self.verdict()
        if found.is_fault:
            claimed = f", which took {', '.join(found.claimed)}" if found.claimed else ""
            pytest.fail(f"{found.status}: {found.detail}{claimed}", pytrace=False)
        if found.status != "right":
            pytest.skip(f"{found.status}{': ' if found.detail else ''}{found.detail}")


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers",
        f'{MARK}(provider, library=None, options={{}}, only="", sample=150, seconds=60): run a '
        "test for each node case of the onnx package with this provider, MODULE:CLASS or a name",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each case."""
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None or "onnx_node_case" not in metafunc.fixturenames:
        return
    provider, arguments = _read(mark)
    from ortkit.provider.conformance.cases import SAMPLE, case_folder, chosen

    names = chosen(
        case_folder().names, str(arguments.get("only", "")), arguments.get("sample", SAMPLE)
    )
    parameters = [(provider, arguments, name) for name in names]
    metafunc.parametrize("onnx_node_case", parameters, ids=names, indirect=True)


def _read(mark: pytest.Mark) -> tuple[str, dict[str, Any]]:
    if len(mark.args) != 1 or not isinstance(mark.args[0], str):
        raise pytest.UsageError(f'write @pytest.mark.{MARK}("MODULE:CLASS", ...)')
    unknown = [key for key in mark.kwargs if key not in _ARGUMENTS]
    if unknown:
        known = ", ".join(_ARGUMENTS)
        raise pytest.UsageError(f"{MARK} has no argument {unknown[0]!r}; it has {known}")
    return mark.args[0], dict(mark.kwargs)


@pytest.fixture(scope="session")
def _onnx_benches() -> Iterator[dict[str, Bench]]:
    benches: dict[str, Bench] = {}
    yield benches
    for bench in benches.values():
        bench.close()


@pytest.fixture
def onnx_node_case(request: pytest.FixtureRequest, _onnx_benches: dict[str, Bench]) -> NodeCase:
    """A case of the ONNX standard; only for tests with the mark `onnx_node_cases`."""
    if not hasattr(request, "param"):
        raise pytest.UsageError(f'mark the test: @pytest.mark.{MARK}("MODULE:CLASS")')
    provider, arguments, name = request.param
    from ortkit.provider.conformance.pool import Bench

    key = repr((provider, sorted(arguments.items(), key=lambda item: item[0])))
    if key not in _onnx_benches:
        seconds = float(arguments.get("seconds", 60.0))
        _onnx_benches[key] = Bench(_subject(provider, arguments), seconds)
    return NodeCase(name, _onnx_benches[key])


def _subject(provider: str, arguments: dict[str, Any]) -> Subject:
    from pathlib import Path

    from ortkit.provider.conformance.subject import Subject

    library = arguments.get("library")
    return Subject(
        provider, None if library is None else Path(library), dict(arguments.get("options", {}))
    )
