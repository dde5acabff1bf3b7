"""Devices with memory of their own, in Python."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from python_providers import model, options, placement, registered, session

import ortkit
from ortkit.errors import UserError
from ortkit.provider import (
    Device,
    DeviceMemory,
    GraphView,
    KernelCall,
    Place,
    PythonFunction,
    StreamedMemory,
)
from ortkit.provider.native import memory_statistics

VENDOR = 0x1E57
MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y) <float[1] w = {2}>
{ a = Add(x, w)  b = Tanh(a)  y = Mul(b, w) }
"""


class Pool:
    """Memory that a test can look into."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.copies: list[tuple[str, int, object | None]] = []
        self.lock = threading.Lock()

    def allocate(self, size: int) -> int:
        room = ctypes.create_string_buffer(size + 64)
        address = (ctypes.addressof(room) + 63) // 64 * 64
        with self.lock:
            self.held[address] = (room, size)
        return address

    def owns(self, address: int) -> bool:
        with self.lock:
            held = [(start, size) for start, (_, size) in self.held.items()]
        return any(start <= address < start + size for start, size in held)


class Simulated(DeviceMemory):
    name: ClassVar[str] = "simulated"

    def __init__(self) -> None:
        self.pool = Pool()

    def allocate(self, device: int, size: int, stream: object | None) -> int:
        assert size > 0
        return self.pool.allocate(size)

    def free(self, device: int, address: int) -> None:
        with self.pool.lock:
            del self.pool.held[address]

    def copy(self, source: Place, target: Place, size: int, stream: object | None) -> None:
        for place in (source, target):
            assert (place.device is not None) == self.pool.owns(place.address)
        ctypes.memmove(target.address, source.address, size)
        way = "".join("host" if item.device is None else "device" for item in (source, target))
        self.pool.copies.append((way, size, stream))


class Streamed(StreamedMemory):
    name: ClassVar[str] = "streamed"
    allocate = Simulated.allocate
    free = Simulated.free
    copy = Simulated.copy

    def __init__(self) -> None:
        self.pool = Pool()
        self.log: list[str] = []

    def create_stream(self, device: int) -> object:
        self.log.append("create")
        return f"stream of {device}"

    def release_stream(self, stream: object) -> None:
        assert stream == "stream of 0"
        self.log.append("release")

    def flush(self, stream: object) -> None:
        self.log.append("flush")

    def end_run(self, stream: object) -> None:
        assert stream == "stream of 0"
        self.log.append("end")

    def create_notification(self, stream: object) -> object:
        return ("notification", stream)

    def activate(self, notification: object) -> None:
        assert notification == ("notification", "stream of 0")
        self.log.append("activate")

    def wait_on_device(self, notification: object, stream: object) -> None:
        self.log.append("wait on device")

    def wait_on_host(self, notification: object) -> None:
        self.log.append("wait on host")


class DeviceProvider(ortkit.ExecutionProvider):
    """Adds and multiplies on a device of its own."""

    name: ClassVar[str] = "DeviceExecutionProvider"
    vendor_id = VENDOR

    def __init__(self, memory: DeviceMemory) -> None:
        self.devices = (Device(memory=memory, metadata={"cores": "4"}),)
        self.memory: Any = memory

    def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
        return [[node] for node in graph if node.op_type in ("Add", "Mul")]

    def compile(self, subgraph: GraphView) -> Any:
        (node,) = subgraph
        function: Callable[..., Any] = {"Add": np.add, "Mul": np.multiply}[node.op_type]

        def kernel(call: KernelCall, a: Any, b: Any) -> Any:
            assert all(self.memory.pool.owns(address) for address in call.addresses())
            if isinstance(self.memory, Streamed):
                assert call.stream == "stream of 0"
            return function(a, b)

        return PythonFunction(kernel)


@pytest.mark.parametrize("kind", [Simulated, Streamed])
def test_kernels_compute_in_the_devices_memory(kind: Any) -> None:
    memory = kind()
    with registered(DeviceProvider(memory)) as name:
        (device,) = [item for item in ort.get_ep_devices() if item.ep_name == name]
        assert device.ep_metadata["cores"] == "4"
        made = session(model(MODEL), name)
        assert placement(made, name) == ["Add", "Mul"]
        for rows in (3, 1, 3):
            x = np.random.default_rng(1).standard_normal((rows, 64), dtype=np.float32)
            found = made.run(None, {"x": x})[0]
            np.testing.assert_allclose(found, np.tanh(x + 2) * 2, rtol=1e-5)
        ways = [way for way, _, _ in memory.pool.copies]
        assert ways.count("hostdevice") >= 7  # w once, x and b at each run
        assert ways.count("devicehost") == 6  # a and y
        assert {size for _, size, _ in memory.pool.copies} == {4, 256, 768}
        counted = memory_statistics(name)
        assert counted["NumAllocs"] > 0
        assert counted["InUse"] >= 4
        del made
    assert not memory.pool.held


def test_a_stream_is_made_used_and_released() -> None:
    memory = Streamed()
    with registered(DeviceProvider(memory)) as name:
        made = session(model(MODEL), name)
        made.run(None, {"x": np.ones((1, 64), np.float32)})
        assert memory.log[0] == "create"
        assert "end" in memory.log
        assert {stream for _, _, stream in memory.pool.copies} <= {None, "stream of 0"}
        assert "stream of 0" in {stream for _, _, stream in memory.pool.copies}
        del made
    assert memory.log.count("create") == memory.log.count("release")


def test_memory_is_had_from_outside_a_session() -> None:
    memory = Simulated()
    with registered(DeviceProvider(memory)) as name:
        made = session(model(MODEL), name)
        x = np.ones((2, 64), np.float32)
        bound = ort.OrtValue.ortvalue_from_numpy(x)
        binding = made.io_binding()
        binding.bind_ortvalue_input("x", bound)
        binding.bind_output("y", "cpu")
        made.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], np.tanh(3) * 2, rtol=1e-5)


def test_sessions_in_threads_share_the_memory() -> None:
    memory = Simulated()
    failed: list[BaseException] = []
    with registered(DeviceProvider(memory)) as name:
        made = session(model(MODEL), name)

        def run(seed: int) -> None:
            try:
                for turn in range(30):
                    x = np.full((turn % 3 + 1, 64), seed / 8, np.float32)
                    found = made.run(None, {"x": x})[0]
                    np.testing.assert_allclose(found, np.tanh(x + 2) * 2, rtol=1e-5)
            except Exception as error:  # noqa: BLE001 - raised in the caller's thread
                failed.append(error)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert not failed, failed


class Broken(Simulated):
    """Fails in one method."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def copy(self, source: Place, target: Place, size: int, stream: object | None) -> None:
        if self.method == "copy":
            raise ValueError("the bus is down")
        super().copy(source, target, size, stream)

    def allocate(self, device: int, size: int, stream: object | None) -> int:
        if self.method == "allocate" and size > 512:
            raise MemoryError("the chip is full")
        if self.method == "no room" and size > 512:
            return 0
        return super().allocate(device, size, stream)


def run_broken(method: str) -> str:
    with registered(DeviceProvider(Broken(method))) as name, pytest.raises(Exception) as caught:
        session(model(MODEL), name).run(None, {"x": np.ones((3, 64), np.float32)})
    return str(caught.value)


def test_a_copy_that_fails_fails_the_run() -> None:
    assert "Broken.copy: ValueError: the bus is down" in run_broken("copy")


def test_memory_that_is_not_there_fails_the_run(caplog: pytest.LogCaptureFixture) -> None:
    assert run_broken("allocate")
    assert "Broken.allocate: MemoryError: the chip is full" in caplog.text
    caplog.clear()
    assert run_broken("no room")
    assert not caplog.text


def test_devices_that_are_not_right_are_refused() -> None:
    class Odd(Simulated):
        kind: ClassVar[str] = "abacus"

    with pytest.raises(UserError, match="no memory is of a 'abacus'"):
        ortkit.register_provider(DeviceProvider(Odd()))

    class Hard(DeviceProvider):
        def __init__(self) -> None:
            super().__init__(Simulated())
            self.devices = (Device(hardware="tpu"),)

    with pytest.raises(UserError, match="no hardware is called 'tpu'"):
        ortkit.register_provider(Hard())


def test_several_devices_are_told_apart() -> None:
    told: list[tuple[int, ...]] = []

    class Two(DeviceProvider):
        def __init__(self) -> None:
            super().__init__(Simulated())
            self.devices = (Device(metadata={"n": "0"}), Device(metadata={"n": "1"}))

        def start(self) -> None:
            told.append(self.session.devices)

        def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
            return []

    with registered(Two()) as name:
        devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
        assert [item.ep_metadata["n"] for item in devices] == ["0", "1"]
        for number in (0, 1):
            made = options()
            made.add_provider_for_devices([devices[number]], {})
            ort.InferenceSession(model(MODEL), made)
    assert told == [(0,), (1,)]
