"""One event of a trace a line: what is needed of each at once, and all of one on demand.

ONNX Runtime 1.24 to 1.31 write one event a line and the same first fields in the same order;
the order of the others changes from line to line. A trace of bert's 1,286 nodes and 100 runs is
122,000,000 bytes, of which a JSON parser needs two to three seconds. What is read here by
position is checked, and whatever does not look like it goes through the JSON parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ortkit.kernels.cache_files import DAMAGED
from ortkit.runtime.profiling.trace.events import (
    Memory,
    NodeSignature,
    Scheduling,
    TensorShape,
)

#: The common types as numpy calls them; others have the same name there.
_DTYPES = {"float": "float32", "double": "float64"}
_KERNEL_TIME = "_kernel_time"
_HEAD = re.compile(
    rb'\{"cat" : "([A-Za-z]+)","pid" :-?\d+,"tid" :(-?\d+),"dur" :(-?\d+),"ts" :(-?\d+),'
    rb'"ph" : "X","name" :"([^"\\]*)","args" : \{'
)
#: What the fields of `Memory` are called in a trace, in order.
MEMORY_KEYS = {
    "in_use": "mem_bytes_in_use",
    "requested": "mem_bytes_requested_in_use",
    "in_use_delta": "mem_in_use_delta",
    "requested_delta": "mem_requested_in_use_delta",
    "peak": "mem_in_use_peak",
    "held": "mem_arena_held",
    "held_delta": "mem_arena_held_delta",
}


class NotAnEventError(ValueError):
    """A line holds no whole event."""


class Head(NamedTuple):
    """What every event begins with; times in microseconds."""

    category: str
    thread: int
    duration_us: int
    start_us: int
    name: str


#: Matches the begin of a line of the known form; the groups are those of `Head`.
match_head = _HEAD.match


def parse_event(line: bytes) -> tuple[Head, Mapping[str, Any]]:
    """Parse a line as JSON.

    Raises:
        NotAnEventError: It is none, or has not the fields of an event.
    """
    try:
        event = json.loads(line.strip().removesuffix(b","))
        head = Head(
            str(event["cat"]),
            int(event.get("tid", 0)),
            int(event.get("dur", 0)),
            int(event["ts"]),
            str(event["name"]),
        )
        args = event.get("args") or {}
    except DAMAGED as error:
        raise NotAnEventError(str(error)) from error
    if not isinstance(args, dict):
        raise NotAnEventError(f"`args` is no object: {args!r}")
    return head, args


_INPUTS, _OUTPUTS = b'"input_type_shape" : ', b'"output_type_shape" : '
_NODE_FIELDS = (b'"node_index" : ', b'"op_name" : ')


def signature_key(line: bytes, name: bytes, *, by_name: bool) -> tuple[bytes, ...] | None:
    """Return what two calls of a node have in common if they have the same signature.

    None: the line is not of the known form. More than one key may stand for a signature.

    Args:
        line: One event.
        name: The event's.
        by_name: Whether no two nodes have the same name, so that shapes are all that may differ.
    """
    find = line.find
    inputs, outputs = find(_INPUTS), find(_OUTPUTS)
    if inputs < 0 or outputs < 0:
        return None
    # Up to the next field: `,"` does not stand within a list of shapes. Without a next field
    # it is up to the end of the line, with whatever follows, less one.
    key = (
        name,
        line[inputs : find(b',"', inputs + len(_INPUTS))],
        line[outputs : find(b',"', outputs + len(_OUTPUTS))],
    )
    if by_name:
        return key
    starts = [find(field) for field in _NODE_FIELDS]
    if min(starts) < 0:
        return None
    return (*key, *(line[index : find(b',"', index)] for index in starts))


def signature_of(name: str, args: Mapping[str, Any]) -> NodeSignature:
    """Read what the calls of a node have in common; what is missing is empty.

    Raises:
        NotAnEventError: A field has another form.
    """
    try:
        index = args.get("node_index")
        return NodeSignature(
            name=name.removesuffix(_KERNEL_TIME),
            op=str(args.get("op_name", "")),
            provider=str(args.get("provider", "")),
            index=None if index is None else int(index),
            inputs=_tensors(args.get("input_type_shape", ())),
            outputs=_tensors(args.get("output_type_shape", ())),
            parameter_bytes=int(args.get("parameter_size", 0)),
            activation_bytes=int(args.get("activation_size", 0)),
            output_bytes=int(args.get("output_size", 0)),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise NotAnEventError(str(error)) from error


def is_kernel(name: str) -> bool:
    """Say whether a node's event is that of its kernel: versions before 1.9 write others."""
    return name.endswith(_KERNEL_TIME)


def memory_of(args: Mapping[str, Any]) -> Memory | None:
    """Read the arena's counters; None if there are none."""
    try:
        return Memory(*(int(args[key]) for key in MEMORY_KEYS.values()))
    except (KeyError, ValueError, TypeError):
        return None


_STATS = b'"thread_scheduling_stats" : '


def scheduling_in(line: bytes) -> Scheduling | None:
    """Read only that part of an event."""
    begin = line.find(_STATS)
    end = line.find(b"}}}", begin) + 3
    if begin < 0 or end < 3:
        return scheduling_of(parse_event(line)[1])
    try:
        stats = json.loads(line[begin + len(_STATS) : end])
    except ValueError:
        return scheduling_of(parse_event(line)[1])
    return scheduling_of({"thread_scheduling_stats": stats})


def scheduling_of(args: Mapping[str, Any]) -> Scheduling | None:
    """Read how the thread pool worked; None if the trace does not say."""
    stats = args.get("thread_scheduling_stats")
    if not isinstance(stats, dict) or not isinstance(main := stats.get("main_thread"), dict):
        return None
    try:
        others = stats.get("sub_threads") or {}
        return Scheduling(
            pool=str(main.get("thread_pool_name", "")),
            block_sizes=tuple(int(size) for size in main.get("block_size") or ()),
            distribution_us=int(main["Distribution"]),
            enqueue_us=int(main["DistributionEnqueue"]),
            run_us=int(main["Run"]),
            wait_us=int(main["Wait"]),
            revoke_us=int(main["WaitRevoke"]),
            # One that has not begun yet is called "thread::id of a non-executing thread".
            tasks=tuple(
                (int(name), int(other["num_run"]))
                for name, other in others.items()
                if name.isdecimal()
            ),
            threads=1 + len(others),
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _tensors(given: Any) -> tuple[TensorShape, ...]:
    return tuple(
        (_DTYPES.get(dtype, dtype), tuple(int(dim) for dim in dims))
        for item in given
        for dtype, dims in item.items()
    )
