"""Measuring on other machines: a tracker with two servers, and a local Ray."""

from __future__ import annotations

import importlib.util
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tuned_regions import SOFTMAX

from ortkit.errors import KernelError, UserError
from ortkit.kernels import Target
from ortkit.kernels.calibration import processor
from ortkit.kernels.cpu import native_level, resolve
from ortkit.kernels.tuned import load_database
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.tune import tuner
from ortkit.tune.cases import TuneCase
from ortkit.tune.options import TuneOptions
from ortkit.tune.region import TuningRegion
from ortkit.tune.rpc import Tracker, tracker_of
from ortkit.tune.runners import runner_for
from ortkit.tune.timing import Effort
from ortkit.tune.tuner import tune

TARGET = resolve(Target())
CASE = TuneCase(SOFTMAX, (7,))
QUICK = Effort(processes=2, rounds=3, seconds=1e-5)
NEEDS_TRACKER = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tornado", "cloudpickle")),
    reason="the tracker needs tornado and cloudpickle",
)
NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
_SERVE = """
import sys
from tvm.rpc.server import Server
from tvm.rpc.tracker import Tracker
if __name__ == "__main__":
    tracker = Tracker("127.0.0.1", 19000, 19999)
    address = ("127.0.0.1", tracker.port)
    servers = [Server("127.0.0.1", 20000 + 500 * n, 20500 + 500 * n, key="kind",
                      tracker_addr=address, silent=True) for n in range(2)]
    print(tracker.port, flush=True)
    for line in sys.stdin:
        if line.strip() == "tracker":
            tracker.terminate()
        else:
            for one in servers:
                one.terminate()
        print("gone", flush=True)
    tracker.terminate()
    for one in servers:
        one.terminate()
"""


class Serving:
    """A tracker and two servers in a process of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.address = f"rpc://127.0.0.1:{int(process.stdout.readline())}/kind"

    def end(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "gone\n"


@contextmanager
def serving(folder: Path) -> Iterator[Serving]:
    script = folder / "serve.py"
    script.write_text(_SERVE)
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=folder, text=True, stderr=subprocess.DEVNULL,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            found = Serving(process)
            with tracker_of(found.address) as tracker:
                wait_for(tracker)
            yield found
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


def wait_for(tracker: Tracker) -> None:
    """Servers make themselves known some time after they were started."""
    waiting = multiprocessing.Event()
    for _ in range(100):
        if tracker.workers == 2:
            return
        waiting.wait(0.1)
    raise AssertionError("the servers are not known to the tracker")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("rpc")) as found:
        yield found


@NEEDS_TRACKER
def test_servers_time_kernels(servers: Serving) -> None:
    with runner_for(TuneOptions(runner=servers.address)) as runner:
        assert (runner.workers, runner.processor) == (2, processor())
        found = runner.time(CASE, TARGET, "tvm", ["", "keep=0"], QUICK)
    assert [one.choices for one in found] == ["", "keep=0"]
    for one in found:
        assert not one.problem
        assert [len(each) for each in one.processes] == [3, 3]
        assert one.fastest_ns > 0


@NEEDS_TRACKER
def test_servers_have_to_run_the_kernels(servers: Serving) -> None:
    with tracker_of(servers.address) as tracker:
        tracker.check(TARGET)
        tracker.__dict__["cpu"] = tracker.cpu.__class__("Old CPU", "x86-64-v2")
        with pytest.raises(UserError, match="the servers run x86-64-v2"):
            tracker.check(Target("cpu", "x86-64-v3"))


@NEEDS_TRACKER
def test_nobody_of_another_key_is_asked(servers: Serving) -> None:
    address = servers.address.replace("/kind", "/other")
    with tracker_of(address) as tracker, pytest.raises(UserError, match="no server of the key"):
        tracker.check(TARGET)


@NEEDS_TRACKER
def test_a_tracker_that_goes_away_loses_nothing(
    model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "_RUN_SECONDS", 0.05)
    monkeypatch.setattr(tuner, "_PROFILE_SECONDS", 0.2)
    monkeypatch.setattr(TuningRegion, "is_pending", False)
    monkeypatch.setattr(TvmBackend, "fingerprint", lambda _: "one generator")
    run = TuningRegion.run
    with serving(tmp_path) as found:

        def then_gone(self, choices, store):
            run(self, choices[:3], store)
            found.end("tracker")

        monkeypatch.setattr(TuningRegion, "run", then_gone)
        with pytest.raises(UserError, match="the tracker went away") as caught:
            tune(model, TuneOptions(trials=20, runner=found.address))
        assert "\n" not in str(caught.value)
    (record,) = load_database(cache / "tuned.json").records.values()
    assert len(record.trials) == 3
    monkeypatch.setattr(TuningRegion, "run", run)
    assert tune(model, TuneOptions(trials=2)).regions[0].trials == 5


@pytest.mark.slow
@NEEDS_TRACKER
def test_without_servers_a_tracker_is_of_no_use(tmp_path: Path) -> None:
    with serving(tmp_path) as found, tracker_of(found.address) as tracker:
        found.end("servers")
        for _ in range(100):
            if tracker.workers == 0:
                break
            multiprocessing.Event().wait(0.1)
        with pytest.raises(UserError, match="no server"):
            tracker.time(CASE, TARGET, "tvm", [""], QUICK)


@pytest.mark.parametrize(
    ("runner", "problem"),
    [
        ("carrier pigeon", "measures nothing"),
        ("rpc://localhost", "is no tracker"),
        ("rpc://localhost:0/kind", "is no tracker"),
        ("rpc://localhost:99999/kind", "is no tracker"),
        ("rpc://localhost:9190/", "is no tracker"),
        ("rpc://127.0.0.1:9/kind", "no tracker answers"),
    ],
)
def test_bad_runners_are_one_line(runner: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught, runner_for(TuneOptions(runner=runner)):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_it_is_said_how_to_get_it() -> None:
    with pytest.raises(UserError, match="pip install ray"), runner_for(TuneOptions(runner="ray")):
        pass


@NEEDS_RAY
def test_a_ray_cluster_times_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with runner_for(TuneOptions(runner="ray")) as runner:
        assert runner.workers >= 1
        assert runner.target.level == native_level()
        found = runner.time(CASE, TARGET, "tvm", ["", "keep=0"], QUICK)
        assert [bool(one.processes) for one in found] == [True, True]
        with pytest.raises(KernelError, match="the default kernel is not there"):
            runner.time(CASE, TARGET, "tvm", ["wings=2"], QUICK)
