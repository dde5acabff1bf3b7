"""Memory of other frameworks is taken over as it is, and their streams are waited for."""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ortkit.runtime import sharing, targets
from ortkit.runtime.memory_devices import SessionDevices, devices_of
from ortkit.runtime.targets import CPU, CUDA


class Tensor:
    """A boolean tensor of torch, as far as it is looked at."""

    dtype = "torch.bool"

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def detach(self) -> Tensor:
        return self

    def view(self, kind: object) -> np.ndarray[Any, Any]:
        return self.array.view(kind)

    def __dlpack__(self) -> None:
        raise RuntimeError("Unsupported code 6")


def torch(stream: int = 0, *, is_initialized: bool = True) -> Any:
    module: Any = ModuleType("torch")
    module.uint8 = np.uint8
    module.cuda = SimpleNamespace(
        is_initialized=lambda: is_initialized,
        current_stream=lambda device: SimpleNamespace(cuda_stream=stream),
    )
    return module


class Driver:
    """Notes what is asked of which stream; `busy` ones are at work."""

    def __init__(self, *busy: int) -> None:
        self.busy = busy
        self.waited: list[int] = []
        self.asked: list[int] = []

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = 1
        return 0

    def cuStreamQuery(self, stream: ctypes.c_void_p) -> int:
        self.asked.append(stream.value or 0)
        return 600 if stream.value in self.busy else 0

    def cuStreamSynchronize(self, stream: ctypes.c_void_p) -> int:
        self.waited.append(stream.value or 0)
        return 0


@pytest.fixture
def no_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", *sharing._OTHERS):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.skipif(
    not hasattr(onnxruntime.OrtValue, "from_dlpack"), reason="this ONNX Runtime has no DLPack"
)
def test_booleans_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch())
    array = np.array([True, False])
    value = sharing.shared(onnxruntime, Tensor(array))
    assert value.data_type() == "tensor(bool)"
    assert value.data_ptr() == array.ctypes.data


def test_an_onnxruntime_without_dlpack() -> None:
    ort: Any = SimpleNamespace(OrtValue=object, __version__="1.24.1")
    with pytest.raises(TypeError, match=r"ONNX Runtime 1\.24\.1 takes arrays of numpy only"):
        sharing.shared(ort, np.zeros(2))


def test_values_are_copied_in_any_version() -> None:
    class OldValue:
        def __init__(self, array: np.ndarray[Any, Any]) -> None:
            self.array = array

        def numpy(self) -> np.ndarray[Any, Any]:
            return self.array

        def update_inplace(self, given: Any) -> None:
            if not isinstance(given, np.ndarray):
                raise TypeError("incompatible function arguments")
            self.array[...] = given

    target = OldValue(np.zeros(2))
    sharing.copy_into(target, OldValue(np.ones(2)))
    assert target.array.tolist() == [1, 1]


def test_where_memory_lies() -> None:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(2))
    assert sharing.device_of(value) == sharing.device_of(np.zeros(2)) == "cpu"
    assert sharing.device_of([1.0]) == "cpu"
    for number, name in ((2, "cuda"), (13, "cuda"), (10, "device 10 of DLPack")):
        tensor = SimpleNamespace(__dlpack_device__=lambda number=number: (number, 0))
        assert sharing.device_of(tensor) == name


@pytest.mark.usefixtures("no_frameworks")
@pytest.mark.parametrize(
    ("loaded", "busy", "waited"),
    [
        ({}, (1, 7), []),
        ({"torch": torch(7)}, (1, 7), [7]),
        ({"torch": torch(7)}, (1,), []),
        ({"torch": torch(0)}, (1,), [1]),
        ({"torch": torch(7, is_initialized=False)}, (7,), []),
        ({"cupy": ModuleType("cupy")}, (1,), [1]),
        ({"cupy": ModuleType("cupy"), "torch": torch(7)}, (1, 7), [7, 1]),
    ],
)
def test_streams_that_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Any], busy: tuple[int, ...], waited: Any
) -> None:
    driver = Driver(*busy)
    monkeypatch.setattr(sharing, "_driver", lambda: driver)
    for name, module in loaded.items():
        monkeypatch.setitem(sys.modules, name, module)
    sharing.wait_for_writers()
    assert driver.waited == waited


@pytest.mark.usefixtures("no_frameworks")
def test_nothing_is_waited_for_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_driver", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", torch(7))
    sharing.wait_for_writers()


def test_places_of_a_session_on_cuda() -> None:
    session = SimpleNamespace(
        get_providers=lambda: [CUDA, CPU],
        get_inputs=lambda: [SimpleNamespace(name=name) for name in ("x", "end")],
        get_input_memory_infos=lambda: [SimpleNamespace(name=name) for name in ("Cuda", "Cpu")],
        get_provider_options=lambda: {CUDA: {"device_id": "3"}},
    )
    assert devices_of(session) == SessionDevices("cuda", "cuda", 3, frozenset({"end"}))


def test_libraries_of_wheels_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("here/nvidia/cu13/lib", "there/nvidia/cudnn/lib", "there/nvidia/cu13/include"):
        (tmp_path / folder).mkdir(parents=True)
    for root in ("here", "there"):
        monkeypatch.syspath_prepend(str(tmp_path / root))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    importlib.invalidate_caches()
    asked: list[str | None] = []

    def preload_dlls(directory: str | None = None) -> None:
        asked.append(directory)
        sys.stdout.write(f"Failed to load {directory}\n")

    ort: Any = ModuleType("onnxruntime")
    ort.__file__ = str(tmp_path / "here" / "onnxruntime" / "__init__.py")
    ort.preload_dlls = preload_dlls
    # onnxruntime looks beside itself anyway; only what it says last counts.
    assert targets.preload(ort) == "Failed to load None"
    assert asked == [str(tmp_path / "there/nvidia/cudnn/lib"), None]
