"""The inputs of a kernel at the sizes of one case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
import onnx

from ortkit.verify.kernels.blocks import Operand
from ortkit.verify.kernels.cached_rows import cached_rows
from ortkit.verify.kernels.inputs import (
    EIGHT_BITS,
    ORDINARY,
    SPECIAL,
    USUAL,
    Kind,
    in_rows,
    is_eight_bits,
    least_integers,
    like_constant,
    made_up,
    numpy_type,
)
from ortkit.verify.kernels.job import CaseSizes, InputSpec, KernelJob
from ortkit.verify.kernels.packed_rows import packed_rows
from ortkit.verify.kernels.selected_boxes import selected_boxes

#: The case that is tried with all kinds of values: neither the first nor a large one.
_SPECIAL_CASE = 1
#: Where that has more elements it is the first one.
_SPECIAL_ELEMENTS = 1 << 16


class Cases:
    """The cases of one kernel, and values for each."""

    def __init__(
        self,
        kernel: KernelJob,
        function: onnx.FunctionProto,
        types: Mapping[str, np.dtype[np.generic]],
        *,
        has_special: bool,
    ) -> None:
        """Read the constants.

        Args:
            kernel: The kernel.
            function: Its body.
            types: The types of the body's values, as far as they are known.
            has_special: Whether NaN and infinities are among the values.
        """
        self._kernel = kernel
        self._has_special = has_special
        self._has_eight_bits = any(map(is_eight_bits, types.values()))
        self._least = least_integers(frozenset(node.op_type for node in function.node))
        self._constants = [_constants(spec, n) for n, spec in enumerate(kernel.inputs)]
        special = min(_SPECIAL_CASE, len(kernel.cases) - 1)
        if special >= 0 and _elements(kernel.cases[special]) > _SPECIAL_ELEMENTS:
            special = 0
        self._special = special
        self._agreeing = packed_rows(function) or cached_rows(function) or selected_boxes(function)
        self._tables = _tables(function)

    def order(self) -> Iterator[tuple[int, Kind, bool]]:
        """Yield numbers of cases, kinds of values, and whether they are required.

        The first size comes with one kind, one small size with all kinds, then required sizes.
        """
        usual = EIGHT_BITS if self._has_eight_bits else USUAL
        cases = [
            (number, usual[number % len(usual)], case.is_required)
            for number, case in enumerate(self._kernel.cases)
            if self._fits(case)
        ]
        has_special = any(number == self._special for number, _, _ in cases)
        special = [(self._special, kind, True) for kind in self.kinds() if has_special]
        first = cases[:1] if self._special else []
        others = [each for each in cases if each[0] not in (0, self._special)]
        yield from (*first, *special)
        yield from (each for each in others if each[2])
        yield from (each for each in others if not each[2])

    def kinds(self) -> Sequence[Kind]:
        """Return the kinds that one size is tried with."""
        if self._has_eight_bits:
            return EIGHT_BITS
        return SPECIAL if self._has_special else ORDINARY

    def inputs(self, number: int, kind: Kind) -> list[Operand]:
        """Return values for all inputs of a case."""
        values = list(self._inputs(number, kind))
        for indices, table in self._tables.items():
            array = values[indices].array
            values[indices] = Operand(in_rows(array, values[table].array.shape[0]))
        return values if self._agreeing is None else self._agreeing.agree(values, number)

    def _fits(self, case: CaseSizes) -> bool:
        """Say whether there are inputs of these sizes; none are constants if they must agree."""
        return self._agreeing is None or self._agreeing.fits(case.shapes)

    def _inputs(self, number: int, kind: Kind) -> Iterator[Operand]:
        few = self._kernel.rows
        given = self._kernel.cases[number].shapes if few is None else few.shapes
        if self._agreeing is not None:
            given = tuple(self._agreeing.sizes(given, number))
        shapes = iter(given)
        specs = zip(self._kernel.inputs, self._constants, strict=True)
        for index, (spec, constant) in enumerate(specs):
            if constant is not None:
                yield constant[kind == "other constants"]
                continue
            shape, dtype = tuple(next(shapes)), numpy_type(spec.type)
            yield Operand(made_up(dtype, shape, kind, number * 64 + index, self._least))


def _tables(function: onnx.FunctionProto) -> dict[int, int]:
    """Return the table by the indices of its rows, both as places of inputs."""
    indices = {name: index for index, name in enumerate(function.input)}
    gathers = [node for node in function.node if node.op_type == "Gather" and not node.domain]
    return {
        indices[node.input[1]]: indices[node.input[0]]
        for node in gathers
        if node.input[0] in indices and node.input[1] in indices
    }


def _constants(spec: InputSpec, seed: int) -> tuple[Operand, Operand] | None:
    """Return a constant as the model has it, and another one; None for other inputs."""
    if spec.constant is None:
        return None
    data = spec.constant.read_bytes()
    known = np.frombuffer(data, numpy_type(spec.type)).reshape(spec.shape)
    other = like_constant(known, seed)
    return Operand(known, is_constant=True), Operand(other, is_constant=True)


def _elements(case: CaseSizes) -> int:
    return sum(prod(shape) for shape in case.shapes)
