"""Devices with memory of their own: allocator, copies, streams and notifications."""

from __future__ import annotations

import ctypes
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
    python_kernel,
    registered,
    session,
    unoptimized,
)

KEY = 0x5A
# Two groups with a node of the CPU between them.
APART = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] a, float[n, 4] b, float[n, 4] c) => (float[n, 4] y)
{ s = Add(a, b)  r = Relu(s)  y = Add(r, c) }
"""


class Device(TestProvider):
    """Adds on a device whose memory holds every byte changed, so that nobody else can read it."""

    name = "DeviceExecutionProvider"
    has_streams = False
    count = 1

    def __init__(self) -> None:
        self.blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.log: list[str] = []
        self.handles = 0
        self.failing = ""

    def groups(self, graph: Any) -> list[list[int]]:
        return [[node] for node, op in zip(graph.nodes, graph.ops, strict=True) if op == "Add"]

    def make(self, request: bridge.Compile, index: int) -> bridge.Kernel:
        return python_kernel(self.run)

    def run(self, context: bridge.KernelContext) -> int:
        shape = tuple(context.inputs[0].tensor.dims[: context.inputs[0].tensor.rank])
        assert {context.inputs[i].tensor.device.type for i in range(2)} == {12}
        self.log.append(f"kernel on {context.stream or 0}")
        values = [self.read(context.data[i], shape) for i in range(2)]
        address = (ctypes.c_void_p * 1)()
        code = context.make_outputs(ctypes.pointer(context), context.signature, address)
        if code:
            return int(code)
        data = (values[0] + values[1]).astype(np.float32)
        if data.size:
            self.write(address[0], data.tobytes())
        return 0

    def read(self, address: int, shape: tuple[int, ...]) -> np.ndarray:
        count = 4 * int(np.prod(shape))
        raw = np.frombuffer(ctypes.string_at(address, count), np.uint8) ^ KEY
        return raw.view(np.float32).reshape(shape)

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, (np.frombuffer(data, np.uint8) ^ KEY).tobytes(), len(data))

    # ---- what the library calls

    def allocate(self, _user: int, device: int, size: int, stream: int) -> int | None:
        if self.failing == "allocate":
            return None
        block = ctypes.create_string_buffer(size + 64)
        address = (ctypes.addressof(block) + 63) // 64 * 64
        self.blocks[address] = block
        self.log.append(f"allocate {size} on {device}" + (f" stream {stream}" if stream else ""))
        return address

    def free(self, _user: int, device: int, address: int) -> None:
        del self.blocks[address]

    def copy(
        self, _user: int, source: int, start: Any, target: int, end: Any, size: int, *rest: Any
    ) -> None:
        self.log.append(f"copy {size}: {start.is_ours} -> {end.is_ours} on {rest[0]}")
        if self.failing == "copy":
            raise ValueError("the bus is down")
        data = ctypes.string_at(source, size)
        if start.is_ours != end.is_ours:
            data = (np.frombuffer(data, np.uint8) ^ KEY).tobytes()
        ctypes.memmove(target, data, size)

    def make_handle(self, name: str) -> Any:
        def make(_user: int, of: int, out: Any, _error: int) -> None:
            self.handles += 1
            out[0] = self.handles
            self.log.append(f"{name} {self.handles} of {of}")

        return guarded(make)

    def note(self, name: str) -> Any:
        return guarded(lambda _user, *handles: self.log.append(f"{name} {list(handles[:-1])}"))

    def extend(self, made: bridge.Provider) -> None:
        memory = bridge.Memory(
            name=b"device", device_type=3, has_streams=int(self.has_streams), alignment=64,
            allocate=bridge.ALLOCATE(self.allocate), free=bridge.FREE(self.free),
            copy=bridge.COPY(guarded(self.copy)),
            create_stream=bridge.CREATE_STREAM(self.make_handle("stream")),
            release_stream=bridge.RELEASE_HANDLE(self.note("release stream")),
            flush=bridge.WITH_HANDLE(self.note("flush")),
            stream_run_end=bridge.WITH_HANDLE(self.note("run end")),
            create_notification=bridge.CREATE_NOTIFICATION(self.make_handle("notification")),
            release_notification=bridge.RELEASE_HANDLE(self.note("release notification")),
            activate=bridge.WITH_HANDLE(self.note("activate")),
            wait_on_device=bridge.WAIT_ON_DEVICE(self.note("wait on device")),
            wait_on_host=bridge.WITH_HANDLE(self.note("wait on host")),
        )  # fmt: skip
        devices = [
            bridge.Device(0, 0, native.entries({"slot": str(i)}), ctypes.pointer(memory))
            for i in range(self.count)
        ]
        made.device_count = self.count
        made.devices = (bridge.Device * self.count)(*devices)


@pytest.fixture
def device() -> Any:
    one = Device()
    with registered(one):
        yield one


def test_tensors_go_to_the_device_and_back(device: Device) -> None:
    made = session(model(APART), device.name, options=unoptimized())
    assert placed(made, device.name) == [["Add"], ["Add"]]
    for rows in (3, 50):
        feeds = floats("abc", rows, 4)
        want = np.maximum(feeds["a"] + feeds["b"], 0) + feeds["c"]
        np.testing.assert_array_equal(made.run(None, feeds)[0], want)
    copies = [line for line in device.log if line.startswith("copy")]
    assert "copy 48: 0 -> 1 on 0" in copies
    assert "copy 48: 1 -> 0 on 0" in copies
    del made
    assert device.blocks == {}


def test_the_allocator_counts(device: Device) -> None:
    before = native.memory_statistics(device.name)
    assert before == dict.fromkeys(before, 0)
    made = session(model(APART), device.name, options=unoptimized())
    made.run(None, floats("abc", 3, 4))
    during = native.memory_statistics(device.name)
    lines = [line for line in device.log if line.startswith("allocate")]
    assert during["NumAllocs"] == len(lines) > 0
    assert during["TotalAllocated"] == sum(int(line.split()[1]) for line in lines)
    assert 48 <= during["MaxAllocSize"] <= during["MaxInUse"] <= during["TotalAllocated"]
    del made
    after = native.memory_statistics(device.name)
    assert after["InUse"] == 0
    assert after["NumFrees"] == after["NumAllocs"]
    assert native.memory_statistics("no such") == {}
    assert native.memory_statistics(device.name, 7) == {}


def test_values_may_stay_on_the_device(device: Device) -> None:
    """Bound inputs and outputs on the device: copied by the caller only."""
    made = session(model(TRIPLE.replace("Mul", "Add").replace("y = Relu(m)", "y = Add(m, b)")),
                   device.name, options=unoptimized())  # fmt: skip
    feeds = floats("abc", 3, 4)
    place = {"device_type": "npu", "device_id": 0, "vendor_id": device.vendor_id}
    ours = [
        ort.OrtValue.ortvalue_from_shape_and_type((3, 4), np.float32, **place) for _ in range(4)
    ]
    host = [ort.OrtValue.ortvalue_from_numpy(feeds[name]) for name in "abc"]
    ort.copy_tensors(host, ours[:3])
    binding = made.io_binding()
    for name, value in zip("abc", ours, strict=False):
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("y", ours[3])
    device.log.clear()
    made.run_with_iobinding(binding)
    assert not [line for line in device.log if line.startswith("copy")]
    back = ort.OrtValue.ortvalue_from_numpy(np.zeros((3, 4), np.float32))
    ort.copy_tensors([ours[3]], [back])
    want = feeds["a"] + feeds["b"] + feeds["c"] + feeds["b"]
    np.testing.assert_allclose(back.numpy(), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("failing", "says"),
    [("copy", "DeviceExecutionProvider: the bus is down"), ("allocate", "no memory")],
)
def test_failures_of_the_device_are_errors_of_the_run(
    device: Device, failing: str, says: str
) -> None:
    made = session(model(APART), device.name, options=unoptimized())
    device.failing = failing
    with pytest.raises(Exception, match=says):
        made.run(None, floats("abc", 3, 4))
    device.failing = ""
    feeds = floats("abc", 3, 4)
    want = np.maximum(feeds["a"] + feeds["b"], 0) + feeds["c"]
    np.testing.assert_array_equal(made.run(None, feeds)[0], want)


def test_streams_and_notifications() -> None:
    class Streams(Device):
        name = "StreamsExecutionProvider"
        has_streams = True

    device = Streams()
    with registered(device):
        made = session(model(APART), device.name, options=unoptimized())
        feeds = floats("abc", 3, 4)
        want = np.maximum(feeds["a"] + feeds["b"], 0) + feeds["c"]
        for _ in range(3):
            np.testing.assert_array_equal(made.run(None, feeds)[0], want)
        del made
    said = "\n".join(device.log)
    assert "kernel on 0" not in said
    assert "stream 1 of 0" in device.log
    for word in ("flush", "run end", "activate", "notification", "release stream"):
        assert word in said, word
    assert "wait on device" in said or "wait on host" in said
    assert said.count("release notification") == said.count("\nnotification")
    assert device.blocks == {}


def test_several_devices_of_a_provider() -> None:
    class Two(Device):
        name = "TwoExecutionProvider"
        count = 2

    device = Two()
    with registered(device):
        found = [item for item in ort.get_ep_devices() if item.ep_name == device.name]
        assert [one.ep_metadata["slot"] for one in found] == ["0", "1"]
        options = unoptimized()
        options.add_provider_for_devices([found[1]], {})
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        made = ort.InferenceSession(model(APART), options, enable_fallback=0)
        assert placed(made, device.name) == [["Add"], ["Add"]]
        feeds = floats("abc", 3, 4)
        want = np.maximum(feeds["a"] + feeds["b"], 0) + feeds["c"]
        np.testing.assert_array_equal(made.run(None, feeds)[0], want)
        del made
        assert {line.split()[3] for line in device.log if line.startswith("allocate")} == {"1"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": None}, "the memory of device 0 lacks a name"),
        ({"allocate": bridge.ALLOCATE()}, "the memory of device 0 lacks allocate and free"),
        ({"copy": bridge.COPY()}, "the memory of device 0 lacks copy"),
        ({"alignment": 48}, "lacks an alignment that is a power of two"),
        ({"has_streams": 1, "create_stream": bridge.CREATE_STREAM()}, "lacks streams"),
        ({"has_streams": 1, "activate": bridge.WITH_HANDLE()}, "lacks notifications"),
    ],
)
def test_what_a_memory_lacks(change: dict[str, Any], says: str) -> None:
    made = Device().definition()
    for field, value in change.items():
        setattr(made.devices[0].memory.contents, field, value)
    with pytest.raises(Exception, match=says):
        native.define("X", made)


def test_memory_needs_a_vendor() -> None:
    made = Device().definition()
    made.vendor_id = 0
    with pytest.raises(Exception, match="needs a vendor id"):
        native.define("X", made)
