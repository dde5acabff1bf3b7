"""What each channel of a value is, as a signed atom or a sum of products of two atoms.

An atom stands for one channel of some value: equal atoms are equal numbers at every position.
Atoms are counted from 1, so that a sign and an atom make one integer; 0 stands for nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from ortkit.ops.rotary.functions import functional_step
from ortkit.ops.rotary.steps import (
    RULES,
    Labels,
    Step,
    channel_axes,
    channel_shape,
    operand_labels,
    structural_step,
)
from ortkit.rewrite.site import Site

Array: TypeAlias = np.ndarray
#: One term of each channel: signed first factors and second factors, 0 where there is none.
Term: TypeAlias = tuple[Array, Array]

ONE = 1
"""The atom of the number one."""
VISIT_LIMIT = 160
"""Values looked at around one node; a rotation takes about 30."""
CHANNEL_LIMIT = 512
FUNCTION_LIMIT = 5
"""How many functions of functions are distinguished; a scaled cosine of an angle is three."""
CONSTANT_LIMIT = 1 << 25


@dataclass(frozen=True, eq=False)
class LabeledValue:
    """A value with what its channels are."""

    value: ir.Value
    labels: Labels
    atoms: Array

    @property
    def flat(self) -> Array:
        """The channels in a row."""
        return self.atoms.reshape(-1)


class Channels:
    """Follows channels backward from one value; nothing is kept between rewrites."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.values: list[LabeledValue] = []
        """All values met below a product, sources before what is made of them."""
        self._atoms: dict[Hashable, int] = {("one",): ONE}
        self._known: dict[tuple[ir.Value, Labels], Array | None] = {}
        self._visits = 0
        self._depth = 0
        self._count = ONE

    def sums(self, value: ir.Value, labels: Labels) -> list[Term] | None:
        """Return the terms that the channels of `value` are sums of; None: unknown."""
        self._visits += 1
        if self._visits > VISIT_LIMIT:
            return None
        node = value.producer()
        if node is not None and node.domain == "":
            if node.op_type in ("Add", "Sub", "Sum"):
                return self._added(node, value, labels)
            if node.op_type == "Neg":
                terms = self._operand_sums(node.inputs[0], value, labels)
                return None if terms is None else [(-first, second) for first, second in terms]
            if node.op_type == "Mul":
                return self._multiplied(node, value, labels)
        step = structural_step(self.site, value, labels)
        if step is not None:
            return self._moved(step)
        atoms = self.atoms(value, labels)
        return None if atoms is None else [(atoms, np.zeros_like(atoms))]

    def atoms(self, value: ir.Value, labels: Labels) -> Array | None:
        """Return the signed atoms of the channels of `value`; None: unknown."""
        key = (value, labels)
        if key not in self._known:
            self._known[key] = None
            found = self._read(value, labels)
            if found is not None and found.size > CHANNEL_LIMIT:
                found = None
            self._known[key] = found
            if found is not None:
                self.values.append(LabeledValue(value, labels, found))
        return self._known[key]

    @property
    def nearest(self) -> list[LabeledValue]:
        """The values met, nearest to the result first, tables of angles last."""
        nearest_first = self.values[::-1]
        return sorted(nearest_first, key=lambda candidate: _is_table(self.site, candidate.value))

    # ---- sums --------------------------------------------------------------------------

    def _operand_sums(
        self, value: ir.Value | None, result: ir.Value, labels: Labels
    ) -> list[Term] | None:
        if value is None:
            return None
        below = operand_labels(self.site, value, result, labels)
        return None if below is None else self.sums(value, below)

    def _added(self, node: ir.Node, value: ir.Value, labels: Labels) -> list[Term] | None:
        terms: list[Term] = []
        for index, operand in enumerate(node.inputs):
            found = self._operand_sums(operand, value, labels)
            if found is None:
                return None
            sign = -1 if index and node.op_type == "Sub" else 1
            terms.extend((sign * first, second) for first, second in found)
        shape = channel_shape(self.site, value, labels)
        return None if shape is None else [_broadcast(term, shape) for term in terms]

    def _multiplied(self, node: ir.Node, value: ir.Value, labels: Labels) -> list[Term] | None:
        factors = [self._operand_atoms(operand, value, labels) for operand in node.inputs]
        first, second = factors
        if first is None or second is None:
            return None
        first, second = np.broadcast_arrays(first, second)
        sign = np.sign(first) * np.sign(second)
        first, second = np.abs(first), np.abs(second)
        is_one = first == ONE
        first, second = np.where(is_one, second, first), np.where(is_one, ONE, second)
        return [(sign * first, np.where(second == ONE, 0, second))]

    def _moved(self, step: Step) -> list[Term] | None:
        forms = [self.sums(value, labels) for value, labels in step.inputs]
        known = [form for form in forms if form is not None]
        if len(known) != len(forms):
            return None
        count = max(len(form) for form in known)
        full = [_padded(form, count) for form in known]
        return [
            (
                step.combine([form[i][0] for form in full]),
                step.combine([form[i][1] for form in full]),
            )
            for i in range(count)
        ]

    # ---- atoms -------------------------------------------------------------------------

    def _operand_atoms(
        self, value: ir.Value | None, result: ir.Value, labels: Labels
    ) -> Array | None:
        if value is None:
            return None
        below = operand_labels(self.site, value, result, labels)
        return None if below is None else self.atoms(value, below)

    def _read(self, value: ir.Value, labels: Labels) -> Array | None:
        shape = channel_shape(self.site, value, labels)
        if shape is None:
            return None
        self._visits += 1
        found = None
        if self.site.scope.is_constant(value):
            found = self._constant(value, labels)
        elif self._visits < VISIT_LIMIT:
            found = self._computed(value, labels)
        if found is not None and found.shape == shape:
            return found
        count = int(np.prod(shape, dtype=np.int64))
        if count > CHANNEL_LIMIT:
            return None
        first, self._count = self._count + 1, self._count + count
        return np.arange(first, first + count).reshape(shape)

    def _computed(self, value: ir.Value, labels: Labels) -> Array | None:
        node = value.producer()
        if node is None or node.domain != "":
            return None
        if node.op_type == "Neg":
            atoms = self._operand_atoms(node.inputs[0], value, labels)
            return None if atoms is None else -atoms
        step = structural_step(self.site, value, labels)
        if step is not None:
            return self._combined(step)
        made = None
        if self._depth < FUNCTION_LIMIT:
            made = functional_step(self.site, value, labels)
        if made is None:
            return None
        self._depth += 1
        arrays = [self.atoms(source, below) for source, below in made.inputs]
        self._depth -= 1
        known = [array for array in arrays if array is not None]
        if len(known) != len(arrays):
            return None
        shape = channel_shape(self.site, value, labels)
        return None if shape is None else self._applied(node.op_type, made.key, known, shape)

    def _combined(self, step: Step) -> Array | None:
        arrays = [self.atoms(value, labels) for value, labels in step.inputs]
        known = [array for array in arrays if array is not None]
        return step.combine(known) if len(known) == len(arrays) else None

    def _applied(
        self, op_type: str, key: Hashable, arrays: Sequence[Array], shape: tuple[int, ...]
    ) -> Array:
        """Return the atoms of a function of the operands' atoms."""
        if op_type == "Mul" and len(arrays) == 2:
            return self._product(key, arrays, shape)
        flat = [np.broadcast_to(array, shape).reshape(-1).tolist() for array in arrays]
        atoms = [self._atom((key, *operands)) for operands in zip(*flat, strict=True)]
        return np.array(atoms, np.int64).reshape(shape)

    def _product(self, key: Hashable, arrays: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """Return the atoms of a product; signs and ones are separated from the rest."""
        left, right = (np.broadcast_to(array, shape).reshape(-1) for array in arrays)
        sign = np.sign(left) * np.sign(right)
        atoms = []
        for first, second in zip(np.abs(left).tolist(), np.abs(right).tolist(), strict=True):
            if ONE in (first, second):
                atoms.append(second if first == ONE else first)
            else:
                atoms.append(self._atom((key, first, second)))
        return np.asarray(sign * np.array(atoms, np.int64)).reshape(shape)

    def _constant(self, value: ir.Value, labels: Labels) -> Array | None:
        axes = channel_axes(labels)
        columns = constant_columns(self.site, value, axes)
        shape = channel_shape(self.site, value, labels)
        if columns is None or shape is None:
            return None
        rest = tuple(label for i, label in enumerate(labels) if i not in axes)
        atoms = [
            sign * (ONE if key == b"" else self._atom(("constant", rest, key)))
            for sign, key in columns
        ]
        return np.array(atoms, np.int64).reshape(shape)

    def _atom(self, key: Hashable) -> int:
        found = self._atoms.get(key)
        if found is None:
            self._count += 1
            found = self._atoms[key] = self._count
        return found


def _is_table(site: Site, value: ir.Value | None, depth: int = 8) -> bool:
    """Say whether a value is made of cosines, sines and constants alone."""
    if value is None or site.scope.is_constant(value):
        return value is not None
    node = value.producer()
    if node is None or not depth:
        return False
    if node.op_type in ("Cos", "Sin"):
        return True
    if node.op_type in RULES or node.op_type in ("Cast", "Neg"):
        return _is_table(site, node.inputs[0], depth - 1)
    if node.op_type in ("Mul", "Add", "Sub", "Div"):
        return all(_is_table(site, source, depth - 1) for source in node.inputs)
    return False


def _broadcast(term: Term, shape: tuple[int, ...]) -> Term:
    return np.broadcast_to(term[0], shape), np.broadcast_to(term[1], shape)


def _padded(form: list[Term], count: int) -> list[Term]:
    nothing = np.zeros_like(form[0][0])
    return [*form, *[(nothing, nothing)] * (count - len(form))]


Columns: TypeAlias = list[tuple[int, bytes]]
_columns: WeakKeyDictionary[ir.Value, dict[tuple[int, ...], Columns]] = WeakKeyDictionary()


def constant_columns(site: Site, value: ir.Value, axes: Sequence[int]) -> Columns | None:
    """Return sign and data of a constant at each index of `axes`; the data of ones is empty.

    Tables are shared by all layers: what was read once is kept as long as the value lives.
    """
    known = _columns.setdefault(value, {})
    if tuple(axes) in known:
        return known[tuple(axes)]
    array = site.array(value, CONSTANT_LIMIT)
    if array is None or array.dtype.kind not in "fiu" or array.size == 0:
        return None
    front = np.moveaxis(array, axes, range(len(axes)))
    count = int(np.prod(front.shape[: len(axes)], dtype=np.int64))
    rows = np.ascontiguousarray(front.reshape(count, -1))
    leading = rows[np.arange(count), (rows != 0).argmax(axis=1)]
    signs = np.where(leading < 0, -1, 1).tolist()
    found: Columns = []
    for sign, row in zip(signs, rows, strict=True):
        # Minus zero is zero as a factor of a cosine table; other data are compared bit for bit.
        data = (-row if sign < 0 else row) + row.dtype.type(0)
        found.append((sign, b"" if (data == 1).all() else data.tobytes()))
    known[tuple(axes)] = found
    return found
