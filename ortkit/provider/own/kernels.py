"""What runs a claimed group: a function of a library, with the weights that it is handed."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ortkit.provider.graph_view import GraphView
from ortkit.provider.kernel import Kernel
from ortkit.provider.native import KernelLibrary


def kernel_of(
    subgraph: GraphView,
    library: Path | KernelLibrary,
    symbol: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    weights: tuple[np.ndarray, ...],
    label: str = "",
    about: Mapping[str, str] | None = None,
) -> Kernel:
    """Return the kernel of a group.

    Args:
        subgraph: The group, as ONNX Runtime hands it over to be compiled.
        library: Of programs.
        symbol: The program's function.
        inputs: For each input of the program the name of the value.
        outputs: Likewise.
        weights: What the kernel holds for the program.
        label: What the trace calls it.
        about: What the trace says beside it.
    """
    read = {value.name: index for index, value in enumerate(subgraph.inputs)}
    made = {value.name: index for index, value in enumerate(subgraph.outputs)}
    # What the program is handed: where its weights lie.
    pointers = (ctypes.c_void_p * len(weights))(*(each.ctypes.data for each in weights))
    return Kernel(
        user=ctypes.addressof(pointers) if weights else 0,
        keep=(pointers, weights) if weights else None,
        library=library,
        op=symbol,
        label=label,
        arguments={} if about is None else about,
        inputs=tuple(read[name] for name in inputs),
        outputs=tuple(made[name] for name in outputs),
    )
