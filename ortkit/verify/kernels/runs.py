"""One session, run on tensors that lie where the caller wants them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ortkit.runtime.memory_devices import GPU, HOST
from ortkit.runtime.opening import SessionPlan, open_session
from ortkit.runtime.settings import SessionSettings
from ortkit.verify.kernels.blocks import Block
from ortkit.verify.kernels.inputs import numpy_type
from ortkit.verify.kernels.library import Kernels


class Runner:
    """A session of a model of one kernel."""

    def __init__(
        self,
        ort: ModuleType,
        model: Path,
        custom_ops: Sequence[Path],
        kernels: Kernels,
        *,
        threads: int,
    ) -> None:
        """Open it, with ONNX Runtime's optimizations off."""
        settings = SessionSettings(
            optimizations="off",
            threads=threads,
            inter_op_threads=1,
            config={"session.intra_op.allow_spinning": "0"},
        )
        libraries = [*custom_ops, *([Path(kernels.library)] if kernels.library else [])]
        plan = SessionPlan(model, tuple(libraries), kernels.with_options, settings)
        self._session = open_session(ort, plan)
        self._device = GPU if kernels.is_cuda else HOST
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = 4

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run it on arrays, and return copies of what ONNX Runtime allocates for the results.

        Raises:
            Exception: ONNX Runtime's.
        """
        binding = self._session.io_binding()
        for name, array in zip(self._inputs, inputs, strict=True):
            code = _ELEMENT_TYPES[array.dtype]
            binding.bind_input(name, HOST, 0, code, list(array.shape), array.ctypes.data)
        for name in self._outputs:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding, self._run_options)
        return [_copied(value) for value in binding.get_outputs()]

    def run_blocks(self, inputs: Sequence[Block], outputs: Sequence[Block]) -> None:
        """Run it on blocks in the memory of its device.

        Raises:
            Exception: ONNX Runtime's.
        """
        binding = self._session.io_binding()
        for bind, names, blocks in (
            (binding.bind_input, self._inputs, inputs),
            (binding.bind_output, self._outputs, outputs),
        ):
            for name, block in zip(names, blocks, strict=True):
                shape, dtype = block.spec
                code = _ELEMENT_TYPES[dtype]
                bind(name, self._device, 0, code, list(shape), block.address)
        self._session.run_with_iobinding(binding, self._run_options)
        binding.synchronize_outputs()


_ELEMENT_TYPES: dict[np.dtype[Any], int] = {
    numpy_type(code): code for code in (*range(1, 8), *range(9, 14), 16, 17, 19)
}


def _copied(value: Any) -> np.ndarray:
    """Return a copy of a tensor of any type."""
    dtype, size = numpy_type(value.element_type()), value.tensor_size_in_bytes()
    if value.device_name() != HOST:
        return np.array(value.numpy())
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(data, dtype).reshape(value.shape())
