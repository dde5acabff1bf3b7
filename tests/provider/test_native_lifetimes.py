"""Registering, unregistering, redefining, and the end of the process: none of it crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ortkit.provider import bridge, native
from tests.provider.native_providers import (
    TRIPLE,
    TestProvider,
    floats,
    guarded,
    model,
    placed,
    registered,
    session,
    triple,
)

ROOT = Path(__file__).parents[2]


class Lifetimes(TestProvider):
    name = "LifetimesExecutionProvider"


def test_one_library_is_several_providers() -> None:
    class Other(TestProvider):
        name = "OtherExecutionProvider"
        kernel = "sum_all"

    feeds = floats("abc", 3, 4)
    with registered(Lifetimes()), registered(Other()):
        first = session(model(TRIPLE), Lifetimes.name)
        second = session(model(TRIPLE), Other.name)
        np.testing.assert_array_equal(first.run(None, feeds)[0], triple(feeds))
        np.testing.assert_allclose(second.run(None, feeds)[0], sum(feeds.values()), rtol=1e-6)


def test_registering_twice_is_an_error_of_onnxruntime() -> None:
    with registered(Lifetimes()) as name:
        with pytest.raises(Exception, match=f"already registered under {name}"):
            ort.register_execution_provider_library(name, str(native.library_path()))
        feeds = floats("abc", 3, 4)
        found = session(model(TRIPLE), Lifetimes.name).run(None, feeds)[0]
        np.testing.assert_array_equal(found, triple(feeds))


def test_a_session_outlives_its_registration() -> None:
    with registered(Lifetimes()):
        made = session(model(TRIPLE), Lifetimes.name)
    feeds = floats("abc", 3, 4)
    np.testing.assert_array_equal(made.run(None, feeds)[0], triple(feeds))
    with registered(Lifetimes()):  # again, while the old session lives
        again = session(model(TRIPLE), Lifetimes.name)
        np.testing.assert_array_equal(again.run(None, feeds)[0], triple(feeds))
        np.testing.assert_array_equal(made.run(None, feeds)[0], triple(feeds))
    del made, again


def test_registered_and_unregistered_many_times() -> None:
    feeds = floats("abc", 1, 4)
    for _ in range(20):
        with registered(Lifetimes()):
            found = session(model(TRIPLE), Lifetimes.name).run(None, feeds)[0]
            np.testing.assert_array_equal(found, triple(feeds))


def test_a_new_definition_is_for_later_registrations() -> None:
    feeds = floats("abc", 3, 4)
    with registered(Lifetimes()):
        changed = Lifetimes()
        changed.kernel = "sum_all"
        native.define(Lifetimes.name, changed.definition())
        found = session(model(TRIPLE), Lifetimes.name).run(None, feeds)[0]
        np.testing.assert_array_equal(found, triple(feeds))
    with registered(changed):
        found = session(model(TRIPLE), Lifetimes.name).run(None, feeds)[0]
        np.testing.assert_allclose(found, sum(feeds.values()), rtol=1e-6)


def test_a_name_that_was_undefined_is_refused() -> None:
    with registered(Lifetimes()):
        pass
    with pytest.raises(Exception, match=f"no provider is defined under the name {Lifetimes.name}"):
        ort.register_execution_provider_library(Lifetimes.name, str(native.library_path()))


def test_without_a_definition_it_runs_compiled_models_only() -> None:
    ort.register_execution_provider_library("anything", str(native.library_path()))
    try:
        made = session(model(TRIPLE), "OrtkitExecutionProvider")
        assert placed(made, "OrtkitExecutionProvider") == []
        assert placed(made, "CPUExecutionProvider") != []
    finally:
        ort.unregister_execution_provider_library("anything")


def test_callbacks_live_as_long_as_sessions() -> None:
    """What a session holds is told when it goes."""

    class Counting(Lifetimes):
        live = 0

        def extend(self, made: bridge.Provider) -> None:
            made.create_ep = bridge.CREATE_EP(guarded(self.create))
            made.release_ep = bridge.RELEASE_EP(self.release)

        def create(self, _user: int, view: Any, out: Any, _error: int) -> None:
            self.live += 1
            self.options = view.contents.options.as_dict()
            self.config = view.contents.config.as_dict()
            self.devices = view.contents.devices[: view.contents.device_count]
            out[0] = 1000 + self.live

        def release(self, _user: int, _ep: int) -> None:
            self.live -= 1

        def get_capability(self, user: int, ep: int, *rest: Any) -> None:
            assert ep == 1000 + self.live
            super().get_capability(user, ep, *rest)

    counting = Counting()
    with registered(counting):
        first = session(model(TRIPLE), counting.name, {"key": "value"}, config={"x.y": "z"})
        assert counting.live == 1
        assert counting.options == {"key": "value"}
        assert counting.config["x.y"] == "z"
        assert counting.config[f"ep.{counting.name.lower()}.key"] == "value"
        assert counting.devices == [0]
        second = session(model(TRIPLE), counting.name)
        assert counting.live == 2
        del first
        assert counting.live == 1
    del second
    assert counting.live == 0


def test_an_error_in_create_ep_ends_the_session() -> None:
    class Failing(Lifetimes):
        def extend(self, made: bridge.Provider) -> None:
            made.create_ep = bridge.CREATE_EP(guarded(self.create))

        def create(self, *_: Any) -> None:
            raise ValueError("no more of these")

    with (
        registered(Failing()),
        pytest.raises(Exception, match=f"{Failing.name}: no more of these"),
    ):
        session(model(TRIPLE), Failing.name)


END = """
import sys
sys.path.insert(0, {root!r})
from tests.provider.native_providers import *
class Python(TestProvider):
    def make(self, request, index):
        return python_kernel(lambda context: 0)
    def extend(self, made):
        made.release_ep = bridge.RELEASE_EP(lambda user, ep: print("released", flush=True))
{before}
kept = registered(Python())
kept.__enter__()
made = session(model(TRIPLE), Python.name)
{rest}
"""


def run_to_its_end(rest: str, before: str = "") -> str:
    """Run a program, which must end well, and return what it says."""
    program = END.format(root=str(ROOT), rest=rest, before=before)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("", ""),
        ("sys.exit(0)", ""),
        ("del made", "released\n"),
        ("import builtins; builtins.kept = [made, kept]", ""),
        ("native.library().ortkit_provider_close(100); del made", ""),
        (
            "native.library().ortkit_provider_close(100)\n"
            "try: made.run(None, floats('abc', 1, 4))\n"
            "except Exception as error: print('Python interpreter' in str(error))",
            "True\n",
        ),
        (
            "native.library().ortkit_provider_close(100)\n"
            "print(placed(session(model(TRIPLE), Python.name), Python.name))\n"
            "print('has ended' in native.recorded_errors()[-1])",
            "[]\nTrue\n",
        ),
    ],
)
def test_the_process_ends_cleanly_whatever_is_alive(rest: str, says: str) -> None:
    """No Python is entered once it ends, and nothing crashes."""
    assert run_to_its_end(rest) == says


def test_closing_waits_for_kernels_that_run() -> None:
    """As at the end of the process; the thread itself ends before, as CPython wants it."""
    before = """
import threading
started, may_end = threading.Event(), threading.Event()
def slow(context):
    started.set()
    may_end.wait(60)
    print("done", flush=True)
    return context.fail(ctypes.pointer(context), 1, b"over")
Python.make = lambda self, request, index: python_kernel(slow)
"""
    rest = """
def run():
    try: made.run(None, floats("abc", 1, 4))
    except Exception: pass
thread = threading.Thread(target=run)
thread.start()
assert started.wait(60)
print(native.library().ortkit_provider_close(0), flush=True)
threading.Timer(0.2, may_end.set).start()
print(native.library().ortkit_provider_close(60000), flush=True)
thread.join()
"""
    assert run_to_its_end(rest, before) == "1\ndone\n0\n"


def test_kernels_in_c_run_on_when_python_is_closed() -> None:
    rest = """
native.library().ortkit_provider_close(100)
feeds = floats("abc", 2, 4)
print(np.array_equal(made.run(None, feeds)[0], triple(feeds)))
"""
    assert run_to_its_end(rest, "Python.make = TestProvider.make") == "True\n"
