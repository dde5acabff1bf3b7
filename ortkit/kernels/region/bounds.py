"""What the shim can call: the limits on a region's operands and sizes."""

from __future__ import annotations

from ortkit.kernels.counted_sizes import counted_size
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of, solvable_symbols
from ortkit.kernels.value_sizes import value_sizes
from ortkit.refusal import Refused

# The bounds of custom_ops/native/manifest.h.
MAX_TENSORS = 64
MAX_SYMBOLS = 32
MAX_RANK = 16


def exceeds_bounds(signature: RegionSignature) -> Refused | None:
    """Say why the shim cannot call a kernel for the region; None means that it can."""
    tensors = (*signature.inputs, *signature.outputs)
    if not signature.outputs:
        return Refused("the region has no output")
    if len(tensors) > MAX_TENSORS:
        return Refused(f"{len(tensors)} inputs and outputs, at most {MAX_TENSORS} are supported")
    if max(len(tensor.shape) for tensor in tensors) > MAX_RANK:
        return Refused(f"a tensor of more than {MAX_RANK} dims")
    known = solvable_symbols(signature.inputs)
    known |= {size.symbol for size in value_sizes(signature)}
    known |= {counted} if (counted := counted_size(signature)) else set()
    if len(known) > MAX_SYMBOLS:
        return Refused(f"{len(known)} named sizes, at most {MAX_SYMBOLS} are supported")
    for tensor in tensors:
        for dim in tensor.shape:
            for symbol in extent_of(dim).symbols:
                if symbol not in known:
                    return Refused(f"no input tells the size {symbol!r}")
    return None
