"""Regions for CUDA: what differs from those for CPUs. No GPU is needed, and none is used."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import models
import ortkit
from ortkit.errors import UserError
from ortkit.kernels.signature import DOMAIN
from ortkit.options import KernelChoice

CONV = """<ir_version: 10, opset_import: ["" : 20]>
g (float[1, 64, 112, 112] x, float[64, 64, 3, 3] w) => (float[1, 64, 112, 112] y) {
  c = Conv<pads = [1, 1, 1, 1]>(x, w)  a = Sigmoid(c)  y = Mul(c, a)
}"""
RELU = CONV.replace("a = Sigmoid(c)  y = Mul(c, a)", "y = Relu(c)")


def emitted(source: onnx.ModelProto | ir.Model, **options: object) -> list[str]:
    """Return the kinds of regions that became kernels for CUDA."""
    made = ortkit.optimize(
        source,
        ortkit.OptimizeOptions(target="cuda", arch="sm_90", verify=False, **options),  # type: ignore[arg-type]
    )
    found = [each.kind for each in made.report.regions if each.emitted_as]
    nodes = [node for node in made.model.graph if node.domain == DOMAIN]
    assert len(nodes) == len(found)
    assert (made.library is not None) == bool(found)
    return found


def test_activations_of_convolutions_are_fused_as_there_is_no_blocked_layout() -> None:
    assert emitted(onnx.parser.parse_model(CONV)) == ["quick_gelu"]


def test_what_cudnn_takes_is_left_to_it() -> None:
    assert emitted(onnx.parser.parse_model(RELU)) == []


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_transformer_in_each_precision(precision: str) -> None:
    found = emitted(models.build("bert", "tiny", "ts"), precision=precision)
    assert "bias_gelu" in found
    assert any(kind.startswith("add_layer_norm") for kind in found)


def test_kernels_of_the_other_kind_are_refused() -> None:
    wrong: list[tuple[str, KernelChoice]] = [("cpu", "triton"), ("cuda", "tvm")]
    for target, kernels in wrong:
        with pytest.raises(UserError, match=f"{kernels} makes no kernels for {target}"):
            ortkit.OptimizeOptions(target=target, kernels=kernels)  # type: ignore[arg-type]


def test_unknown_architectures_are_named() -> None:
    with pytest.raises(UserError, match="sm_12"):
        ortkit.OptimizeOptions(target="cuda", arch="sm_12")
