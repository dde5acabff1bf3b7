"""Ray Serve runs an optimized model on a local Ray: handles, HTTP, batches, threads."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortkit.errors import UserError
from tests.integrations.needed import needs
from tests.integrations.served_models import MIXED, ROWS, expected, optimized, saved
from tests.integrations.test_mlserver import free_ports

pytestmark = [pytest.mark.slow, needs("ray", "starlette", extra="ray-serve")]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    import ray
    from ray import serve

    (port,) = free_ports(1)
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR", _temp_dir=str(tmp_path_factory.mktemp("ray")),
    )  # fmt: skip
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield port
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="module")
def handle(port: int, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from ray import serve

    from ortkit.ray_serve import application

    model = optimized(tmp_path_factory.mktemp("model"))
    app = application(model, kernels="require", num_replicas=2, wait_s=0.05)
    return serve.run(app, name="rows", route_prefix="/rows")


def test_a_handle_gets_what_the_model_computes(handle: Any) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((1 + i % 3, 24), np.float32) for i in range(24)]
    answers = [handle.remote({"X": x}) for x in arrays]
    for x, answer in zip(arrays, answers, strict=True):
        np.testing.assert_allclose(answer.result()["Y"], expected(x), rtol=1e-5, atol=1e-6)


def ask(port: int, content: object) -> Any:
    data = json.dumps(content).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/rows", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def test_http_gets_lists(handle: Any, port: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, 24), np.float32)
    found = ask(port, {"inputs": {"X": x.tolist()}})
    np.testing.assert_allclose(found["outputs"]["Y"], expected(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"inputs": {"X": [[1, 2]]}}, "24"),
        ({"inputs": {"Z": [[1.0]]}}, "'Z'"),
        ({"inputs": {"X": "text"}}, "could not convert"),
        ({"outputs": {}}, "inputs"),
        ([], "indices"),
    ],
)
def test_a_bad_request_is_the_clients_fault(
    handle: Any, port: int, content: object, said: str
) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        ask(port, content)
    assert raised.value.code == 400
    assert said in raised.value.read().decode()


def test_a_bad_request_of_a_handle_is_raised(handle: Any) -> None:
    with pytest.raises(Exception, match="24"):
        handle.remote({"X": np.ones((1, 7), np.float32)}).result()


def test_batches_and_threads_are_decided_by_the_model(tmp_path: Path) -> None:
    from ortkit.ray_serve import application

    rows = saved(ROWS, tmp_path / "rows.onnx")
    mixed = saved(MIXED, tmp_path / "mixed.onnx")

    def bound(app: Any) -> tuple[Any, int]:
        deployment = app._bound_deployment
        _, settings, batch, _ = deployment.init_args
        assert settings["threads"] == deployment.ray_actor_options["num_cpus"]
        return settings["threads"], batch

    assert bound(application(rows, threads=2)) == (2, 8)
    assert bound(application(rows, max_batch=0)) == (1, 0)
    with pytest.warns(UserWarning, match="requests are not batched: ReduceSum 'S'"):
        assert bound(application(mixed)) == (1, 0)
    with pytest.warns(UserWarning, match="without a proof"):
        assert bound(application(mixed, max_batch=4)) == (1, 4)
    for given in ({"threads": 0}, {"max_batch": -1}):
        with pytest.raises(UserError):
            application(rows, **given)  # type: ignore[arg-type]
