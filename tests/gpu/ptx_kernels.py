"""Kernels written in PTX by hand, so that the shim is tested without any toolchain.

Both take X [a, b] and W [b] and make Y [a, b]: `add_rows` in one launch, `double_and_add` in two
with scratch memory between them and more shared memory than a block gets unasked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortkit.kernels.cuda import (
    ONE_BLOCK,
    Argument,
    CeilDiv,
    Condition,
    CudaKernel,
    Image,
    Step,
    Variant,
)
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent
from ortkit.targets.target import Target

_ROWS, _COLUMNS, _ALL = Extent(1, ("s0",)), Extent(1, ("s1",)), Extent(1, ("s0", "s1"))
_THREADS = 128
#: Of a block, in bytes; 48 KiB is what it gets unasked.
SHARED_BYTES = 60 << 10
_HEAD = ".version 7.0\n.target sm_80\n.address_size 64\n"

#: Grid: columns / 128, rows. The two last parameters stand for a toolchain's own scratch.
ADD = """.visible .entry add(.param .u64 x, .param .u64 w, .param .u64 y, .param .u64 rows,
  .param .u32 columns, .param .u64 none0, .param .u64 none1)
{
  .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %d<8>; .reg .f32 %f<3>;
  mov.u32 %r0, %ctaid.x;  mov.u32 %r1, %ntid.x;  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r3, %r0, %r1, %r2;
  ld.param.u32 %r4, [columns];
  setp.ge.u32 %p0, %r3, %r4;
  @%p0 ret;
  mov.u32 %r5, %ctaid.y;
  ld.param.u64 %d0, [x];  ld.param.u64 %d1, [w];  ld.param.u64 %d2, [y];
  mul.wide.u32 %d3, %r5, %r4;
  cvt.u64.u32 %d4, %r3;
  add.u64 %d3, %d3, %d4;
  shl.b64 %d3, %d3, 2;  shl.b64 %d4, %d4, 2;
  add.u64 %d5, %d0, %d3;  add.u64 %d6, %d1, %d4;  add.u64 %d7, %d2, %d3;
  ld.global.f32 %f0, [%d5];  ld.global.f32 %f1, [%d6];
  add.f32 %f2, %f0, %f1;
  st.global.f32 [%d7], %f2;
  ret;
}
"""
#: scratch[i] = 2 * x[i], through the last word of dynamic shared memory that a thread has.
DOUBLE = """.extern .shared .align 16 .b8 room[];
.visible .entry double(.param .u64 x, .param .u64 scratch, .param .u32 count,
  .param .u64 none0, .param .u64 none1)
{
  .reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %d<5>; .reg .f32 %f<3>;
  mov.u32 %r0, %ctaid.x;  mov.u32 %r1, %ntid.x;  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r3, %r0, %r1, %r2;
  ld.param.u32 %r4, [count];
  setp.ge.u32 %p0, %r3, %r4;
  @%p0 ret;
  ld.param.u64 %d0, [x];  ld.param.u64 %d1, [scratch];
  mul.wide.u32 %d2, %r3, 4;
  add.u64 %d3, %d0, %d2;  add.u64 %d4, %d1, %d2;
  mov.u32 %r5, room;
  shl.b32 %r6, %r2, 2;
  add.u32 %r7, %r5, 60000;
  add.u32 %r8, %r7, %r6;
  ld.global.f32 %f0, [%d3];
  add.f32 %f1, %f0, %f0;
  st.shared.f32 [%r8], %f1;
  ld.shared.f32 %f2, [%r8];
  st.global.f32 [%d4], %f2;
  ret;
}
"""


def _signature(name: str, body: str) -> RegionSignature:
    x, y = (TensorSpec(each, "float32", ("a", "b")) for each in "XY")
    text = f'<opset_import: ["" : 20]> f (X, W) => (Y) {{ {body} }}'
    return RegionSignature(name, text, (x, TensorSpec("W", "float32", ("b",))), (y,))


ADD_ROWS = _signature("add_rows", "Y = Add (X, W)")
DOUBLE_AND_ADD = _signature("double_and_add", "D = Add (X, X)  Y = Add (D, W)")


def kernels(
    folder: Path,
    *,
    aligned: bool = False,
    broken: bool = False,
    conditions: tuple[Condition, ...] = (),
) -> Mapping[RegionSignature, CudaKernel]:
    """Return both kernels, with their images in `folder`.

    Args:
        folder: Any.
        aligned: Whether they take only tensors at multiples of 16 bytes.
        broken: Whether their code is none.
        conditions: What sizes they take.
    """
    codes = {"add": ADD, "double": DOUBLE}
    paths = {}
    for name, code in codes.items():
        paths[name] = folder / f"{name}.ptx"
        content = _HEAD + ("this is no code" if broken else code)
        paths[name].write_bytes(content.encode() + b"\0")
    add = Step("add", _blocks_of_rows(), _THREADS, 0, _parameters(Argument("tensor", 0)))
    blocks = (CeilDiv(_ALL, _THREADS), ONE_BLOCK, ONE_BLOCK)
    sizes = (Argument("tensor", 0), Argument("scratch", 0), Argument("size32", extent=_ALL))
    double = Step("double", blocks, _THREADS, SHARED_BYTES, sizes)
    rest = Step("add", _blocks_of_rows(), _THREADS, 0, _parameters(Argument("scratch", 0)))
    variants = {
        ADD_ROWS: Variant(conditions, aligned, (add,)),
        DOUBLE_AND_ADD: Variant(conditions, aligned, (double, rest), (Extent(4, ("s0", "s1")),)),
    }
    return {
        signature: CudaKernel(
            signature.key, "tests", Target("cuda", "sm_80"), (variant,),
            tuple(
                Image(80, True, 0, number, paths[step.entry])
                for number, step in enumerate(variant.steps)
            ),
            0.0,
        )
        for signature, variant in variants.items()
    }  # fmt: skip


def _blocks_of_rows() -> tuple[CeilDiv, CeilDiv, CeilDiv]:
    return (CeilDiv(_COLUMNS, _THREADS), CeilDiv(_ROWS), ONE_BLOCK)


def _parameters(first: Argument) -> tuple[Argument, ...]:
    sizes = (Argument("size64", extent=_ROWS), Argument("size32", extent=_COLUMNS))
    return (first, Argument("tensor", 1), Argument("tensor", 2), *sizes)


def expected(signature: RegionSignature, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What a kernel computes, exactly."""
    return np.asarray((x + x if signature is DOUBLE_AND_ADD else x) + w, np.float32)
