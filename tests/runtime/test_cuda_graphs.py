"""Captured runs compute what plain ones do, whatever a graph keeps from its capture."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from ortkit.errors import RunError, UserError
from ortkit.runtime.binding import Binding, bind
from ortkit.runtime.cuda_graphs import MOST_GRAPHS, CapturedRuns, not_captured
from ortkit.runtime.feeds import FeedReader
from ortkit.runtime.memory_devices import SessionDevices
from ortkit.runtime.specs import TensorSpec
from tests.runtime import graph_runtime

ORT = graph_runtime.runtime()
X = TensorSpec("x", "tensor(float)", ("n",))
K = TensorSpec("k", "tensor(float)", ())
Y = TensorSpec("y", "tensor(float)", ("n",))
CUDA = SessionDevices("cuda", "cuda", 0, frozenset({"k"}))


def captured(session: graph_runtime.Session) -> CapturedRuns:
    return CapturedRuns(ORT, session, (X, K), (Y,), CUDA)


def feeds(*values: float, k: float = 2) -> dict[str, Any]:
    return {"x": np.array(values, np.float32), "k": np.array(k, np.float32)}


def bound(runs: CapturedRuns, session: graph_runtime.Session, given: dict[str, Any]) -> Binding:
    reader = FeedReader((X, K), (), ORT, device="cuda")
    return bind(ORT, session, reader, (Y,), given, None, CUDA, runs)


def test_replays_read_new_values_and_shapes_have_graphs_of_their_own() -> None:
    session = graph_runtime.Session()
    runs = captured(session)
    for given in (feeds(1, 2), feeds(3, 4), feeds(5), feeds(6, 7), feeds(8)):
        np.testing.assert_array_equal(runs.run(given, ["y"])["y"], given["x"] * 2)
    assert len(session.graphs) == 2


def test_what_the_host_reads_is_part_of_what_a_graph_is_for() -> None:
    session = graph_runtime.Session()
    runs = captured(session)
    for k in (2.0, 5.0, 2.0):
        np.testing.assert_array_equal(runs.run(feeds(1, 2, k=k), ["y"])["y"], [k, 2 * k])
    assert len(session.graphs) == 2


def test_device_memory_is_copied_on_the_device() -> None:
    runs = captured(graph_runtime.Session())
    given = feeds(1, 2)
    given["x"] = graph_runtime.OrtValue(given["x"], "cuda")
    for _ in range(2):
        given["x"].array += 1
        np.testing.assert_array_equal(runs.run(given, ["y"])["y"], given["x"].array * 2)


def test_graphs_go_with_their_session_and_the_oldest_before() -> None:
    session = graph_runtime.Session()
    runs = captured(session)
    for size in range(MOST_GRAPHS + 2):
        runs.run(feeds(*range(size)), ["y"])
    assert session.released == [1, 2]
    assert len(session.graphs) == MOST_GRAPHS
    runs.close()
    assert session.graphs == {}
    with pytest.raises(UserError, match="the session is closed"):
        runs.run(feeds(1), ["y"])


def test_bindings_have_graphs_of_their_own() -> None:
    session = graph_runtime.Session()
    runs = captured(session)
    first, second = (bound(runs, session, feeds(*values)) for values in ((1, 2), (3, 4)))
    for _ in range(2):
        np.testing.assert_array_equal(first.run()["y"].numpy(), [2, 4])
        np.testing.assert_array_equal(second.run()["y"].numpy(), [6, 8])
    first.update(x=np.array([9, 9], np.float32))
    np.testing.assert_array_equal(first.run()["y"].numpy(), [18, 18])
    first.close()
    assert len(session.graphs) == 1


def test_graphs_of_bindings_that_are_gone_are_released() -> None:
    session = graph_runtime.Session()
    runs = captured(session)
    for _ in range(5):
        one = bound(runs, session, feeds(1, 2))
        one.run()
        assert len(session.graphs) == 1
        del one
        gc.collect()
    kept = bound(runs, session, feeds(1, 2))
    kept.run()
    kept.close()
    with pytest.raises(UserError, match="the binding is closed"):
        kept.run()
    del kept
    gc.collect()
    bound(runs, session, feeds(1, 2)).run()
    assert session.released == [1, 2, 3, 4, 5, 6]  # each once


def test_a_binding_captures_anew_when_the_host_reads_something_else() -> None:
    session = graph_runtime.Session()
    one = bound(captured(session), session, feeds(1, 2))
    assert one.run()["y"].numpy().tolist() == [2, 4]
    one.inputs["k"][...] = 7
    assert one.run()["y"].numpy().tolist() == [7, 14]
    assert len(session.graphs) == 1


def test_options_of_the_caller_get_the_graph() -> None:
    session = graph_runtime.Session()
    runs = captured(session)
    first, second = (bound(runs, session, feeds(*values)) for values in ((1, 2), (3, 4)))
    options = graph_runtime.RunOptions()
    first.run(options)
    assert second.run(options)["y"].numpy().tolist() == [6, 8]


def test_memory_that_a_graph_cannot_use_is_refused() -> None:
    session = graph_runtime.Session()
    runs = captured(session)
    given = feeds(1, 2)
    reader = FeedReader((X, K), (), ORT, device="cuda")
    with pytest.raises(UserError, match="output 'y': is not in the device's memory"):
        bind(ORT, session, reader, (Y,), given, {"y": given["x"].copy()}, CUDA, runs)
    given["k"] = graph_runtime.OrtValue(given["k"], "cuda")
    with pytest.raises(UserError, match="input 'k': is not in the host's memory"):
        bound(runs, session, given)


def test_a_device_without_room_for_an_input() -> None:
    session = graph_runtime.Session()
    large = feeds() | {"x": np.zeros(graph_runtime.MEMORY_BYTES, np.float32)}
    with pytest.raises(RunError, match="input 'x': out of memory"):
        bound(captured(session), session, large)


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(UserError, match="RandomNormal would give the same numbers"):
        captured(graph_runtime.Session(["Add", "RandomNormal"]))
    runs = captured(graph_runtime.Session())
    given = feeds(1) | {"k": np.zeros(5000, np.float32)}
    with pytest.raises(UserError, match="input 'k' is read by the host"):
        runs.run(given, ["y"])


def test_why_a_model_is_not_captured() -> None:
    assert "cannot be captured: no kernel" in str(not_captured(RuntimeError("no kernel")))
    assert isinstance(not_captured(MemoryError()), RunError)


def test_memory_of_another_device_is_refused() -> None:
    reader = FeedReader((X,), (), ORT)
    x = graph_runtime.OrtValue(np.zeros(2, np.float32), "cuda")
    with pytest.raises(UserError, match="is on cuda, the session computes on cpu"):
        reader.read({"x": x})


class _OnGpu:
    """A tensor of a framework that shows its device and nothing else."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self) -> None:
        raise AssertionError("must not be taken over")


def test_tensors_of_another_device_are_refused() -> None:
    with pytest.raises(UserError, match="is on cuda, the session computes on cpu"):
        FeedReader((X,), (), ORT).read({"x": _OnGpu()})
