"""Putting forms in the place of products; what several multiply is converted once."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from ortkit.precision.building import Builder, drop_unread, stand_in
from ortkit.precision.convolutions import Between, emit_convolution
from ortkit.precision.forms import DynamicInt8, Form, RoundedBf16, quantized_once
from ortkit.precision.packed import emit_packed, rounded_once


def lower_products(model: ir.Model, build: Builder, forms: list[Form]) -> None:
    """Put the forms in the place of products; what is multiplied is quantized once, apart."""
    graph = model.graph
    once: dict[ir.Value, tuple[ir.Value, ir.Value, ir.Value]] = {}
    halves: dict[ir.Value, ir.Value] = {}
    convolved: dict[ir.Value, int] = {}
    for form in forms:
        product = form.product
        source = product.node.inputs[0]
        assert source is not None
        form = replace(form, product=replace(product, x=source))  # type: ignore[type-var]
        if isinstance(form, RoundedBf16):
            if source not in halves:
                halves[source] = rounded_once(build, source)
                build.insert_after(graph, source)
            if product.kind == "convolution":
                value, made = emit_convolution(build, form.product, halves[source])
                convolved[value] = len(convolved)
            else:
                made = emit_packed(build, form.product, halves[source])
        elif isinstance(form, DynamicInt8):
            if source not in once:
                once[source] = quantized_once(build, source)
                build.insert_after(graph, source)
            made = form.emit_shared(build, once[source])
        else:
            made = form.emit(build)
        graph.insert_after(product.last, build.take())
        stand_in(product.last.outputs[0], made)
        drop_unread(graph, product.last)
    if convolved:
        between = Between(graph, build, convolved, halves)
        between.round_sums()
        between.round_depthwise()
        between.round_pools()
