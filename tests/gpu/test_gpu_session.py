"""Sessions on CUDA: providers, placement, what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ortkit
from ortkit.errors import RunError, UserError
from ortkit.runtime.targets import CPU, CUDA
from tests.gpu import cuda_models as models


@pytest.mark.parametrize("target", ["cuda", "auto", ["cuda", "cpu"], CUDA, [("cuda", {})]])
def test_cuda_takes_the_nodes(target: Any) -> None:
    with ortkit.Session(models.model(models.CHAIN), target) as session:
        assert session.providers == (CUDA, CPU)
        assert {node.provider for node in session.placement()} == {CUDA}
        assert session.notes == ()
        x = models.rows(5)
        models.close(session.run(x)["y"], models.chained(x))


def test_nodes_on_the_cpu_are_said() -> None:
    with ortkit.Session(models.model(models.ON_CPU), "cuda") as session:
        assert {node.op for node in session.placement() if node.provider == CPU} == {"Det"}
        assert "not on cuda: Det" in " ".join(session.notes)
        session.run(models.rows(64))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cudnn_conv_algo_serch": "HEURISTIC"}, "did you mean 'cudnn_conv_algo_search'?"),
        ({"gpu_mem_limt": 1}, "did you mean 'gpu_mem_limit'?"),
        ({"device_id": 99}, "Invalid device ID: 99"),
        ({"arena_extend_strategy": "most"}, "most"),
    ],
)
def test_options_that_do_not_exist(options: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError) as caught:
        ortkit.Session(models.model(models.CHAIN), [("cuda", options)])
    line = str(caught.value)
    assert problem in line
    assert "\n" not in line
    assert "onnxruntime_src" not in line


def test_a_failed_run_leaves_the_session_usable() -> None:
    x = models.rows(3)
    with ortkit.Session(models.model(models.CHAIN), "cuda") as session:
        for wrong in (x.astype(np.float64), x[:, :3].copy(), None):
            with pytest.raises(UserError):
                session.run(wrong)
        models.close(session.run(x)["y"], models.chained(x))


def test_runs_from_threads() -> None:
    given = [models.rows(4 + number, number) for number in range(8)]
    with (
        ortkit.Session(models.model(models.CHAIN), "cuda") as session,
        ThreadPoolExecutor(8) as pool,
    ):
        for _ in range(20):
            for x, found in zip(
                given, pool.map(lambda x: session.run(x)["y"], given), strict=True
            ):
                models.close(found, models.chained(x))
        futures = [session.run_async(x) for x in given]
        for x, future in zip(given, futures, strict=True):
            models.close(future.result()["y"], models.chained(x))


def test_types_without_arrays() -> None:
    import ml_dtypes

    with ortkit.Session(models.model(models.BFLOAT16), "cuda") as session:
        x = np.array([1, 2.5], ml_dtypes.bfloat16)
        found = session.run(x)["y"]
        assert found.dtype == ml_dtypes.bfloat16
        assert found.astype(np.float32).tolist() == [2, 5]


def test_tf32_can_be_turned_off() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[256, 256] a, float[256, 256] b) => (float[256, 256] y) { y = MatMul(a, b) }"""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    with ortkit.Session(models.model(text), [("cuda", {"use_tf32": False})]) as session:
        found = session.run({"a": a, "b": b})["y"]
    assert np.abs(found - wanted).max() / np.abs(wanted).max() < 1e-5


def test_too_little_memory_is_one_line_and_the_session_goes_on() -> None:
    few, many = np.array([8], np.int64), np.array([64 << 20], np.int64)
    one_float = np.ones(1, np.float32)
    limited = [("cuda", {"gpu_mem_limit": 64 << 20})]
    with ortkit.Session(models.model(models.FILLED), limited) as session:
        for _ in range(2):
            with pytest.raises(RunError, match=r"^out of memory: .* requested bytes") as caught:
                session.run({"x": one_float, "size": many})
            assert "\n" not in str(caught.value)
            assert session.run({"x": one_float, "size": few})["y"].tolist() == [1] * 8


def test_more_memory_than_the_device_has() -> None:
    beyond = np.array([1 << 38], np.int64)
    feeds = {"x": np.ones(1, np.float32), "size": beyond}
    with ortkit.Session(models.model(models.FILLED), "cuda") as session:
        with pytest.raises(RunError, match="out of memory"):
            session.run(feeds)
        with pytest.raises(RunError, match="out of memory"):
            session.bind({"x": (1,), "size": beyond}).run()
        feeds["size"] = np.array([3], np.int64)
        assert session.run(feeds)["y"].tolist() == [1, 1, 1]
    with ortkit.Session(models.model(models.CHAIN), "cuda") as session:
        with pytest.raises(RunError, match="out of memory"):
            session.bind({"x": (1 << 33, 64)})
        models.close(session.run(models.rows(2))["y"], models.chained(models.rows(2)))
