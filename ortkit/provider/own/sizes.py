"""How the sizes that a program's kernels ask for follow from the sizes of its inputs."""

from __future__ import annotations

import numpy as np

from ortkit.kernels.signature import TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, product
from ortkit.provider.own.program import Program
from ortkit.refusal import Refused


def unsolved(program: Program) -> Refused | None:
    """Say which size of a program its inputs do not tell; None if they tell all."""
    found = ProgramSizes(program)
    return None if not found.unknown else Refused(f"no input tells the size {found.unknown[0]!r}")


class ProgramSizes:
    """The sizes of one program, as C expressions of its inputs' sizes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.expressions: dict[str, str] = {}
        """By the name of a size."""
        self.checks: list[tuple[str, Extent]] = []
        """What must be equal in a run."""
        self.lines: list[str] = []
        self._waiting: list[tuple[str, Extent]] = []
        pending = [
            (f"x{index}[{axis}]", extent)
            for index, number in enumerate(program.inputs)
            for axis, extent in enumerate(dims_of(program.tensors[number]))
        ]
        self._solve(pending)
        # A size may be called otherwise where equal sizes meet: kernels say what they take it for.
        for step in program.steps:
            specs = (*step.signature.inputs, *step.signature.outputs)
            for number, spec in zip((*step.inputs, *step.outputs), specs, strict=True):
                own = dims_of(program.tensors[number])
                pairs = zip(own, dims_of(spec), strict=True)
                solved = [(self.text(mine), extent) for mine, extent in pairs if self._knows(mine)]
                self._solve([(text, extent) for text, extent in solved if text is not None])
        asked = [extent for tensor in program.tensors for extent in dims_of(tensor)]
        asked += [
            extent
            for step in program.steps
            for spec in (*step.signature.inputs, *step.signature.outputs)
            for extent in dims_of(spec)
        ]
        every = dict.fromkeys(symbol for extent in asked for symbol in extent.symbols)
        self.unknown = [symbol for symbol in every if symbol not in self.expressions]

    def _knows(self, extent: Extent) -> bool:
        return all(symbol in self.expressions for symbol in extent.symbols)

    def _solve(self, pending: list[tuple[str, Extent]]) -> None:
        """Learn sizes from equations; those that tell nothing new become checks.

        One with several unknown sizes waits until others have given all of them but one.
        """
        waiting = [*self._waiting, *pending]
        while True:
            self._waiting = [item for item in waiting if not self._settle(*item)]
            if len(self._waiting) == len(waiting):
                return
            waiting = self._waiting

    def _settle(self, text: str, extent: Extent) -> bool:
        """Learn from one equation, or check it; False if it has several unknown sizes."""
        unknown = [symbol for symbol in extent.symbols if symbol not in self.expressions]
        if len(unknown) == 1 and extent.factor:
            rest = Extent(extent.factor, tuple(s for s in extent.symbols if s != unknown[0]))
            divisor = self.text(rest) or "1"
            name = f"s{len(self.expressions)}"
            if divisor == "1":
                self.lines.append(f"const int64_t {name} = {text};")
            else:  # a divisor of 0: of nothing any number is a factor
                self.lines.append(
                    f"const int64_t {name} = ({divisor}) == 0 ? 0 : ({text}) / ({divisor});"
                )
            self.expressions[unknown[0]] = name
        if not self._knows(extent):
            return False
        if self.text(extent) != text:
            self.checks.append((text, extent))
        return True

    def text(self, extent: Extent) -> str | None:
        """Return an extent as a C expression, None if it is not known."""
        if not self._knows(extent):
            return None
        factors = [self.expressions[symbol] for symbol in extent.symbols]
        if extent.factor != 1 or not factors:
            factors.insert(0, str(extent.factor))
        return " * ".join(factors)

    def known(self, extent: Extent) -> str:
        """Return an extent as a C expression; all are known if `unsolved` says nothing."""
        text = self.text(extent)
        assert text is not None, f"{extent} is not known"
        return text


def itemsize(dtype: str) -> int:
    """Return the bytes of an element, by numpy's name or that of a type that numpy lacks."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def bytes_of(tensor: TensorSpec) -> Extent:
    """Return the bytes of a tensor."""
    return elements_of(tensor) * Extent(itemsize(tensor.dtype))


def elements_of(tensor: TensorSpec) -> Extent:
    """Return how many elements a tensor has."""
    return product(dims_of(tensor))


def dims_of(tensor: TensorSpec) -> list[Extent]:
    """Return the sizes of a tensor."""
    return [extent_of(dim) for dim in tensor.shape]
