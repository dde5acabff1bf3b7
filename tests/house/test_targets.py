"""Rows of targets: what they name is there, and a row is all that a target needs."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from ortkit.fusion.conv.bodies import BodyWriter
from ortkit.fusion.conv.targets import ConvTarget
from ortkit.fusion.decompose.run import Decomposition
from ortkit.fusion.plan import compile_regions
from ortkit.fusion.regions.cost_model import CostModel
from ortkit.graph.io.open import open_model
from ortkit.kernels.anchor import Anchor
from ortkit.kernels.catalog import BACKENDS
from ortkit.kernels.conv_anchor import ConvAnchor
from ortkit.kernels.image_anchor import ImageAnchor
from ortkit.ops.activations.forms import Activations
from ortkit.optimization.options import OptimizeOptions
from ortkit.passes.catalog import PASSES
from ortkit.passes.select import select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from ortkit.targets import catalog
from ortkit.targets.catalog import KINDS, load, traits_of
from ortkit.targets.cpu import CPU
from ortkit.targets.target import Target
from ortkit.targets.traits import Traits


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_row_names_is_there(kind: str) -> None:
    traits = traits_of(kind)
    assert issubclass(load(traits.cost_model), CostModel)
    families = [load(name) for name in traits.families]
    assert all(isinstance(each, Anchor) for each in families)
    assert all(callable(load(each.regions)) for each in families if each.regions)
    assert all(isinstance(load(name), ConvAnchor) for name in traits.conv_anchors)
    images = [load(name) for name in traits.image_anchors]
    assert all(isinstance(each, ImageAnchor) for each in images)
    assert all(issubclass(load(each.blocks), BodyWriter) for each in images)
    assert callable(load(traits.conv_epilogue))
    assert all(issubclass(load(name), Decomposition) for name in traits.decompositions)
    assert isinstance(load(traits.convolutions), ConvTarget)
    assert isinstance(load(traits.activations), Activations)
    assert isinstance(load(traits.without_kernel), frozenset)
    assert callable(load(traits.runner))
    assert set(traits.backends) <= BACKENDS.keys()
    assert traits.earlier_passes.keys() <= PASSES.keys()
    assert traits.level_option in {field.name for field in fields(OptimizeOptions)}
    dtypes = {name for names in traits.kernel_dtypes.values() for name in names}
    assert dtypes <= {dtype.name for dtype in ir.DataType}


def test_every_place_of_a_row_is_looked_at() -> None:
    """A new field that names an object is added to the test above."""
    places = {
        field.name
        for kind in KINDS
        for field in fields(Traits)
        if any(":" in text for text in _texts(getattr(traits_of(kind), field.name)))
    }
    assert places == {
        "activations", "conv_anchors", "conv_epilogue", "convolutions", "cost_model",
        "decompositions", "families", "image_anchors", "runner", "without_kernel",
    }  # fmt: skip


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return value if isinstance(value, tuple) else ()


#: A processor whose kernels nobody makes, that has no families, and that ONNX Runtime is slow on.
NPU = replace(CPU, title="NPU", provider="NpuExecutionProvider", backends=(), families=())


def test_a_row_is_all_that_a_target_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "TARGETS", {**catalog.TARGETS, "npu": f"{__name__}:NPU"})
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[512, 512] x) => (float[512, 512] y) {
            a = Tanh (x)  b = Exp (a)  c = Sqrt (b)  y = Log (c)
        }"""
    )
    target = Target("npu")  # type: ignore[arg-type]
    passes = select_passes("", 2, target.kind)
    result = Pipeline(passes).run(open_model(proto), RewriteOptions(target))
    reports, library, _ = compile_regions(
        result.scopes, tmp_path / "ops.so", "auto", target, lambda *_: None
    )
    assert target.traits.providers == ("NpuExecutionProvider", "CPUExecutionProvider")
    assert library is None
    assert all(report.emitted_as is None for report in reports)
