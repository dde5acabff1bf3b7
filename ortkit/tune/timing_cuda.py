"""Kernels for GPUs, launched interleaved in a process of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ortkit import env
from ortkit.errors import KernelError, UserError
from ortkit.isolation.ended import Ended, Failed
from ortkit.isolation.run import run_isolated
from ortkit.kernels.cuda import CeilDiv, CudaKernel, Image, Variant
from ortkit.private_folder import make_private_folder
from ortkit.targets.cuda import ARCHITECTURES
from ortkit.tune.cases import TuneCase, tensors_of
from ortkit.tune.cuda_child import CudaLaunch, CudaTimingJob, gpu_here, time_on_cuda
from ortkit.tune.cuda_child import Gpu as Gpu
from ortkit.tune.processes import TIMEOUT_SECONDS, timed_in_process
from ortkit.tune.timing_child import KernelTimes

#: Of all turns of one process; few are enough where a kernel takes long.
_SECONDS = 5.0


@cache
def this_gpu() -> Gpu:
    """Return the GPU of this machine.

    Raises:
        UserError: There is none that CUDA's driver knows, or none that kernels are made for.
    """
    gpu = run_isolated(gpu_here, 0, timeout_seconds=TIMEOUT_SECONDS, imports="nothing")
    if isinstance(gpu, Ended):
        raise UserError(
            f"no GPU can be used here: {gpu.problem if isinstance(gpu, Failed) else gpu}",
            where="--target cuda",
            fix="tune on a machine with one, and bring the database with --db",
        )
    if gpu.architecture not in ARCHITECTURES:
        raise UserError(f"no kernels are made for {gpu.level} ({gpu.name})")
    return gpu


def run(kernels: Sequence[CudaKernel], case: TuneCase, rounds: int) -> KernelTimes:
    """Time kernels on the GPU of this machine, each launch with a cold L2 cache.

    Args:
        kernels: For its architecture.
        case: The region, and its sizes.
        rounds: Of all kernels interleaved.

    Raises:
        KernelError: The process crashed, or did not end.
        UserError: There is no GPU.
    """
    architecture = this_gpu().architecture
    inputs, outputs = tensors_of(case)
    launches = [launches_of(kernel, case, architecture) for kernel in kernels]
    job = CudaTimingJob(
        tuple(tuple(steps) for steps, _ in launches),
        tuple(tuple(scratch) for _, scratch in launches),
        inputs,
        outputs,
        rounds,
        _SECONDS,
        _lock(),
    )
    # A new one, so that CUDA's driver is looked for as the environment says.
    return timed_in_process(time_on_cuda, job, imports="nothing")


def _lock() -> Path:
    """Return the file by which processes that time on the GPU wait for each other.

    Raises:
        UserError: The cache has no folder.
    """
    folder = env.cache_dir()
    try:
        make_private_folder(folder)
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror}", where=str(folder),
            fix="set ORTKIT_CACHE to a folder that can be written",
        ) from error  # fmt: skip
    return folder / "gpu0.lock"


def launches_of(
    kernel: CudaKernel, case: TuneCase, architecture: int
) -> tuple[list[CudaLaunch], list[int]]:
    """Return what is launched at the sizes of a case, and the bytes of its scratch memory.

    Chooses as the shim does: the first variant that has code for the GPU and whose conditions
    hold. All tensors are aligned.

    Raises:
        KernelError: There is none.
    """
    for number, variant in enumerate(kernel.variants):
        images = [_image(kernel, number, step, architecture) for step in range(len(variant.steps))]
        if all(images) and _holds(variant, case):
            steps = [
                _launch(variant, index, image, case)
                for index, image in enumerate(images)
                if image is not None
            ]
            return steps, [case.value(size) for size in variant.scratch]
    raise KernelError(f"no variant of the kernel fits these sizes on sm_{architecture}")


def _image(kernel: CudaKernel, variant: int, step: int, architecture: int) -> Image | None:
    """Return the newest code for a step that runs on an architecture: its own before PTX."""
    found = [
        image
        for image in kernel.images
        if (image.variant, image.step) == (variant, step) and image.architecture <= architecture
    ]
    own = [
        item for item in found if not item.is_ptx and item.architecture // 10 == architecture // 10
    ]
    return max(own or [one for one in found if one.is_ptx], default=None,
               key=lambda one: one.architecture)  # fmt: skip


def _holds(variant: Variant, case: TuneCase) -> bool:
    for condition in variant.conditions:
        size = case.value(condition.extent)
        if size % condition.divisible_by:
            return False
        if condition.at_most is not None and size > condition.at_most:
            return False
    return True


def _launch(variant: Variant, index: int, image: Image, case: TuneCase) -> CudaLaunch:
    step = variant.steps[index]

    def blocks(count: CeilDiv) -> int:
        return -(-case.value(count.extent) // count.divisor)

    arguments = tuple(
        (argument.kind, argument.index if argument.extent is None else case.value(argument.extent))
        for argument in step.arguments
    )
    grid = tuple(blocks(ceil_div) for ceil_div in step.grid)
    return CudaLaunch(image.path, step.entry, grid, step.threads, step.shared_bytes, arguments)
