"""The GPU architectures that kernels are built for."""

from __future__ import annotations

from ortkit.errors import UserError
from ortkit.targets.traits import LowPrecision, Traits

#: Compute capabilities, major * 10 + minor, that images are made for.
ARCHITECTURES = (80, 86, 89, 90, 100, 103, 120)
#: PTX made for it runs on every later GPU; what is made for later ones does not carry forward.
PTX_ARCHITECTURE = 80
#: Without `--arch`: A100 and H100 have images of their own, all others run the PTX.
DEFAULT_LEVEL = "sm_80,sm_90"


def architectures_of(level: str) -> tuple[int, ...]:
    """Return the architectures that a target's level names, in numeric order.

    Args:
        level: Such as "sm_80,sm_90"; "native" stands for `DEFAULT_LEVEL`, as kernels are made on
            machines without a GPU.

    Raises:
        UserError: One is unknown, or there is none.
    """
    known = {f"sm_{number}": number for number in ARCHITECTURES}
    names = (DEFAULT_LEVEL if level == "native" else level).split(",")
    found = {known.get(name.strip(), 0) for name in names}
    if 0 in found:
        unknown = next(name.strip() for name in names if name.strip() not in known)
        raise UserError(
            f"no kernels can be built for the GPU architecture {unknown!r}",
            fix=f"use some of {', '.join(known)}, separated by commas",
        )
    return tuple(sorted(found))


def resolve_level(level: str) -> str:
    """Return a level in the one spelling that equal levels share.

    Raises:
        UserError: See `architectures_of`.
    """
    return ",".join(f"sm_{number}" for number in architectures_of(level))


def levels_of(level: str) -> tuple[str, ...]:
    """Return each architecture of a level as a level of its own, the newest first."""
    return tuple(f"sm_{number}" for number in reversed(architectures_of(level)))


_HALF_AND_FLOAT = frozenset({"FLOAT", "FLOAT16"})

CUDA = Traits(
    title="CUDA",
    provider="CUDAExecutionProvider",
    backends=("triton",),
    is_host=False,
    predicted_on="one GPU",
    level_option="arch",
    resolve=resolve_level,
    levels=levels_of,
    has_portable_image=True,  # the PTX
    least_kernels=1,  # one takes a second or more
    kernel_seconds=300.0,  # 11 variants of up to 6 launches take 20 s of an idle core
    has_signed_int8=lambda _: False,  # of convolutions
    cost_model="ortkit.fusion.regions.cuda_cost_model:CudaCostModel",
    families=(
        "ortkit.custom_ops.triton.attention.attention:ANCHOR",
        "ortkit.custom_ops.triton.attention.attention_grouped:ANCHOR",
        "ortkit.custom_ops.triton.attention.attention_grouped:BFLOAT",
        "ortkit.custom_ops.triton.gemm.fp8:ANCHOR",
        "ortkit.custom_ops.triton.gemm.split_k:ANCHOR",
        "ortkit.custom_ops.triton.gemm.gemv:ANCHOR",
        "ortkit.custom_ops.triton.gemm.gemv:BATCHED",
        "ortkit.custom_ops.triton.gemm.nbits:ANCHOR",
        "ortkit.custom_ops.triton.gemm.nbits:BFLOAT",
    ),
    templates=(
        "attention.attention_grouped",
        "attention.attention_packed",
        "attention.attention",
        "conv.conv",
        "conv.conv_int8",
        "conv.depthwise",
        "conv.expand_depthwise",
        "conv.squeeze_excite",
        "conv.pool",
        "gemm.split_k",
        "gemm.fp8_quantize_rows",
        "gemm.fp8",
        "gemm.gemv",
        "gemm.nbits",
    ),
    decompositions=(
        "ortkit.fusion.decompose.conv_bias:DecomposeConvBias",
        "ortkit.fusion.decompose.attention:ComposeAttention",
        "ortkit.fusion.decompose.skip_norm:DecomposeSkipNorm",
        "ortkit.fusion.decompose.gate_up:DecomposeGateUp",
        "ortkit.fusion.decompose.pretranspose:PretransposeWeight",
        "ortkit.fusion.decompose.rotary:DecomposeRotary",
        "ortkit.fusion.decompose.full_reduction:DecomposeFullReduction",
    ),
    conv_anchors=(
        "ortkit.custom_ops.triton.conv.depthwise:ANCHOR",
        "ortkit.custom_ops.triton.conv.conv:PLANAR",
        "ortkit.custom_ops.triton.conv.conv:ANCHOR",
        "ortkit.custom_ops.triton.conv.conv_int8:PLANAR",
        "ortkit.custom_ops.triton.conv.conv_int8:ANCHOR",
    ),
    image_anchors=(
        "ortkit.custom_ops.triton.conv.squeeze_excite:ANCHOR",
        "ortkit.custom_ops.triton.conv.pool:ANCHOR",
        "ortkit.fusion.conv.global_mean:ANCHOR",
    ),
    convolutions="ortkit.fusion.conv.targets:ON_CUDA",
    conv_epilogue="ortkit.fusion.regions.members:ends_cudnn_convolution",
    has_blocked_conv_layout=False,
    has_nhwc_option=True,
    repeats_cheap_nodes=True,
    kernels_look_up_rows=True,
    activations="ortkit.ops.activations.forms:ON_CUDA",
    without_kernel="ortkit.graph.opsets.kernels:CUDA_WITHOUT_KERNEL",
    kernel_dtypes={
        "DepthToSpace": _HALF_AND_FLOAT | {"DOUBLE"},
        "GroupQueryAttention": frozenset({"FLOAT16"}),
        "RotaryEmbedding": _HALF_AND_FLOAT | {"BFLOAT16"},
        "SkipLayerNormalization": _HALF_AND_FLOAT | {"BFLOAT16"},
    },
    fused_conv_activations=frozenset({"Relu"}),
    has_fast_patch_conv=False,
    has_fast_skip_norm=True,
    has_inner_softmax=True,
    attention_shares_heads=False,
    attention_caps_scores=False,
    attention_rounds_softmax=False,
    prefers_multi_head_attention=True,
    grouped_attention_outputs=3,  # it fails where its cache is not asked for
    # On an H100 a GPT-2 or a Llama of 100 M parameters in float16 runs 1.05 to 1.3 times as fast
    # with these as without (batch 1).
    earlier_passes={"fuse-bias-gelu": 2, "merge-parallel-matmuls": 2},
    precisions={
        "fp16": LowPrecision(),
        "bf16": LowPrecision(),
        "fp8": LowPrecision(has_budget=True, needs_kernels=True),
    },
    is_timed=False,
    runner="ortkit.tune.runners:gpu_runner",
    has_remote_runners=False,
)
