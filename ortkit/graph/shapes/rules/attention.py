"""Attention and rotary embedding of the default domain."""

from __future__ import annotations

from ortkit.graph.shapes.rules.call import Call, Rule, Shape, UnknownError
from ortkit.graph.shapes.rules.elementwise import same
from ortkit.graph.symbolic.dims import Size, add, floor_divide, multiply


def _heads_of(call: Call, index: int, name: str) -> Shape:
    """Return an input's shape as [batch, heads, length, width], whatever its rank."""
    shape = call.shape(index)
    if len(shape) == 4:
        return shape
    heads = call.integer(name, 0)
    if len(shape) != 3 or heads <= 0:
        raise UnknownError
    # A width that the heads do not divide fails at run time.
    return (shape[0], heads, shape[1], floor_divide(shape[2], heads))


def _attention(call: Call) -> None:
    for index in range(call.outputs):
        call.out(index, dtype=call.dtype(0))
    call.out(1, dtype=call.dtype(1))
    call.out(2, dtype=call.dtype(2))
    query = _heads_of(call, 0, "q_num_heads")
    key = _heads_of(call, 1, "kv_num_heads")
    value = _heads_of(call, 2, "kv_num_heads")
    if len(call.shape(0)) == 4:
        call.out(0, shape=(*query[:3], value[3]))
    else:
        call.out(0, shape=(query[0], query[2], multiply(query[1], value[3])))
    total = _total_length(call, key[2])
    call.out(1, shape=(key[0], key[1], total, key[3]))
    call.out(2, shape=(value[0], value[1], total, value[3]))
    call.out(3, shape=(*query[:3], total))


def _total_length(call: Call, length: Size) -> Size:
    if not call.has(4):
        return length
    past = call.fact(4).shape
    return call.fresh() if past is None else add(past[2], length)


RULES: dict[str, Rule] = {"Attention": _attention, "RotaryEmbedding": same}
