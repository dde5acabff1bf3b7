"""How far roundings move the values of a model: its conditioning on the inputs that are tried.

A copy of the model multiplies every float value with 1 + r, with another random r for each element
and each run. The spread of a few runs around the exact one is what any other order of the same
computation may move. Elements that choose or round otherwise in some run are near ties.

Drawing is most of the time of a run: 4.4 ns an element, where a product takes 0.3 (onnxruntime
1.31.1, 2026-11). So a run draws `_POOL` numbers once. Each value reads them from another place,
and as often as it is larger.

Integral numbers are not perturbed where they come of exact arithmetic alone: masks of 0 and 1,
counts and positions. Nor are halves of inputs: a 0.5 that is rounded is no near tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import control_nodes_below, names_in, take_name
from ortkit.operators import where
from ortkit.verify.precision import is_quantizing

#: Runs whose spread is taken.
RUNS = 8
#: Runs where integers or booleans differ: two values one epsilon apart stay in order in 0.6 of the
#: runs, in all of 8 for one of 50 such pairs, and in all of 32 for one of a million.
CHOICE_RUNS = 32
#: The largest r, in epsilons of the value's type. A fused computation rounds a few times where the
#: model rounds once, and a spread of eight draws is smaller than the largest of many elements.
ROUNDINGS = 4.0


#: The epsilon of float32, in which a kernel computes what it does not show.
_WITHIN = 2.0**-23

Epsilon = Callable[[ir.Value], float]
"""The epsilon of the type that a value is rounded to."""


def perturb(
    model: ir.Model,
    epsilon: Epsilon,
    *,
    quantized: float = 0.0,
    first: int = 0,
    with_weights: bool = False,
) -> None:
    """Let all consumers of each float value read it perturbed, in place.

    Args:
        model: Its functions are inlined. Inputs are perturbed too, constants and results are not,
            but for constants that a kernel rounds together.
            Before opset 9, which has the nodes that are needed, nothing is perturbed.
        epsilon: How exact values are, by value; those with 0 are not perturbed.
        quantized: The least epsilon of values that a consumer rounds to 8 bits or fewer.
        first: How many runs were made before, whose numbers are not drawn again.
        with_weights: Whether float32 weights of products are perturbed too. Where rows of a
            product are alike, so are their rounding errors. Those of its values differ from row
            to row, and a mean over the rows loses them.
    """
    if model.opset_imports.get("", 0) < _SELECTS_FROM:
        return
    shapes, factors = Shapes.infer(model), _Factors(model, first)
    values = [value for value in model.graph.inputs if not value.is_initializer()]
    values += [value for node in control_nodes_below(model.graph) for value in node.outputs]
    exact = _exact_values(model, values)
    for value in _combined(model):
        if epsilon(value):
            part = ROUNDINGS * min(epsilon(value), _WITHIN)
            _perturb(factors, value, _WIDE, part)
    for value in _weights(model) if with_weights else ():
        if epsilon(value):
            _perturb(factors, value, _WIDE, ROUNDINGS * min(epsilon(value), _WITHIN), 1.0)
    for value in values:
        dtype = shapes.dtype(value)
        if dtype in _DRAWN and value.uses():
            unit = max(epsilon(value), quantized if _is_quantized(value) else 0.0)
            if not unit:
                continue
            has_halves = value in exact and _is_input(value) and not _is_quantized(value)
            kept = 2.0 if has_halves else float(value in exact)
            _perturb(factors, value, dtype, ROUNDINGS * unit, kept)


def _combined(model: ir.Model) -> list[ir.Value]:
    """Return float32 constants that a kernel rounds together before it reads any input.

    Those of BatchNormalization: of `bias - mean * factor` little may be left.
    """
    found = [
        value
        for node in control_nodes_below(model.graph)
        if node.op_type == "BatchNormalization" and not node.domain
        for value in node.inputs[2:4]
        if value is not None and value.is_initializer() and not value.is_graph_input()
    ]
    return [value for value in dict.fromkeys(found) if value.dtype == ir.DataType.FLOAT]


def _weights(model: ir.Model) -> list[ir.Value]:
    """Return float32 constants that products read."""
    found = [
        value
        for node in control_nodes_below(model.graph)
        if node.op_type in _PRODUCTS and not node.domain
        for value in node.inputs[:2]
        if value is not None and value.is_initializer() and not value.is_graph_input()
    ]
    return [value for value in dict.fromkeys(found) if value.dtype == ir.DataType.FLOAT]


def _exact_values(model: ir.Model, values: Iterable[ir.Value]) -> set[ir.Value]:
    """Return the values that are integral wherever the inputs and constants they come of are."""
    exact = set(model.graph.inputs)
    for value in values:
        node = value.producer()
        if node is None or node.domain or node.op_type not in _EXACT:
            continue
        read = [each for each in node.inputs if each is not None]
        is_cast = node.op_type == "Cast" and all(not _is_float(each) for each in read)
        if is_cast or all(each in exact or each.producer() is None for each in read):
            exact.add(value)
    return exact


def _is_input(value: ir.Value) -> bool:
    """Say whether a value is an input, moved at most."""
    node = value.producer()
    while node is not None and node.op_type in _MOVERS and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value.is_graph_input()


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()


def _is_quantized(value: ir.Value) -> bool:
    """Say whether a value is rounded to 8 bits or less by a consumer."""
    return any(is_quantizing(node) and index == 0 for node, index in value.uses())


def perturb_constants(
    model: ir.Model,
    constants: Mapping[str, tuple[float, np.ndarray | None]],
    *,
    first: int = 0,
) -> None:
    """Let all consumers of float32 constants of the main graph read them perturbed, in place.

    Constants of which all numbers are integral stay as they are.

    Args:
        model: Its functions are inlined.
        constants: By name, the epsilon of the type that their numbers were rounded to, and which
            were, bool like the constant; None for all.
        first: As for `perturb`.
    """
    factors = _Factors(model, first, has_pool=False)
    made = {value.name: value for node in model.graph for value in node.outputs}
    for name, (epsilon, rounded) in constants.items():
        value = model.graph.initializers.get(name, made.get(name))
        if value is None or not value.uses():
            continue
        array = constant_array(value)
        if array is not None and (array == np.rint(array)).all():
            continue  # counts and exponents are exact; a single 1 in a scale may be 1.003 rounded
        # A number is off by half an epsilon at most.
        part, kept = ROUNDINGS * epsilon / 2, float(array is None)
        _perturb(factors, value, _WIDE, part, kept, rounded)


#: The first opset with Where, which keeps integral numbers as they are.
_SELECTS_FROM = 9
_NO_UNIFORM_FROM = 22
_MOVERS = where(moves_only=True) - {"Concat"}
#: Operators that give integral numbers of integral numbers, without a rounding.
_EXACT = where(exact=True) | {"Add", "Cast", "Constant", "ConstantOfShape", "Mul", "Sub"}
#: Operators that multiply and add: a computed sum is the exact one of operands that are off by
#: some roundings each, in any order (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
_PRODUCTS = where(access={"conv", "matmul"}, integer=False)
#: ONNX Runtime's integer kernels give numbers that are a step apart from the standard's. With
#: `ROUNDINGS` this is half a step at the end of the range of 8 bits.
STEP = 2.0**-10
_WIDE = ir.DataType.FLOAT
#: Types that ONNX Runtime draws random numbers of.
_DRAWN = frozenset({_WIDE, ir.DataType.DOUBLE})
#: Seeds are whole numbers in float32. Those of later runs are this far from those of earlier ones.
_SEEDS, _SEED_STEP = 1 << 24, 99_991
#: A prime: numbers that repeat after it do not line up with the axes of a value.
_POOL = 99_991
#: Where values start to read the pool: in its first half, far from the start of the one before.
_STARTS, _START_STEP = _POOL // 2, 30_901
#: The first opset whose Reshape takes a size of 0, which values have that read the pool.
_POOL_FROM = 14


class _Factors:
    """Makes the factors 1 + r of a model's values.

    Values of the main graph read a pool of random numbers. Those of bodies draw their own, so that
    each trip of a loop has others.
    """

    def __init__(self, model: ir.Model, first: int, *, has_pool: bool = True) -> None:
        """Say of what.

        Args:
            model: Changed in place.
            first: How many runs were made before, whose numbers are not drawn again.
            has_pool: Whether values of the main graph share a pool, else all draw their own.
        """
        self.names = names_in(model)
        self._model = model
        self._start = next(iter(model.graph), None)
        self._first = first
        self._count = 0
        self._pools: dict[tuple[ir.DataType, float], ir.Value] = {}
        self._opset = model.opset_imports.get("", 0)
        self._has_pool = has_pool and self._opset >= _POOL_FROM

    def of(self, value: ir.Value, dtype: ir.DataType, part: float) -> list[ir.Node]:
        """Return nodes that make the factors of a value, by the last of them.

        Args:
            value: A value of the model.
            dtype: Its type.
            part: The largest part of a number that it is moved by.
        """
        node = value.producer()
        is_main = node is None or node.graph is self._model.graph
        if not (self._has_pool and is_main):
            return _drawn(self._opset, value, dtype, part, self._seed())
        return self._read(value, self._pool(dtype, part))

    def _pool(self, dtype: ir.DataType, part: float) -> ir.Value:
        """Return numbers 1 + r, [`_POOL`], drawn again in each run."""
        if (dtype, part) not in self._pools:
            size = _constant(np.array([_POOL]))
            one = ir.tensor(np.ones(1, dtype.numpy()))
            ones = ir.node("ConstantOfShape", size.outputs, {"value": one})
            drawn = _drawn(self._opset, ones.outputs[0], dtype, part, self._seed())
            self.insert([size, ones, *drawn], None, "pool")
            self._pools[dtype, part] = drawn[-1].outputs[0]
        return self._pools[dtype, part]

    def _read(self, value: ir.Value, pool: ir.Value) -> list[ir.Node]:
        """Return nodes that read as many numbers as a value has, in its shape."""
        self._count += 1
        start = self._count * _START_STEP % _STARTS
        one, begin, end = (_constant(np.array([n], np.int64)) for n in (1, start, start + 1))
        shape, size = ir.node("Shape", [value]), ir.node("Size", [value])
        count = ir.node("Reshape", [size.outputs[0], one.outputs[0]])
        # One number more than are needed, so that there is one; at most to the end of the pool.
        until = ir.node("Add", [count.outputs[0], end.outputs[0]])
        piece = ir.node("Slice", [pool, begin.outputs[0], until.outputs[0]])
        length = ir.node("Shape", piece.outputs)
        more = ir.node("Div", [count.outputs[0], length.outputs[0]])
        times = ir.node("Add", [more.outputs[0], one.outputs[0]])
        repeated = ir.node("Tile", [piece.outputs[0], times.outputs[0]])
        zero = _constant(np.array([0], np.int64))
        whole = ir.node("Slice", [repeated.outputs[0], zero.outputs[0], count.outputs[0]])
        factor = ir.node("Reshape", [whole.outputs[0], shape.outputs[0]], {"allowzero": 1})
        return [
            one, begin, end, shape, size, count, until, piece, length, more, times, repeated, zero,
            whole, factor,
        ]  # fmt: skip

    def insert(self, nodes: Sequence[ir.Node], after: ir.Node | None, like: str) -> None:
        """Add nodes to the model, with names of their own for their results.

        Args:
            nodes: In order.
            after: The node that they follow; None: those of the model follow them.
            like: What the names begin with.
        """
        for node in nodes:
            node.outputs[0].name = take_name(self.names, f"{like}/perturbed")
        if after is None:
            assert self._start is not None
            self._model.graph.insert_before(self._start, nodes)
        else:
            assert after.graph is not None
            after.graph.insert_after(after, nodes)

    def _seed(self) -> float:
        return float((len(self.names) + self._first * _SEED_STEP) % _SEEDS)


def _perturb(
    factors: _Factors,
    value: ir.Value,
    dtype: ir.DataType,
    part: float,
    kept: float = 0.0,
    moved: np.ndarray | None = None,
) -> None:
    """Perturb a value.

    Args:
        factors: Of its model, which is changed in place.
        value: A value of the model.
        dtype: Its type.
        part: The largest part of a number that it is moved by.
        kept: Numbers that are integral times this one stay as they are; 0: none does.
        moved: Which elements are moved, bool like the value; None for all.
    """
    readers = [use for use in value.uses() if not _sets_size(use.node, use.idx)]
    new_nodes = factors.of(value, dtype, part)
    product = ir.node("Mul", [value, new_nodes[-1].outputs[0]])
    new_nodes.append(product)
    if kept:
        times = _constant(np.array(kept, dtype.numpy()))
        scaled = ir.node("Mul", [value, times.outputs[0]])
        whole = ir.node("Floor", scaled.outputs)
        is_whole = ir.node("Equal", [scaled.outputs[0], whole.outputs[0]])
        chosen = ir.node("Where", [is_whole.outputs[0], value, product.outputs[0]])
        new_nodes += [times, scaled, whole, is_whole, chosen]
    if moved is not None:
        mask = _constant(moved)
        chosen = ir.node("Where", [mask.outputs[0], new_nodes[-1].outputs[0], value])
        new_nodes += [mask, chosen]
    factors.insert(new_nodes, value.producer(), value.name or "")
    for use in readers:
        use.node.replace_input_with(use.idx, new_nodes[-1].outputs[0])


def _constant(array: np.ndarray) -> ir.Node:
    return ir.node("Constant", [], {"value": ir.tensor(array)})


def _drawn(
    opset: int, value: ir.Value, dtype: ir.DataType, part: float, seed: float
) -> list[ir.Node]:
    """Return nodes that draw 1 + r for each element of a value, by the last of them.

    ONNX Runtime has no kernel for RandomUniformLike of opset 22 and later (1.31.1). There a
    Dropout of half of many ones draws the signs.
    """
    if opset < _NO_UNIFORM_FROM:
        attributes = {"dtype": int(dtype), "low": 1.0 - part, "high": 1.0 + part, "seed": seed}
        return [ir.node("RandomUniformLike", [value], attributes)]
    kind = dtype.numpy()
    half, training = _constant(np.array(0.5, kind)), _constant(np.array(True))
    least, width = _constant(np.array(1 - part, kind)), _constant(np.array(part, kind))
    shape = ir.node("Shape", [value])
    ones = ir.node("ConstantOfShape", shape.outputs, {"value": ir.tensor(np.ones(1, kind))})
    inputs = [ones.outputs[0], half.outputs[0], training.outputs[0]]
    drawn = ir.node("Dropout", inputs, {"seed": int(seed)})  # 0 or 2
    scaled = ir.node("Mul", [drawn.outputs[0], width.outputs[0]])
    factor = ir.node("Add", [scaled.outputs[0], least.outputs[0]])
    return [half, training, least, width, shape, ones, drawn, scaled, factor]


def uniform_nodes(model: ir.Model, value: ir.Value, seed: float) -> list[ir.Node]:
    """Return nodes that draw 1 + r for each element of a float32 value, r of at most a half.

    Its variance is a twelfth in every opset.
    """
    opset = model.opset_imports.get("", 0)
    part = 0.5 if opset < _NO_UNIFORM_FROM else 12**-0.5
    return _drawn(opset, value, ir.DataType.FLOAT, part, seed)


def _sets_size(node: ir.Node, index: int) -> bool:
    """Say whether an input is a factor by which an image grows: a perturbation changes shapes."""
    return node.op_type in ("Resize", "Upsample") and index > 0
