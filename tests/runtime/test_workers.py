"""Processes that hold one session: what they answer, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ortkit.errors import MissingDependencyError, RunError, UserError
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.tensor_files import plain_array, read_manifest
from ortkit.runtime.workers.planning import plan_session
from ortkit.runtime.workers.worker import SessionPlan, Worker, WorkerError
from tests.runtime.worker_models import save, save_inputs

LONG = 60.0
pytestmark = pytest.mark.usefixtures("new_processes")


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as made:
        yield made


@pytest.fixture
def loaded(worker: Worker, tmp_path: Path) -> Worker:
    worker.load(SessionPlan(save(tmp_path)), LONG)
    return worker


def state(pid: int) -> str:
    """Return the system's letter for a process: T if it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


def test_a_session_is_made_run_and_looked_at(worker: Worker, tmp_path: Path) -> None:
    made = worker.load(SessionPlan(save(tmp_path)), LONG)
    assert made.providers == ("CPUExecutionProvider",)
    assert made.nodes == {"CPUExecutionProvider": 2}
    assert made.outputs == ("y",)
    assert made.seconds > 0
    assert 0 < made.before["resident"] <= made.after["resident"]
    assert worker.feed(save_inputs(tmp_path), LONG) > 0
    turn = worker.turn(0.02, LONG, settle=2)
    assert len(turn.seconds) > 1
    assert 0.02 <= turn.wall < LONG
    assert sum(turn.seconds) <= turn.wall
    assert turn.cpu > 0
    assert len(worker.turn(LONG, LONG, most=3).seconds) == 3
    usage = worker.usage()
    assert made.after["resident"] <= usage["peak_resident"]
    worker.keep(tmp_path / "results", LONG)
    (entry,) = read_manifest(tmp_path / "results")
    got = plain_array(tmp_path / "results", entry["items"][0])
    np.testing.assert_allclose(got, np.full((2, 8), 1 + np.tanh(np.float32(1))), rtol=1e-6)


def test_its_memory_is_its_own(worker: Worker, tmp_path: Path) -> None:
    """The peak that `getrusage` tells begins with that of the process that started it."""
    ballast = np.ones(200_000_000, np.uint8)
    made = worker.load(SessionPlan(save(tmp_path)), LONG)
    assert made.before["peak_resident"] < len(ballast)
    # It is no copy of a process that has more imported.
    parent = Path(f"/proc/{worker.pid}/status").read_text(encoding="ascii")
    assert f"PPid:\t{os.getpid()}\n" in parent


def test_a_stopped_worker_runs_nothing_until_it_is_asked(loaded: Worker, tmp_path: Path) -> None:
    loaded.feed(save_inputs(tmp_path), LONG)
    loaded.stop()
    until = time.monotonic() + 60
    while state(loaded.pid) != "T" and time.monotonic() < until:
        time.sleep(0.01)
    assert state(loaded.pid) == "T"
    assert loaded.turn(0.001, LONG).seconds
    assert state(loaded.pid) != "T"


def test_settings_reach_the_session(worker: Worker, tmp_path: Path) -> None:
    settings = SessionSettings(
        optimizations="off", trace_prefix=tmp_path / "trace", optimized_model=tmp_path / "o.onnx"
    )
    worker.load(SessionPlan(save(tmp_path), settings=settings), LONG)
    worker.feed(save_inputs(tmp_path), LONG)
    assert (tmp_path / "o.onnx").is_file()
    trace = worker.end_profiling(LONG)
    assert trace.parent == tmp_path
    assert b"model_run" in trace.read_bytes()


def test_types_that_numpy_lacks_are_fed_and_kept(worker: Worker, tmp_path: Path) -> None:
    import ml_dtypes

    from ortkit.verify.exchange import read_values, write_feeds

    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (bfloat16[n] x) => (float[n] y, bfloat16[n] z) {
      y = Cast<to = 1>(x)  z = Identity(x)
    }"""
    worker.load(SessionPlan(save(tmp_path, text)), LONG)
    given = np.asarray([1.0, -2.5], ml_dtypes.bfloat16)
    write_feeds(tmp_path / "feeds", {"x": given})
    worker.feed(tmp_path / "feeds", LONG)
    worker.keep(tmp_path / "results", LONG)
    found = read_values(tmp_path / "results")
    np.testing.assert_array_equal(found["y"], np.float32([1.0, -2.5]))
    np.testing.assert_array_equal(found["z"], given)


# ---- failures ------------------------------------------------------------------------------


def test_what_stops_a_session_is_one_line(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(WorkerError, match="Protobuf parsing failed") as error:
        worker.load(SessionPlan(tmp_path / "no.onnx"), LONG)
    assert "\n" not in str(error.value)
    with pytest.raises(WorkerError, match="NoSuch"):
        worker.load(SessionPlan(save(tmp_path), providers=[("NoSuchProvider", {})]), LONG)
    worker.load(SessionPlan(save(tmp_path)), LONG)
    with pytest.raises(WorkerError, match="Got: 3 Expected: 8"):
        worker.feed(save_inputs(tmp_path, (2, 3)), LONG)
    assert worker.feed(save_inputs(tmp_path), LONG) > 0  # and it goes on


def test_a_library_that_does_not_load_is_said(worker: Worker, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    with pytest.raises(WorkerError, match=r"broken\.so"):
        worker.load(SessionPlan(save(tmp_path), (broken,)), LONG)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGSEGV, "crashed with signal 11 (Segmentation fault)"),
        (signal.SIGKILL, "is there not enough memory"),
    ],
)
def test_a_death_is_an_answer(number: int, said: str, loaded: Worker) -> None:
    os.kill(loaded.pid, number)
    with pytest.raises(WorkerError) as error:
        loaded.usage()
    assert said in str(error.value)
    loaded.stop()  # of nothing


def test_one_that_does_not_answer_is_ended(loaded: Worker, tmp_path: Path) -> None:
    loaded.feed(save_inputs(tmp_path), LONG)
    with pytest.raises(WorkerError, match="did not end within 0 seconds"):
        loaded.turn(LONG, 0.2)
    with pytest.raises(WorkerError):
        loaded.usage()


def test_it_ends_with_the_one_who_started_it() -> None:
    code = (
        "import sys, time\n"
        "from ortkit.runtime.workers.worker import Worker\n"
        "with Worker() as worker:\n"
        "    worker.usage(); worker.stop()\n"
        "    print(worker.pid, flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        caller.kill()
    until = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    try:
        return state(pid) != "Z"
    except OSError:
        return False


def test_the_child_imports_nothing_large() -> None:
    code = "import sys, ortkit.runtime.workers.child; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(ended.stdout.decode().split())
    assert not loaded & {"onnx", "onnx_ir", "ml_dtypes", "google.protobuf", "rich"}


# ---- planning ------------------------------------------------------------------------------


def test_a_plan_names_what_a_session_needs(tmp_path: Path) -> None:
    path = save(tmp_path)
    plan = plan_session(path, SessionSettings(target="cpu", threads=2), lambda: tmp_path)
    assert plan.model == path
    assert [name for name, _ in plan.providers] == ["CPUExecutionProvider"]
    assert (plan.libraries, plan.notes) == ((), ())
    assert plan.settings.threads == 2


def test_text_is_written_as_onnxruntime_takes_it(worker: Worker, tmp_path: Path) -> None:
    from tests.runtime.worker_models import TEXT

    (tmp_path / "m.onnxtxt").write_text(TEXT, encoding="utf-8")
    plan = plan_session(tmp_path / "m.onnxtxt", SessionSettings(), lambda: tmp_path)
    worker.load(plan, LONG)
    assert worker.feed(save_inputs(tmp_path), LONG) > 0


def test_what_cannot_be_planned_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path)
    with pytest.raises(UserError, match="did you mean 'cpu'"):
        plan_session(path, SessionSettings(target="cpuu"), lambda: tmp_path)
    with pytest.raises(MissingDependencyError, match="TensorrtExecutionProvider"):
        plan_session(path, SessionSettings(target="tensorrt"), lambda: tmp_path)
    with pytest.raises(RunError, match="names no kernel library"):
        plan_session(fused(tmp_path), SessionSettings(kernels="require"), lambda: tmp_path)
    notes = plan_session(fused(tmp_path), SessionSettings(), lambda: tmp_path).notes
    assert notes == ("f.onnx: the model names no kernel library; function bodies run instead",)


def fused(folder: Path) -> Path:
    """Return a model with a fused op as a function and no library."""
    text = """<ir_version: 10, opset_import: ["" : 20, "ortkit.fused" : 1]>
    g (float[n, 8] x) => (float[n, 8] y) { y = ortkit.fused.f(x) }
    <domain: "ortkit.fused", opset_import: ["" : 20]> f (a) => (b) { b = Tanh(a) }
    """
    return save(folder, text, "f.onnx")
