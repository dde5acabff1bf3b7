"""A matrix product of bfloat16 as a region's body has it: its operands, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from ortkit.kernels.backend import Refused
from ortkit.kernels.bf16 import packed_shape
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, product

from .body import Body, integer, integers
from .epilogue import Epilogue, Operand, Step, Value, read_step

_FLOAT, _BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16


@dataclass(frozen=True)
class Finish:
    """What is done to the sums, and which values of it are results.

    Args:
        epilogue: Its extras are inputs with one number a column, or of the results' shape.
        of_columns: Per extra whether it has one number a column.
        results: Per output the value it is.
    """

    epilogue: Epilogue
    of_columns: tuple[bool, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True)
class ProductForm:
    """finish(A W); numbers are the region's inputs.

    Args:
        signature: The region's.
        a: [..., depth], bfloat16, or float32 that is rounded first.
        weight: As `ortkit.kernels.bf16.pack_weight` packs it.
        depth: K.
        columns: N.
        finish: What follows.
    """

    signature: RegionSignature
    a: int
    weight: int
    depth: int
    columns: int
    finish: Finish

    @property
    def rows(self) -> Extent:
        """How many rows A has."""
        return product(extent_of(dim) for dim in self.signature.inputs[self.a].shape[:-1])

    @property
    def is_wide(self) -> bool:
        """Whether A is float32."""
        return self.signature.inputs[self.a].dtype == "float32"


def read_product(signature: RegionSignature) -> ProductForm | Refused | None:
    """Return the region as a product with a packed weight; None if it is something else."""
    body = Body(signature)
    products = body.nodes("MatMul")
    weights = [_packed_behind(body, node.input[1]) for node in products]
    if not any(weight is not None for weight in weights):
        return None
    if len(products) != 1 or weights[0] is None:
        return Refused("more than one matrix product")
    (node,), (weight, columns) = products, weights[0]
    a = _rounded_input(body, node.input[0])
    if a is None:
        return Refused("a matrix product of something that is no input rounded to bfloat16")
    depth = signature.inputs[a].shape[-1] if signature.inputs[a].shape else ""
    if not isinstance(depth, int) or depth == 0 or columns == 0:
        return Refused("a matrix product of a depth that is not known")
    if not _is_unpacked(body, node.input[1], weight, depth, columns):
        return Refused("a packed weight that is taken apart in another way")
    shape = (*signature.inputs[a].shape[:-1], columns)
    finish = _read_finish(body, node.output[0], shape)
    if isinstance(finish, Refused):
        return finish
    return ProductForm(signature, a, weight, depth, columns, finish)


# ---- operands


def _source_of_cast(body: Body, name: str, to: int) -> str | None:
    node = body.producer(name, "Cast")
    return str(node.input[0]) if node is not None and integer(node, "to", 0) == to else None


def _rounded_input(body: Body, name: str) -> int | None:
    """Return the input that `name` is, as float32, after it was rounded to bfloat16."""
    rounded = _source_of_cast(body, name, _FLOAT)
    if rounded is None:
        return None
    number = body.inputs.get(rounded)
    if number is not None:
        return number if body.signature.inputs[number].dtype == "bfloat16" else None
    source = body.inputs.get(_source_of_cast(body, rounded, _BFLOAT16) or "")
    if source is None or body.signature.inputs[source].dtype != "float32":
        return None
    return source


def _packed_behind(body: Body, name: str) -> tuple[int, int] | None:
    """Return the input that may be the packed weight behind `name`, and the columns it has."""
    columns = None
    cut = body.producer(name, "Slice")
    if cut is not None:
        ends = body.constant(cut.input[2]) if len(cut.input) > 2 else None
        if ends is None or ends.size != 2:
            return None
        columns, name = int(ends.flat[1]), cut.input[0]
    shaped = body.producer(name, "Reshape")
    shape = None if shaped is None else body.constant(shaped.input[1])
    if shaped is None or shape is None or shape.size != 2:
        return None
    turned = body.producer(shaped.input[0], "Transpose")
    source = "" if turned is None else _source_of_cast(body, turned.input[0], _FLOAT) or ""
    number = body.inputs.get(source)
    if number is None or turned is None or integers(turned, "perm", ()) != (1, 3, 0, 2):
        return None
    spec = body.signature.inputs[number]
    if spec.dtype != "bfloat16" or len(spec.shape) != 4:
        return None
    return number, int(shape.flat[1]) if columns is None else columns


def _is_unpacked(body: Body, name: str, weight: int, depth: int, columns: int) -> bool:
    """Say whether `name` is the [depth, columns] of the packed input, as `unpack_text` writes."""
    packed = packed_shape(depth, columns)
    if body.signature.inputs[weight].shape != packed:
        return False
    whole = [packed[1] * 2, packed[0] * packed[2]]
    cut = body.producer(name, "Slice")
    if cut is not None:
        first, last = body.constant(cut.input[1]), body.constant(cut.input[2])
        if len(cut.input) > 3 or first is None or last is None:
            return False
        if [*first.flat] != [0, 0] or [*last.flat] != [depth, columns]:
            return False
        name = cut.input[0]
    elif whole != [depth, columns]:
        return False
    shaped = body.producer(name, "Reshape")
    shape = None if shaped is None else body.constant(shaped.input[1])
    return shape is not None and [*shape.flat] == whole


# ---- what follows


def _read_finish(body: Body, start: str, shape: tuple[int | str, ...]) -> Finish | Refused:
    """Read all nodes that depend on the product; results are of `shape`."""
    nodes = _dependent(body.function.node, start)
    made = {start, *(name for node in nodes for name in node.output)}
    extras: dict[str, int] = {}
    for node in nodes:
        for name in node.input:
            number = None if name in made or not name else _wide_input(body, name)
            if number is not None:
                extras[name] = number
    distinct = tuple(dict.fromkeys(extras.values()))
    specs = [body.signature.inputs[number] for number in distinct]
    kinds = [_is_of_columns(spec, shape) for spec in specs]
    if None in kinds:
        return Refused("an operand that has neither the result's shape nor one number a column")
    known: dict[str, Operand] = {start: Value(0)}
    known |= {name: Value(1 + distinct.index(number)) for name, number in extras.items()}
    steps: list[Step] = []
    rounded: dict[str, Value] = {}
    for node in nodes:
        value = known.get(node.input[0])
        if node.op_type == "Cast" and integer(node, "to", 0) == _BFLOAT16 and value is not None:
            assert isinstance(value, Value)
            rounded[node.output[0]] = value
            continue
        step = read_step(body, node, known)
        if isinstance(step, Refused):
            return step
        steps.append(step)
        known[node.output[0]] = Value(len(distinct) + len(steps))
    results = _results(body, known, rounded, shape)
    if isinstance(results, Refused):
        return results
    of_columns = tuple(bool(kind) for kind in kinds)
    return Finish(Epilogue(distinct, tuple(steps)), of_columns, results)


def _dependent(nodes: Iterable[onnx.NodeProto], start: str) -> list[onnx.NodeProto]:
    """Return the nodes that read `start` or what is made of it, in order."""
    made, found = {start}, []
    for node in nodes:
        if made & set(node.input):
            made |= set(node.output)
            found.append(node)
    return found


def _wide_input(body: Body, name: str) -> int | None:
    """Return the input that `name` is as float32."""
    number = body.inputs.get(name)
    if number is not None:
        return number if body.signature.inputs[number].dtype == "float32" else None
    number = body.inputs.get(_source_of_cast(body, name, _FLOAT) or "")
    if number is None or body.signature.inputs[number].dtype != "bfloat16":
        return None
    return number


def _is_of_columns(spec: TensorSpec, shape: tuple[int | str, ...]) -> bool | None:
    """Say whether an operand has one number a column (True) or the result's shape (False)."""
    if spec.shape == shape:
        return False
    own = spec.shape[:-1]
    if not spec.shape or spec.shape[-1] != shape[-1] or len(own) >= len(shape):
        return None
    return True if all(size == 1 for size in own) else None


def _results(
    body: Body,
    known: Mapping[str, Operand],
    rounded: Mapping[str, Value],
    shape: tuple[int | str, ...],
) -> tuple[Value, ...] | Refused:
    results: list[Value] = []
    for name, spec in zip(body.function.output, body.signature.outputs, strict=True):
        of = rounded if spec.dtype == "bfloat16" else known
        value = of.get(name)
        if not isinstance(value, Value) or name in body.inputs:
            return Refused("a result that is not made from the matrix product")
        if spec.dtype not in ("float32", "bfloat16") or spec.shape != shape:
            return Refused("a result of another shape or type than the matrix product has")
        results.append(value)
    return tuple(results)
