"""What a device did: CUDA kernels, copies and fills in ONNX Runtime's trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ortkit.runtime.profiling.events import DeviceEvent, RunEvent
from ortkit.runtime.profiling.lines import Head

_CATEGORY = "Kernel"
_KERNEL_TIME = "_kernel_time"


class Launched(NamedTuple):
    """One event of a device, as read."""

    head: Head
    args: Mapping[str, str]


def launched(head: Head, args: Mapping[str, Any]) -> Launched | None:
    """Return the event if it is one of a device."""
    if head.category != _CATEGORY:
        return None
    return Launched(head, {str(name): str(value) for name, value in args.items()})


def device_events(found: Sequence[Launched], runs: Sequence[RunEvent]) -> tuple[DeviceEvent, ...]:
    """Return the events by start, each with the last run that had begun by then.

    Work that a run launched may end after it; it does not begin before.
    """
    starts = np.array([run.start_us for run in runs], np.int64)
    events = []
    for head, args in sorted(found, key=lambda one: one.head.start_us):
        run = int(np.searchsorted(starts, head.start_us, side="right")) - 1
        node = args.get("parent_name", "").removesuffix(_KERNEL_TIME)
        known = ("parent_name", "op_name", "stream")
        events.append(
            DeviceEvent(
                run=run,
                name=head.name,
                op=args.get("op_name", ""),
                node=node,
                kind=_kind(head.name),
                start_us=head.start_us,
                duration_us=head.duration_us,
                stream=args.get("stream", str(head.thread)),
                details={name: value for name, value in args.items() if name not in known},
            )
        )
    return tuple(events)


def _kind(name: str) -> str:
    lower = name.lower()
    if lower.startswith("memcpy"):
        return "copy"
    return "fill" if lower.startswith("memset") else "kernel"
