"""Writing which tokens are kept, and the Gathers that take them and put them back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.ops.attention.core import MASKED
from ortkit.ops.padding.attention import AttentionSite, is_of_keys
from ortkit.ops.padding.pack import Plan, rest_of
from ortkit.ops.padding.proof import Proof
from ortkit.ops.padding.sizes import inputs_of_tokens, reads_sizes, source_of_sizes, write_sizes
from ortkit.ops.padding.tokens import Tokens
from ortkit.rewrite.scope import Attributes, Scope

#: Reductions have their axes as an input from this version on.
_AXES_ARE_INPUTS = 18
#: A key with more added to its score than this outweighs all that are masked.
_SEEN = MASKED / 2


@dataclass
class Writer:
    """Inserts nodes before one node; their outputs are called after one value."""

    scope: Scope
    before: ir.Node
    name: str

    def op(
        self, op_type: str, *inputs: ir.Value | None, attributes: Attributes | None = None
    ) -> ir.Value:
        """Insert a node and return its output."""
        return self.scope.insert(self.before, op_type, inputs, attributes, name=self.name)[0]

    def integers(self, *numbers: int) -> ir.Value:
        """Return a vector of int64."""
        return self.constant(np.array(numbers, np.int64))

    def constant(self, array: np.ndarray) -> ir.Value:
        """Return a constant."""
        return self.scope.constant(array, f"{self.name}/const", self.before)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Insert a Cast."""
        return self.op("Cast", value, attributes={"to": dtype.value})

    def reduce(self, op_type: str, value: ir.Value, axis: int, *, keeps: bool) -> ir.Value:
        """Reduce one axis."""
        if self.scope.opset() < (13 if op_type == "ReduceSum" else _AXES_ARE_INPUTS):
            return self.op(op_type, value, attributes={"axes": (axis,), "keepdims": int(keeps)})
        axes = self.integers(axis)
        return self.op(op_type, value, axes, attributes={"keepdims": int(keeps)})

    def true_everywhere(self, value: ir.Value, axis: int, *, keeps: bool) -> ir.Value:
        """Return where all bools along an axis are true."""
        number = self.reduce("ReduceMin", self.cast(value, ir.DataType.INT32), axis, keeps=keeps)
        return self.cast(number, ir.DataType.BOOL)

    def true_somewhere(self, value: ir.Value, axis: int, *, keeps: bool) -> ir.Value:
        """Return where a bool along an axis is true."""
        number = self.reduce("ReduceMax", self.cast(value, ir.DataType.INT32), axis, keeps=keeps)
        return self.cast(number, ir.DataType.BOOL)


@dataclass
class Packing:
    """The tokens that are kept, and values with and without the others."""

    scope: Scope
    proof: Proof
    kept: ir.Value
    """[samples, positions]: whether a token is kept."""
    indices: ir.Value
    """[1, kept]: the numbers of kept tokens among all, ascending."""
    positions: ir.Value
    """[samples, positions]: the number of a token among kept ones; of others, that of some."""
    _packed: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _padded: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _by_position: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)
    _positions: ir.Value | None = None

    def pack(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """Return the kept tokens of a value, [1, kept, ...] if it is [samples, positions, ...]."""
        if value not in self._packed:
            writer = Writer(self.scope, reader, f"{value.name}/tokens")
            shape, tokens = self._shape(value), self.proof.tokens[value]
            perm = _to_front(len(shape), tokens)
            moved = _transposed(writer, value, perm)
            rest = rest_of(shape, tokens)
            assert rest is not None, "a plan packs what can be moved"
            flat = writer.op("Reshape", moved, writer.integers(-1, *rest))
            if tokens.are_merged:
                indices = writer.op("Reshape", self.indices, writer.integers(-1))
                flat = writer.op("Gather", flat, indices, attributes={"axis": 0})
                perm = (tokens.samples.axis, *_others(len(shape), (tokens.samples.axis,)))
            else:
                flat = writer.op("Gather", flat, self.indices, attributes={"axis": 0})
            self._packed[value] = _transposed(writer, flat, _inverse(perm))
        return self._packed[value]

    def pad(self, value: ir.Value, shape: tuple[Size, ...], reader: ir.Node) -> ir.Value:
        """Return a packed value with all tokens; those that were not kept repeat others.

        Args:
            value: Packed by now.
            shape: Its shape before.
            reader: What needs it.
        """
        if value not in self._padded:
            name = (value.name or "").removesuffix("/changed")
            writer = Writer(self.scope, reader, f"{name}/padded")
            tokens = self.proof.tokens[value]
            rest = rest_of(shape, tokens)
            assert rest is not None, "a plan packs what can be moved"
            rank = len(shape)
            if tokens.are_merged:
                perm: tuple[int, ...] = (
                    tokens.samples.axis, *_others(rank, (tokens.samples.axis,))
                )  # fmt: skip
                positions = writer.op("Reshape", self.positions, writer.integers(-1))
            else:
                perm, positions = _to_front(rank, tokens), self.positions
            moved = _transposed(writer, value, perm)
            flat = writer.op("Reshape", moved, writer.integers(-1, *rest))
            full = writer.op("Gather", flat, positions, attributes={"axis": 0})
            self._padded[value] = _transposed(writer, full, _inverse(perm))
        return self._padded[value]

    def zeroed(self, padded: ir.Value, value: ir.Value, reader: ir.Node) -> ir.Value:
        """Return a value with 0 where no token is kept: a factor of 0 does not hide NaN."""
        writer = Writer(self.scope, reader, f"{padded.name}/zeroed")
        tokens, rank = self.proof.tokens[value], self.scope.shapes.rank(padded) or 0
        dtype = self.scope.shapes.dtype(padded)
        assert dtype is not None, "a product has a type"
        axes = [axis for axis in range(rank) if axis not in _axes(tokens)]
        shape = [0, 0, *(1 for _ in axes)]
        kept = writer.op("Reshape", self.kept, writer.integers(*shape))
        kept = _transposed(writer, kept, _inverse(_to_front(rank, tokens)))
        zero = writer.constant(np.zeros((), dtype.numpy()))
        return writer.op("Where", kept, padded, zero)

    def by_position(self, value: ir.Value, axis: int, reader: ir.Node) -> ir.Value:
        """Return what a value has along an axis of positions for each kept token."""
        key = value, axis
        if key not in self._by_position:
            writer = Writer(self.scope, reader, f"{value.name}/tokens")
            if self._positions is None:
                sizes = writer.op("Shape", self.kept)
                count = writer.op("Gather", sizes, writer.constant(np.array(1, np.int64)))
                each = writer.op("Mod", self.indices, count)
                self._positions = writer.op("Reshape", each, writer.integers(-1))
            self._by_position[key] = writer.op(
                "Gather", value, self._positions, attributes={"axis": axis}
            )
        return self._by_position[key]

    def _shape(self, value: ir.Value) -> tuple[Size, ...]:
        shape = self.scope.shapes.shape(value)
        assert shape is not None, "a plan packs what can be moved"
        return shape


def _axes(tokens: Tokens) -> tuple[int, int]:
    return tokens.samples.axis, tokens.positions.axis


def _others(rank: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis in range(rank) if axis not in axes)


def _to_front(rank: int, tokens: Tokens) -> tuple[int, ...]:
    """Return the permutation that puts samples and positions first."""
    axes = (tokens.samples.axis, tokens.positions.axis)
    return (*dict.fromkeys(axes), *_others(rank, axes))


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(axis) for axis in range(len(perm)))


def _transposed(writer: Writer, value: ir.Value, perm: tuple[int, ...]) -> ir.Value:
    if perm == tuple(range(len(perm))):
        return value
    return writer.op("Transpose", value, attributes={"perm": perm})


def write_packing(proof: Proof, before: ir.Node) -> Packing:
    """Insert what says which tokens are kept.

    Those are needed that are no padding, and the first of each sample if it is read. A sample
    keeps all of its tokens where one that is needed sees another one than these, or no key at
    all. Where NaN is kept, the latter holds for padding, too.
    """
    scope, flag = proof.scope, proof.flag
    writer = Writer(scope, before, f"{flag.value.name}/kept")
    dtype = scope.shapes.dtype(flag.value)
    assert dtype is not None, "a flag has a type"
    number = writer.constant(np.array(flag.padding, dtype.numpy()))
    zero, one = (writer.constant(np.array(each, np.int64)) for each in (0, 1))
    needed = writer.op("Not", writer.op("Equal", flag.value, number))
    for value in inputs_of_tokens(proof):
        # Sizes of one name are equal by declaration alone: nothing checks it in a run.
        sizes = writer.op("Gather", writer.op("Shape", value), writer.integers(0, 1))
        needed = writer.op("Expand", needed, sizes)
    if proof.reads_first:
        length = writer.op("Gather", writer.op("Shape", needed), one)
        first = writer.op("Equal", writer.op("Range", zero, length, one), zero)
        needed = writer.op("Or", needed, first)
    # Without any token there would be none to stand for the others.
    some = writer.true_somewhere(needed, 1, keeps=True)
    needs_all = writer.op("Not", writer.true_somewhere(some, 0, keeps=True))
    sites = {(site.mask, site.is_causal): site for site in proof.attention.values()}
    for site in sites.values():
        needs_all = writer.op("Or", needs_all, _needs_all(writer, proof, site, needed))
    kept = writer.op("Or", needed, needs_all)
    indices = writer.op("NonZero", writer.op("Reshape", kept, writer.integers(-1)))
    numbers = writer.cast(kept, ir.DataType.INT64)
    counts = writer.reduce("ReduceSum", numbers, 1, keeps=True)
    before_sample = writer.op("Sub", writer.op("CumSum", counts, zero), counts)
    within = writer.op("CumSum", numbers, one)
    ends = writer.op("Add", within, before_sample)
    # Padding before the first token of a sample is that token, after it the one before: NaN of
    # other samples stays there. Of samples without tokens, no place is read.
    is_first = writer.op("Equal", within, zero)
    is_moved = writer.op("And", is_first, writer.op("Greater", counts, zero))
    moved = writer.cast(is_moved, ir.DataType.INT64)
    positions = writer.op("Add", writer.op("Sub", ends, one), moved)
    return Packing(scope, proof, kept, indices, positions)


def _needs_all(writer: Writer, proof: Proof, site: AttentionSite, needed: ir.Value) -> ir.Value:
    """Return, [samples, 1], whether a query that is needed sees padding, or no key at all."""
    mask, scope = site.mask, writer.scope
    assert mask is not None, "its keys are masked"
    dtype = scope.shapes.dtype(mask)
    assert dtype is not None, "a mask has a type"
    seen = mask
    if dtype.numpy().kind == "f":
        seen = writer.op("Greater", mask, writer.constant(np.array(_SEEN, dtype.numpy())))
    elif is_of_keys(site):
        seen = writer.op("Greater", mask, writer.constant(np.array(0, dtype.numpy())))
    elif dtype != ir.DataType.BOOL:
        seen = writer.cast(mask, ir.DataType.BOOL)
    padding = writer.op("Not", needed)
    if is_of_keys(site):
        outside, by_all = writer.op("And", seen, padding), seen
        outside = writer.true_somewhere(outside, 1, keeps=True)
        if not site.is_causal:
            by_all = writer.true_somewhere(by_all, 1, keeps=True)
    else:
        # [samples, heads, queries, keys]
        by_all = writer.true_everywhere(seen, 1, keeps=False)
        by_some = writer.true_somewhere(seen, 1, keeps=False)
        keys = writer.op("Reshape", padding, writer.integers(0, 1, -1))
        outside = writer.true_somewhere(writer.op("And", by_some, keys), 2, keeps=False)
        if site.is_causal:
            # A query sees itself, if that is no padding.
            by_all = writer.op("Reshape", by_all, writer.integers(0, -1))
        else:
            by_all = writer.true_somewhere(by_all, 2, keeps=False)
    is_lost = writer.op("Not", by_all)
    if site.node.outputs[0] in proof.unread:
        outside = writer.op("And", outside, needed)
        if not proof.keeps_nan:
            is_lost = writer.op("And", is_lost, needed)
    is_bad = writer.op("Or", outside, is_lost)
    return writer.true_somewhere(is_bad, 1, keeps=True)


def pack_nodes(proof: Proof, plan: Plan) -> None:
    """Let the nodes of a plan compute kept tokens, and all others see what they saw."""
    scope = proof.scope
    shapes = {value: scope.shapes.shape(value) or () for value in proof.tokens}
    inside = set(plan.nodes)
    made = [value for node in plan.nodes for value in node.outputs if value.uses()]
    readers = [
        (use.node, use.idx, value)
        for value in made
        for use in value.uses()
        if use.node not in inside
    ]
    packing = write_packing(proof, plan.nodes[0])
    own = set(made)
    changes: dict[ir.Node, dict[int, ir.Value]] = {}
    for node in plan.nodes:
        step = proof.steps[node]
        changed = changes.setdefault(node, {})
        for index in step.inputs:
            value = node.inputs[index]
            if value is not None and value not in own:
                changed[index] = packing.pack(value, node)
        for index, axis in step.by_position:
            value = node.inputs[index]
            if value is not None:
                changed[index] = packing.by_position(value, axis, node)
        if node in plan.targets:
            writer = Writer(scope, node, f"{node.outputs[0].name}/tokens")
            changed[1] = writer.integers(*plan.targets[node])
    for node in plan.nodes:
        _set(scope, node, changes[node])
        for value in node.outputs:
            if value.uses():
                _forget_shape(scope, value)
        scope.shapes.infer_node(node)
    changed_values: set[ir.Value] = set()
    source = source_of_sizes(proof)
    for node, index, value in readers:
        if source is not None and reads_sizes(node):
            write_sizes(proof, source, node, shapes[value])
            continue
        padded = packing.pad(value, shapes[value], node)
        if node in proof.multiplied:
            padded = packing.zeroed(padded, value, node)
        changed_values.add(padded)
        _set(scope, node, {index: padded})
    scope.root.sort()
    for node in scope.root:
        if node in inside or not changed_values.intersection(node.inputs):
            continue
        for value in node.outputs:
            if value in proof.unread and value.uses():
                # What it holds for padding is not what its name stood for.
                scope.give_up_name(value)
                changed_values.add(value)


def _set(scope: Scope, node: ir.Node, changed: dict[int, ir.Value]) -> None:
    if changed:
        values = [changed.get(index, value) for index, value in enumerate(node.inputs)]
        scope.set_inputs(node, values)


def _forget_shape(scope: Scope, value: ir.Value) -> None:
    """Let a packed value have another name, and the shape that it has from now on."""
    scope.give_up_name(value)
    rank, dtype = scope.shapes.rank(value), scope.shapes.dtype(value)
    scope.shapes.learn(value, None)
    if rank is not None and dtype is not None:
        scope.declare(value, dtype, ir.Shape([None] * rank))
