"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.sampling import cases_left_out, run_every_case

# Read when onnxruntime is imported: lets it load models of the opset that onnx releases next,
# which many of onnx's own test cases are written in.
os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
# As ortkit sets it in processes of its own: a thread of ONNX Runtime less in each.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# Libraries that tests build are not added to the user's list of trusted ones.
_STATE = tempfile.TemporaryDirectory(prefix="ortkit-tests-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name
# A pass that raises is left out of a run and reported; in tests it ends the run.
os.environ["ORTKIT_PASS_ERRORS"] = "raise"
# What `ortkit optimize` times takes a second or two; its own test turns it on.
os.environ["ORTKIT_TIMING"] = "off"
# The readline library, which pytest loads, sets them for the processes that are started: workers
# would print tables for a terminal of 80 columns, and a run without workers for a pipe.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)


#: Processes that jobs are forked from stay that long without one: most tests have only a few jobs.
#: Loading TVM takes a second of processor time, what verification needs half of one.
_IDLE_SECONDS = 300.0
#: How long is measured; users wait half a second to two for each of them.
_BRIEF = {
    "ortkit.cli.memory_measure._SECONDS": 0.05,
    "ortkit.measure.peaks._SECONDS": 0.01,
    "ortkit.measure.whole._PROFILE_SECONDS": 0.3,
    "ortkit.measure.whole._SECONDS": 0.3,
    "ortkit.runtime.profiling.model_runs._SECONDS": 0.3,
    "ortkit.trial.trial._MOST_TIMING_SECONDS": 0.5,
    "ortkit.trial.trial._MOST_PROFILE_SECONDS": 0.3,
}
#: Processor time for the sizes of kernels that are not required, and for those of one kernel that
#: is interpreted, with when it is given up; see `ortkit.verify.kernels.check`. What checks find is
#: tested where they have their usual time, and with all cases everywhere.
_CHECK_SECONDS, _INTERPRETED_SECONDS = 0.05, (0.05, 6.0)
#: Of a verification, which ends early on a busy machine and says so: none of the tests is to.
_VERIFY_SECONDS = 600.0
#: A collection looks at all that was imported, which is more here than elsewhere: fewer of them.
_COLLECTOR = (20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _processes() -> Iterator[str]:
    """Keep the processes that others are forked from, and fork those of sessions that are timed.

    New ones, as users have them, would import for half a second each. Yields what they import.
    What has been compiled before is copied, see `tests.compiled_kernels`.
    """
    from ortkit.isolation import processes  # after the settings above
    from ortkit.kernels.build.compiler import staying
    from ortkit.runtime.workers import worker
    from tests.compiled_kernels import shared_kernels

    processes.IDLE_SECONDS = _IDLE_SECONDS
    imports, worker.IMPORTS = worker.IMPORTS, "ortkit"
    with staying(_IDLE_SECONDS), shared_kernels():
        yield imports


@pytest.fixture(scope="session", autouse=True)
def verify_seconds(request: pytest.FixtureRequest) -> Iterator[float]:
    """Let commands measure for a moment, and verification take its time.

    Tests hold what is said of a measurement, not how exact it is. Yields how long users' last.
    """
    from ortkit.verify import limits
    from ortkit.verify.kernels import check

    usual = limits.SECONDS
    with pytest.MonkeyPatch.context() as patch:
        if not request.config.getoption("--every-case"):
            patch.setitem(check.SECONDS, "quick", _CHECK_SECONDS)  # type: ignore[arg-type]
            interpreted = _INTERPRETED_SECONDS
            patch.setitem(check._INTERPRETED, "quick", interpreted)  # type: ignore[arg-type]
        for name, seconds in _BRIEF.items():
            patch.setattr(name, seconds)
        patch.setattr(limits, "SECONDS", _VERIFY_SECONDS)
        # All that is imported is frozen: to count it takes 10 ms in each run of a pipeline.
        patch.setattr("ortkit.rewrite.pipeline.gc", SimpleNamespace(get_freeze_count=lambda: 1))
        yield usual


@pytest.fixture
def new_processes(monkeypatch: pytest.MonkeyPatch, _processes: str) -> None:
    """Let sessions run in the processes that users have: for what is said of their memory."""
    monkeypatch.setattr("ortkit.runtime.workers.worker.IMPORTS", _processes)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options by which `scripts/test --all` runs what is sampled otherwise."""
    group = parser.getgroup("ortkit")
    group.addoption("--every-case", action="store_true", help="run all cases of sampled tests")
    group.addoption("--sample-seed", type=int, default=0, help="which cases of them to run (0)")


def pytest_configure(config: pytest.Config) -> None:
    """Say how many random cases tests run."""
    is_named = any("::" in each for each in config.args)  # who names a test gets all of it
    run_every_case(bool(config.getoption("--every-case")) or is_named)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of sampled tests that are not drawn."""
    if "hypothesis" in sys.modules:
        _leave_constants_out()
    if config.getoption("--every-case") or any("::" in each for each in config.args):
        return  # who names a test gets all of it
    left_out = set(cases_left_out(items, config.getoption("--sample-seed")))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _leave_constants_out() -> None:
    """Let examples of hypothesis not depend on what else is imported.

    It draws some of the constants in the sources of all our modules, which it takes 2 s to read.
    Which modules there are depends on the tests that are run.
    """
    from hypothesis.internal.conjecture import providers

    providers._get_local_constants = providers.Constants


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Keep the garbage collector from what is imported, which stays: to look at it takes 0.5 s."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(*_COLLECTOR)


def pytest_sessionfinish() -> None:
    """Keep pytest from collecting garbage five times at the end, which nobody reads."""
    gc.freeze()
    atexit.register(gc.unfreeze)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables that tests measure, also those of tests that pass."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, text in getattr(report, "user_properties", ()):
                if name == "table" and report.when == "call":
                    terminalreporter.section(report.nodeid)
                    terminalreporter.write_line(text)
