"""The levels of processors that kernels are built for.

Those of the x86-64 psABI, and three above them: `x86-64-v4-vnni` (AVX512-VNNI, products of bytes),
`x86-64-v4-bf16` (and AVX512-BF16, those of bfloat16) and `x86-64-v4-amx` (and the tiles of AMX).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from ortkit.errors import UserError
from ortkit.targets.traits import HOST_PROVIDER, LowPrecision, Traits

# Level -> its value of OrtkitCpu in custom_ops/native/manifest.h.
LEVELS: dict[str, int] = {
    "x86-64": 1,
    "x86-64-v2": 2,
    "x86-64-v3": 3,
    "x86-64-v4": 4,
    "x86-64-v4-vnni": 5,
    "x86-64-v4-bf16": 6,
    "x86-64-v4-amx": 7,
    "aarch64": 16,
}

# What each x86-64 level adds (x86-64 psABI, "Micro-Architecture Levels"), as /proc/cpuinfo has it.
_ADDED_FLAGS: dict[str, str] = {
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64-v3": "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
    "x86-64-v4-vnni": "avx512_vnni",
    "x86-64-v4-bf16": "avx512_bf16",
    "x86-64-v4-amx": "amx_bf16 amx_int8 amx_tile",
}

# Either makes ONNX Runtime's products of bytes exact; kernels of ours use the first.
_VNNI_FLAGS = frozenset({"avx512_vnni", "avx_vnni"})

# Processors whose rates are known apart from those of their level: vendor, family, and models. The
# first that fits counts.
_MICROARCHITECTURES: tuple[tuple[str, str, int, tuple[range, ...]], ...] = (
    # Genoa and Threadripper, Raphael and Phoenix, Bergamo and Siena.
    ("zen4", "AuthenticAMD", 25, (range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0))),
    # Zen 3, and those before.
    ("zen", "AuthenticAMD", 25, (range(0x100),)),
    ("zen", "AuthenticAMD", 23, (range(0x100),)),
)
# What lower levels than its own are for, beside a processor: earlier ones of the same maker.
_EARLIER = {"zen4": "zen"}

# arch_prctl(2) of x86-64 Linux: which states of the processor a process may ask for; the data of
# AMX tiles is one.
_ARCH_PRCTL, _GET_XCOMP_SUPP, _REQ_XCOMP_PERM, _TILE_DATA = 158, 0x1021, 0x1023, 18
#: What syscall(2) is called with to ask for them.
ASK_FOR_TILES = (_ARCH_PRCTL, _REQ_XCOMP_PERM, _TILE_DATA)


def machine() -> str:
    """Return "x86-64" or "aarch64", or the name of a machine that ortkit has no levels for."""
    return {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )


def resolve_level(level: str) -> str:
    """Return a level of this machine's kind, "native" replaced by the highest that it runs.

    Raises:
        UserError: The level is unknown, or belongs to another kind of machine.
    """
    level = native_level() if level == "native" else level
    if level not in LEVELS:
        raise UserError(
            f"no kernels can be built for the processor level {level!r}",
            fix=f"use one of native, {', '.join(LEVELS)}",
        )
    if not level.startswith(machine()):
        raise UserError(
            f"kernels for {level} cannot be linked on {machine()}",
            fix=f"run ortkit on a machine of type {level.split('-v', 1)[0]}",
        )
    return level


def native_level() -> str:
    """Return the highest level that this machine runs."""
    return level_of(_cpu_flags(), has_tiles=_has_tiles) if machine() == "x86-64" else machine()


def level_of(flags: frozenset[str], has_tiles: Callable[[], bool] = lambda: True) -> str:
    """Return the highest level that an x86-64 processor runs.

    Args:
        flags: As /proc/cpuinfo has them.
        has_tiles: Says whether AMX may be used too, if the flags say that it is there.
    """
    level = "x86-64"
    for name, added in _ADDED_FLAGS.items():
        if not flags.issuperset(added.split()) or (name.endswith("-amx") and not has_tiles()):
            break
        level = name
    return level


def has_bf16(level: str) -> bool:
    """Say whether a level has instructions for products of bfloat16."""
    return level in ("x86-64-v4-bf16", "x86-64-v4-amx")


def has_vnni(level: str) -> bool:
    """Say whether a level has AVX512-VNNI, which adds up four products of bytes in 32 bits."""
    return level in ("x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx")


def saturates_products() -> bool:
    """Say whether ONNX Runtime's products of uint8 and int8 saturate on this machine.

    Its kernels for AVX2 and AVX-512 without VNNI (1.31.1) add up two products in 16 bits; those
    for older processors do not. AVX-VNNI is that of processors without AVX-512.
    """
    return saturates_with(_cpu_flags())


def saturates_with(flags: frozenset[str]) -> bool:
    """Say whether they do on a processor with flags as /proc/cpuinfo has them."""
    return "avx2" in flags and flags.isdisjoint(_VNNI_FLAGS)


def multiplies_bytes(level: str) -> bool:
    """Say whether ONNX Runtime's products of uint8 and any int8 are exact at a level.

    Args:
        level: A name of `LEVELS`, or "native": this machine's flags say so.
    """
    if level == "native":
        return not saturates_products()
    return has_vnni(level) or not level.startswith("x86-64")


def has_tiles(level: str) -> bool:
    """Say whether a level has AMX's tiles, which the system must be asked for."""
    return level.endswith("-amx")


def has_signed_kernels(level: str) -> bool:
    """Say whether ONNX Runtime computes on int8 activations at a level, or at "native"."""
    return (machine() if level == "native" else level).startswith("aarch64")


def runs_here(level: str) -> bool:
    """Say whether this machine runs code for `level`, a name of `LEVELS` or "native"."""
    return level == "native" or runs_on(level, native_level())


def runs_on(level: str, native: str) -> bool:
    """Say whether a machine whose highest level is `native` runs code for `level`."""
    kind = native.split("-v", 1)[0]
    levels = [name for name in LEVELS if name.split("-v", 1)[0] == kind]
    have = levels.index(native) if native in levels else -1
    return level in levels and levels.index(level) <= have


def ask_for_tiles(level: str) -> bool:
    """Ask the system for the tiles of AMX, which a process must do once before it uses them.

    A library of kernels does so itself when a session loads it; this is for those who call
    kernels without one.

    Args:
        level: What the code is for; of others nothing is asked.

    Returns:
        Whether code for the level may run.
    """
    if not has_tiles(level):
        return True
    return bool(ctypes.CDLL(None).syscall(*ASK_FOR_TILES) == 0)


def microarchitecture_of(vendor: str, family: int, model: int) -> str:
    """Return what a processor with rates of its own is called, "" for all others.

    Args:
        vendor: As CPUID and /proc/cpuinfo have it.
        family: The displayed one, the extended family added.
        model: The displayed one, likewise.
    """
    for name, made_by, its_family, models in _MICROARCHITECTURES:
        if (vendor, family) == (made_by, its_family) and any(model in each for each in models):
            return name
    return ""


def native_microarchitecture() -> str:
    """Return `microarchitecture_of` this machine's processor."""
    facts = _cpu_facts()
    try:
        family, model = int(facts["cpu family"]), int(facts["model"])
    except (KeyError, ValueError):
        return ""
    return microarchitecture_of(facts.get("vendor_id", ""), family, model)


def microarchitecture_at(level: str) -> str:
    """Return that of the processors that a level is for: this machine's, if it is the target.

    Of a lower level it is that of earlier processors of the same maker, if they have one.
    """
    here = native_microarchitecture()
    if level in ("native", native_level()):
        return here
    return _EARLIER.get(here, "") if runs_here(level) else ""


def _cpu_flags() -> frozenset[str]:
    return frozenset(_cpu_facts().get("flags", "").split())


@cache
def _cpu_facts() -> Mapping[str, str]:
    """Return what /proc/cpuinfo says of the first processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _has_tiles() -> bool:
    """Say whether the system lets processes use AMX; a sandbox may not, whatever the flags say."""
    supported = ctypes.c_uint64(0)
    try:
        call = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return False
    answer = call(_ARCH_PRCTL, _GET_XCOMP_SUPP, ctypes.byref(supported))
    return answer == 0 and bool(supported.value >> _TILE_DATA & 1)


_HALF_AND_FLOAT = frozenset({"FLOAT", "FLOAT16"})

CPU = Traits(
    title="CPU",
    provider=HOST_PROVIDER,
    backends=("tvm",),
    is_host=True,
    predicted_on="one thread",
    level_option="cpu",
    resolve=resolve_level,
    levels=lambda level: (level,),
    has_portable_image=False,
    least_kernels=4,
    kernel_seconds=60.0,  # they take some 20 to 80 ms
    has_signed_int8=has_signed_kernels,
    cost_model="ortkit.fusion.regions.cost_model:CostModel",
    families=(
        "ortkit.custom_ops.tvm.gemm.bf16:ANCHOR",
        "ortkit.custom_ops.tvm.gemm.nbits:ANCHOR",
        "ortkit.custom_ops.tvm.gemm.int8:ANCHOR",
        "ortkit.custom_ops.tvm.gemm.dynamic_quantize:ANCHOR",
        "ortkit.custom_ops.tvm.gemm.fp32:ANCHOR",
        "ortkit.custom_ops.tvm.attention.fp32:ANCHOR",
        "ortkit.custom_ops.tvm.attention.grouped:ANCHOR",
        "ortkit.custom_ops.tvm.conv.one_axis:ANCHOR",
        "ortkit.custom_ops.tvm.detection.non_max_suppression:ANCHOR",
    ),
    templates=(
        "gemm.bf16",
        "gemm.nbits",
        "gemm.int8",
        "gemm.dynamic_quantize",
        "gemm.fp32",
        "conv.one_axis",
        "conv.int8",
        "conv.head",
        "conv.pointwise",
        "conv.winograd",
        "conv.direct",
        "conv.any_size",
        "conv.depthwise",
        "conv.expand_depthwise",
        "conv.stem",
        "conv.squeeze_excite",
        "conv.max_pool",
        "conv.int8_mean",
        "conv.int8_scale",
        "conv.resize",
        "attention.fp32",
        "attention.grouped",
        "detection.non_max_suppression",
    ),
    decompositions=(),
    conv_anchors=(
        "ortkit.custom_ops.tvm.conv.depthwise:ANCHOR",
        "ortkit.custom_ops.tvm.conv.head:ANCHOR",
        "ortkit.custom_ops.tvm.conv.pointwise:ANCHOR",
        "ortkit.custom_ops.tvm.conv.stem:ANCHOR",
        "ortkit.custom_ops.tvm.conv.winograd:ANCHOR",
        "ortkit.custom_ops.tvm.conv.winograd:ANY_SIZE",
        "ortkit.custom_ops.tvm.conv.direct:ANCHOR",
        "ortkit.custom_ops.tvm.conv.int8:ANCHOR",
    ),
    image_anchors=(
        "ortkit.custom_ops.tvm.conv.squeeze_excite:ANCHOR",
        "ortkit.custom_ops.tvm.conv.max_pool:ANCHOR",
        "ortkit.custom_ops.tvm.conv.int8_mean:ANCHOR",
        "ortkit.custom_ops.tvm.conv.int8_scale:ANCHOR",
        "ortkit.custom_ops.tvm.conv.resize:ANCHOR",
        "ortkit.custom_ops.tvm.conv.concat:ANCHOR",
    ),
    convolutions="ortkit.fusion.conv.targets:ON_CPU",
    conv_epilogue="ortkit.fusion.regions.members:ends_convolution",
    has_blocked_conv_layout=True,
    has_nhwc_option=False,
    repeats_cheap_nodes=False,
    kernels_look_up_rows=False,
    activations="ortkit.ops.activations.forms:ON_CPU",
    without_kernel="ortkit.graph.opsets.kernels:CPU_WITHOUT_KERNEL",
    kernel_dtypes={
        "DepthToSpace": frozenset({"FLOAT", "DOUBLE"}),
        "InstanceNormalization": frozenset({"FLOAT"}),
        "MultiHeadAttention": frozenset({"FLOAT"}),
        "RMSNormalization": frozenset({"FLOAT", "FLOAT16", "DOUBLE"}),
        "RotaryEmbedding": _HALF_AND_FLOAT,
        "SkipLayerNormalization": _HALF_AND_FLOAT | {"DOUBLE"},
    },
    fused_conv_activations=frozenset(
        {"Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"}
    ),
    has_fast_patch_conv=True,
    has_fast_skip_norm=False,
    has_inner_softmax=False,
    attention_shares_heads=True,
    attention_caps_scores=True,
    attention_rounds_softmax=True,
    prefers_multi_head_attention=False,
    grouped_attention_outputs=1,
    earlier_passes={},
    precisions={
        "bf16": LowPrecision(by_product=True, has_budget=True, needs_kernels=True),
        "int8": LowPrecision(by_product=True, has_budget=True),
        "int4": LowPrecision(by_product=True, has_budget=True),
    },
    is_timed=True,
    runner="ortkit.tune.runners:processor_runner",
    has_remote_runners=True,
)
