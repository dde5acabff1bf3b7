"""The ways in which ONNX Runtime runs a kernel of a library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType

import numpy as np

from ortkit.verify.kernels.blocks import BlockFactory, DeviceBlock, HostBlock, Operand, guarded
from ortkit.verify.kernels.bodies import device_body, session_body
from ortkit.verify.kernels.job import (
    KernelJob,
    KernelsJob,
    NotRunError,
    NotThisWayError,
    WrongError,
    one_line,
)
from ortkit.verify.kernels.library import kernels_here
from ortkit.verify.kernels.models import DOMAIN
from ortkit.verify.kernels.runs import Runner

#: What a kernel says of tensors that it does not read, instead of reading them wrongly.
_UNALIGNED = "begins at an address that is no multiple of"
#: What a library says where it has no code for this GPU; see custom_ops/native/cuda_kernel.cc.
_OTHER_GPU = "its kernel does not run on this GPU"

Run = Callable[[], list[np.ndarray]]


class NativeWays:
    """The sessions of one kernel and of its body, on the device that the kernel is for."""

    def __init__(self, ort: ModuleType, job: KernelsJob, kernel: KernelJob) -> None:
        """Open the sessions.

        Raises:
            NotRunError: The library has no such kernel, or this machine does not run it.
            WrongError: The kernel's sessions cannot be opened.
        """
        here = kernels_here(ort, str(job.library or ""), [f"{DOMAIN}::{kernel.op}"])
        for each in here.not_run:
            raise NotRunError(each["reason"], needs_hardware=each["needs_hardware"])
        self._is_cuda, self._note = here.is_cuda, ""
        self._place: BlockFactory = partial(DeviceBlock, ort) if here.is_cuda else HostBlock
        body = device_body if here.is_cuda else session_body
        self.body = body(ort, kernel.body, job.custom_ops)
        runner = partial(Runner, ort, custom_ops=job.custom_ops, kernels=here)
        try:
            self._one = runner(kernel.plain, threads=1)
            self._two = None if here.is_cuda else runner(kernel.plain, threads=2)
            self._inside = runner(kernel.in_place, threads=1)
        except Exception as error:
            reason = one_line(error)
            if _OTHER_GPU in reason:
                raise NotRunError(reason, needs_hardware=True) from error
            raise WrongError(f"it cannot be loaded: {reason}") from error

    @property
    def note(self) -> str:
        """What the kernel refuses to run."""
        return self._note

    def ways(
        self, operands: Sequence[Operand], body: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, Run]]:
        """Yield the ways to run the kernel, and what they are called.

        Args:
            operands: Its inputs.
            body: The results of its body.
        """
        specs = [(x.shape, x.dtype) for x in body]
        on_one = partial(guarded, self._one.run_blocks, self._place, operands, specs)
        one = "CUDA" if self._is_cuda else "1 thread"
        yield one, partial(on_one, is_aligned=True)
        yield (
            f"{one}, unaligned tensors",
            partial(self._unaligned, partial(on_one, is_aligned=False)),
        )
        if self._two is not None:
            on_two = partial(guarded, self._two.run_blocks, self._place, operands, specs)
            yield "2 threads", partial(on_two, is_aligned=True)
        arrays = [each.array for each in operands]
        yield f"{one}, tensors of other nodes", partial(self._inside.run, arrays)

    def _unaligned(self, run: Run) -> list[np.ndarray]:
        """Run the kernel on unaligned tensors.

        Raises:
            NotThisWayError: It refuses them; `note` says so.
        """
        try:
            return run()
        except Exception as error:
            if _UNALIGNED not in str(error):
                raise
            self._note = "it refuses unaligned tensors"
            raise NotThisWayError(self._note) from error
