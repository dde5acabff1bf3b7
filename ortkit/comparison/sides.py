"""The two models whose values are compared, made ready: functions inlined, parts to be cut."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import PreconditionError

from ortkit.comparison.cuts import Cutter
from ortkit.graph.analysis.channels_last import restore_channels_first
from ortkit.graph.analysis.diff import operator
from ortkit.graph.analysis.value_names import labels
from ortkit.graph.inline import inline_functions
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import nodes_below
from ortkit.kernels.signature import DOMAIN as FUSED_DOMAIN
from ortkit.verify.inputs.feeds import Feeds
from ortkit.verify.random_ops import random_nodes
from ortkit.verify.sessions import CPU

#: Taken for a value of unknown size.
_UNKNOWN_BYTES = 16 << 20


@dataclass(frozen=True)
class NodeSide:
    """A model and how it is run."""

    model: Path
    providers: tuple[str, ...] = CPU
    library: Path | None = None
    """Its kernels; without them the functions of its fused nodes run."""
    custom_ops: tuple[Path, ...] = ()
    """Libraries that it needs to load at all."""
    says: str = ""
    """What reports call it; empty: its path."""
    onnxruntime: Path | None = None
    """Where the ONNX Runtime is that runs it; None: the installed one."""

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.says or str(self.model)

    @property
    def libraries(self) -> tuple[Path, ...]:
        """All that is registered."""
        return self.custom_ops if self.library is None else (*self.custom_ops, self.library)


@dataclass
class Prepared:
    """A model, ready to have parts cut from it."""

    side: NodeSide
    model: ir.Model
    path: Path
    """Its file, its weights beside it."""
    cutter: Cutter
    labels: tuple[str, ...]
    """Of the nodes of the main graph, in order."""
    ops: tuple[str, ...]
    random: frozenset[str]
    """Values that depend on random numbers."""
    element_types: Mapping[str, ir.DataType]
    sizes: dict[str, int]
    """Bytes of values, as far as they are known."""
    fused: frozenset[str] = field(default_factory=frozenset)
    """Operators whose function the library's kernel stands for."""
    added: frozenset[int] = frozenset()
    """Nodes that were not there."""

    def bytes_of(self, value: str) -> int:
        """Return how large a value is, or a guess."""
        return self.sizes.get(value, _UNKNOWN_BYTES)


def prepare(side: NodeSide, feeds: Feeds, folder: Path, like: ir.Model | None = None) -> Prepared:
    """Open a model, inline its functions, and write it where parts of it can be run.

    Functions stay whose nodes a kernel of the library computes.

    Args:
        side: The model.
        feeds: Its inputs.
        folder: Where it is written; made here.
        like: A model whose values it shall have too, where it has them in another layout.

    Raises:
        ModelError: It is no valid model.
        UserError: It cannot be written.
    """
    model = open_model(side.model)
    kept = {key for key in model.functions if side.library is not None and key[0] == FUSED_DOMAIN}
    if len(kept) < len(model.functions):
        with contextlib.suppress(PreconditionError):  # functions that call each other stay
            inline_functions(model, lambda function: function.identifier() not in kept)
    _name_all(model)
    added = set() if like is None else restore_channels_first(model, like)
    path = folder / "model.onnx"
    folder.mkdir(parents=True)
    save_model(model, path, external_data=True, is_temporary=True)
    affected = random_nodes(model)
    types, sizes = _types_and_sizes(model, feeds)
    called = labels(model)
    return Prepared(
        side,
        model,
        path,
        Cutter.of(path),
        tuple(called[node] for node in model.graph),
        tuple(operator(node) for node in model.graph),
        frozenset(value.name or "" for node in affected for value in node.outputs),
        types,
        sizes,
        frozenset(f"{domain}::{name}" for domain, name, _ in kept),
        frozenset(index for index, node in enumerate(model.graph) if node in added),
    )


def _name_all(model: ir.Model) -> None:
    """Nothing without a name can be asked for."""
    for node in model.graph:
        for value in node.outputs:
            if value.name is None:
                value.name = ""


def _types_and_sizes(
    model: ir.Model, feeds: Feeds
) -> tuple[dict[str, ir.DataType], dict[str, int]]:
    """Return types and bytes of the values for these inputs, where they are known."""
    known = model.clone()
    for value in known.graph.inputs:
        given = feeds.get(value.name or "")
        if isinstance(given, np.ndarray):
            value.shape = ir.Shape(given.shape)
    shapes = Shapes.infer(known)
    types: dict[str, ir.DataType] = {}
    sizes: dict[str, int] = {}
    for node in nodes_below(known.graph):
        for value in node.outputs:
            dtype, shape = shapes.dtype(value), shapes.shape(value)
            if dtype is None:
                continue
            types[value.name or ""] = dtype
            if shape is not None and all(isinstance(size, int) for size in shape):
                count = 1
                for size in shape:
                    count *= size if isinstance(size, int) else 1
                sizes[value.name or ""] = count * max(dtype.bitwidth, 8) // 8
    return types, sizes
