"""Maps of tensors: what a kernel's parameter is, what a launch gets, and what is refused."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from ortkit.errors import InternalError, KernelError
from ortkit.kernels.build.record import kernel_from, record_of
from ortkit.kernels.cuda import CudaKernel, TensorMap
from ortkit.kernels.link.manifest_cuda import _check_map, image_files, kernel_source
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import ONE, Extent
from ortkit.kernels.triton.build import compile_step, write_images
from ortkit.kernels.triton.hand import Call, Map, hand_variant
from ortkit.kernels.triton.source import VariantSource
from ortkit.targets.target import Target

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

SIGNATURE = RegionSignature(
    "copy",
    '<opset_import: ["" : 20]> copy (x0) => (y) { y = Identity (x0) }',
    (TensorSpec("x", "float16", ("n", 128)),),
    (TensorSpec("y", "float16", ("n", 128)),),
)
TARGET = Target("cuda", "sm_90")
ROWS = Extent(1, ("n",))
DIMS, STRIDES = (ROWS, Extent(128)), (Extent(128),)

TRITON = """
import triton
import triton.language as tl


@triton.jit
def copy(x, y):
    y.store([tl.program_id(0) * 64, 0], x.load([tl.program_id(0) * 64, 0]))
"""
GLUON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


@gluon.jit
def move(x, y, room, ready):
    mbarrier.expect(ready, x.nbytes_per_cta)
    tma.async_load(x, [gl.program_id(0) * 64, 0], ready, room)
    mbarrier.wait(ready, 0)
    tma.async_store(y, [gl.program_id(0) * 64, 0], room)
    tma.store_wait(0)


@gluon.jit
def idle():
    pass


@gluon.jit
def copy(x, y):
    room = gl.allocate_shared_memory(x.dtype, [64, 128], x.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, 1)
    gl.warp_specialize([(idle, ()), (move, (x, y, room, ready))], [1], [24])
"""


def variant(
    text: str, *, is_gluon: bool, workers: int = 0, box: tuple[int, int] = (64, 128)
) -> VariantSource:
    maps = [Map(tensor, DIMS, STRIDES, box) for tensor in (0, 1)]
    call = Call(
        "copy", tuple(maps), ((ROWS, 64), (ONE, 1), (ONE, 1)), 4, is_gluon=is_gluon,
        workers=workers,
    )  # fmt: skip
    return hand_variant(SIGNATURE, [call], text, architectures=(90,))


@pytest.mark.parametrize("is_gluon", [False, True], ids=["triton", "gluon"])
def test_kernels_copy_boxes(is_gluon: bool, tmp_path: Path) -> None:
    source = variant(GLUON if is_gluon else TRITON, is_gluon=is_gluon, workers=4 * is_gluon)
    made = write_images([source], [90], tmp_path)
    (step,) = made.variants[0].steps
    assert step.threads == (256 if is_gluon else 128)
    # A row of 256 bytes is two boxes, each as wide as what is mixed.
    rows, width = Extent(1, ("s0",)), Extent(128)
    assert step.maps == tuple(
        TensorMap(tensor, (rows, width), (Extent(256),), (64, 64)) for tensor in (0, 1)
    )
    assert [argument.kind for argument in step.arguments] == ["map", *["null"] * 4] * 2
    (image,) = made.images
    assert not image.is_ptx
    kernel = CudaKernel("0", "triton", TARGET, made.variants, made.images, 0.0)
    source_text = "\n".join(kernel_source("k", kernel, 2, ["s0"], image_files([kernel])))
    assert "{ORTKIT_ARGUMENT_MAP, 1, " in source_text
    assert "{0, 2, 128, 0, k_0_0_map0_dims, k_0_0_map0_strides, {64, 64}}" in source_text


def test_a_map_is_kept_with_its_kernel(tmp_path: Path) -> None:
    made = write_images([variant(TRITON, is_gluon=False)], [90], tmp_path)
    kernel = CudaKernel("0", "triton", TARGET, made.variants, made.images, 0.0)
    record = record_of(kernel)
    files = {image.path.name: image.path for image in kernel.images}
    assert kernel_from(record, "0", "triton", TARGET, files).variants == kernel.variants


def test_warps_that_nobody_told_of_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="launched in another way"):
        compile_step(variant(GLUON, is_gluon=True).steps[0], 90, tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        TensorMap(2, DIMS, (Extent(256),), (64, 64)),
        TensorMap(-2, DIMS, (Extent(256),), (64, 64)),
        TensorMap(0, DIMS, (Extent(8),), (64, 64)),
        TensorMap(0, DIMS, (Extent(256),), (64, 512)),
        TensorMap(0, DIMS, (Extent(256),), (64, 64), first=8),
        TensorMap(0, DIMS, (), (64, 64)),
        TensorMap(0, DIMS, (Extent(256),), (64, 64), swizzle=16),
    ],
)
def test_what_cuda_does_not_take_is_no_map(wrong: TensorMap) -> None:
    with pytest.raises(InternalError, match="does not take"):
        _check_map("step 0", wrong, 2, 1)
    for box in ((64, 64), (1, 64)):
        for tensor in (0, -1):
            _check_map("step 0", TensorMap(tensor, DIMS, (Extent(256),), box), 2, 1)
