"""What ran on a device, by name."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ortkit.runtime.profiling.result import KernelRow
from ortkit.runtime.profiling.trace.events import DeviceEvent
from ortkit.runtime.profiling.trace.trace import Trace


def kernel_rows(trace: Trace, counted: npt.NDArray[np.int64]) -> tuple[KernelRow, ...]:
    """Add up what ran on the device in the counted runs, by name."""
    runs = set(counted.tolist())
    events: dict[tuple[str, str], list[DeviceEvent]] = {}
    for event in trace.kernels:
        if event.run in runs:
            events.setdefault((event.name, event.kind), []).append(event)
    sums = {key: sum(item.duration_us for item in each) for key, each in events.items()}
    whole = sum(sums.values()) or 1.0
    rows = []
    for key, each in events.items():
        sizes = [device_event.bytes for device_event in each if device_event.bytes is not None]
        moved = round(sum(sizes) / len(runs)) if sizes else None
        calls, elapsed = len(each) / len(runs), sums[key] / len(runs)
        rows.append(KernelRow(*key, calls, elapsed, sums[key] / whole, moved))
    return tuple(sorted(rows, key=lambda kernel_row: -kernel_row.us))
