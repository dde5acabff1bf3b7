"""Which passes run at which level, in which order, and why in that order."""

from __future__ import annotations

from collections.abc import Mapping

from ortkit.targets.catalog import Kind, traits_of

#: (pass, first level it runs at); neighbours that look at single nodes share one worklist.
ORDER: tuple[tuple[str, int], ...] = (
    # Bodies first: what is inlined is seen by every later pass.
    ("inline-functions", 0),
    ("lift-constants", 0),
    ("drop-dead-nodes", 0),
    # Without what nothing reads, which might not be convertible.
    ("raise-opset", 2),
    # Sizes before everything that asks whether two shapes are equal.
    ("fold-sizes", 0),
    ("drop-identity", 0),
    ("drop-noop-cast", 0),
    ("drop-noop-reshape", 0),
    ("drop-noop-slice", 0),
    ("drop-noop-arithmetic", 0),
    ("drop-zero-state", 0),
    ("drop-expand", 0),
    # Once what stood between the two is gone.
    ("drop-noop-quantize", 0),
    ("merge-casts", 0),
    ("merge-transposes", 0),
    ("merge-reshapes", 0),
    ("merge-concats", 0),
    ("merge-slices", 0),
    ("simplify-gather", 0),
    ("simplify-gather-nd", 0),
    ("simplify-reshape", 0),
    ("simplify-transpose", 0),
    ("simplify-where", 0),
    # One spelling of constants, before passes that look for them.
    ("normalize-operands", 0),
    ("fold-constants", 1),
    ("unsign-operators", 1),
    ("unsign-activations", 1),
    # Once numbers are uint8, for which alone there are kernels.
    ("sink-dequantize", 1),
    # Conditions are numbers now, if they ever will be.
    ("inline-branches", 0),
    # Before Transposes are merged with others or move.
    ("merge-strided-slices", 2),
    ("fuse-depth-to-space", 2),
    # Before Transposes move, those that it makes among them; its constants fold in the next round.
    ("lower-einsum", 1),
    ("lower-cubic-resize", 2),
    # Before Transposes are merged with those of a vision transformer; its weight folds.
    ("lower-patch-conv", 2),
    # Before attention, which takes linear layers in, and affine ops, which look along axes.
    ("unwrap-gemm", 1),
    ("unwrap-fused-matmul", 2),
    # Recognition: what is computed twice is one value, and constants are numbers; before
    # anything folds parts of what is recognized into its neighbours.
    ("merge-equal-nodes", 0),
    ("fuse-activation", 2),
    ("fuse-norm", 2),
    # After norms, which find the norm of a group among reductions.
    ("fuse-group-norm", 3),
    ("split-group-norm", 2),
    ("fuse-softmax", 2),
    # After norms, which may stand before it; attention looks for a rotated value.
    ("fuse-rotary", 2),
    ("simplify-attention", 2),
    # Last of these, for its operands; before scales fold into weights, where they are not seen.
    ("fuse-attention", 2),
    # After folding, so that constants next to transposed values are numbers.
    ("sink-transposes", 1),
    ("unwrap-batch-norm", 1),
    # After folding, so that amounts, weights and factors are numbers; Pad before affine ops,
    # which look at what a convolution pads.
    ("fold-pad", 1),
    ("fold-affine-into-conv", 1),
    ("fold-affine-into-matmul", 1),
    ("fold-affine-into-norm", 1),
    ("fold-casts-into-norm", 2),
    ("fold-transpose-into-gemm", 1),
    # After affine ops, which may stand between two products.
    ("merge-linear", 2),
    # After affine ops, which fold into one convolution; the product before each Resize then folds.
    ("sink-resizes", 2),
    ("fold-matmul-into-conv", 2),
    ("div-to-mul", 1),
    # After Transposes are merged, and Slices have become Gathers.
    ("gather-tokens", 2),
    # After every fold into the convolution, and what is recognized after it.
    ("widen-convolutions", 2),
    # After every fold into the convolution, which a FusedConv would hide.
    ("fuse-conv-activation", 2),
    # After simplify-gather, which wants single Slices, and after what is recognized by Slices.
    ("merge-parallel-slices", 1),
    # Last of all folds: what a Gemm holds is not seen any more.
    ("merge-parallel-matmuls", 3),
    ("fuse-matmul-add", 3),
    # What no Gemm took.
    ("fuse-bias-gelu", 3),
    # Residual sums last: nothing else looks through a sum that is a part of a norm.
    ("split-skip-norm", 2),
    ("fuse-skip-norm", 2),
    # After what is recognized by the Transposes of tokens; kernels for NHWC take those of images.
    ("transpose-images", 2),
    # After all else that makes Transposes cancel.
    ("channels-last", 2),
    ("drop-unused", 0),
)


#: Those that put one operator in place of several.
FUSIONS = frozenset(name for name, _ in ORDER if name.startswith("fuse-"))


def preset(level: int, kind: Kind = "cpu") -> tuple[str, ...]:
    """Return the names of the passes of a level on a kind of target, in order."""
    firsts = traits_of(kind).earlier_passes
    return tuple(name for name, first in ORDER if firsts.get(name, first) <= level)


#: Presets by name, for `--passes`.
NAMED: Mapping[str, int] = {"clean": 0, "fold": 1, "default": 2, "all": 3}
