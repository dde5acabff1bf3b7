"""What a model is and what it costs: the content of `ortkit inspect`."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.graph.analysis.cost import Cost, model_cost
from ortkit.graph.analysis.summary import Summary
from ortkit.graph.inline import inline_functions
from ortkit.graph.io.open import ModelSource, open_model
from ortkit.graph.shapes.fixed import label_of
from ortkit.graph.symbolic.dims import names
from ortkit.graph.symbolic.text import parse_size
from ortkit.graph.walk import nodes_below, roots

SCHEMA = "ortkit.inspect/1"


@dataclass(frozen=True)
class Interface:
    """One input or output of the model."""

    name: str
    dtype: str
    """`float32`, `sequence(int64)`, ...; empty if the model does not say."""
    shape: tuple[int | str, ...] | None
    """A size without a name gets `INPUT[AXIS]` in inputs, `?` in outputs; None: rank unknown."""
    has_default: bool = False
    """Whether an initializer stands in when the input is not fed."""


@dataclass(frozen=True)
class FunctionInfo:
    """One model-local function."""

    name: str
    """`domain::name`."""
    nodes: int
    calls: int
    """Nodes that call it, those in other functions too."""


@dataclass(frozen=True)
class ExternalFile:
    """One file of external data."""

    location: str
    """As the model names it."""
    tensors: int
    bytes: int


@dataclass(frozen=True)
class Inspection:
    """What a model is and what it costs."""

    source: str
    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    metadata: Mapping[str, str]
    inputs: tuple[Interface, ...]
    outputs: tuple[Interface, ...]
    dynamic: Mapping[str, tuple[str, ...]]
    """Named size -> the inputs' axes that it is: `input_ids[0]`."""
    summary: Summary
    """Counts of what is written in the model; functions as calls."""
    dtypes: Mapping[str, int]
    """Type of weights -> their bytes."""
    functions: tuple[FunctionInfo, ...]
    subgraphs: Mapping[str, int]
    """Operator that holds subgraphs -> how many."""
    external: tuple[ExternalFile, ...]
    cost: Cost = field(repr=False)
    """With functions followed: its node counts are those after inlining."""

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit inspect --json`."""
        content = asdict(self)
        content["summary"] = asdict(self.summary)
        totals = {
            "flops": self.cost.flops,
            "bytes": self.cost.bytes,
            "uncounted": self.cost.uncounted,
        }
        return {"schema": SCHEMA, **content, "cost": {**totals, **content["cost"]}}


def inspect_model(source: ModelSource, sizes: Mapping[str, int] | None = None) -> Inspection:
    """Read a model and work out what it costs.

    Args:
        source: A path, or a model in memory, which is not changed.
        sizes: Numbers for named sizes; the others are taken to be 1 for the cost.

    Raises:
        ModelError: The source is not a valid model.
        UserError: `sizes` names a size that the model does not have.
    """
    model = open_model(source)
    _name_open_sizes(model)
    dynamic = _dynamic(model)
    inputs = tuple(_interface(value) for value in model.graph.inputs)
    outputs = tuple(_interface(value) for value in model.graph.outputs)
    summary = Summary.of(model)
    functions, subgraphs = _functions(model), _subgraphs(model)
    dtypes, external = _dtypes(model), _external(model)
    if model.functions:
        inline_functions(model)
    cost = model_cost(model, sizes or {})
    _check_sizes(sizes or {}, dynamic, cost)
    return Inspection(
        source=str(source) if not isinstance(source, bytes | ir.Model) else "(memory)",
        ir_version=model.ir_version,
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        opsets=dict(model.opset_imports),
        metadata=dict(model.metadata_props),
        inputs=inputs,
        outputs=outputs,
        dynamic=dynamic,
        summary=summary,
        dtypes=dtypes,
        functions=functions,
        subgraphs=subgraphs,
        external=external,
        cost=cost,
    )


def _name_open_sizes(model: ir.Model) -> None:
    """Name each input's unnamed sizes, so that `--shape` can speak of them."""
    for value in model.graph.inputs:
        if value.shape is None:
            continue
        dims = list(value.shape.dims)
        for axis, dim in enumerate(dims):
            if isinstance(dim, ir.SymbolicDim) and not dim.value:
                dims[axis] = ir.SymbolicDim(label_of(value, axis))
        value.shape = ir.Shape(dims)


def _dynamic(model: ir.Model) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape.dims if value.shape is not None else ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                for name in sorted(names(parse_size(dim.value))):
                    found.setdefault(name, []).append(label_of(value, axis))
    return {name: tuple(axes) for name, axes in found.items()}


def _check_sizes(sizes: Mapping[str, int], dynamic: Mapping[str, object], cost: Cost) -> None:
    for name in sizes:
        if name in dynamic or name in cost.given:
            continue
        close = difflib.get_close_matches(name, {*dynamic, *cost.assumed}, n=1)
        listed = f"name one of {', '.join(dynamic)}" if dynamic else "leave --shape out"
        raise UserError(
            f"the model has no size {name!r}",
            where="--shape",
            fix=f"did you mean {close[0]!r}?" if close else listed,
        )


def _interface(value: ir.Value) -> Interface:
    shape = None
    if value.shape is not None:
        shape = tuple(
            dim if isinstance(dim, int) else dim.value or "?" for dim in value.shape.dims
        )
    return Interface(value.name or "", _type_text(value.type), shape, value.is_initializer())


def _type_text(kind: ir.TypeProtocol | None) -> str:
    match kind:
        case None:
            return ""
        case ir.SequenceType():
            return f"sequence({_type_text(kind.elem_type)})"
        case ir.OptionalType():
            return f"optional({_type_text(kind.elem_type)})"
        case ir.SparseTensorType():
            return f"sparse({dtype_text(kind.dtype)})"
    return dtype_text(kind.dtype)


def dtype_text(dtype: ir.DataType) -> str:
    """Return a type as numpy and its users call it: `float32`, `int64`, `bfloat16`."""
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


def _functions(model: ir.Model) -> tuple[FunctionInfo, ...]:
    calls: Counter[tuple[str, str, str]] = Counter()
    for root in roots(model):
        calls.update(node.op_identifier() for node in nodes_below(root))
    return tuple(
        FunctionInfo(
            f"{function.domain}::{function.name}",
            sum(1 for _ in nodes_below(function)),
            calls[key],
        )
        for key, function in model.functions.items()
    )


def _subgraphs(model: ir.Model) -> dict[str, int]:
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    found: Counter[str] = Counter()
    for root in roots(model):
        for node in nodes_below(root):
            for attribute in node.attributes.values():
                if attribute.type in kinds and not attribute.is_ref():
                    single = attribute.type == ir.AttributeType.GRAPH
                    found[node.op_type] += 1 if single else len(attribute.as_graphs())
    return dict(found)


def _weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def _dtypes(model: ir.Model) -> dict[str, int]:
    found: Counter[str] = Counter()
    for tensor in _weights(model):
        found[dtype_text(tensor.dtype)] += tensor.nbytes
    return dict(found.most_common())


def _external(model: ir.Model) -> tuple[ExternalFile, ...]:
    tensors: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in _weights(model):
        if isinstance(tensor, ir.ExternalTensor):
            tensors[str(tensor.location)] += 1
            sizes[str(tensor.location)] += tensor.nbytes
    return tuple(ExternalFile(name, count, sizes[name]) for name, count in tensors.items())
