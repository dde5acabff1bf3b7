"""What code asks of a kind of target instead of asking for its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

HOST_PROVIDER = "CPUExecutionProvider"


@dataclass(frozen=True)
class LowPrecision:
    """How a precision below float32 is computed."""

    by_product: bool = False
    """Products are lowered one by one, by measurement; else passes lower the whole model."""
    has_budget: bool = False
    """Products are lowered as long as outputs stay within an error."""
    needs_kernels: bool = False
    """Kernels of ours compute it, and none of ONNX Runtime."""


@dataclass(frozen=True)
class Traits:
    """One kind of target: a row of the catalog.

    What needs code of other packages is "module:object", for `ortkit.targets.catalog.load`.
    """

    # ---- who runs it

    title: str
    """In texts."""
    provider: str
    """ONNX Runtime's execution provider."""
    backends: tuple[str, ...]
    """Kernel backends that compile for it, of `ortkit.kernels.catalog`: what `auto` tries."""
    is_host: bool
    """Whether the host's processor computes, on the host's memory. Then a kernel is a function
    that Python calls, its time is what the host waits, and threads and arenas of a session
    matter."""
    predicted_on: str
    """Where predictions of a kernel's time hold."""

    # ---- levels: what kernels are compiled for

    level_option: str
    """The option of `optimize` that names the level."""
    resolve: Callable[[str], str]
    """A level in the one spelling that equal levels share, never "native"; or `UserError`."""
    levels: Callable[[str], tuple[str, ...]]
    """The single levels that one level names, the newest first."""
    has_portable_image: bool
    """Whether a kernel is compiled once more, for levels that are not named."""
    least_kernels: int
    """A compiling process for fewer kernels costs more than it saves."""
    kernel_seconds: float
    """How long one kernel may compile for one level, also on a busy machine."""
    has_signed_int8: Callable[[str], bool]
    """Whether ONNX Runtime has kernels for int8 activations at a level; else for uint8 only."""

    # ---- regions, in the order in which they are tried

    cost_model: str
    families: tuple[str, ...]
    """The anchors of templates, in the order in which regions around them are looked for."""
    templates: tuple[str, ...]
    """Hand-shaped kernels: modules of `ortkit.custom_ops` below the backend's, with `match`."""
    decompositions: tuple[str, ...]
    """What is written in parts before regions are looked for: functions of a `Surroundings`."""
    conv_anchors: tuple[str, ...]
    """`ConvAnchor`s of templates, in the order in which they are asked."""
    image_anchors: tuple[str, ...]
    """`ImageAnchor`s: other operators that keep the layout of convolutions."""
    convolutions: str
    """Blocks, bodies and times of convolution nets, a `ConvTarget`."""
    conv_epilogue: str
    """Says of a node whether ONNX Runtime's kernel for the convolution before it computes it."""
    has_blocked_conv_layout: bool
    """Whether ONNX Runtime lays 2-D convolutions of float32 out in blocks of channels."""
    has_nhwc_option: bool
    """Whether the provider has an option to lay convolutions out as NHWC (`prefer_nhwc`)."""
    repeats_cheap_nodes: bool
    """Whether a launch less is worth a few operations that are computed again for each point."""
    kernels_look_up_rows: bool
    """Whether kernels read rows of a table at indices that are data."""

    # ---- what ONNX Runtime has, and what of it pays

    activations: str
    """Kernels and times of activations, of `ortkit.ops.activations.forms`."""
    without_kernel: str
    """Newer schemas that lose their kernel, of `ortkit.graph.opsets.kernels`."""
    kernel_dtypes: Mapping[str, frozenset[str]]
    """By operator the element types that its kernel takes; of others nothing is known."""
    fused_conv_activations: frozenset[str]
    """Activations that FusedConv takes."""
    has_fast_patch_conv: bool
    """Whether a convolution whose strides are its kernel is as fast as a product."""
    has_fast_skip_norm: bool
    """Whether a residual sum and its norm are faster as one node."""
    has_inner_softmax: bool
    """Whether Softmax runs along inner axes without a Transpose."""
    attention_shares_heads: bool
    """Whether Attention-23 shares key heads among query heads, in every type."""
    attention_caps_scores: bool
    """Whether Attention-23 has `softcap`."""
    attention_rounds_softmax: bool
    """Whether attention of float16 also has its Softmax in float16, instead of in float32."""
    prefers_multi_head_attention: bool
    """Whether MultiHeadAttention is faster than Attention-23."""
    grouped_attention_outputs: int
    """How many outputs a GroupQueryAttention without a cache must have."""
    earlier_passes: Mapping[str, int]
    """Passes that pay from an earlier level on than the presets say."""

    # ---- what `optimize` and `tune` offer

    precisions: Mapping[str, LowPrecision]
    is_timed: bool
    """Whether `--measure` times models."""
    runner: str
    """Who measures kernels on this machine: a function of `TuneOptions`."""
    has_remote_runners: bool
    """Whether kernels may be measured on other machines."""

    @property
    def providers(self) -> tuple[str, ...]:
        """The execution providers of a session, the host's last."""
        return tuple(dict.fromkeys((self.provider, HOST_PROVIDER)))
