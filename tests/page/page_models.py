"""Models and documents for the tests of pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

import models
from ortkit.graph.io.open import open_model
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.page.graph.build import document_of_two
from ortkit.page.graph.document import Document

HOSTILE = "</script><img src=x onerror=window.hacked=1><b>"

BEFORE = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y) <float[64, 64] w = {0}> {
  ["/a/MatMul"] p = MatMul (x, w)
  ["/a/Add"] q = Add (p, x)
  ["/a/Erf"] e = Erf (q)
  ["/a/Mul"] r = Mul (e, q)
  ["/b/Constant"] c = Constant <value_float: float = 2.0> ()
  ["/b/Relu"] s = Relu (r)
  ["/b/Mul"] t = Mul (s, c)
  ["/b/Tanh"] u = Tanh (t)
  ["/b/Add"] y = Add (u, r)
}
"""
AFTER = """<ir_version: 10, opset_import: ["" : 20, "ortkit.fused" : 1]>
g (float[n, 64] x) => (float[n, 64] y) <float[64, 64] w = {0}, float c = {2}> {
  ["r/fused"] r = ortkit.fused.product_gelu_0123456789ab (x, w)
  ["/b/Relu"] s = Relu (r)
  ["y/fused"] y = ortkit.fused.mul_tanh_add_0123456789ab (s, c, r)
}
<domain: "ortkit.fused", opset_import: ["" : 20]>
product_gelu_0123456789ab (a, b) => (d) {
  p = MatMul (a, b)
  q = Add (p, a)
  e = Erf (q)
  d = Mul (e, q)
}
<domain: "ortkit.fused", opset_import: ["" : 20]>
mul_tanh_add_0123456789ab (a, b, c) => (d) {
  t = Mul (a, b)
  u = Tanh (t)
  d = Add (u, c)
}
"""


def parsed(text: str) -> ir.Model:
    model = onnx.parser.parse_model(text)
    shaped = [item for item in model.graph.initializer if item.name == "w"]
    for tensor in shaped:
        tensor.CopyFrom(
            helper.make_tensor("w", TensorProto.FLOAT, [64, 64], bytes(4 * 64 * 64), raw=True)
        )
    return open_model(model)


def pair() -> Document:
    """Return the document of a graph of nine nodes and what it became, three nodes."""
    return document_of_two(parsed(BEFORE), parsed(AFTER), ("m.onnx", "m.opt.onnx"))


def hostile_pair() -> Document:
    """Return the same with names, attributes and facts that try to become HTML."""
    both = parsed(BEFORE), parsed(AFTER)
    for model in both:
        for node in model.graph:
            node.name = f"/{HOSTILE.replace('/', '')}/{HOSTILE}{node.name}"
            for value in node.outputs:
                value.name = f"{HOSTILE}{value.name}"
    document = document_of_two(*both, (HOSTILE, HOSTILE), HOSTILE)
    texts = {at: [(HOSTILE, HOSTILE)] for at in range(len(document.graphs[1].nodes))}
    return replace(document, facts=({}, texts), notes=(HOSTILE,))


def large(blocks: int = 200, size: int = 25, *, scopes: bool = True) -> ir.Model:
    """Return a model of `blocks * size + 2` nodes; all blocks read one mask."""
    ops = ("MatMul", "Add", "Relu", "Mul", "Sigmoid")
    nodes = [helper.make_node("Mul", ["m", "m"], ["mask"], name="/mask/Mul")]
    last = "x"
    for block in range(blocks):
        scope, first = f"/model/layers.{block}/" if scopes else f"n{block}_", last
        for at in range(size):
            op = ops[at % 5]
            others = {"MatMul": ["w"], "Add": ["mask"], "Mul": [first]}.get(op, [])
            made = f"{scope}{op}_{at}_out"
            nodes.append(helper.make_node(op, [last, *others], [made], name=f"{scope}{op}_{at}"))
            last = made
    nodes.append(helper.make_node("Identity", [last], ["y"], name="/out/Identity"))
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xmy"]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], bytes(4 * 64 * 64), raw=True)
    graph = helper.make_graph(nodes, "large", kinds[:2], kinds[2:], [weight])
    opsets = [helper.make_opsetid("", 18)]
    return open_model(helper.make_model(graph, opset_imports=opsets, ir_version=9))


def optimized_page(folder: Path) -> Path:
    """Optimize a small BERT and return its page."""
    source = folder / "bert.onnx"
    onnx.save(models.build("bert", "tiny", "ts"), source)
    optimized = optimize(source, OptimizeOptions(verify=False))
    return optimized.save_html(folder / "bert.html")
