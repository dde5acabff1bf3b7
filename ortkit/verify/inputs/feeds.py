"""Input sets made from what a model says about its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.graph.analysis.weights import weights_of
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size, sole_atom
from ortkit.verify.inputs.caches import Cache, caches_of
from ortkit.verify.inputs.covering import Level, covering
from ortkit.verify.inputs.fixed_dims import demanded_sizes
from ortkit.verify.inputs.guards import guards_of, is_elementwise
from ortkit.verify.inputs.input_semantics import MASKS, InputUse, input_use
from ortkit.verify.inputs.plans import SPECIAL, STYLES, USUAL_STYLES, Plan, Style, styled, tamer
from ortkit.verify.inputs.relations import related_sizes, substituted
from ortkit.verify.inputs.sizes import (
    MAX_ELEMENTS,
    batch_names,
    by_axis_label,
    by_label,
    check_overrides,
    complete,
    concrete,
    covered_values,
    elements_of,
    fitted,
    free_inputs,
    length_names,
    size_plans,
    sizes_of,
)
from ortkit.verify.inputs.values import make_value

Value: TypeAlias = np.ndarray | list[np.ndarray] | None
"""A tensor, a sequence of tensors, or an optional that is absent."""
Feeds: TypeAlias = Mapping[str, Value]

_SEQUENCE_LENGTH = 3
#: A model with more bytes of weights computes 128 tokens in seconds.
_HEAVY_BYTES = 1 << 30
#: Sets of a covering design for a model without free sizes.
_LEAST_STYLES: Mapping[Level, int] = {"quick": 4, "full": 8}


@dataclass(frozen=True)
class FeedMaker:
    """Makes input sets for one model; build it with `FeedMaker.of`."""

    inputs: tuple[ir.Value, ...]
    shapes: tuple[tuple[Size, ...], ...]
    """Shapes of the inputs over their free sizes, those that follow from others worked in."""
    uses: tuple[InputUse, ...]
    fixed: Mapping[str, int]
    related: Mapping[str, Size] = field(default_factory=dict)
    """Sizes that follow from others."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Sizes that are known to be at most so large."""
    caches: tuple[Cache, ...] = ()
    guards: tuple[tuple[float, ...], ...] = ()
    """By input, the numbers that the model compares its elements with."""
    is_elementwise: bool = False
    is_heavy: bool = False
    """Whether its weights are so large that long inputs take seconds."""

    @staticmethod
    def of(model: ir.Model, shapes: Mapping[str, int]) -> FeedMaker:
        """Read a model's inputs.

        Raises:
            UserError: `shapes` names a size that no input has.
            ModelError: An input's type or rank makes it impossible to feed.
        """
        inputs = free_inputs(model)
        for value in inputs:
            _check_type(value)
        sizes = tuple(_sizes(value) for value in inputs)
        shapes = by_label(inputs, shapes)
        check_overrides(sizes, shapes)
        guards = tuple(guards_of(value, model) for value in inputs)
        uses = tuple(input_use(value, model) for value in inputs)
        rest = (guards, is_elementwise(model), weights_of(model).bytes > _HEAVY_BYTES)
        if all(isinstance(size, int) for shape in sizes for size in shape):
            return FeedMaker(inputs, sizes, uses, shapes, {}, {}, (), *rest)
        known = Shapes.infer(model)
        fixed = {**demanded_sizes(model, known), **shapes}
        masks = [v for v, use in zip(inputs, uses, strict=True) if use.meaning in MASKS]
        relations = related_sizes(model, known, inputs, sizes, fixed, masks)
        related = by_axis_label(sizes, relations.sizes, fixed)
        sizes = tuple(tuple(substituted(size, related) for size in each) for each in sizes)
        caches = tuple(
            each.over(lambda size: substituted(size, related, relations.unnamed))
            for each in caches_of(model, known)
        )
        return FeedMaker(inputs, sizes, uses, fixed, related, relations.limits, caches, *rest)

    def plans(self, samples: int, seed: int) -> tuple[Plan, ...]:
        """Plan `samples` random sets over which every dynamic size takes two values."""
        plans, _ = size_plans(self.shapes, samples, self.fixed)
        return tuple(Plan(self._accepted(sizes, i), seed + i) for i, sizes in enumerate(plans))

    def first(self, samples: int, seed: int) -> tuple[Feeds, ...]:
        """Make `samples` input sets over which every dynamic size takes two values."""
        return tuple(self.make(plan) for plan in self.plans(samples, seed))

    def sized(self, sizes: Mapping[str, int]) -> Plan:
        """Plan a set of these sizes, and others where the model is known to refuse them.

        Args:
            sizes: By name; a free size that is not in it gets its usual number.
        """
        plans, _ = size_plans(self.shapes, 1, {**sizes, **self.fixed})
        return Plan(self._fitted(plans[0], 0), 0)

    @property
    def pasts(self) -> frozenset[str]:
        """The names of the free sizes that are lengths of caches."""
        atoms = (sole_atom(cache.past) for cache in self.caches)
        return frozenset(atom.label for atom in atoms if atom is not None)

    @property
    def lengths(self) -> frozenset[str]:
        """The names of the free sizes that are lengths of sequences."""
        return length_names(self.shapes) - self.fixed.keys() - self.related.keys()

    @property
    def batches(self) -> frozenset[str]:
        """The names of the free sizes that are batches."""
        return batch_names(self.shapes) - self.fixed.keys() - self.related.keys()

    def with_batch(self, plan: Plan, rows: int) -> Plan:
        """Return a plan with another batch, or less where its inputs would be large."""
        sizes = {**plan.sizes, **dict.fromkeys(self.batches, rows)}
        return replace(plan, sizes=self._fitted(sizes, 0))

    def covering(self, level: Level, seed: int, *, is_usual: bool = False) -> tuple[Plan, ...]:
        """Plan the sets of a covering design: sizes, values, masks of all kinds.

        Args:
            level: How much is covered.
            seed: Seeds the random numbers.
            is_usual: Whether all numbers are usual ones.
        """
        styles: tuple[Style, ...] = USUAL_STYLES if is_usual else STYLES
        if not any(use.takes_negative for use in self.uses):
            styles = tuple(replace(each, backwards=False) for each in styles)
        kinds = dict.fromkeys(self.pasts, "past")
        values = covered_values(self.shapes, self.fixed, kinds, is_heavy=self.is_heavy)
        chosen = covering(values, level)
        # Where no size is free the sets differ in their values alone.
        least = _LEAST_STYLES[level]
        sizes = [chosen[i % len(chosen)] for i in range(max(least, len(chosen)))]
        plans = [
            styled(Plan(self._fitted(each, i), seed + i), styles[i % len(styles)])
            for i, each in enumerate(sizes)
        ]
        if self.is_elementwise and not is_usual:
            plans.append(styled(Plan(plans[1].sizes, seed + len(plans)), SPECIAL))
        return tuple(plans)

    def tamed(self, plan: Plan) -> Iterator[Plan]:
        """Plan sets in place of one that the model refuses, the most similar first."""
        free = {name: size for name, size in plan.sizes.items() if name not in self.related}
        for number, each in enumerate(tamer(replace(plan, sizes=free), batch_names(self.shapes))):
            yield replace(each, sizes=self._fitted(each.sizes, number))

    def fallback_plans(self, seed: int) -> Iterator[Plan]:
        """Plan more sets, for a model that refuses the first: other sizes, tame ids."""
        _, plans = size_plans(self.shapes, 2, self.fixed)
        for bound in (10, 2, 1):
            for i, sizes in enumerate(plans):
                yield Plan(self._accepted(sizes, i), seed + i, bound)

    def fallbacks(self, seed: int) -> Iterator[Feeds]:
        """Make the sets of `fallback_plans`."""
        for plan in self.fallback_plans(seed):
            try:
                yield self.make(plan)
            except ModelError:  # too large, or a size such as `seq - 8` came out negative
                continue

    def completed(self, plan: Plan) -> Plan:
        """Add the sizes that follow from others, and how long the caches are."""
        found = {name: concrete(size, plan.sizes) for name, size in self.related.items()}
        sizes = {**plan.sizes, **{n: size for n, size in found.items() if size is not None}}
        past, new = (
            max((n for size in each if (n := concrete(size, sizes)) is not None), default=None)
            for each in ([c.past for c in self.caches], [c.new for c in self.caches])
        )
        return replace(plan, sizes=sizes, past=past, new=new)

    def _fitted(self, sizes: Mapping[str, int], number: int) -> Mapping[str, int]:
        whole = complete({**sizes}, self.fixed)
        return self._accepted(fitted(whole, self.shapes, self.fixed), number)

    def _accepted(self, sizes: Mapping[str, int], number: int) -> Mapping[str, int]:
        """Change sizes that the model is known to refuse.

        GroupQueryAttention takes several new tokens only without a past, or for a batch of one.
        In turn one token is new, the batch is one, or the past is left out.
        """
        sizes = {
            name: size if name in self.fixed else min(size, self.limits.get(name, size))
            for name, size in sizes.items()
        }
        grouped = next((cache for cache in self.caches if cache.is_grouped), None)
        if grouped is None:
            return sizes
        names = {
            part: atom.label
            for part in ("past", "new", "batch")
            if (atom := sole_atom(getattr(grouped, part))) is not None
            and atom.label in sizes.keys() - self.fixed.keys()
        }
        for part, size in (("past", 0), ("new", 1), ("batch", 1)):
            if concrete(getattr(grouped, part), sizes) == size:
                return sizes
        turns = [("new", 1), ("batch", 1), ("past", 0)]
        turns = [turn for turn in turns if turn[0] in names]
        if not turns:
            return sizes
        part, size = turns[number % len(turns)]
        return {**sizes, names[part]: size}

    def make(self, plan: Plan) -> Feeds:
        """Make one input set.

        Raises:
            ModelError: A size cannot be worked out, or the inputs are too large.
        """
        plan = self.completed(plan)
        self._check_total(plan)
        guards = self.guards or ((),) * len(self.inputs)
        parts = zip(self.inputs, self.shapes, self.uses, guards, strict=True)
        return {
            value.name or "": self._value(value, shape, use, numbers, plan)
            for value, shape, use, numbers in parts
        }

    def _check_total(self, plan: Plan) -> None:
        """Check that the inputs may be made up; a model declares their sizes at no cost."""
        total = elements_of(self.shapes, plan.sizes)
        if total <= MAX_ELEMENTS:
            return
        counts = [elements_of([shape], plan.sizes) for shape in self.shapes]
        largest = counts.index(max(counts))
        shape = _numbers(self.inputs[largest].name or "", self.shapes[largest], plan.sizes)
        name = self.inputs[largest].name
        raise ModelError(
            f"input {name!r} of shape {list(shape)} is too large to be made up:"
            f" all inputs may have {MAX_ELEMENTS:,} elements",
            fix="give --inputs FILE.npz, or --shape NAME=SIZE",
        )

    def _value(
        self,
        value: ir.Value,
        shape: tuple[Size, ...],
        use: InputUse,
        guards: tuple[float, ...],
        plan: Plan,
    ) -> Value:
        kind = value.type
        name = value.name or ""
        if isinstance(kind, ir.OptionalType):
            if plan.seed % 2:
                return None
            kind = kind.elem_type
        numbers = _numbers(name, shape, plan.sizes)
        dtype = value.dtype or ir.DataType.FLOAT
        if isinstance(kind, ir.SequenceType):
            parts = range(_SEQUENCE_LENGTH)
            return [make_value(use, dtype, numbers, plan, f"{name}{i}", guards) for i in parts]
        return make_value(use, dtype, numbers, plan, name, guards)


def make_feeds(
    model: ir.Model, samples: int, shapes: Mapping[str, int] | None = None, seed: int = 0
) -> tuple[Feeds, ...]:
    """Make input sets from the types, names, uses and sizes of a model's inputs.

    Args:
        model: Read, not changed.
        samples: How many sets; over two or more every dynamic size takes two values.
        shapes: Sizes that the user has set, by the size's name.
        seed: Seeds the random numbers.

    Raises:
        UserError: `shapes` names a size that no input has.
        ModelError: An input's type or rank makes it impossible to feed.
    """
    return FeedMaker.of(model, shapes or {}).first(samples, seed)


def _check_type(value: ir.Value) -> None:
    if isinstance(value.type, ir.SparseTensorType):
        raise ModelError(
            f"input {value.name!r} is a sparse tensor, which cannot be fed",
            fix="export the model with a dense input",
        )
    if value.dtype is None or value.dtype == ir.DataType.UNDEFINED:
        raise ModelError(
            f"the type of input {value.name!r} is not known",
            fix="export the model with the types of its inputs",
        )


def _sizes(value: ir.Value) -> tuple[Size, ...]:
    """Return an input's shape; parts of a sequence whose shape is open get one."""
    is_tensor = isinstance(value.type, ir.TensorType)
    return (3, 4) if value.shape is None and not is_tensor else sizes_of(value)


def _numbers(name: str, shape: tuple[Size, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    numbers = [concrete(size, sizes) for size in shape]
    if any(number is None for number in numbers):
        text = ", ".join(str(size) for size in shape)
        raise ModelError(
            f"input {name!r} has no possible size for [{text}]",
            fix="give --shape NAME=SIZE or --inputs FILE.npz",
        )
    return tuple(number for number in numbers if number is not None)
