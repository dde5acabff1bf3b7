"""RNN, GRU and LSTM."""

from __future__ import annotations

from ortkit.graph.shapes.rules.call import Call, Rule, Shape, UnknownError
from ortkit.graph.symbolic.dims import Size


def _recurrent(call: Call) -> None:
    for index in range(call.outputs):
        call.out(index, dtype=call.dtype(0))
    data = call.shape(0)
    if len(data) != 3:
        raise UnknownError
    batch_first = call.integer("layout", 0) != 0
    steps, batch = (data[1], data[0]) if batch_first else (data[0], data[1])
    directions = 2 if call.string("direction", "forward") == "bidirectional" else 1
    hidden = _hidden_size(call)
    whole: Shape = (steps, directions, batch, hidden)
    last: Shape = (directions, batch, hidden)
    if batch_first:
        whole, last = (batch, steps, directions, hidden), (batch, directions, hidden)
    call.out(0, shape=whole)
    for index in range(1, call.outputs):
        call.out(index, shape=last)


def _hidden_size(call: Call) -> Size:
    attribute = call.attribute("hidden_size")
    if attribute is not None:
        return attribute.as_int()
    recurrence = call.fact(2).shape
    return call.fresh() if recurrence is None else recurrence[2]


RULES: dict[str, Rule] = {"RNN": _recurrent, "GRU": _recurrent, "LSTM": _recurrent}
