"""What GPUs of an architecture take."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortkit.kernels.cuda import ONE_BLOCK, CudaKernel, Image, Step, Variant
from ortkit.targets.target import Target


@pytest.mark.parametrize(
    ("architecture", "kib"),
    [(80, 163), (86, 99), (89, 99), (90, 227), (100, 227), (103, 227), (120, 99)],
)
def test_a_block_has_the_shared_memory_that_cuda_tells(architecture: int, kib: int) -> None:
    """*Source*: CUDA C++ Programming Guide, technical specifications per compute capability."""

    def runs(shared_bytes: int) -> str:
        step = Step("f", (ONE_BLOCK, ONE_BLOCK, ONE_BLOCK), 128, shared_bytes, ())
        image = Image(80, True, 0, 0, Path("f.ptx"))
        variants = (Variant((), False, (step,)),)
        kernel = CudaKernel("k", "triton", Target("cuda", "sm_80"), variants, (image,), 0.0)
        return kernel.runs_on(architecture)

    assert runs(kib << 10) == "the PTX"
    assert runs((kib << 10) + 1) == "the function body"
