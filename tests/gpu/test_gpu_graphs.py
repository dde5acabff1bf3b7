"""CUDA graphs: replays compute what plain runs do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.runtime.memory.devices import device_memory
from tests.gpu import cuda_models as models

pytestmark = pytest.mark.alone


def session(text: str = models.CHAIN, **settings: Any) -> ortkit.Session:
    return ortkit.Session(models.model(text), "cuda", cuda_graph=True, **settings)


def test_replays_of_several_shapes() -> None:
    with session() as one:
        for turn in range(3):
            for count in (1, 7, 33):
                x = models.rows(count, turn)
                models.close(one.run(x)["y"], models.chained(x))


def test_shapes_computed_on_the_host() -> None:
    with session(models.SHAPED) as one:
        for turn in range(3):
            x = models.rows(5 + turn % 2, turn)
            models.close(one.run(x)["y"], np.tanh(x))


def test_values_that_the_host_reads() -> None:
    x = models.rows(4)
    with session(models.SLICED) as one:
        for end in (3, 9, 3, 64):
            found = one.run({"x": x, "end": np.array([end], np.int64)})["y"]
            models.close(found, np.tanh(x[:, :end]))


def test_types_without_arrays() -> None:
    import ml_dtypes

    with session(models.BFLOAT16) as one:
        for scale in (1, 2):
            x = np.array([scale, 2.5 * scale], ml_dtypes.bfloat16)
            assert one.run(x)["y"].astype(np.float32).tolist() == [2 * scale, 5 * scale]


def test_no_rows() -> None:
    with session() as one:
        assert one.run(models.rows(0))["y"].shape == (0, 64)


def test_device_memory_goes_in() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(8, 64, device="cuda")
    with session() as one:
        for _ in range(3):
            x.add_(1.0)
            models.close(one.run({"x": x})["y"], models.chained(x.cpu().numpy()))


def test_bindings_replay_on_their_own_memory() -> None:
    torch = pytest.importorskip("torch")
    given = [torch.randn(8, 64, device="cuda") for _ in range(3)]
    with session() as one:
        bound = [one.bind({"x": x}) for x in given]
        for _ in range(3):
            for x, each in zip(given, bound, strict=True):
                x.mul_(0.5)
                models.close(each.run()["y"].numpy(), models.chained(x.cpu().numpy()))
        bound[0].close()
        models.close(bound[1].run()["y"].numpy(), models.chained(given[1].cpu().numpy()))
        models.close(one.run(given[0])["y"], models.chained(given[0].cpu().numpy()))


def test_a_binding_notices_what_the_host_reads() -> None:
    x, end = models.rows(3), np.array([7], np.int64)
    out = np.zeros(1, np.float32)
    with session(models.SLICED) as one:
        with pytest.raises(UserError, match="not in the device's memory"):
            one.bind({"x": x, "end": end}, {"y": out.reshape(1, 1)})
        bound = one.bind({"x": x, "end": end})
        models.close(bound.run()["y"].numpy(), np.tanh(x[:, :7]))
        end[0] = 9
        models.close(bound.run()["y"].numpy(), np.tanh(x[:, :9]))


def test_runs_from_threads() -> None:
    given = [models.rows(4 + number % 3, number) for number in range(8)]
    with session() as one, ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            for x, found in zip(given, pool.map(lambda x: one.run(x)["y"], given), strict=True):
                models.close(found, models.chained(x))


def test_sessions_capture_and_run_at_the_same_time() -> None:
    def work(number: int) -> None:
        is_graph = number % 2 == 0
        counts = range(1, 1500, 50) if is_graph else range(1, 30_000, 2_000)
        for turn in range(3):
            with ortkit.Session(models.model(models.CHAIN), "cuda", cuda_graph=is_graph) as one:
                for count in counts:
                    x = models.rows(count + turn, number)
                    models.close(one.run(x)["y"], models.chained(x))
                    models.close(one.bind({"x": x}).run()["y"].numpy(), models.chained(x))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (models.ON_CPU, "have not been partitioned"),
        (models.LOOP, "control flow"),
        (models.RANDOM, "RandomNormalLike would give the same numbers"),
    ],
)
def test_what_cannot_be_captured(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        session(text)
    assert "\n" not in str(caught.value)


def test_a_run_that_cannot_be_captured() -> None:
    with session(models.COUNTED) as one:
        for _ in range(2):
            with pytest.raises(UserError, match="the model cannot be captured") as caught:
                one.run(np.ones(4, np.float32))
            assert "\n" not in str(caught.value)
    with session() as one:  # and the device is as usable as before
        models.close(one.run(models.rows(3))["y"], models.chained(models.rows(3)))


def test_memory_of_graphs_is_released() -> None:
    x = models.rows(256)

    def one_session() -> int:
        with session() as one:
            for count in range(1, 9):
                one.run(x[: 32 * count])
        return device_memory(0).free

    one_session()
    before = one_session()
    for _ in range(20):
        after = one_session()
    assert before - after < 32 << 20
