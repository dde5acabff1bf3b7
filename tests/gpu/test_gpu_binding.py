"""Memory on the device: shared and not copied, and waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.runtime.profiling.cuda_activity import CudaActivity
from tests.gpu import cuda_models as models

torch: Any = pytest.importorskip("torch")


def session(text: str = models.CHAIN, **settings: Any) -> ortkit.Session:
    return ortkit.Session(models.model(text), "cuda", **settings)


def test_torch_memory_is_shared() -> None:
    x = torch.randn(8, 64, device="cuda")
    y = torch.full((8, 64), float("nan"), device="cuda")
    with session() as one:
        bound = one.bind({"x": x}, {"y": y})
        assert bound.inputs["x"].data_ptr() == x.data_ptr()
        for scale in (1.0, -2.0):
            x.mul_(scale)
            assert bound.run()["y"].data_ptr() == y.data_ptr()
            models.close(y.cpu(), models.chained(x.cpu().numpy()))


def test_runs_on_device_memory_copy_nothing() -> None:
    x = torch.randn(64, 64, device="cuda")
    with session() as one:
        bound = one.bind({"x": x})
        bound.run()
        with CudaActivity() as activity:
            for _ in range(5):
                bound.run()
    kinds = [event.kind for event in activity.events(0)]
    assert kinds.count("kernel") >= 5
    assert "copy" not in kinds


def test_outputs_become_tensors_and_the_next_inputs() -> None:
    x = torch.randn(8, 64, device="cuda")
    wanted = x.cpu().numpy()
    with session() as one:
        value: Any = x
        for _ in range(3):
            value = one.bind({"x": value}).run()["y"]
            wanted = models.chained(wanted)
        models.close(torch.from_dlpack(value).cpu(), wanted)
        assert torch.from_dlpack(value).data_ptr() == value.data_ptr()


@pytest.mark.parametrize("is_side_stream", [False, True])
def test_runs_wait_for_what_torch_still_writes(is_side_stream: bool) -> None:
    large = torch.randn(4096, 4096, device="cuda")
    x = torch.zeros(1024, 64, device="cuda")
    stream = torch.cuda.Stream() if is_side_stream else torch.cuda.current_stream()
    with session() as one, torch.cuda.stream(stream):
        bound = one.bind({"x": x})
        for turn in range(6):
            for run in (lambda: bound.run()["y"].numpy(), lambda: one.run({"x": x})["y"]):
                for _ in range(8):  # keeps the stream busy for milliseconds
                    large @ large
                x.copy_(torch.full_like(x, turn + 1.0))
                models.close(run(), models.chained(np.full((1024, 64), turn + 1, np.float32)))


def test_runs_wait_for_what_cupy_still_writes() -> None:
    cupy = pytest.importorskip("cupy")
    large, x = cupy.random.randn(4096, 4096), cupy.zeros((8, 64), cupy.float32)
    with session() as one:
        bound = one.bind({"x": x})
        for turn in range(4):
            large @ large
            x[...] = turn
            models.close(bound.run()["y"].numpy(), models.chained(np.full((8, 64), turn)))


def test_arrays_of_the_host_are_copied_once_and_updated() -> None:
    x = models.rows(6)
    with session() as one:
        bound = one.bind({"x": x})
        models.close(bound.run()["y"].numpy(), models.chained(x))
        bound.update(x=2 * x)
        models.close(bound.run()["y"].numpy(), models.chained(2 * x))
        host = one.bind({"x": x}, {"y": np.zeros_like(x)}).run()["y"]
        assert isinstance(host, np.ndarray)
        models.close(host, models.chained(x))


def test_outputs_whose_size_is_not_known_before() -> None:
    x = torch.tensor([0.0, 1, 1, 0], device="cuda")
    with session(models.COUNTED) as one:
        bound = one.bind({"x": x})
        first = bound.run()["y"]
        assert first.numpy().tolist() == [[1, 2]]
        x[0] = 1
        assert bound.run()["y"].numpy().tolist() == [[0, 1, 2]]
        assert first.numpy().tolist() == [[1, 2]]


def test_what_the_host_reads_stays_there() -> None:
    x, end = models.rows(3), np.array([7], np.int64)
    with session(models.SLICED) as one:
        bound = one.bind({"x": x, "end": end})
        assert bound.inputs["end"] is end
        models.close(bound.run()["y"].numpy(), np.tanh(x[:, :7]))
        end[0] = 2
        models.close(bound.run()["y"].numpy(), np.tanh(x[:, :2]))


def test_kinds_of_tensors() -> None:
    flags = torch.tensor([True, False, True], device="cuda")
    with session(models.BOOLEANS) as one:
        out = torch.zeros(3, dtype=torch.bool, device="cuda")
        one.bind({"x": flags}, {"y": out}).run()
        assert out.tolist() == [False, True, False]
        assert one.run({"x": flags})["y"].tolist() == [False, True, False]
    with session(models.BFLOAT16) as one:
        x = torch.tensor([1, 2.5], dtype=torch.bfloat16, device="cuda")
        y = torch.zeros_like(x)
        one.bind({"x": x}, {"y": y}).run()
        assert y.tolist() == [2, 5]
        assert one.run({"x": x})["y"].astype(np.float32).tolist() == [2, 5]
    with session() as one:
        x = torch.randn(64, 8, device="cuda", requires_grad=True)
        models.close(one.run({"x": x.t()})["y"], models.chained(x.detach().t().cpu().numpy()))


def test_what_cannot_be_bound() -> None:
    x = torch.randn(8, 64, device="cuda")
    with session() as one:
        for given, problem in (
            (torch.zeros(3, 64, device="cuda"), "has shape"),
            (torch.zeros(8, 64, device="cuda", dtype=torch.float16), "the model writes"),
        ):
            with pytest.raises(UserError, match=problem):
                one.bind({"x": x}, {"y": given})
        with pytest.raises(UserError, match="float16"):
            one.bind({"x": x.half()})


def test_a_session_without_cuda_refuses_device_memory() -> None:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(models.rows(2), "cuda", 0)
    with ortkit.Session(models.model(models.CHAIN), "cpu") as one:
        for given in (value, torch.randn(2, 64, device="cuda")):
            with pytest.raises(UserError, match="is on cuda, the session computes on cpu"):
                one.run({"x": given})
            with pytest.raises(UserError, match="is on cuda, the session computes on cpu"):
                one.bind({"x": given})
