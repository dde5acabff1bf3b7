"""Regions of small models: found with a judge of the test's own, put back without kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from ortkit.fusion.regions import select
from ortkit.fusion.regions.anchors import grown
from ortkit.fusion.regions.cost_model import CostModel, Prediction
from ortkit.fusion.regions.duplicate import Accepts, Candidate, asked_once
from ortkit.fusion.regions.lower import lower_region, restore_order
from ortkit.fusion.regions.region import FusedRegion
from ortkit.fusion.regions.search import Search
from ortkit.graph.io.text import from_text
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import control_bodies
from ortkit.kernels.anchor import Anchor
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tuning.calibration import Calibration
from ortkit.refusal import Refused
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope
from ortkit.targets.target import Target

HEAD = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'


class Eager(CostModel):
    """Takes every region, whatever it gains: what regions compute is the question here."""

    def refusal(self, region: FusedRegion, prediction: Prediction) -> str | None:
        del region, prediction
        return None


def accept(signature: RegionSignature) -> Refused | None:
    """Let a kernel exist for every region; its body must be a function that is valid."""
    onnx.checker.check_function(signature.function())
    return None


def scope_of(
    model: ir.Model, denied: Sequence[str] = (), kind: str = "cpu", level: str = "native"
) -> Scope:
    log = RewriteLog(frozenset(denied))
    return Scope(
        model, model.graph, Shapes.infer(model), log, RewriteOptions(Target(kind, level), 2)
    )


def graphs_of(graph: ir.Graph) -> list[ir.Graph]:
    bodies = (body for node in graph for body in control_bodies(node))
    return [graph, *(inner for body in bodies for inner in graphs_of(body))]


def search_of(scope: Scope, accepts: Accepts = accept, cost: type[CostModel] = Eager) -> Search:
    """Return a search in the main graph."""
    return Search(scope, scope.model.graph, asked_once(accepts), cost(scope, Calibration()))


def found_by(
    anchor: Anchor, scope: Scope, accepts: Accepts = accept, cost: type[CostModel] = Eager
) -> list[Candidate]:
    """Return what is found around one anchor in the main graph."""
    return list(grown(search_of(scope, accepts, cost), anchor))


def find(
    scope: Scope, accepts: Accepts = accept, cost: type[CostModel] = Eager
) -> list[Candidate]:
    search = search_of(scope, accepts, cost)
    return [
        candidate
        for graph in graphs_of(scope.model.graph)
        for candidate in select.family(replace(search, graph=graph))
    ]


def kinds(text: str, accepts: Accepts = accept, cost: type[CostModel] = Eager) -> list[str]:
    """Return the kinds of the regions that are taken in a model `g` in text form."""
    found = find(scope_of(from_text(f"{HEAD} {text}")), accepts, cost)
    return [candidate.region.kind for candidate in found if candidate.signature is not None]


def fuse(
    before: onnx.ModelProto, accepts: Accepts = accept, denied: Sequence[str] = ()
) -> onnx.ModelProto:
    """Return the model with every region as one node and its function; it must be valid."""
    model = ir.from_proto(before)
    scope = scope_of(model, denied)
    replaced: dict[ir.Value, ir.Value] = {}
    for candidate in find(scope, accepts):
        if candidate.signature is not None:
            lower_region(scope, candidate.region, candidate.signature, replaced)
    restore_order(scope)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    return after


def run(
    model: onnx.ModelProto,
    feeds: dict[str, np.ndarray],
    *,
    optimized: bool = False,
    library: Path | None = None,
) -> list[np.ndarray]:
    """Run with a kernel library or without any."""
    options = ort.SessionOptions()
    if library is not None:
        options.register_custom_ops_library(str(library))
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def feeds_of(
    model: onnx.ModelProto, sizes: dict[str, int], seed: int = 0
) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    initializers = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in initializers:
            continue
        tensor = value.type.tensor_type
        shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype == np.bool_:
            feeds[value.name] = random.random(shape) < 0.5
        elif np.issubdtype(dtype, np.integer):
            feeds[value.name] = random.integers(0, 3, shape).astype(dtype)
        else:
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
    return feeds


def assert_same(
    before: onnx.ModelProto, sizes: dict[str, int], accepts: Accepts = accept
) -> onnx.ModelProto:
    """Fuse, and compare bit by bit: the bodies hold the very nodes."""
    after = fuse(before, accepts)
    feeds = feeds_of(before, sizes)
    for got, want in zip(run(after, feeds), run(before, feeds), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    return after
