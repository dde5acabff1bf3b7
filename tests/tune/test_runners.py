"""Measuring on other machines: a tracker with two servers, and a local Ray."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tuned_regions import SOFTMAX

from ortkit.errors import KernelError, UserError
from ortkit.kernels.tuning.calibration import processor
from ortkit.kernels.tuning.database import load_database
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.targets.cpu import native_level
from ortkit.targets.target import Target
from ortkit.tune import rpc, tuner
from ortkit.tune.cases import TuneCase
from ortkit.tune.on_ray import ray_cluster
from ortkit.tune.options import TuneOptions
from ortkit.tune.region import TuningRegion
from ortkit.tune.rpc import Tracker, tracker_of
from ortkit.tune.runners import runner_for
from ortkit.tune.timing import Effort
from ortkit.tune.tuner import tune

TARGET = Target().resolved()
CASE = TuneCase(SOFTMAX, (7,))
QUICK = Effort(processes=2, rounds=3, seconds=1e-5)
NEEDS_TRACKER = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tornado", "cloudpickle")),
    reason="the tracker needs tornado and cloudpickle",
)
NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
# As `python -m tvm.exec.rpc_tracker` and `rpc_server` do, without their second process each, which
# nobody ends when the first one is.
_TRACKER = """
from tvm.rpc.tracker import PopenTrackerServerState as Tracker
print(Tracker("127.0.0.1", 19000, 19999, silent=True).port, flush=True)
"""
_SERVER = """
import sys
from tvm.rpc.server import PopenRPCServerState as Server
port, tracker = map(int, sys.argv[1:])
Server("127.0.0.1", port, port + 500, key="kind", tracker_addr=("127.0.0.1", tracker), silent=True)
"""


class Serving:
    """A tracker and two servers, each a process with a group of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tracker = self._start(_TRACKER)
        assert self.tracker.stdout is not None
        port = self.tracker.stdout.readline().strip()
        self.address = f"rpc://127.0.0.1:{port}/kind"
        self.servers = [self._start(_SERVER, first, port) for first in ("20000", "20500")]

    def _start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script, *arguments], cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def end(self, processes: Sequence[subprocess.Popen[str]], how: int = signal.SIGKILL) -> None:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, how)

    def close(self) -> None:
        everything = [self.tracker, *self.servers]
        self.end(everything)
        for one in everything:
            one.wait(30)
            assert one.stdout is not None
            one.stdout.close()


@contextmanager
def serving(folder: Path) -> Iterator[Serving]:
    found = Serving(folder)
    try:
        wait_for(tracker_of(found.address))
        yield found
    finally:
        found.close()


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
    assert [item.choices for item in found] == ["", "keep=0"]
    for one in found:
        assert not one.problem
        assert [len(each) for each in one.processes] == [3, 3]
        assert one.fastest_ns > 0


@NEEDS_TRACKER
def test_servers_have_to_run_the_kernels(servers: Serving) -> None:
    tracker = tracker_of(servers.address)
    tracker.check(TARGET)
    tracker.__dict__["cpu"] = tracker.cpu.__class__("Old CPU", "x86-64-v2")
    with pytest.raises(UserError, match="the servers run x86-64-v2"):
        tracker.check(Target("cpu", "x86-64-v3"))


@NEEDS_TRACKER
def test_nobody_of_another_key_is_asked(servers: Serving) -> None:
    address = servers.address.replace("/kind", "/other")
    with pytest.raises(UserError, match="no server of the key") as caught:
        tracker_of(address).check(TARGET)
    assert "rpc_server --host 127.0.0.1 --key other --tracker 127.0.0.1:" in str(caught.value)


@NEEDS_TRACKER
def test_a_tracker_that_no_longer_answers_is_waited_for_some_time(
    servers: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its machine is gone: nothing closes the connection."""
    tracker = tracker_of(servers.address)
    servers.end([servers.tracker], signal.SIGSTOP)
    usual = rpc._ANSWER_SECONDS
    monkeypatch.setattr(rpc, "_ANSWER_SECONDS", 0.2)
    try:
        with pytest.raises(UserError, match="the tracker went away or has no server: timed out"):
            tracker.time(CASE, TARGET, "tvm", [""], QUICK)
        with pytest.raises(UserError, match="no tracker answers: timed out"):
            tracker_of(servers.address)
    finally:
        servers.end([servers.tracker], signal.SIGCONT)
    monkeypatch.setattr(rpc, "_ANSWER_SECONDS", usual)
    assert tracker.workers == 2


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
            found.end([found.tracker])

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
    with serving(tmp_path) as found:
        tracker = tracker_of(found.address)
        found.end(found.servers)
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


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("", {"address": "local", "_node_ip_address": "127.0.0.1"}),
        ("10.0.0.1:6379", {"address": "10.0.0.1:6379"}),
    ],
)
def test_a_ray_cluster_of_ours_listens_here_only(
    named: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}
    fake = SimpleNamespace(
        init=lambda **settings: given.update(settings), is_initialized=lambda: False,
        cluster_resources=lambda: {"CPU": 2}, shutdown=lambda: None,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setenv("RAY_ADDRESS", named)
    with ray_cluster() as cluster:
        assert cluster.workers == 2
    assert {name: given.get(name) for name in ("address", "_node_ip_address")} == {
        "address": None, "_node_ip_address": None, **expected,
    }  # fmt: skip


def test_every_server_in_the_documentation_says_where_it_listens() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "tuning.md").read_text("utf-8")
    started = re.findall(r"tvm\.exec\.rpc_(?:tracker|server)[^\n]*", text)
    assert len(started) >= 2
    assert all(" --host 127.0.0.1 " in f"{line} " for line in started)


@NEEDS_RAY
def test_a_ray_cluster_times_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with runner_for(TuneOptions(runner="ray")) as runner:
        assert runner.workers >= 1
        assert runner.target.level == native_level()
        found = runner.time(CASE, TARGET, "tvm", ["", "keep=0"], QUICK)
        assert [bool(item.processes) for item in found] == [True, True]
        with pytest.raises(KernelError, match="the default kernel is not there"):
            runner.time(CASE, TARGET, "tvm", ["wings=2"], QUICK)
