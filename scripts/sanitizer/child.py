"""The process under the sanitizer: `python child.py JOB.json`. One session, one run.

Imports nothing of ortkit. Every tensor is an allocation of its own, so that a byte beside it is
nobody's.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

_UNWRITTEN = 0xA5


def main(job: dict[str, Any]) -> None:
    """Run the job; its outputs go to a file."""
    session = _session(job)
    driver = _driver()
    binding = session.io_binding()
    with np.load(job["feeds"]) as feeds:
        for name in feeds.files:
            array = np.ascontiguousarray(feeds[name])
            address = _allocate(driver, array.nbytes, job["offsets"][name])
            _check(driver.cuMemcpyHtoD_v2(address, array.ctypes.data_as(ctypes.c_void_p),
                                          ctypes.c_size_t(array.nbytes)))  # fmt: skip
            binding.bind_input(name, "cuda", 0, array.dtype, array.shape, address.value)
    places = {}
    for name, (dtype, shape, offset) in job["outputs"].items():
        array = np.empty(shape, dtype)
        address = _allocate(driver, array.nbytes, offset)
        places[name] = (array, address)
        binding.bind_output(name, "cuda", 0, array.dtype, array.shape, address.value)
    _check(driver.cuCtxSynchronize())
    session.run_with_iobinding(binding)
    _check(driver.cuCtxSynchronize())
    for array, address in places.values():
        _check(driver.cuMemcpyDtoH_v2(array.ctypes.data_as(ctypes.c_void_p), address,
                                      ctypes.c_size_t(array.nbytes)))  # fmt: skip
    np.savez(job["results"], **{name: array for name, (array, _) in places.items()})


def _session(job: dict[str, Any]) -> Any:
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("ortkit.fused.target", "cuda")
    options.register_custom_ops_library(job["library"])
    # Scratch memory of the size that is asked for, too.
    settings = {"arena_extend_strategy": "kSameAsRequested"}
    session = onnxruntime.InferenceSession(
        job["model"], options, providers=[("CUDAExecutionProvider", settings)]
    )
    placed = {
        node.op_type
        for assigned in session.get_provider_graph_assignment_info()
        for node in assigned.get_nodes()
        if assigned.ep_name == "CUDAExecutionProvider"
    }
    if absent := set(job["ops"]) - placed:
        raise SystemExit(f"no kernels for {', '.join(sorted(absent))}")
    return session


def _driver() -> Any:
    """Return the driver, with the context of the session current."""
    driver = ctypes.CDLL("libcuda.so.1")
    _check(driver.cuInit(0))
    context = ctypes.c_void_p()
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    _check(driver.cuCtxSetCurrent(context))
    return driver


def _allocate(driver: Any, size: int, offset: int) -> ctypes.c_uint64:
    """Return the address of memory that ends where the tensor does."""
    address = ctypes.c_uint64()
    _check(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size + offset)))
    _check(driver.cuMemsetD8_v2(address, ctypes.c_ubyte(_UNWRITTEN), ctypes.c_size_t(size)))
    return ctypes.c_uint64(address.value + offset)


def _check(result: int) -> None:
    if result != 0:
        raise SystemExit(f"the CUDA driver answers {result}")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
