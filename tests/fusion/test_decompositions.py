"""Decompositions of whole models: all are undone without regions, and any may stay with some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from region_models import run, scope_of

import models
from ortkit.fusion import plan
from ortkit.fusion.decompose.attention import ComposeAttention
from ortkit.fusion.decompose.conv_bias import DecomposeConvBias
from ortkit.fusion.decompose.gate_up import DecomposeGateUp
from ortkit.fusion.decompose.pretranspose import PretransposeWeight
from ortkit.fusion.decompose.rotary import DecomposeRotary
from ortkit.fusion.decompose.run import Decomposition, Surroundings, decomposed
from ortkit.fusion.decompose.skip_norm import DecomposeSkipNorm
from ortkit.graph.io.open import open_model
from ortkit.graph.io.text import from_text, to_text
from ortkit.kernels.build.library import LibraryBuild
from ortkit.kernels.signature import RegionSignature
from ortkit.optimization.options import OptimizeOptions
from ortkit.optimization.passes import lowering_of, pipeline_of, rewrite_options
from ortkit.rewrite.pipeline import PipelineResult
from ortkit.targets.target import Target

#: A model, and the operators that it has more of, or less, when everything is decomposed.
MODELS = {
    "llama": {"Transpose", "Add", "SimplifiedLayerNormalization"},
    "gpt2": {"Transpose", "Add", "LayerNormalization"},
    "efficientnet_b0": {"Add"},
}

PASSES = frozenset(
    {"decompose-conv-bias", "decompose-skip-norm", "decompose-gate-up", "decompose-rotary",
     "pretranspose-weight"}
)  # fmt: skip


def rewritten(name: str) -> PipelineResult:
    """Return a model as it is before regions are formed for CUDA in float16."""
    options = OptimizeOptions(
        target="cuda", level=2, precision="fp16", arch="sm_80", verify=False, check_load=False
    )
    model = open_model(models.build(name))
    result = pipeline_of(options).run(model, rewrite_options(options))
    return lowering_of(options).run(model, rewrite_options(options), after=result)


def everything() -> Sequence[Decomposition]:
    return (
        DecomposeConvBias(),
        ComposeAttention(lambda *_: True),
        DecomposeSkipNorm(lambda *_: True),
        DecomposeGateUp(lambda *_: True),
        PretransposeWeight(lambda *_: True),
        DecomposeRotary(lambda *_: True),
    )


def kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_without_regions_is_as_it_was(name: str) -> None:
    result = rewritten(name)
    before, hits = to_text(result.model), list(result.log.hits)
    with decomposed(result.scopes, everything()):
        inside = kinds(result.model)
        assert to_text(result.model) != before
    changed = {op for op in inside if inside.count(op) != kinds(result.model).count(op)}
    assert changed >= MODELS[name]
    assert to_text(result.model) == before
    assert result.log.hits == hits


class Refusing:
    """Stands for `build_library`: a share of the regions has no kernel."""

    def __init__(self, seed: int, share: float) -> None:
        self.random = np.random.default_rng(seed)
        self.share = share

    def __call__(
        self, signatures: Sequence[RegionSignature], *_: object, **__: object
    ) -> LibraryBuild:
        refused = [
            (signature, "a whim") for signature in signatures if self.random.random() < self.share
        ]
        return LibraryBuild(None, (), tuple(refused), 0, "", 0.0)


EAGER = {"decompose-skip-norm", "decompose-gate-up", "pretranspose-weight"}
in_order = plan._decompositions


def eager(target: Target, around: Surroundings) -> Sequence[Decomposition]:
    """Return what is decomposed, whatever the size: tiny models would not gain."""
    return [
        replace(item, wanted=lambda *_: True) if item.name in EAGER else item
        for item in in_order(target, around)
    ]


def plans(patch: pytest.MonkeyPatch, seed: int, share: float) -> None:
    """Let a share of the regions have no kernel, and everything be decomposed."""
    patch.setattr(plan, "build_library", Refusing(seed, share))
    patch.setattr(plan, "_decompositions", eager)


def planned(result: PipelineResult) -> None:
    """Form regions; what the model computes stays, and it holds nothing that nothing reads."""
    before = ir.to_proto(result.model)
    plan.compile_regions(
        result.scopes, Path("unused"), "triton", Target("cuda", "sm_80"), lambda *_: None
    )
    after = ir.to_proto(result.model)
    held = {item.name for item in after.graph.initializer}
    assert held <= {name for node in after.graph.node for name in node.input}
    feeds = feeds_of(before)
    for got, want in zip(run(after, feeds), run(before, feeds), strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got, want, rtol=0, atol=0.02 * scale)


@pytest.mark.parametrize(("result", "has_sum"), [("s", True), ("c, s", False)])
def test_the_bias_of_a_result_of_the_model_stays(result: str, has_sum: bool) -> None:
    outputs = ", ".join(f"float16[1, 4, 8, 8] {name}" for name in result.split(", "))
    text = f"""<ir_version: 10, opset_import: ["" : 20]> g (float16[1, 4, 8, 8] x) => ({outputs})
        <float16[4, 4, 1, 1] w = {{{", ".join("0" * 16)}}}, float16[4] b = {{0, 0, 0, 0}}>
        {{ c = Conv (x, w, b)  s = Sigmoid (c) }}"""
    scope = scope_of(from_text(text), kind="cuda")
    with decomposed([scope], [DecomposeConvBias()]):
        assert ("Add" in kinds(scope.model)) == has_sum


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MODELS)
def test_any_regions_may_have_no_kernel(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch, every_region: None
) -> None:
    plans(monkeypatch, seed, 0.5)
    planned(rewritten(name))


def test_what_stays_is_a_hit_that_can_be_denied(
    monkeypatch: pytest.MonkeyPatch, every_region: None
) -> None:
    plans(monkeypatch, 0, 0.0)
    result = rewritten("llama")
    planned(result)
    ids = [hit.id for hit in result.log.hits if hit.pass_name in PASSES]
    assert {each.partition(":")[0] for each in ids} >= {"decompose-skip-norm"}
    again = rewritten("llama")
    again.log.denied = frozenset(ids)
    planned(again)
    assert not [hit for hit in again.log.hits if hit.pass_name in PASSES]
    assert again.log.met == set(ids)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("fuel", [0, 1, 4, 9])
def test_any_fuel_leaves_a_valid_model(
    fuel: int, share: float, monkeypatch: pytest.MonkeyPatch, every_region: None
) -> None:
    plans(monkeypatch, fuel, share)
    result = rewritten("llama")
    result.log.fuel = len(result.log.hits) + fuel
    planned(result)
    assert len(result.log.hits) <= result.log.fuel


def test_without_any_kernel_nothing_stays(
    monkeypatch: pytest.MonkeyPatch, every_region: None
) -> None:
    plans(monkeypatch, 0, 1.0)
    result = rewritten("llama")
    before, hits = to_text(result.model), list(result.log.hits)
    planned(result)
    assert to_text(result.model) == before
    assert result.log.hits == hits


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = [dim.dim_value or 2 for dim in tensor.shape.dim]
        is_float = np.issubdtype(dtype, np.floating)
        made = random.standard_normal(shape) if is_float else random.integers(1, 2, shape)
        feeds[value.name] = made.astype(dtype)
    return feeds
