"""Attention composed at random computes the same in the op that it becomes."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from ortkit.graph.check.model import check_model
from ortkit.passes.select import select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from ortkit.targets.target import Target
from tests.passes.attention_cases import run
from tests.passes.attention_graphs import attention_graph, feeds_of
from tests.sampling import repeats

pytest.importorskip("onnxruntime")

PASSES = "fold-sizes,fold-constants,drop-identity,simplify-attention,fuse-attention,drop-unused"
SIZES = ({"b": 3, "s": 5, "t": 7, "p": 2, "u": 7}, {"b": 1, "s": 1, "t": 2, "p": 0, "u": 1})
GRAPHS = repeats(100, 40)


def optimized(model: ir.Model, level: int, kind: str = "cpu") -> tuple[ir.Model, list[str]]:
    result = Pipeline(select_passes(PASSES, level)).run(model, RewriteOptions(Target(kind), level))
    assert result.settled
    check_model(model)
    return model, [hit.id for hit in result.log.hits]


def test_random_attention_computes_the_same() -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    became: Counter[str] = Counter()
    for seed in range(GRAPHS):
        graph = attention_graph(seed)
        proto, level = graph.model(), 2 + seed % 2
        original = ir.from_proto(proto)
        model, ids = optimized(ir.from_proto(proto), level)
        ops = [node.op_type for node in model.graph if "Attention" in node.op_type]
        became.update(ops or ["none"])
        if seed % 10 == 0:
            assert optimized(ir.from_proto(proto), level)[1] == ids
            assert optimized(model.clone(), level)[1] == []
            optimized(ir.from_proto(proto), level, "cuda")
        if not ops:
            continue
        for sizes in SIZES:
            known = dict(sizes)
            if "pk" in graph.inputs:
                length = graph.inputs["q"][0][1 if len(graph.inputs["q"][0]) == 3 else 2]
                known["u"] = known["p"] + (length if isinstance(length, int) else known["s"])
            given = feeds_of(graph, known, seed)
            for want, got in zip(run(original, given), run(model, given), strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=f"seed {seed}")
    assert became["Attention"] > GRAPHS // 2 and became["MultiHeadAttention"], became
