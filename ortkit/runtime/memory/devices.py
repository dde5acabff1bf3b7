"""What a GPU has free, asked through the CUDA driver."""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass
from typing import Any

from ortkit.runtime.native_library import NotAvailableError

_NAME = 256


@dataclass(frozen=True)
class DeviceMemory:
    """A device's memory in bytes; free is what all processes together leave."""

    device: int
    name: str
    free: int
    total: int

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return asdict(self)


def device_memory(device: int) -> DeviceMemory:
    """Ask how much of a GPU's memory is free.

    Args:
        device: Its number, as CUDA counts those that it shows to this process.

    Raises:
        NotAvailableError: There is no driver, no such device, or nothing here uses it (asking
            would then take some 300 MB of it for this process).
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NotAvailableError("there is no CUDA driver") from error
    _check(driver, driver.cuInit(0), "the driver does not start")
    handle = ctypes.c_int()
    _check(driver, driver.cuDeviceGet(ctypes.byref(handle), device), f"there is no GPU {device}")
    name = ctypes.create_string_buffer(_NAME)
    _check(driver, driver.cuDeviceGetName(name, _NAME, handle), "the device has no name")
    flags, is_active = ctypes.c_uint(), ctypes.c_int()
    state = driver.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(is_active))
    _check(driver, state, "the device does not tell its state")
    if not is_active.value:
        raise NotAvailableError(f"this process does not use GPU {device}")
    free, total = _free_and_total(driver, handle)
    return DeviceMemory(device, name.value.decode(errors="replace"), free, total)


def _free_and_total(driver: Any, handle: ctypes.c_int) -> tuple[int, int]:
    context = ctypes.c_void_p()
    retained = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
    _check(driver, retained, "the device's context cannot be used")
    try:
        _check(driver, driver.cuCtxPushCurrent_v2(context), "its context cannot be used")
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        outcome = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        _check(driver, outcome, "the device does not tell what is free")
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(handle)
    return free.value, total.value


def _check(driver: Any, outcome: int, problem: str) -> None:
    if outcome == 0:
        return
    text = ctypes.c_char_p()
    driver.cuGetErrorName(outcome, ctypes.byref(text))
    why = (text.value or b"").decode() or f"error {outcome}"
    raise NotAvailableError(f"{problem} ({why})")
