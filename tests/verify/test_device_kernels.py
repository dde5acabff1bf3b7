"""Kernels in the memory of a device; here the host stands in for it, so that no GPU is needed.

Real GPUs: tests/gpu/test_gpu_kernels_alone.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from faulty_kernels import RELU, Fault, calling, faulty_library, has_compiler, signature

from ortkit.verify.kernels import child, native
from ortkit.verify.kernels.job import KernelsJob
from ortkit.verify.kernels.library import CPU, Kernels
from ortkit.verify.kernels.models import kernel_nodes
from ortkit.verify.kernels.process import Order, job_of
from ortkit.verify.kernels.report import KernelRow

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C compiler")
WRONG = f"{RELU} * 1.0001f"
UNALIGNED = f"(uintptr_t)x % 64 ? {WRONG} : {RELU}"


class _Binding:
    """A binding for which CUDA is the host."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.devices: set[str] = set()

    def bind_input(self, name: str, device: str, *rest: Any) -> None:
        self.devices.add(device)
        self._real.bind_input(name, "cpu", *rest)

    def bind_output(self, name: str, device: str = "cpu", *rest: Any) -> None:
        self._real.bind_output(name, "cpu", *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Session:
    bindings: list[_Binding] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        self._real = onnxruntime.InferenceSession(*args, **options)

    def io_binding(self) -> Any:
        self.bindings.append(_Binding(self._real.io_binding()))
        return self.bindings[-1]

    def run_with_iobinding(self, binding: _Binding, options: Any) -> None:
        self._real.run_with_iobinding(binding._real, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Values:
    @staticmethod
    def ortvalue_from_numpy(array: np.ndarray, device: str, number: int) -> Any:
        """Copy an array to a multiple of 256 bytes, as a GPU's memory begins."""
        assert (device, number) == ("cuda", 0)
        memory = np.empty(array.size + 256, np.uint8)
        copy = memory[-memory.ctypes.data % 256 :][: array.size]
        copy[...] = array
        return onnxruntime.OrtValue.ortvalue_from_numpy(copy, "cpu", 0)


class _Runtime:
    """onnxruntime with a device of another kind."""

    InferenceSession, OrtValue = _Session, _Values

    def __getattr__(self, name: str) -> Any:
        return getattr(onnxruntime, name)


class _OnDevice(Kernels):
    @property
    def is_cuda(self) -> bool:
        return True


def outcome(fault: Fault, folder: Path, monkeypatch: pytest.MonkeyPatch) -> KernelRow:
    library = str(faulty_library(fault, folder / "m.opt.ops.so"))
    monkeypatch.setattr(native, "kernels_here", lambda *_: _OnDevice(library, [CPU], []))
    monkeypatch.setattr(_Session, "bindings", [])
    (kernel,) = kernel_nodes(calling(signature()))
    job = KernelsJob(Path(library), (), (job_of(Order(kernel, ""), folder / "0"),), 0, 1.0, 0.0)
    return child.Check(_Runtime(), job, 0, lambda _: None).row()  # type: ignore[arg-type]


def test_a_right_kernel_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome(Fault(), tmp_path, monkeypatch)
    assert (found.verdict, found.reason) == ("passed", "")
    assert found.runs == 3 * found.cases
    assert any(binding.devices == {"cuda"} for binding in _Session.bindings)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(WRONG), "normal values, CUDA: output 0 off by"),
        (
            Fault(f"(uintptr_t)x % 64 ? {WRONG} : {RELU}"),
            "CUDA, unaligned tensors: output 0 off by",
        ),
        (Fault(end="if (end == n) y[n * m] = 0;"), "it writes outside of output 0"),
        (
            Fault(end="if (begin < end && n == 2) ((float*)x)[begin * m] += 1;"),
            "it writes into input 0",
        ),
        (Fault(f"i == 4 ? y[i * m + j] : {RELU}"), "inputs ["),
        (Fault(end="if (n == 3) return 7;"), "inputs [3, "),
        (
            Fault(begin="for (int64_t i = begin * m; i < end * m; ++i) y[i] = 0;", inplace=True),
            "CUDA, tensors of other nodes",
        ),
    ],
)
def test_a_fault_is_found(
    fault: Fault, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outcome(fault, tmp_path, monkeypatch)
    assert found.verdict == "failed"
    assert words in found.reason


def test_a_kernel_for_other_gpus_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ortkit: f: its kernel does not run on this GPU (sm_80, ...)")

    faulty = Fault()
    monkeypatch.setattr(native, "Runner", refuse)
    monkeypatch.setattr(native, "device_body", lambda *_: None)
    found = outcome(faulty, tmp_path, monkeypatch)
    assert (found.verdict, found.needs_hardware) == ("not run", True)


def test_a_refusal_of_unaligned_tensors_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = native.guarded

    def refusing(*args: Any, is_aligned: bool) -> Any:
        if not is_aligned:
            raise RuntimeError("f: tensor 'x' begins at an address that is no multiple of 16")
        return real(*args, is_aligned=is_aligned)

    monkeypatch.setattr(native, "guarded", refusing)
    found = outcome(Fault(), tmp_path, monkeypatch)
    assert (found.verdict, found.note) == ("passed", "it refuses unaligned tensors")
    assert found.runs == 2 * found.cases


def test_another_error_with_unaligned_tensors_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = native.guarded

    def failing(*args: Any, is_aligned: bool) -> Any:
        if not is_aligned:
            raise RuntimeError("misaligned address")
        return real(*args, is_aligned=is_aligned)

    monkeypatch.setattr(native, "guarded", failing)
    found = outcome(Fault(), tmp_path, monkeypatch)
    assert found.verdict == "failed"
    assert "unaligned tensors: misaligned address" in found.reason
