"""Which functions of a model call which, and what inlining would make of them, without inlining.

A file of 1 kB can hold functions that each call the next twice. Inlining n of them makes 2^n
nodes, here and in ONNX Runtime while it creates a session. So the nodes are counted first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ortkit.errors import ModelError
from ortkit.graph.check.graph_facts import FunctionFacts, FunctionId, GraphFacts, ModelFacts

#: Nodes of a model whose functions are inlined. Language and diffusion models that are exported
#: with functions have up to some 20,000. Inlining takes 0.3 ms a node (onnx-ir 1.1.0, 2026-11).
MAX_INLINED_NODES = 65_536
#: Functions that call each other in a row. ONNX Runtime 1.31.1 runs 1,000 and crashes at 5,000.
MAX_CALL_DEPTH = 200
#: Graphs inside each other: each takes 3 of the 100 levels that protobuf reads.
MAX_GRAPH_DEPTH = 32

_FIX = "do not use this file, or export the model without functions"


@dataclass(frozen=True)
class _Size:
    """What a body is once its calls are inlined."""

    nodes: int
    calls: int
    """Calls in a row."""
    graphs: int
    """Graphs inside each other."""


def check_calls(model: ModelFacts, where: str) -> None:
    """Check that the calls of a model's functions end, and that their inlining is of bounded size.

    Raises:
        ModelError: A function calls itself, or inlining makes more nodes or levels than the limits
            of this module; the message names the function.
    """
    functions = {function.id: function for function in model.functions}
    if not functions:
        return
    sizes: dict[FunctionId, _Size] = {}
    for key in _callees_first(functions, where):
        sizes[key] = size = _size(functions[key].body, sizes)
        _check_depth(functions[key], size, where)
    total = _size(model.graph, sizes)
    if total.graphs > MAX_GRAPH_DEPTH:
        raise _refused(f"inlining nests {total.graphs} graphs, more than {MAX_GRAPH_DEPTH}", where)
    # A function that is never called is inlined into all the same.
    reached = _reached(model.graph, functions)
    nodes = total.nodes + sum(size.nodes for key, size in sizes.items() if key not in reached)
    if nodes > MAX_INLINED_NODES:
        _, name, _ = largest = max(sizes, key=lambda key: sizes[key].nodes)
        raise _refused(
            f"inlining makes {_text(nodes)} nodes, more than {MAX_INLINED_NODES:,}:"
            f" function {name!r} alone becomes {_text(sizes[largest].nodes)}",
            where,
        )


def _check_depth(function: FunctionFacts, size: _Size, where: str) -> None:
    if size.calls >= MAX_CALL_DEPTH:
        raise _refused(
            f"function {function.name!r} nests {size.calls + 1} calls, more than {MAX_CALL_DEPTH}",
            where,
        )
    if size.graphs > MAX_GRAPH_DEPTH:
        raise _refused(
            f"function {function.name!r} nests {size.graphs} graphs with those of its calls,"
            f" more than {MAX_GRAPH_DEPTH}",
            where,
        )


def _size(body: GraphFacts, sizes: Mapping[FunctionId, _Size]) -> _Size:
    """Measure a body; `sizes` holds what it calls."""
    nodes = calls = depth = 0
    for key, count, level in _calls_at(body):
        called = sizes.get(key)
        nodes += count * (1 if called is None else 1 + called.nodes)
        depth = max(depth, level)
        if called is not None:
            calls = max(calls, 1 + called.calls)
            depth = max(depth, level + called.graphs)
    return _Size(nodes, calls, depth)


def _calls_at(graph: GraphFacts) -> Iterator[tuple[FunctionId, int, int]]:
    """Yield each operator with the number of its nodes and how many graphs are around them."""
    counts: Counter[tuple[FunctionId, int]] = Counter()
    waiting = [(graph, 0)]
    while waiting:
        body, level = waiting.pop()
        for node in body.nodes:
            counts[(node.domain, node.op_type, node.overload), level] += 1
            waiting.extend((inner, level + 1) for inner in node.graphs)
    for (key, level), count in counts.items():
        yield key, count, level


def _callees_first(
    functions: Mapping[FunctionId, FunctionFacts], where: str
) -> Iterator[FunctionId]:
    """Yield each function after those that it calls."""
    calls = {key: _called(function.body, functions) for key, function in functions.items()}
    finished: set[FunctionId] = set()
    for start in calls:
        path: list[tuple[FunctionId, Iterator[FunctionId]]] = [(start, iter(calls[start]))]
        active = {start}
        while path and start not in finished:
            current, rest = path[-1]
            called = next((call for call in rest if call not in finished), None)
            if called is None:
                finished.add(current)
                active.discard(current)
                path.pop()
                yield current
            elif called in active:
                raise ModelError(
                    f"function {called[1]!r} of domain {called[0]!r} calls itself",
                    where=where,
                    fix="export the model again",
                )
            else:
                active.add(called)
                path.append((called, iter(calls[called])))


def _called(
    body: GraphFacts, functions: Mapping[FunctionId, FunctionFacts]
) -> dict[FunctionId, None]:
    """Return the functions that a body calls, in its order."""
    return {key: None for key, _, _ in _calls_at(body) if key in functions}


def _reached(graph: GraphFacts, functions: Mapping[FunctionId, FunctionFacts]) -> set[FunctionId]:
    waiting = list(_called(graph, functions))
    reached: set[FunctionId] = set()
    while waiting:
        key = waiting.pop()
        if key not in reached:
            reached.add(key)
            waiting.extend(_called(functions[key].body, functions))
    return reached


def _text(count: int) -> str:
    return f"{count:,}" if count < 10**12 else f"some 10^{len(str(count)) - 1}"


def _refused(problem: str, where: str) -> ModelError:
    return ModelError(problem, where=where, fix=_FIX)
