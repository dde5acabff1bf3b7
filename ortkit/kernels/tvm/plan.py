"""From a signature to the loops of its kernel; loads no toolchain."""

from __future__ import annotations

from functools import lru_cache

from ortkit.kernels.backend import Refused
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of, told_symbols
from ortkit.kernels.tvm.program import RefusedError
from ortkit.kernels.tvm.reader import read_program
from ortkit.kernels.tvm.schedule import Schedule, make_schedule

# The bounds of custom_ops/native/manifest.h.
MAX_TENSORS = 64
MAX_SYMBOLS = 32
MAX_RANK = 16


@lru_cache(maxsize=512)
def plan_of(signature: RegionSignature) -> Schedule | Refused:
    """Return the schedule of the region's kernel, or why there is none."""
    if refused := exceeds_bounds(signature):
        return refused
    program = read_program(signature)
    if isinstance(program, Refused):
        return program
    try:
        return make_schedule(program)
    except RefusedError as refusal:
        return Refused(refusal.reason)


def exceeds_bounds(signature: RegionSignature) -> Refused | None:
    """Say why the shim cannot call a kernel for the region; None means that it can."""
    tensors = (*signature.inputs, *signature.outputs)
    if not signature.outputs:
        return Refused("the region has no output")
    if len(tensors) > MAX_TENSORS:
        return Refused(f"{len(tensors)} inputs and outputs, at most {MAX_TENSORS} are supported")
    if max(len(tensor.shape) for tensor in tensors) > MAX_RANK:
        return Refused(f"a tensor of more than {MAX_RANK} dims")
    known = told_symbols(signature.inputs)
    if len(known) > MAX_SYMBOLS:
        return Refused(f"{len(known)} named sizes, at most {MAX_SYMBOLS} are supported")
    for tensor in tensors:
        for dim in tensor.shape:
            for symbol in extent_of(dim).symbols:
                if symbol not in known:
                    return Refused(f"no input tells the size {symbol!r}")
    return None
