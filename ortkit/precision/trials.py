"""Models that try forms of products: all beside the products, or each switched on by a flag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ortkit.precision.building import Builder, stand_in
from ortkit.precision.forms import Form
from ortkit.precision.products import Product

#: The input that says which products are lowered: bool [forms].
FLAGS = "ortkit/lowered"
ERRORS = "ortkit/error"
RANGES = "ortkit/range"
TRIAL = "ortkit/trial"

_FLOAT, _BOOL = ir.DataType.FLOAT, ir.DataType.BOOL


def twin(model: ir.Model, products: Sequence[Product]) -> tuple[ir.Model, dict[str, Product]]:
    """Return a copy of a model, and its products by key.

    The copy shares the weights' data. Products are found again by the names of what they compute.
    """
    copy = model.clone()
    made = {value.name: value for node in copy.graph for value in node.outputs}
    made |= {value.name: value for value in copy.graph.inputs}
    made |= {value.name: value for value in copy.graph.initializers.values()}
    found = {}
    for product in products:
        node = made[product.node.outputs[0].name].producer()
        last = made[product.last.outputs[0].name].producer()
        assert node is not None and last is not None
        bias = None if product.bias is None else made[product.bias.name]
        found[product.key] = Product(
            node, product.kind, made[product.x.name], made[product.weight.name], bias, last,
            product.key,
        )  # fmt: skip
    return copy, found


def ranges_model(model: ir.Model, products: Sequence[Product]) -> ir.Model:
    """Return a copy that gives, for each product, the largest magnitude in each column of `x`.

    Its outputs are `RANGES/number` alone, float32 [k], in the order of the products, which are
    no convolutions.
    """
    copy, found = twin(model, products)
    build, outputs = Builder(copy), []
    for number, product in enumerate(found.values()):
        absolute = build.one("Abs", [product.x], f"{RANGES}/magnitude")
        flat = build.one(
            "Reshape", [absolute, build.constant(_last(product), f"{RANGES}/shape")],
            f"{RANGES}/rows",
        )  # fmt: skip
        axes = build.constant(np.array([0], np.int64), f"{RANGES}/axes")
        largest = reduced(build, "ReduceMax", flat, axes, f"{RANGES}/{number}")
        _add(copy, product, build)
        outputs.append(largest)
    return giving(copy, outputs)


def errors_model(model: ir.Model, forms: Sequence[Form]) -> ir.Model:
    """Return a copy that gives each form's own error, on what its product gets in the original.

    Its outputs are `ERRORS/number` alone, float32 [2]: the square of the difference and that of
    the product's value, both summed.
    """
    copy, found = twin(model, [form.product for form in forms])
    build, outputs = Builder(copy), []
    for number, form in enumerate(forms):
        product = found[form.product.key]
        tried = _placed(form, product).emit(build)
        value = product.last.outputs[0]
        difference = build.one("Sub", [tried, value], f"{ERRORS}/difference")
        sums = [sum_of_squares(build, each, ERRORS) for each in (difference, value)]
        outputs.append(build.one("Concat", sums, f"{ERRORS}/{number}", {"axis": 0}))
        _add(copy, product, build)
    return giving(copy, outputs)


def switched_model(model: ir.Model, forms: Sequence[Form]) -> ir.Model:
    """Return a copy in which a flag for each form says whether its product takes it.

    The flags are one more input, `FLAGS`: bool [forms], in their order. Each product becomes an If
    of a name `TRIAL/number`, so that a profile tells what it takes either way. Further forms of
    a product are in its else branch: the first one counts of those whose flags are set.
    """
    copy, found = twin(model, [form.product for form in forms])
    graph, build = copy.graph, Builder(copy)
    flags = ir.Value(name=FLAGS, shape=ir.Shape([len(forms)]), type=ir.TensorType(_BOOL))
    graph.inputs.append(flags)
    lengths = build.constant(np.ones(len(forms), np.int64), f"{FLAGS}/lengths")
    if len(forms) > 1:
        parts = build.node(
            "Split", [flags, lengths], f"{FLAGS}/each", {"axis": 0}, dtypes=(_BOOL,) * len(forms)
        )
    else:
        parts = (flags,)
    first = build.take()
    by_product: dict[str, list[tuple[int, Form]]] = {}
    for number, form in enumerate(forms):
        by_product.setdefault(form.product.key, []).append((number, form))
    for key, numbered in by_product.items():
        product = found[key]
        # What it reads may have been replaced: it may be another product's value.
        source = product.node.inputs[0]
        assert source is not None
        product = replace(product, x=source)
        (switch,), result = _switch(build, product, numbered, parts)
        value = product.last.outputs[0]
        result.name = build.fresh(f"{TRIAL}/value")
        graph.insert_after(product.last, switch)
        stand_in(value, result)
        _unhook(graph, product)
    graph.insert_before(graph[0], first)
    return copy


def _switch(
    build: Builder,
    product: Product,
    numbered: Sequence[tuple[int, Form]],
    flags: Sequence[ir.Value],
) -> tuple[list[ir.Node], ir.Value]:
    """Make the If of a product's forms, or without any the product as it is.

    Returns:
        The nodes, and what they give.
    """
    if not numbered:
        kept = _again(build, product)
        return build.take(), kept
    (number, form), *others = numbered
    made = _placed(form, product).emit(build)
    lowered = build.take()
    plain, kept = _switch(build, product, others, flags)
    switch = ir.node(
        "If",
        [flags[number]],
        {
            "then_branch": ir.Graph([], [made], nodes=lowered, name=f"{TRIAL}/lowered"),
            "else_branch": ir.Graph([], [kept], nodes=plain, name=f"{TRIAL}/kept"),
        },
    )
    switch.name = f"{TRIAL}/{number}"
    (result,) = switch.outputs
    result.name, result.type = build.fresh(f"{TRIAL}/inner"), ir.TensorType(_FLOAT)
    return [switch], result


def _placed(form: Form, product: Product) -> Form:
    """Return the form for the product of a copy."""
    return replace(form, product=product)  # type: ignore[type-var]


def _again(build: Builder, product: Product) -> ir.Value:
    """Make the product as it is once more."""
    name = f"{product.key}/float"
    value = build.again(product.node, list(product.node.inputs), name)
    if product.activation is not None:
        return build.again(product.last, [value, *product.last.inputs[1:]], name)
    if product.last is not product.node:
        value = build.one("Add", [value, product.bias], name)
    return value


def _unhook(graph: ir.Graph, product: Product) -> None:
    """Remove a product that nothing reads any more."""
    graph.remove(product.last, safe=True)
    if product.node is not product.last:
        graph.remove(product.node, safe=True)


def _add(model: ir.Model, product: Product, build: Builder) -> None:
    """Put what was made behind a product."""
    model.graph.insert_after(product.last, build.take())


def giving(model: ir.Model, outputs: Sequence[ir.Value]) -> ir.Model:
    """Let a model give these values alone."""
    graph = model.graph
    del graph.outputs[:]
    for value in outputs:
        graph.outputs.append(value)
    return model


def _last(product: Product) -> np.ndarray:
    return np.array([-1, product.array().shape[0]], np.int64)


def sum_of_squares(build: Builder, value: ir.Value, name: str) -> ir.Value:
    """Make the nodes that sum the squares of all elements: float32 [1]."""
    flat = build.constant(np.array([-1], np.int64), f"{name}/flat")
    axes = build.constant(np.array([0], np.int64), f"{name}/axes")
    every = build.one("Reshape", [value, flat], f"{name}/all")
    return reduced(build, "ReduceSumSquare", every, axes, f"{name}/sum", keep=True)


def reduced(
    build: Builder, op_type: str, value: ir.Value, axes: ir.Value, name: str, *, keep: bool = False
) -> ir.Value:
    """Reduce along constant axes, which are an input from opset 18 on (13 for sums)."""
    opset = build.model.opset_imports[""]
    numbers = axes.const_value
    assert numbers is not None
    keepdims = int(keep)
    if opset >= 18:
        return build.one(op_type, [value, axes], name, {"keepdims": keepdims})
    return build.one(
        op_type, [value], name, {"keepdims": keepdims, "axes": numbers.numpy().tolist()}
    )
