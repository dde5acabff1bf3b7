"""Values at the wrong place, of the wrong reduction, or in a type that is too narrow."""

from __future__ import annotations

from mutants.draft import Rng, Site
from mutants.kinds import Catalog
from mutants.operators import replaced

CATALOG = Catalog()
fault = CATALOG.fault


@fault("order of Concat", "Concat")
def _order(site: Site, rng: Rng) -> bool:
    inputs = list(site.node.input)
    del site.node.input[:]
    site.node.input.extend(inputs[::-1])
    return len(set(inputs)) > 1


@fault("parts of Split swapped", "Split")
def _parts(site: Site, rng: Rng) -> bool:
    if len(site.node.output) < 2:
        return False
    first, second = site.node.output[:2]
    for node in site.holder.node:
        for at, name in enumerate(node.input):
            if name in (first, second):
                node.input[at] = second if name == first else first
    return True


@fault("Slice off by one", "Slice")
def _slice(site: Site, rng: Rng) -> bool:
    starts = site.array(1)
    if starts is None:
        return False
    site.set_array(1, starts - 1 if (starts > 0).all() else starts + 1)
    return True


@fault("indices off by one", "Gather")
def _indices(site: Site, rng: Rng) -> bool:
    moved = site.array(1)
    if moved is not None:
        if not (moved > 0).all():
            return False
        site.set_array(1, moved - 1)
        return True
    one = site.before("CastLike", site.numbers(1), site.node.input[1])
    zero = site.before("CastLike", site.numbers(0), site.node.input[1])
    less = site.before("Sub", site.node.input[1], site.before("Squeeze", one))
    site.node.input[1] = site.before("Max", less, site.before("Squeeze", zero))
    return True


@fault("positions start at one", "Range")
def _range(site: Site, rng: Rng) -> bool:
    def more(end: Site, good: str) -> str:
        one = end.before("CastLike", end.before("Squeeze", end.numbers(1)), good)
        return end.before("Add", good, one)

    site.after(more)
    return True


@fault("mean for sum", "ReduceSum")
def _mean(site: Site, rng: Rng) -> bool:
    site.node.op_type = "ReduceMean"
    return True


@fault("sum for mean", "ReduceMean")
def _sum(site: Site, rng: Rng) -> bool:
    site.node.op_type = "ReduceSum"
    return True


@fault("maximum for mean", "ReduceMean", "GlobalAveragePool")
def _maximum(site: Site, rng: Rng) -> bool:
    site.node.op_type = "ReduceMax" if site.op == "ReduceMean" else "GlobalMaxPool"
    return True


@fault("maximum for average", "AveragePool")
def _max_pool(site: Site, rng: Rng) -> bool:
    kept = [each for each in site.node.attribute if each.name != "count_include_pad"]
    site.node.op_type = "MaxPool"
    del site.node.attribute[:]
    site.node.attribute.extend(kept)
    return True


@fault("value of another node", "Add", "Mul", "MatMul", "Sub", "Div")
def _stale(site: Site, rng: Rng) -> bool:
    """Read what an earlier node of the same operator gives: a buffer that is used twice."""
    earlier = []
    for node in site.holder.node:
        if node.output[0] == site.node.output[0]:
            break
        if node.op_type == site.op:
            earlier.append(node.output[0])
    values = [name for name in earlier if name not in site.node.input]
    if not values or site.array(0) is not None:
        return False
    site.node.input[0] = values[int(rng.integers(len(values)))]
    return True


def _through(kind: int):
    def plant(site: Site, rng: Rng) -> bool:
        def narrow(end: Site, good: str) -> str:
            low = end.before("Cast", good, to=kind)
            return end.before("CastLike", low, good)

        site.after(narrow)
        return True

    return plant


_FLOATS = ("MatMul", "Gemm", "Conv", "LayerNormalization", "Mul", "Sqrt", "Softmax", "ReduceMean")
fault("rounded to float16", *_FLOATS)(_through(10))
fault("rounded to bfloat16", *_FLOATS)(_through(16))
fault("Cast to an integer dropped", "Floor", "Ceil", "Round")(replaced("Identity"))


@fault("one in a thousand too large", "MatMul", "Gemm", "Conv", "Softmax", "Attention")
def _thousandth(site: Site, rng: Rng) -> bool:
    site.after(lambda end, good: end.before("Mul", good, end.like(1.001, good)))
    return True


@fault("one percent too large", "MatMul", "Gemm", "Conv", "Softmax", "Attention", "Gelu")
def _percent(site: Site, rng: Rng) -> bool:
    site.after(lambda end, good: end.before("Mul", good, end.like(1.01, good)))
    return True


@fault("rows reversed", "Softmax", "LayerNormalization", "Relu", "Gelu", "Clip")
def _reversed(site: Site, rng: Rng) -> bool:
    def backwards(end: Site, good: str) -> str:
        ends = [end.numbers(number) for number in (-1, -(1 << 40), -1, -1)]
        return end.before("Slice", good, *ends)

    site.after(backwards)
    return True


@fault("shifted by one element", "Add", "Mul", "MatMul", "Relu", "Concat")
def _rolled(site: Site, rng: Rng) -> bool:
    def rolled(end: Site, good: str) -> str:
        axis = end.numbers(-1)
        first = end.before("Slice", good, end.numbers(0), end.numbers(1), axis)
        rest = end.before("Slice", good, end.numbers(1), end.numbers(1 << 40), axis)
        return end.before("Concat", rest, first, axis=-1)

    site.after(rolled)
    return True
