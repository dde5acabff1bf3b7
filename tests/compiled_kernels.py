"""Kernels that tests compile, shared by all workers and kept between runs.

Many tests have a cache of their own, which begins empty. What such a test compiles is copied from
here where another one compiled it: the build counts it as compiled all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ortkit.kernels.backend import Kernel
from ortkit.kernels.build import library
from ortkit.kernels.build.cache import KernelCache, Slot
from ortkit.kernels.build.compiler import Compiled, Job
from ortkit.kernels.catalog import BACKENDS, load_backend
from ortkit.kernels.cuda import CudaKernel
from ortkit.tune import timing

#: Kept between runs, as its keys name all that the code of a kernel depends on. Not the user's:
#: tests may store what is wrong.
FOLDER = Path(__file__).parents[1] / "build" / "test-kernels"


@contextmanager
def shared_kernels() -> Iterator[None]:
    """Let builds of this process take kernels from `FOLDER` in place of compiling them again."""
    compile_all = library.compile_all
    # Of the backends as they are: tests put others in their place, and other fingerprints.
    known = {name: (BACKENDS[name], type(load_backend(name)).fingerprint) for name in BACKENDS}
    store = KernelCache(FOLDER)

    def slot_of(job: Job) -> Slot | None:
        named, fingerprint = known.get(job.backend, ("", None))
        if fingerprint is None or BACKENDS.get(job.backend) != named:
            return None
        made_by = fingerprint(load_backend(job.backend))
        choices = f"{job.choices} (trial)" if job.is_trial else job.choices
        return Slot(job.signature, job.backend, made_by, job.target, choices)

    def compile_or_copy(
        jobs: Sequence[Job],
        count: Callable[[int, int], None],
        kernel_seconds: float | None = None,
    ) -> list[Compiled]:
        slots = [slot_of(job) for job in jobs]
        found: list[Compiled | None] = [
            _copied(store, slot, job) if slot is not None else None
            for slot, job in zip(slots, jobs, strict=True)
        ]
        absent = [number for number, kernel in enumerate(found) if kernel is None]
        there = len(jobs) - len(absent)
        count(0, len(jobs))
        for number in range(there):
            count(number + 1, len(jobs))
        made = compile_all(
            [jobs[number] for number in absent],
            lambda done, _: count(there + done, len(jobs)),
            kernel_seconds,
        )
        for number, kernel in zip(absent, made, strict=True):
            slot = slots[number]
            if slot is not None and isinstance(kernel, Kernel | CudaKernel):
                store.store(slot, kernel)
            found[number] = kernel
        return [kernel for kernel in found if kernel is not None]

    with pytest.MonkeyPatch.context() as patch:
        for module in (library, timing):
            patch.setattr(module, "compile_all", compile_or_copy)
        yield


def _copied(store: KernelCache, slot: Slot, job: Job) -> Kernel | CudaKernel | None:
    """Return the kernel with its files in the folder of the job; None if it is not there."""
    kernel = store.find(slot, job.folder)
    return None if kernel is None else replace(kernel, compile_seconds=0.01)
