"""Kernels for GPUs, launched interleaved in a process of their own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ortkit import env
from ortkit.errors import KernelError, UserError
from ortkit.kernels.cuda import ARCHITECTURES, CeilDiv, CudaKernel, Image, Variant
from ortkit.private_folder import make_private_folder
from ortkit.runtime.child_process import child_command
from ortkit.tune import cuda_child
from ortkit.tune.cases import TuneCase, tensors_of
from ortkit.tune.processes import run_child
from ortkit.tune.timing_child import Result

#: Of all turns of one process; few are enough where a kernel takes long.
_SECONDS = 5.0


@dataclass(frozen=True)
class Gpu:
    """The GPU that kernels are timed on: the first one that CUDA shows."""

    name: str
    architecture: int
    """Major * 10 + minor."""

    @property
    def level(self) -> str:
        """Its own images, as targets name them."""
        return f"sm_{self.architecture}"


@cache
def this_gpu() -> Gpu:
    """Return the GPU of this machine.

    Raises:
        UserError: There is none that CUDA's driver knows, or none that kernels are made for.
    """
    ended = subprocess.run(
        child_command(cuda_child.__name__),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        last = ended.stderr.strip().rpartition("\n")[2]
        raise UserError(
            f"no GPU can be used here: {last}",
            where="--target cuda",
            fix="tune on a machine with one, and bring the database with --db",
        )
    found = json.loads(ended.stdout)
    gpu = Gpu(str(found["name"]), int(found["architecture"]))
    if gpu.architecture not in ARCHITECTURES:
        raise UserError(f"no kernels are made for {gpu.level} ({gpu.name})")
    return gpu


def run(kernels: Sequence[CudaKernel], case: TuneCase, rounds: int, folder: Path) -> Result:
    """Time kernels on the GPU of this machine, each launch with a cold L2 cache.

    Args:
        kernels: For its architecture.
        case: The region, and its sizes.
        rounds: Of all kernels interleaved.
        folder: For what the process reads and writes.

    Raises:
        KernelError: The process crashed, or did not end.
        UserError: There is no GPU.
    """
    architecture = this_gpu().architecture
    inputs, outputs = tensors_of(case)
    launches = [launches_of(one, case, architecture) for one in kernels]
    job: cuda_child.Job = {
        "kernels": [steps for steps, _ in launches],
        "scratch": [scratch for _, scratch in launches],
        "inputs": inputs,
        "outputs": outputs,
        "rounds": rounds,
        "seconds": _SECONDS,
        "device": 0,
        "lock": str(_lock()),
        "result": str(folder / "result.json"),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    found: Result = run_child(cuda_child.__name__, folder)
    return found


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
) -> tuple[list[cuda_child.Launch], list[int]]:
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
                _launch(variant, place, image, case)
                for place, image in enumerate(images)
                if image is not None
            ]
            return steps, [case.value(size) for size in variant.scratch]
    raise KernelError(f"no variant of the kernel fits these sizes on sm_{architecture}")


def _image(kernel: CudaKernel, variant: int, step: int, architecture: int) -> Image | None:
    """Return the newest code for a step that runs on an architecture: its own before PTX."""
    found = [
        one
        for one in kernel.images
        if (one.variant, one.step) == (variant, step) and one.architecture <= architecture
    ]
    own = [one for one in found if not one.is_ptx and one.architecture // 10 == architecture // 10]
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


def _launch(variant: Variant, place: int, image: Image, case: TuneCase) -> cuda_child.Launch:
    step = variant.steps[place]

    def blocks(count: CeilDiv) -> int:
        return -(-case.value(count.extent) // count.divisor)

    arguments: list[list[Any]] = []
    for one in step.arguments:
        value = one.index if one.extent is None else case.value(one.extent)
        arguments.append([one.kind, value])
    return {
        "image": str(image.path),
        "entry": step.entry,
        "grid": [blocks(one) for one in step.grid],
        "threads": step.threads,
        "shared": step.shared_bytes,
        "arguments": arguments,
    }
