"""Providers in Python and threads: the interpreter's lock, runs that overlap, its end."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from python_providers import (
    CHAIN,
    NumpyProvider,
    chain_feeds,
    chain_result,
    interpreter,
    model,
    options,
    registered,
    session,
)

from ortkit.provider import GraphView

#: Four branches that may run at the same time.
WIDE = """<ir_version: 10, opset_import: ["" : 20]>
g (float[64, 4] a, float[64, 4] b) => (float[64, 4] y)
{
  p = Add(a, b)  q = Mul(a, b)  r = Relu(a)  s = Add(b, b)
  pe = Exp(p)  qe = Tanh(q)  re = Exp(r)  se = Tanh(s)
  u = Add(pe, qe)  v = Mul(re, se)
  y = Add(u, v)
}
"""


def wide_result(a: Any, b: Any) -> Any:
    return np.exp(a + b) + np.tanh(a * b) + np.exp(np.maximum(a, 0)) * np.tanh(b + b)


def check(made: ort.InferenceSession, seed: int) -> None:
    random = np.random.default_rng(seed)
    feeds = {name: random.standard_normal((3, 4), dtype=np.float32) for name in "abc"}
    for rows in (3, 2):
        cut = {name: array[:rows] for name, array in feeds.items()}
        found = made.run(None, cut)[0]
        np.testing.assert_allclose(found, chain_result(**cut), rtol=1e-5, atol=1e-6)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work` in so many threads; raises what one of them raised."""
    failed: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failed:
        raise failed[0]


def test_one_session_in_several_threads() -> None:
    with registered(NumpyProvider()) as name:
        made = session(model(CHAIN), name)

        def work(index: int) -> None:
            for turn in range(50):
                check(made, 100 * index + turn)

        in_threads(4, work)


def test_several_sessions_in_several_threads() -> None:
    with registered(NumpyProvider()) as name:

        def work(index: int) -> None:
            for _ in range(5):
                made = session(model(CHAIN), name)
                for turn in range(5):
                    check(made, 100 * index + turn)

        in_threads(4, work)


def test_runs_of_branches_that_overlap() -> None:
    threads: set[int] = set()

    class Looking(NumpyProvider):
        def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
            return [[node] for node in graph if node.op_type in ("Add", "Mul", "Relu")]

        def compile(self, subgraph: GraphView) -> Callable[..., Any]:
            run = interpreter(subgraph)

            def kernel(*arrays: Any) -> Any:
                threads.add(threading.get_ident())
                time.sleep(0.001)
                return run(*arrays)

            return kernel

    made_options = options()
    made_options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    made_options.inter_op_num_threads = 3
    with registered(Looking()) as name:
        made = session(model(WIDE), name, session_options=made_options)
        random = np.random.default_rng(3)
        for _ in range(20):
            feeds = {item: random.standard_normal((64, 4), dtype=np.float32) for item in "ab"}
            found = made.run(None, feeds)[0]
            np.testing.assert_allclose(found, wide_result(**feeds), rtol=1e-5, atol=1e-6)
    assert len(threads) > 1


def test_a_session_made_and_run_in_a_thread_of_its_own() -> None:
    made: list[ort.InferenceSession] = []
    with registered(NumpyProvider()) as name:
        in_threads(1, lambda _: made.append(session(model(CHAIN), name)))
        check(made[0], 1)
        in_threads(1, lambda _: check(made[0], 2))
        in_threads(1, lambda _: made.clear())


def test_other_threads_go_on_while_a_session_runs_native_code() -> None:
    """A kernel that waits for another thread's Python gets there: the lock is free meanwhile."""
    turn = threading.Event()

    class Waiting(NumpyProvider):
        def compile(self, subgraph: GraphView) -> Callable[..., Any]:
            run = interpreter(subgraph)

            def kernel(*arrays: Any) -> Any:
                assert turn.wait(60)
                return run(*arrays)

            return kernel

    with registered(Waiting()) as name:
        made = session(model(CHAIN), name)
        threading.Timer(0.05, turn.set).start()
        check(made, 1)


def test_a_kernel_runs_a_session_of_its_own() -> None:
    class Nested(NumpyProvider):
        def compile(self, subgraph: GraphView) -> Callable[..., Any]:
            proto = ir.to_proto(subgraph.to_model()).SerializeToString()
            inner = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
            names = [value.name for value in subgraph.inputs]
            return lambda *arrays: tuple(
                inner.run(None, dict(zip(names, map(np.array, arrays), strict=True)))
            )

    with registered(Nested()) as name:
        made = session(model(CHAIN), name)
        in_threads(2, lambda index: check(made, index))


def test_kernels_that_must_not_overlap_do_not() -> None:
    inside: list[int] = []
    most: list[int] = []

    class Serial(NumpyProvider):
        concurrent_kernels = False

        def compile(self, subgraph: GraphView) -> Callable[..., Any]:
            run = interpreter(subgraph)

            def kernel(*arrays: Any) -> Any:
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.002)
                inside.pop()
                return run(*arrays)

            return kernel

    with registered(Serial()) as name:
        made = session(model(CHAIN), name)

        def work(index: int) -> None:
            for turn in range(5):
                check(made, 10 * index + turn)

        in_threads(4, work)
    assert max(most) == 1


def test_registering_in_several_threads() -> None:
    names: list[str] = []

    def work(index: int) -> None:
        class One(NumpyProvider):
            name = f"Number{index}ExecutionProvider"

        with registered(One()) as name:
            names.append(name)
            check(session(model(CHAIN), name), index)

    in_threads(4, work)
    assert len(set(names)) == 4


CHILD = """
import sys
sys.path.insert(0, {folder!r})
from python_providers import *
made = []
{beginning}
ortkit.register_provider(NumpyProvider())
made.append(session(model(CHAIN), "NumpyExecutionProvider"))
made[0].run(None, chain_feeds())
{ending}
print("done", flush=True)
"""
ENDINGS = {
    "session-alive": "",
    "unregistered": "ortkit.unregister_provider('NumpyExecutionProvider')",
    "session-in-a-cycle": "made.append(made)",
    "session-in-a-module": "sys.made = made",
    "session-in-atexit": """
import atexit
atexit.register(lambda: made[0].run(None, chain_feeds()))
""",
}


#: What is registered first runs last: Python may not be called any more.
LATE = """
import atexit
def late():
    try:
        made[0].run(None, chain_feeds())
    except Exception as error:
        print(type(error).__name__)
atexit.register(late)
"""


def child(beginning: str, ending: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(__file__).parent)
    text = CHILD.format(folder=folder, beginning=beginning, ending=ending)
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", text],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends(ending: str) -> None:
    ended = child("", ENDINGS[ending])
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert "Fatal" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_run_that_comes_too_late_fails() -> None:
    ended = child(LATE, "")
    assert ended.returncode == 0, ended.stderr
    done, error = ended.stdout.split()
    assert (done, error) == ("done", "Fail"), ended.stdout


def test_the_lock_is_free_while_other_nodes_run() -> None:
    """Python goes on in another thread while ONNX Runtime computes; a busy loop would starve."""
    ticks: list[int] = []
    over = threading.Event()

    def tick() -> None:
        while not over.wait(0.001):
            ticks.append(1)

    counter = threading.Thread(target=tick)
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[700, 700] a) => (float[700, 700] y)
    { b = MatMul(a, a)  c = Relu(b)  y = MatMul(c, a) }"""
    with registered(NumpyProvider()) as name:
        made = session(model(text), name)
        counter.start()
        try:
            made.run(None, {"a": np.ones((700, 700), np.float32)})
            assert ctypes.pythonapi.PyGILState_Check() == 1
        finally:
            over.set()
            counter.join()
    assert ticks


def test_feeds_are_not_changed() -> None:
    with registered(NumpyProvider()) as name:
        made = session(model(CHAIN), name)
        feeds = chain_feeds()
        copies = {key: array.copy() for key, array in feeds.items()}
        made.run(None, feeds)
        for key, array in feeds.items():
            np.testing.assert_array_equal(array, copies[key])
