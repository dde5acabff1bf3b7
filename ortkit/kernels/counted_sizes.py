"""Sizes of outputs that only the kernel counts: rows of what it selects."""

from __future__ import annotations

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import extent_of, symbols_of

#: Operators whose only output has as many rows as they find.
_COUNTING = frozenset({"NonMaxSuppression"})


def counted_size(signature: RegionSignature) -> str | None:
    """Return the name of the first size of the only output, if the kernel counts it.

    Units of such a kernel write their rows into memory of their own: OrtkitRows of the manifest.
    """
    if not any(op_type in signature.body for op_type in _COUNTING) or len(signature.outputs) != 1:
        return None
    function = signature.function()
    makers = {name: node for node in function.node for name in node.output}
    maker = makers.get(function.output[0])
    if maker is None or maker.domain or maker.op_type not in _COUNTING:
        return None
    (output,) = signature.outputs
    rows = extent_of(output.shape[0]) if output.shape else None
    if rows is None or rows.factor != 1 or len(rows.symbols) != 1:
        return None
    (symbol,) = rows.symbols
    return None if symbol in symbols_of(signature.inputs) else symbol
