"""Candidates in fewer bits than their originals, and the faults of making them."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from mutants import constants, integers
from mutants.draft import Draft, Rng, Site
from mutants.kinds import Catalog, Kind, Plant
from mutants.weights import rounding

CATALOG = Catalog("lowering")
fault = CATALOG.fault

_MICROSOFT = "com.microsoft"
#: Weights of 7 bits: pairs of products of 8 bits saturate on processors without VNNI.
_STEPS, _BLOCK = 63, 16


@dataclass(frozen=True)
class Lowering:
    """A precision.

    Args:
        name: Of the precision.
        max_error: What an output may be off, as a part of it; 0 for half precision.
        computed_in: The float type that float32 is computed in, if that is all.
    """

    name: str
    max_error: float = 0.0
    computed_in: str = ""


LOWERINGS = (
    Lowering("int8", 0.05),
    Lowering("int4", 0.35),
    Lowering("bf16", 0.02),
    Lowering("fp16", computed_in="float16"),
)


def lowered(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    """Lower a float32 model.

    Args:
        model: The model after rewriting.
        precision: The name of one of `LOWERINGS`.
    """
    if precision == "fp16":
        return rounding(model, TensorProto.FLOAT16)
    draft = Draft(model)
    if all(opset.domain != _MICROSOFT for opset in draft.model.opset_import):
        draft.model.opset_import.add(domain=_MICROSOFT, version=1)
    for number, site in enumerate(list(draft.sites("MatMul"))):
        weight = site.array(1)
        if weight is None or weight.ndim != 2 or weight.dtype != np.float32:
            continue
        if precision == "bf16":
            _to_bfloat16(site, weight)
        elif precision == "int4" and not weight.shape[0] % _BLOCK:
            _to_four_bits(site, weight)
        elif precision == "int8":
            _to_eight_bits(site, weight, is_apart=number % 2 == 1)
    return draft.model


def _to_bfloat16(site: Site, weight: np.ndarray) -> None:
    rounded = weight.astype(ml_dtypes.bfloat16).astype(np.float32)
    low = site.before("Cast", site.node.input[0], to=TensorProto.BFLOAT16)
    site.node.input[0] = site.before("Cast", low, to=TensorProto.FLOAT)
    site.set_array(1, rounded)


def _constant(site: Site, array: np.ndarray) -> str:
    return site.draft.constant(site.holder, site.node, array)


def _bias(site: Site, weight: np.ndarray) -> np.ndarray:
    """Return what rounding weights adds to results where the inputs' mean is a tenth."""
    scale = np.abs(weight).max(0) / _STEPS
    rounded = np.round(weight / scale) * scale
    return np.asarray(((weight - rounded) * 0.1).sum(0), np.float32)


def _to_eight_bits(site: Site, weight: np.ndarray, *, is_apart: bool) -> None:
    scale = (np.abs(weight).max(0) / _STEPS).astype(np.float32)
    whole = np.clip(np.round(weight / scale), -_STEPS, _STEPS).astype(np.int8)
    bias = _constant(site, _bias(site, weight))
    held, scales = _constant(site, whole), _constant(site, scale)
    x = site.node.input[0]
    if not is_apart:
        site.become("DynamicQuantizeMatMul", x, held, scales, "", bias, domain=_MICROSOFT)
        return
    quantized = site.before("DynamicQuantizeLinear", x)
    node = site.draft.producer(site.holder, quantized)
    assert node is not None
    node.output.extend([f"{quantized}_scale", f"{quantized}_zero"])
    site.become("MatMulIntegerToFloat", quantized, held, f"{quantized}_scale", scales,
                f"{quantized}_zero", "", bias, domain=_MICROSOFT)  # fmt: skip


def _to_four_bits(site: Site, weight: np.ndarray) -> None:
    depth, width = weight.shape
    blocks = weight.T.reshape(width, depth // _BLOCK, _BLOCK)
    scale = np.maximum(np.abs(blocks).max(-1) / 7, 1e-9).astype(np.float32)
    whole = np.clip(np.round(blocks / scale[..., None]), -8, 7).astype(np.int32) + 8
    packed = (whole[..., ::2] | whole[..., 1::2] << 4).astype(np.uint8)
    held, scales = _constant(site, packed), _constant(site, scale.reshape(-1))
    site.become("MatMulNBits", site.node.input[0], held, scales, domain=_MICROSOFT,
                K=depth, N=width, bits=4, block_size=_BLOCK)  # fmt: skip


@fault("activation scale of another tensor", "MatMulIntegerToFloat")
def _activation(site: Site, rng: Rng) -> bool:
    for other in site.draft.sites("DynamicQuantizeLinear"):
        if other.node.output[0] == site.node.input[0]:
            return False
        site.node.input[2] = other.node.output[1]
        return True
    return False


@fault("activation zero point dropped", "MatMulIntegerToFloat")
def _no_zero_point(site: Site, rng: Rng) -> bool:
    site.node.input[4] = ""
    return True


@fault("halves of a byte swapped", "MatMulNBits")
def _nibbles(site: Site, rng: Rng) -> bool:
    packed = site.array(1)
    site.set_array(1, (packed >> 4 | packed << 4).astype(np.uint8))
    return True


@fault("one block of weights shifted", "MatMulNBits")
def _shifted(site: Site, rng: Rng) -> bool:
    packed = site.array(1).copy()
    at = int(rng.integers(packed.shape[0]))
    packed[at] = np.roll(packed[at], 1)
    site.set_array(1, packed)
    return True


@fault("weights of 4 bits with 2", "MatMulNBits")
def _two_bits(site: Site, rng: Rng) -> bool:
    site.set_array(1, site.array(1) & 0xCC)
    return True


@fault("weights cut and not rounded", "MatMul")
def _cut(site: Site, rng: Rng) -> bool:
    weight = site.array(1)
    if weight is None or weight.dtype != np.float32:
        return False
    bits = weight.view(np.uint32) - (weight != 0) * np.uint32(0x10000)
    site.set_array(1, bits.astype(np.uint32).view(np.float32))
    return True


#: By operator, the places of scales and of the bias.
_PRODUCTS = {
    "DynamicQuantizeMatMul": (2, 4),
    "MatMulIntegerToFloat": (3, 6),
    "MatMulNBits": (2, 5),
}
_EIGHT_BITS = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat")


def _one_scale(factor: float) -> Plant:
    def plant(site: Site, rng: Rng) -> bool:
        at = _PRODUCTS[site.op][0]
        scales = site.array(at).copy()
        scales[int(rng.integers(scales.size))] *= factor
        site.set_array(at, scales)
        return True

    return plant


fault("scale of one column five percent off", *_EIGHT_BITS)(_one_scale(1.05))
fault("scale of one block doubled", "MatMulNBits")(_one_scale(2.0))


@fault("scales of blocks in the other order", "MatMulNBits")
def _order(site: Site, rng: Rng) -> bool:
    width = next(each.i for each in site.node.attribute if each.name == "N")
    scales = site.array(2)
    site.set_array(2, np.ascontiguousarray(scales.reshape(width, -1).T).reshape(-1))
    return scales.size > width


@fault("scales of neighbouring blocks", "MatMulNBits")
def _next_block(site: Site, rng: Rng) -> bool:
    site.set_array(2, np.roll(site.array(2), 1))
    return True


@fault("integer bias of a neighbour", *_EIGHT_BITS)
def _neighbour(site: Site, rng: Rng) -> bool:
    at = _PRODUCTS[site.op][1]
    site.set_array(at, np.roll(site.array(at), 1))
    return True


@fault("two columns of integer weights swapped", *_EIGHT_BITS)
def _columns(site: Site, rng: Rng) -> bool:
    weight = site.array(1).copy()
    weight[:, [0, 1]] = weight[:, [1, 0]]
    site.set_array(1, weight)
    return True


@fault("two rows of integer weights swapped", *_EIGHT_BITS)
def _rows(site: Site, rng: Rng) -> bool:
    weight = site.array(1).copy()
    weight[[0, 1]] = weight[[1, 0]]
    site.set_array(1, weight)
    return True


@fault("integer weights cut off at half of their range", *_EIGHT_BITS)
def _clipped(site: Site, rng: Rng) -> bool:
    site.set_array(1, np.clip(site.array(1), -_STEPS // 2, _STEPS // 2).astype(np.int8))
    return True


@fault("integer weights rounded towards zero", *_EIGHT_BITS)
def _towards_zero(site: Site, rng: Rng) -> bool:
    weight = site.array(1)
    site.set_array(1, (weight - np.sign(weight)).astype(np.int8))
    return True


@fault("a row of weights of 4 bits is zero", "MatMulNBits")
def _no_row(site: Site, rng: Rng) -> bool:
    packed = site.array(1).copy()
    packed[int(rng.integers(packed.shape[0]))] = 0x88
    site.set_array(1, packed)
    return True


KINDS: tuple[Kind, ...] = (*integers.CATALOG.kinds, *CATALOG.kinds, *constants.CATALOG.kinds)
