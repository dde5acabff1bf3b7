"""Padding that a caller names: outputs hold zeros there, and nothing else depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import names_in, take_name

#: Of `--skip-padding`: what is proved not to reach a result.
PROVED = "proved"
#: Where it is written down in the model's metadata.
PADDING_KEY = "ortkit.padding"
#: Likewise, that padding is not computed in the model.
SKIPPED_KEY = "ortkit.padding.skipped"
_FLAG = "--skip-padding"
#: Equal takes all types of a flag, and Where is there.
_SINCE = 11


@dataclass(frozen=True)
class NamedPadding:
    """A token is padding where an input is a number."""

    name: str
    number: int

    @staticmethod
    def of(text: str) -> NamedPadding | None:
        """Read `INPUT` or `INPUT=NUMBER`; None where no input is named.

        Raises:
            UserError: What follows the last `=` is no whole number.
        """
        if text in ("", PROVED):
            return None
        name, equals, number = text.rpartition("=")
        if not equals:
            return NamedPadding(text, 0)
        try:
            return NamedPadding(name, int(number))
        except ValueError:
            raise UserError(
                f"{number!r} is no whole number", where=_FLAG, fix="write INPUT=NUMBER"
            ) from None


def zero_padding(model: ir.Model, padding: NamedPadding) -> None:
    """Let all outputs that hold tokens be 0 where tokens are padding, in place.

    Raises:
        UserError: There is no such input, or no output holds its tokens.
    """
    flag = next((each for each in model.graph.inputs if each.name == padding.name), None)
    shapes = Shapes.infer(model)
    shape = None if flag is None else shapes.shape(flag)
    dtype = None if flag is None else shapes.dtype(flag)
    listed = ", ".join(each.name or "" for each in _flags(model, shapes))
    choose = f"name one of {listed}" if listed else "leave it out"
    if flag is None:
        raise UserError(f"no input is called {padding.name!r}", where=_FLAG, fix=choose)
    if shape is None or len(shape) != 2 or dtype is None or dtype.numpy().kind not in "biuf":
        raise UserError(
            f"input {padding.name!r} has no number for each sample and position",
            where=_FLAG, fix=choose,
        )  # fmt: skip
    if (model.graph.opset_imports.get("", 0)) < _SINCE:
        raise UserError(f"needs opset {_SINCE} or newer", where=_FLAG, fix="export it again")
    outputs = [value for value in model.graph.outputs if _holds(shapes, value, shape)]
    if not outputs:
        raise UserError(
            f"no output has a row for each number of {padding.name!r}",
            where=_FLAG, fix="leave it out, padding is skipped where that is proved",
        )  # fmt: skip
    names = " ".join(value.name or "" for value in outputs)
    writer = _Writer(model, names_in(model))
    number = writer.constant(np.array(padding.number).astype(dtype.numpy()))
    is_padding = writer.op("Equal", flag, number)
    for value in outputs:
        writer.zero(value, is_padding, len(shapes.shape(value) or ()), shapes)
    model.metadata_props[PADDING_KEY] = f"{padding.name}={padding.number} zeroes {names}"


def _flags(model: ir.Model, shapes: Shapes) -> Iterator[ir.Value]:
    for value in model.graph.inputs:
        if not value.is_initializer() and shapes.rank(value) == 2:
            yield value


def _holds(shapes: Shapes, value: ir.Value, grid: tuple[object, ...]) -> bool:
    shape, dtype = shapes.shape(value), shapes.dtype(value)
    is_number = dtype is not None and dtype.numpy().kind in "fiub"
    return is_number and shape is not None and shape[:2] == grid and value.producer() is not None


@dataclass
class _Writer:
    model: ir.Model
    names: set[str]

    def constant(self, array: np.ndarray) -> ir.Value:
        name = take_name(self.names, "padding/const")
        tensor = ir.tensor(array, name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )  # fmt: skip
        self.model.graph.register_initializer(value)
        return value

    def op(self, op_type: str, *inputs: ir.Value) -> ir.Value:
        node = ir.node(op_type, list(inputs))
        node.name = take_name(self.names, f"padding/{op_type}")
        node.outputs[0].name = take_name(self.names, "padding/value")
        self.model.graph.append(node)
        return node.outputs[0]

    def zero(self, value: ir.Value, is_padding: ir.Value, rank: int, shapes: Shapes) -> None:
        """Put a Where after the node that makes an output; it gets the output's name."""
        dtype = shapes.dtype(value)
        assert dtype is not None, "its type was looked at"
        target = self.constant(np.array([0, 0, *(1,) * (rank - 2)], np.int64))
        condition = self.op("Reshape", is_padding, target)
        zero = self.constant(np.zeros((), dtype.numpy()))
        made = self.op("Where", condition, zero, value)
        name = value.name or ""
        value.name = take_name(self.names, f"{name}/all")
        made.name, made.type, made.shape = name, value.type, value.shape
        outputs = self.model.graph.outputs
        for index, output in enumerate(outputs):
            if output is value:
                outputs[index] = made


def padding_note(model: ir.Model) -> str:
    """Return what is done about padding in a result; empty if nothing is."""
    is_skipped = SKIPPED_KEY in model.metadata_props
    said = model.metadata_props.get(PADDING_KEY, "")
    what = "is not computed" if is_skipped else "is computed"
    return f"padding {what}; {said}" if said else "padding is not computed" if is_skipped else ""
