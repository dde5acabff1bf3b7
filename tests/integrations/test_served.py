"""What servers have in common: their sessions, and which requests are batched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ortkit.errors import MissingDependencyError, RunError, UserError
from ortkit.integrations import ray_model, ray_serve
from ortkit.integrations.batching import joinable
from ortkit.integrations.packages import require
from ortkit.integrations.ray_model import OrtkitModel
from ortkit.integrations.served import served_session
from tests.integrations.served_models import LOOKUP, MIXED, ROWS, expected, optimized, saved
from tests.runtime.foreign import untrusted_model


def test_a_server_has_the_kernels(tmp_path: Path) -> None:
    model = optimized(tmp_path)
    with served_session(model, {"threads": 1, "kernels": "require", "target": "cpu"}) as session:
        assert [path.name for path in session.libraries] == ["model.opt.ops.so"]


def test_what_comes_with_a_model_trusts_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, mark = untrusted_model(tmp_path, monkeypatch)
    library = tmp_path / "m.ops.so"
    for settings, said in (
        ({"trust": True}, "trust: is no setting of a served model"),
        ({"kernels": str(library)}, "kernels: cannot be"),
        ({"libraries": [str(library)]}, "libraries: is no setting"),
        ({"threads": "two"}, "threads: cannot be 'two'"),
        ({"target": [["TensorrtExecutionProvider", {}]]}, "target: cannot be"),
    ):
        with pytest.raises(UserError, match=said):
            served_session(model, settings)
    with served_session(model, {"target": "cpu"}) as session:
        assert "was not built by this user" in session.notes[0]
    with pytest.raises(RunError, match="was not built by this user"):
        served_session(model, {"kernels": "require"})
    assert not mark.exists()


def test_requests_are_batched_only_where_rows_are_independent(tmp_path: Path) -> None:
    assert joinable(saved(ROWS, tmp_path / "rows.onnx")) is None
    refused = joinable(saved(MIXED, tmp_path / "mixed.onnx"))
    assert refused is not None
    assert "ReduceSum 'S'" in refused.reason


def batched(path: Path, *requests: dict[str, Any]) -> list[Any]:
    async def run() -> list[Any]:
        model = OrtkitModel(str(path), {"target": "cpu"}, 0, 0)
        return list(await model._run_batch(requests))

    return asyncio.run(run())


def test_each_request_gets_its_own_rows(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((rows, 24), np.float32) for rows in (1, 3, 0, 2)]
    found = batched(saved(ROWS, tmp_path / "m.onnx"), *({"X": array} for array in arrays))
    for given, got in zip(arrays, found, strict=True):
        np.testing.assert_allclose(got["Y"], expected(given), rtol=1e-5, atol=1e-6)


def test_requests_of_other_shapes_and_bad_ones_have_runs_of_their_own(tmp_path: Path) -> None:
    ids = [[[1, 2]], [[3, 9]], [[0]], [[3, 3]]]
    requests = [{"I": np.asarray(identifier)} for identifier in ids]
    found = batched(saved(LOOKUP, tmp_path / "m.onnx"), *requests, {"J": np.ones(1)}, {})
    good = [found[index]["Y"].tolist() for index in (0, 2, 3)]
    assert good == [[[1, 2]], [[0]], [[3, 3]]]
    assert "out of" in str(found[1])
    assert "'J'" in str(found[4])
    assert isinstance(found[5], UserError)


def test_outputs_without_rows_are_an_error(tmp_path: Path) -> None:
    text = ROWS.replace("Y = Mul(e, s)", "Z = Mul(e, s)  Y = ReduceSum(Z)").replace(
        "(float[n, 24] Y)", "(float[1, 1] Y)"
    )
    x = np.ones((1, 24), np.float32)
    for shape in ("1, 1", ""):
        axes = "" if shape else "<keepdims = 0>"
        whole = text.replace("ReduceSum(Z)", f"ReduceSum{axes}(Z)").replace(
            "[1, 1] Y", f"[{shape}] Y"
        )
        found = batched(saved(whole, tmp_path / "m.onnx"), {"X": x}, {"X": x})
        assert "has no row for each" in str(found[0])


def test_a_bad_http_request_is_the_clients_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Request:
        def __init__(self, inputs: object) -> None:
            self.inputs = inputs

        async def json(self) -> object:
            return {"inputs": self.inputs}

    class JSONResponse:
        def __init__(self, content: object, status_code: int) -> None:
            self.status_code = status_code

    monkeypatch.setattr(
        ray_model, "require", lambda *_: SimpleNamespace(JSONResponse=JSONResponse)
    )

    async def ask(path: Path, *inputs: object) -> list[Any]:
        model = OrtkitModel(str(path), {"target": "cpu"}, 0, 0)
        return [(await model(Request(each))).status_code for each in inputs]

    bad = {"I": [[10**30]]}, {"I": [[1], [1, 2]]}, {"I": "x"}, {}, []
    model = saved(LOOKUP, tmp_path / "m.onnx")
    assert asyncio.run(ask(model, *bad)) == [400] * len(bad)


def test_an_application_has_room_for_a_batch_and_keeps_its_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deployment(_: object, **options: Any) -> Any:
        return SimpleNamespace(bind=lambda *_: options)

    monkeypatch.setattr(ray_serve, "require", lambda *_: SimpleNamespace(deployment=deployment))
    model = saved(ROWS, tmp_path / "rows.onnx")
    found = ray_serve.application(model, threads=2, ray_actor_options={"num_gpus": 1})
    assert found["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 1}
    assert found["max_ongoing_requests"] == 16
    assert "max_ongoing_requests" not in ray_serve.application(model, max_batch=0)
    asked = ray_serve.application(model, max_batch=32, max_ongoing_requests=40)
    assert asked["max_ongoing_requests"] == 40


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(MissingDependencyError, match=r'pip install "ortkit\[some\]"'):
        require("no_such_package.inside", "some")
