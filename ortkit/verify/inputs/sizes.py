"""Numbers for free sizes: usual ones, those of a covering design, and others to fall back on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import onnx_ir as ir

from ortkit.errors import ModelError, UserError
from ortkit.graph.shapes.fixed import label_of
from ortkit.graph.symbolic.dims import Atom, Dim, Size, names, replace_atoms, substitute
from ortkit.graph.symbolic.text import parse_size

#: What a size's name says about it: the first row whose pattern is found in the name decides.
_BY_NAME: tuple[tuple[str, str], ...] = (
    (r"batch|^(b|n|bs|bsz)$", "batch"),
    (r"past|cache|kv_len", "past"),
    (r"height|width|^(h|w)$", "image"),
    (r"audio|sample|wave", "audio"),
    (r"frame|mel|feature", "frame"),
    (r"channel|^c$", "channel"),
    (r"head", "head"),
    (r"box|anchor|proposal|detection", "box"),
    (r"seq|len|token|time|step|^(s|t|l)$", "length"),
)
#: Two usual numbers of each kind. A batch of two comes first, as it shows more than one of one.
_USUAL = {
    "batch": (2, 1), "past": (5, 12), "image": (64, 96), "audio": (1600, 3200),
    "frame": (32, 64), "channel": (3, 3), "head": (4, 2), "box": (9, 20), "length": (7, 16),
}  # fmt: skip
#: Numbers of a covering design: odd, beyond a tile of 32, beyond 128, one; then others.
_COVERED = {
    "batch": (2, 3, 1, 3, 5), "past": (5, 0, 33, 12, 1, 130), "image": (64, 96, 67, 160, 33),
    "audio": (1600, 3200, 1601, 4801), "frame": (32, 64, 131, 33, 7, 1), "channel": (3,),
    "head": (4, 2), "box": (9, 33, 131, 1, 20, 2), "length": (7, 33, 131, 1, 16, 2, 3),
}  # fmt: skip
#: The largest of the lengths.
LONGEST = max(_COVERED["length"])
#: Where the weights are so large that a long input takes seconds, lengths stay below this.
_LONG = 64
#: Tried when the first sizes do not run: powers of two for windows and patches, then little.
_FALLBACKS = (32, 8, 64, 4, 2, 1, 16, 128, 224)


#: Elements of all inputs together that free sizes aim at: 32 MiB of float32, half as many for each
#: free size behind the fourth, down to 1 MiB. Many free sizes are thus small ones.
AIMED_ELEMENTS = 1 << 23
_LEAST_AIMED = 1 << 18
_USUAL_NAMES = 4
#: Elements of all inputs together that are made up at all: 2 GiB of float32.
MAX_ELEMENTS = 1 << 29


def free_inputs(model: ir.Model) -> tuple[ir.Value, ...]:
    """Return the graph inputs that must be fed: those without a default."""
    defaults = model.graph.initializers
    return tuple(v for v in model.graph.inputs if v.name not in defaults)


#: Begins the name of a size that the model gives none: its place, and for now its input.
UNNAMED = "?"
_OF_INPUT = " of "


def sizes_of(value: ir.Value) -> tuple[Size, ...]:
    """Return an input's shape; sizes without a name get one, the first axis that of the batch.

    Others get names of their own: see `by_axis_label`.

    Raises:
        ModelError: Nothing is said about the input's shape.
    """
    if value.shape is None:
        raise ModelError(
            f"the rank of input {value.name!r} is not known", fix="give --inputs FILE.npz"
        )
    rank = len(value.shape)
    name = value.name or ""
    return tuple(_size(dim, axis, rank, name) for axis, dim in enumerate(value.shape))


def _size(dim: int | ir.SymbolicDim, axis: int, rank: int, name: str) -> Size:
    if isinstance(dim, int):
        return dim
    size = parse_size(dim.value) if dim.value else 0
    if isinstance(size, Dim):  # a name that is written as a number says nothing
        return size
    if axis == 0:
        return Dim.named(f"{UNNAMED}batch")
    return Dim.named(f"{UNNAMED}axis{axis}of{rank}{_OF_INPUT}{name}")


def by_label(inputs: Iterable[ir.Value], given: Mapping[str, int]) -> Mapping[str, int]:
    """Return numbers with places such as `pixels[2]` replaced by what `sizes_of` calls them.

    Args:
        inputs: Of the model.
        given: By the name of a size; by `label_of` its input where it has none.
    """
    labels = {
        label_of(value, axis): label
        for value in inputs
        if value.shape is not None and any(name.endswith("]") for name in given)
        for axis, size in enumerate(sizes_of(value))
        for label in (names(size) if not isinstance(value.shape[axis], int) else ())
        if label.startswith(UNNAMED)
    }
    return {labels.get(name, name): number for name, number in given.items()}


def by_axis_label(
    shapes: Iterable[tuple[Size, ...]], related: Mapping[str, Size], fixed: Mapping[str, int]
) -> Mapping[str, Size]:
    """Let sizes without a name that follow from nothing be equal where they stand alike.

    Args:
        shapes: Shapes of the inputs.
        related: By name, the sizes that follow from others.
        fixed: Sizes with a number.

    Returns:
        `related` and what such sizes are.
    """
    axes: dict[str, Size] = {
        name: Dim.named(name.partition(_OF_INPUT)[0])
        for name in _all_names(shapes)
        if name.startswith(UNNAMED) and _OF_INPUT in name
        if name not in related and name not in fixed
    }

    def label(atom: Atom) -> Size | None:
        return axes.get(atom.label) if atom.kind == "name" else None

    return {**{name: replace_atoms(size, label) for name, size in related.items()}, **axes}


def concrete(size: Size, numbers: Mapping[str, int]) -> int | None:
    """Work a size out; None where a name has no number or the result is negative."""
    result = substitute(size, dict(numbers))
    return result if isinstance(result, int) and result >= 0 else None


def size_plans(
    shapes: Sequence[tuple[Size, ...]], samples: int, fixed: Mapping[str, int]
) -> tuple[tuple[dict[str, int], ...], tuple[dict[str, int], ...]]:
    """Choose numbers for every named size in the inputs' `shapes`.

    Returns:
        One choice per sample, in which each size takes two values over the samples; then more
        choices, to be tried when a model does not run with those.
    """
    pairs = {name: _USUAL[_kind(name, shapes)] for name in _all_names(shapes)}
    first, second = ({n: pair[i] for n, pair in pairs.items()} for i in (0, 1))
    rest = [{n: second[n] if "?" in n or _is_batch(n) else first[n] for n in pairs}]
    rest += [{n: min(k, first[n]) if _is_batch(n) else k for n in pairs} for k in _FALLBACKS]
    rest += [dict.fromkeys(pairs, k) for k in _FALLBACKS]
    rest.append({n: 1 if _is_batch(n) else second[n] for n in pairs})
    plans = [fitted(complete(plan, fixed), shapes, fixed) for plan in (first, second, *rest)]
    unique = [plan for i, plan in enumerate(plans) if plan not in plans[:i]]
    wanted = tuple(plans[i % 2] for i in range(samples))
    return wanted, tuple(unique)


def fitted(
    plan: Mapping[str, int], shapes: Sequence[tuple[Size, ...]], fixed: Mapping[str, int]
) -> dict[str, int]:
    """Halve sizes that are not `fixed` until the inputs hold no more than is aimed at."""
    result = dict(plan)
    more = max(0, len(plan.keys() - fixed.keys()) - _USUAL_NAMES)
    aimed = max(_LEAST_AIMED, AIMED_ELEMENTS >> more)
    free = {name for name in plan if name not in fixed}
    left = list(shapes)
    while sum(counts := [elements_of([shape], result) for shape in left]) > aimed:
        largest = left[counts.index(max(counts))]
        given = {name for size in largest for name in names(size)} & free
        name = max(given, key=lambda each: (result[each], each), default="")
        if not name or result[name] <= 1:
            left.remove(largest)  # nothing more can be done about it
            continue
        halved = complete({**result, name: result[name] // 2}, fixed)
        if halved[name] >= result[name]:  # it follows from other sizes
            free.discard(name)
        result = halved
    return result


def elements_of(shapes: Iterable[tuple[Size, ...]], numbers: Mapping[str, int]) -> int:
    """Return how many elements tensors of these shapes hold; shapes without a number hold none.

    An axis of no elements counts as one of one: numpy multiplies the others all the same.
    """
    known = ([concrete(size, numbers) for size in shape] for shape in shapes)
    return sum(prod(size or 1 for size in sizes) for sizes in known if None not in sizes)


def check_overrides(shapes: Iterable[tuple[Size, ...]], fixed: Mapping[str, int]) -> None:
    """Refuse `--shape NAME=SIZE` for names that no input has.

    Raises:
        UserError: A name is unknown, or a size is negative.
    """
    all_names = _all_names(shapes)
    known = [name for name in all_names if not name.startswith(UNNAMED)]
    for name, size in fixed.items():
        if size < 0:
            raise UserError(f"size {size} is negative", where=f"--shape {name}={size}")
        if name in all_names:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        listed = f"choose one of {', '.join(known)}" if known else "leave --shape out"
        raise UserError(
            f"no input has a size named {name!r}",
            where=f"--shape {name}={size}",
            fix=f"did you mean {near[0]}" if near else listed,
        )


def _all_names(shapes: Iterable[tuple[Size, ...]]) -> list[str]:
    found: dict[str, None] = {}
    for shape in shapes:
        for size in shape:
            found.update(dict.fromkeys(sorted(names(size))))
    return list(found)


def batch_names(shapes: Sequence[tuple[Size, ...]]) -> frozenset[str]:
    """Return the names of the batches' sizes."""
    return frozenset(name for name in _all_names(shapes) if _kind(name, shapes) == "batch")


def length_names(shapes: Sequence[tuple[Size, ...]]) -> frozenset[str]:
    """Return the names of the lengths of sequences."""
    return frozenset(name for name in _all_names(shapes) if _kind(name, shapes) == "length")


def _is_batch(name: str) -> bool:
    return re.search(_BY_NAME[0][0], name.lower()) is not None


def covered_values(
    shapes: Sequence[tuple[Size, ...]],
    fixed: Mapping[str, int],
    kinds: Mapping[str, str],
    *,
    is_heavy: bool,
) -> dict[str, tuple[int, ...]]:
    """Return the numbers that a covering design gives each free size.

    Args:
        shapes: Shapes of the inputs.
        fixed: Numbers that sizes have; they are not free.
        kinds: By name, a kind that the graph tells.
        is_heavy: Whether long inputs take seconds, so that they are left out.
    """
    found: dict[str, tuple[int, ...]] = {}
    axes: dict[str, int] = {}
    for name in _all_names(shapes):
        if name in fixed:
            continue
        kind = kinds.get(name) or _kind(name, shapes)
        numbers = _COVERED[kind]
        if is_heavy and kind in ("length", "past", "box"):
            numbers = tuple(dict.fromkeys(n if n < _LONG else 17 for n in numbers))
        # Several sizes of one kind start at different numbers, so that they differ.
        start = axes.get(kind, 0) % len(numbers)
        axes[kind] = start + 1
        found[name] = numbers[start:] + numbers[:start] if kind != "batch" else numbers
    return found


def _kind(name: str, shapes: Sequence[tuple[Size, ...]]) -> str:
    """Return the kind of a size, by what its name says or by the axis where it stands."""
    size = Dim.named(name)
    axes = [(i, shape) for shape in shapes for i, each in enumerate(shape) if each == size]
    is_first = not axes or any(axis == 0 for axis, _ in axes)
    for pattern, kind in _BY_NAME:
        # A letter alone is no batch where it stands behind the first axis.
        if re.search(pattern, name.lower()) and (kind != "batch" or len(name) > 1 or is_first):
            return kind
    if any(_is_image_axis(axis, shape) for axis, shape in axes):
        return "image"
    if any(axis == len(shape) - 2 and axis and shape[-1] == 4 for axis, shape in axes):
        return "box"
    is_batch = bool(axes) and all(axis == 0 and len(shape) > 1 for axis, shape in axes)
    return "batch" if is_batch else "length"


def _is_image_axis(axis: int, shape: tuple[Size, ...]) -> bool:
    """Say whether `axis` is a side of an image: channels first or last, both sides dynamic."""
    if len(shape) != 4 or not isinstance(shape[axis], Dim):
        return False
    sides, channels = ((2, 3), shape[1]) if isinstance(shape[1], int) else ((1, 2), shape[3])
    are_open = all(isinstance(shape[i], Dim) for i in sides)
    return axis in sides and are_open and isinstance(channels, int)


def complete(plan: dict[str, int], fixed: Mapping[str, int]) -> dict[str, int]:
    """Apply the user's sizes, then make a total length the sum of the past and the new one."""
    plan = {**plan, **fixed}
    past = [n for n in plan if "past" in n.lower() and "total" not in n.lower()]
    new = [n for n in plan if re.search(r"seq|len|token", n.lower()) and n not in past]
    totals = [n for n in new if "total" in n.lower() and n not in fixed]
    new = [n for n in new if "total" not in n.lower()]
    for total in totals:
        if len(past) == 1 and len(new) == 1:
            plan[total] = plan[past[0]] + plan[new[0]]
    return plan
