"""The one list of passes: name -> "module:class". Nothing is imported until it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

PASSES: Mapping[str, str] = {
    name: f"ortkit.passes.{name.replace('-', '_')}:{''.join(w.title() for w in name.split('-'))}"
    for name in (
        "div-to-mul",
        "drop-dead-nodes",
        "drop-expand",
        "drop-identity",
        "drop-noop-arithmetic",
        "drop-noop-cast",
        "drop-noop-quantize",
        "drop-noop-reshape",
        "drop-noop-slice",
        "drop-unused",
        "drop-zero-state",
        "fold-affine-into-conv",
        "fold-affine-into-matmul",
        "fold-affine-into-norm",
        "fold-casts-into-norm",
        "fold-constants",
        "fold-pad",
        "fold-sizes",
        "fold-transpose-into-gemm",
        "fuse-activation",
        "fuse-attention",
        "fuse-bias-gelu",
        "fuse-conv-activation",
        "fuse-depth-to-space",
        "fuse-group-norm",
        "fuse-matmul-add",
        "fuse-norm",
        "fuse-skip-norm",
        "fuse-softmax",
        "fuse-rotary",
        "inline-branches",
        "inline-functions",
        "lift-constants",
        "lower-einsum",
        "lower-patch-conv",
        "merge-casts",
        "merge-concats",
        "merge-equal-nodes",
        "merge-linear",
        "merge-parallel-matmuls",
        "merge-parallel-slices",
        "merge-reshapes",
        "merge-slices",
        "merge-strided-slices",
        "merge-transposes",
        "normalize-operands",
        "simplify-attention",
        "simplify-gather",
        "simplify-gather-nd",
        "simplify-reshape",
        "simplify-transpose",
        "simplify-where",
        "sink-transposes",
        "unsign-activations",
        "unwrap-batch-norm",
        "split-group-norm",
        "split-skip-norm",
        "unwrap-fused-matmul",
        "unwrap-gemm",
        "widen-convolutions",
    )
}

#: Packages add passes under this entry point group: name -> "module:class".
ENTRY_POINTS = "ortkit.passes"
