"""MLServer serves an optimized model, end to end, to the clients of Triton's protocol."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integrations.needed import needs
from tests.integrations.served_models import MIXED, TEXTS, expected, optimized, saved

pytestmark = [pytest.mark.slow, needs("mlserver", "tritonclient", extra="mlserver")]
_SECONDS = 120.0


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for one in sockets:
        one.close()
    return ports


def write_settings(folder: Path, name: str, uri: str, **more: object) -> None:
    (folder / name).mkdir()
    parameters = {"uri": uri, "extra": {"threads": 1}}
    settings = {"name": name, "implementation": "ortkit.mlserver.OrtkitRuntime", **more}
    (folder / name / "model-settings.json").write_text(
        json.dumps(settings | {"parameters": parameters})
    )


class Server:
    """A server in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.http, self.grpc, metrics = free_ports(3)
        (folder / "settings.json").write_text(json.dumps({
            "host": "127.0.0.1", "parallel_workers": 0, "http_port": self.http,
            "grpc_port": self.grpc, "metrics_port": metrics,
        }))  # fmt: skip
        self.log = folder / "log.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name("mlserver"), "start", str(folder)],
                stdout=log, stderr=log,
            )  # fmt: skip

    def ask(self, path: str, content: object = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/v2/{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read() or b"null")

    def wait(self, *models: str) -> None:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                for name in models:
                    self.ask(f"models/{name}/ready")
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
            else:
                return
        pytest.fail(self.log.read_text("utf-8", "replace")[-3000:])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("mlserver")
    write_settings(folder, "rows", "./model.opt.onnx", max_batch_size=8, max_batch_time=0.05)
    optimized(folder / "rows")
    write_settings(folder, "texts", ".")
    saved(TEXTS, folder / "texts" / "model.onnx")
    write_settings(folder, "mixed", "model.onnx", max_batch_size=8, max_batch_time=0.05)
    saved(MIXED, folder / "mixed" / "model.onnx")
    write_settings(folder, "alone", "model.opt.onnx")
    shutil.copyfile(folder / "rows" / "model.opt.onnx", folder / "alone" / "model.opt.onnx")
    started = Server(folder)
    try:
        started.wait("rows", "texts", "mixed", "alone")
        yield started
    finally:
        started.process.terminate()
        try:
            started.process.wait(20)
        except subprocess.TimeoutExpired:
            started.process.kill()


def request(value: np.ndarray, name: str = "X", datatype: str = "FP32") -> dict[str, object]:
    tensor = {"name": name, "datatype": datatype, "shape": value.shape, "data": value.tolist()}
    return {"id": "one", "inputs": [tensor]}


def test_the_model_says_what_it_takes(server: Server) -> None:
    found = server.ask("models/rows")
    assert found["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, 24]}]
    assert found["outputs"] == [{"name": "Y", "datatype": "FP32", "shape": [-1, 24]}]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_real_client_gets_what_the_model_computes(server: Server, protocol: str) -> None:
    import importlib

    module = importlib.import_module(f"tritonclient.{protocol}")
    options = {"binary_data": False} if protocol == "http" else {}
    x = np.random.default_rng(0).standard_normal((5, 24), np.float32)
    given = module.InferInput("X", list(x.shape), "FP32")
    given.set_data_from_numpy(x, **options)
    wanted = module.InferRequestedOutput("Y", **options)
    client = module.InferenceServerClient(f"127.0.0.1:{getattr(server, protocol)}")
    found = client.infer("rows", [given], outputs=[wanted]).as_numpy("Y")
    np.testing.assert_allclose(found, expected(x), rtol=1e-5, atol=1e-6)


def test_requests_at_the_same_time_get_their_own_rows(server: Server) -> None:
    from concurrent.futures import ThreadPoolExecutor

    generator = np.random.default_rng(1)
    arrays = [generator.standard_normal((1 + i % 3, 24), np.float32) for i in range(24)]
    with ThreadPoolExecutor(24) as pool:
        answers = pool.map(lambda x: server.ask("models/rows/infer", request(x)), arrays)
        for x, answer in zip(arrays, answers, strict=True):
            (output,) = answer["outputs"]
            found = np.asarray(output["data"], np.float32).reshape(output["shape"])
            np.testing.assert_allclose(found, expected(x), rtol=1e-5, atol=1e-6)


def test_texts_come_back(server: Server) -> None:
    texts = {"name": "X", "datatype": "BYTES", "shape": [2], "data": ["\u00e9", "a b"]}
    (output,) = server.ask("models/texts/infer", {"inputs": [texts]})["outputs"]
    assert (output["datatype"], output["data"]) == ("BYTES", ["\u00e9", "a b"])


def test_texts_come_back_from_grpc_without_raw_contents(server: Server) -> None:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    asked = service_pb2.ModelInferRequest(model_name="texts")
    given = asked.inputs.add(name="X", datatype="BYTES", shape=[2])
    given.contents.bytes_contents.extend(["\u00e9".encode(), b"a b"])
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (output,) = stub.ModelInfer(asked, timeout=30).outputs
    assert [*output.contents.bytes_contents] == ["\u00e9".encode(), b"a b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (request(np.ones((1, 7))), "24"),
        (request(np.ones((1, 24)), "Z"), "'Z'"),
        (request(np.ones((1, 24)), datatype="FP64"), "float64"),
        (
            {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2, 24], "data": [1.0]}]},
            "reshape",
        ),
        ({"inputs": [{"name": "X", "datatype": "UINT8", "shape": [1], "data": [300]}]}, "300"),
        ({"inputs": [], "outputs": [{"name": "W"}]}, "X"),
        (request(np.ones((1, 24))) | {"outputs": [{"name": "W"}]}, "no output 'W'"),
    ],
)
def test_a_bad_request_is_the_clients_fault(server: Server, content: object, said: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        server.ask("models/alone/infer", content)
    assert raised.value.code == 400
    assert said in raised.value.read().decode()


#: Loads a model that cannot be, and unloads it, as MLServer does before it reports why.
UNLOAD = """
import asyncio, sys
from mlserver.settings import ModelSettings
from ortkit.mlserver import OrtkitRuntime

settings = {"name": "bad", "implementation": "ortkit.mlserver.OrtkitRuntime"}
parameters = {"uri": sys.argv[1], "extra": {"kernels": "mine"}}
model = OrtkitRuntime(ModelSettings.model_validate(settings | {"parameters": parameters}))
try:
    asyncio.run(model.load())
except Exception as error:
    print(error, asyncio.run(model.unload()))
"""


def test_a_model_that_did_not_load_is_unloaded(tmp_path: Path) -> None:
    """In a process of its own: `tritonclient` and `mlserver` define the same messages."""
    model = saved(MIXED, tmp_path / "model.onnx")
    done = subprocess.run(
        [sys.executable, "-c", UNLOAD, model], capture_output=True, text=True, check=True
    )
    assert "kernels: cannot be 'mine'" in done.stdout
    assert done.stdout.endswith(" True\n")


def test_the_log_says_what_is_not_as_it_should_be(server: Server) -> None:
    log = server.log.read_text("utf-8", "replace")
    assert "mixed: requests are batched, as max_batch_size asks, without a proof" in log
    assert "alone: " in log
    assert "function bodies run instead" in log
    assert "rows: requests" not in log
    assert os.getpid() != server.process.pid
