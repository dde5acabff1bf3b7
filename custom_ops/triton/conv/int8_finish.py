"""From the sums of an int8 convolution to its results, as the text of a function in Triton.

Numbers in uint8 are float32 here, which has all of them. Each operation rounds where ONNX
Runtime's kernels for CPUs do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ortkit.kernels.triton.emit import Emitter
from ortkit.kernels.triton.expr import Expr, bare

from ...forms.gemm_int8 import (
    AddQuantized,
    Dequantize,
    Floats,
    Grid,
    Int8Form,
    Lookup,
    Quantize,
    Stage,
)

#: Beside one and a half times 2^23 a float32 has no room for a fraction; its bits as an integer.
_ROUNDING, _ROUNDING_BITS = "12582912.0", 0x4B400000
#: The bits of 2^23, whose lowest ones are those of a byte that is added.
_BYTE_BITS, _BYTE = 0x4B000000, "8388608.0"
#: The same for 256ths: beside one and a half times 2^15 there is room for those.
_UNIT, _UNIT_ROUNDING, _UNIT_BITS = "0.00390625", "49152.0", 0x47400000
_NAMES = re.compile(r"[a-z]\w*")


def whole_operands(form: Int8Form) -> tuple[int, ...]:
    """Return the inputs of the result's shape that what follows the sums reads."""
    found: dict[int, None] = {}
    for stage in form.stages:
        if isinstance(stage, AddQuantized) and not stage.is_row:
            found[stage.other] = None
        if isinstance(stage, Floats):
            pairs = zip(stage.epilogue.extras, stage.rows, strict=True)
            found |= {number: None for number, is_row in pairs if not is_row}
    return tuple(found)


def in_gluon(text: str) -> str:
    """Return functions of Triton as those of Gluon."""
    return re.sub(r"\btl\.", "gl.", text.replace("@triton.", "@gluon."))


def _jitted(head: str, lines: Sequence[str]) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"\n\n@triton.jit\ndef {head}:\n{body}\n"


class FinishWriter:
    """Writes the function of one region.

    Args:
        form: What is computed.
        box: The sizes of a tile of a map of a result, as text; None where further operands are
            addresses.
        is_gluon: Whether the function is in Gluon. Its parameters are the sums, one further
            operand of the result's shape, numbers of channels, and the others as a tuple.
    """

    def __init__(self, form: Int8Form, box: str | None, *, is_gluon: bool = False) -> None:
        self.form, self.box, self.e, self.is_gluon = form, box, Emitter(), is_gluon
        self.read: dict[int, str] = {}
        """What the function reads: inputs, and their names in it."""

    def text(self) -> str:
        """Return the function; its last parameters are the `operands`, in order."""
        form, e = self.form, self.e
        value = Expr("acc", "int32")
        if form.added is not None:
            value = e.share(Expr(f"(acc + {self._row(form.added)})", "int32"))
        value = e.share(Expr(f"({value.text}.to(tl.float32) * {self._scales()})", "float32"))
        last = len(form.stages) - 1
        for number, stage in enumerate(form.stages):
            if number == form.kept:
                e.lines.append(f"tl.store(second + at, {value.text}, mask=mask)")
            value = e.share(self._stage(stage, value, is_last=number == last))
        if self.is_gluon:
            return self._gluon(bare(value.text))
        where = "at, mask, channel, is_channel, second"
        if self.box is not None:
            where = "image, top, left, first, channel, is_channel"
        parameters = ", ".join(["acc", where, *self.read.values()])
        lines = [*e.lines, f"return {bare(value.text)}"]
        return _jitted(f"finish({parameters})", lines)

    def _gluon(self, result: str) -> str:
        """Return `known`, which computes single numbers, and `finish`, which reads them."""
        names = "".join(f"{name}, " for name in self.read.values()).rstrip()
        of_tile, once, each = {"acc", "other", "channel"}, [], []
        for line in self.e.lines:
            name, _, text = line.partition(" = ")
            if of_tile.isdisjoint(_NAMES.findall(text)):
                once.append(line)
            else:
                of_tile.add(name)
                each.append(line)
        read = set(_NAMES.findall("\n".join(each)))
        numbers = [name for name in (line.partition(" = ")[0] for line in once) if name in read]
        tuple_of = "".join(f"{name}, " for name in numbers or ("zero",)).rstrip()
        spread = f"{names} = operands"
        functions = {
            "known(operands)": [spread, "zero = 0", *once, f"return ({tuple_of})"],
            "finish(acc, other, channel, operands, numbers)":
                [spread, f"{tuple_of} = numbers", *each, f"return {result}"],
        }  # fmt: skip
        return in_gluon("".join(_jitted(head, lines) for head, lines in functions.items()))

    @property
    def operands(self) -> tuple[int, ...]:
        """The inputs that the function reads, once its text is written."""
        return tuple(self.read)

    # ---- inputs
    def _input(self, number: int) -> str:
        return self.read.setdefault(number, f"operand{number}")

    def _number(self, number: int) -> str:
        return f"tl.load({self._input(number)}).to(tl.float32)"

    def _row(self, number: int) -> str:
        if self.is_gluon:
            return f"tl.load({self._input(number)} + channel)[None, :]"
        return f"tl.load({self._input(number)} + channel, mask=is_channel, other=0)[None, :]"

    def _whole(self, number: int) -> str:
        if self.is_gluon:
            return "widened_bytes(other)"
        if self.box is None:
            return f"tl.load({self._input(number)} + at, mask=mask, other=0).to(tl.float32)"
        loaded = f"{self._input(number)}.load([image, top, left, first]).reshape({self.box})"
        if self.form.signature.inputs[number].dtype != "uint8":
            return f"{loaded}.to(tl.float32)"
        # An integer becomes a float32 by an instruction of half the rate.
        bits = f"({loaded}.to(tl.int32) | {_BYTE_BITS})"
        return f"({bits}.to(tl.float32, bitcast=True) - {_BYTE})"

    def _scales(self) -> str:
        form = self.form
        is_row = form.signature.inputs[form.scale].shape == (form.columns,)
        scale = self._row(form.scale) if is_row else self._number(form.scale)
        return scale if form.factor is None else f"({self._number(form.factor)} * {scale})"

    def _scale(self, grid: Grid) -> str:
        return "1.0" if grid.scale is None else self._number(grid.scale)

    def _shared(self, text: str, dtype: str = "float32") -> str:
        return self.e.share(Expr(text, dtype)).text

    # ---- stages
    def _stage(self, stage: Stage, value: Expr, *, is_last: bool) -> Expr:
        """Return what a stage makes: float32, or uint8 of the last one that rounds."""
        match stage:
            case Quantize():
                return self._quantized(stage, value, is_last=is_last)
            case Dequantize(grid):
                return self._widened(value.text, grid)
            case AddQuantized():
                return self._sum(stage, value, is_last=is_last)
            case Lookup(table):
                found = f"tl.load({self._input(table)} + {value.text}.to(tl.int32))"
                return Expr(f"{found}.to(tl.float32)", "float32")
            case Floats():
                return self._floats(stage, value)

    def _widened(self, numbers: str, grid: Grid) -> Expr:
        moved = f"({numbers} - {self._number(grid.zero)})"
        return Expr(f"({moved} * {self._scale(grid)})", "float32")

    def _nearest(self, value: str, zero: str | None, *, is_last: bool) -> Expr:
        """Return the number of 0 to 255 that is nearest to a value, after `zero` is added.

        Args:
            value: float32.
            zero: A whole number in float32; None for 0.
            is_last: Whether uint8 are returned, else float32.
        """
        if self.is_gluon and not is_last:
            whole = self._shared(f"({value} + {_ROUNDING})")
            return Expr(f"capped({whole} + {self._shared(f'({zero} - {_ROUNDING})')})", "float32")
        low = "0.0" if zero is None else f"(0.0 - {zero})"
        cut = self._shared(f"tl.maximum({value}, {low})")
        if is_last:
            # What is too large for this is larger as an integer, too.
            bits = f"({cut} + {_ROUNDING}).to(tl.int32, bitcast=True)"
            moved = f"- {_ROUNDING_BITS}"
            if zero is not None:
                moved = f"+ ({zero}.to(tl.int32) - {_ROUNDING_BITS})"
            return Expr(f"saturated_bytes({bits} {moved})", "uint8")
        high = "255.0" if zero is None else f"(255.0 - {zero})"
        raised = self._shared(f"(tl.minimum({cut}, {high}) + {_ROUNDING})")
        # Both are whole and below 2^24, as is their difference.
        back = f"({zero or '0.0'} - {_ROUNDING})"
        return Expr(f"({raised} + {back})", "float32")

    def _quantized(self, stage: Quantize, value: Expr, *, is_last: bool) -> Expr:
        zero, scale = self._shared(self._number(stage.grid.zero)), stage.grid.scale
        steps = value.text
        if scale is not None:
            steps = self._shared(f"tl.div_rn({steps}, {self._number(scale)})")
        return self._nearest(steps, zero, is_last=is_last)

    def _sum(self, stage: AddQuantized, value: Expr, *, is_last: bool) -> Expr:
        """Return the sum as MLAS adds: fma(a, A / C, fma(b, B / C, fixed)), a the first one."""
        step = self._shared(self._scale(stage.result))
        grids = (stage.own, stage.others) if stage.is_first else (stage.others, stage.own)
        ratios = [self._shared(f"tl.div_rn({self._scale(grid)}, {step})") for grid in grids]
        zeros = [self._shared(self._number(grid.zero)) for grid in grids]
        second = self._shared(f"({ratios[1]} * {zeros[1]})")
        both = self._shared(f"tl.fma({ratios[0]}, {zeros[0]}, {second})")
        fixed = self._shared(f"({self._number(stage.result.zero)} - {both})")
        read = self._row(stage.other) if stage.is_row else self._whole(stage.other)
        other = self._shared(f"{read}.to(tl.float32)")
        a, b = (value.text, other) if stage.is_first else (other, value.text)
        if self.is_gluon and is_last:
            # A power of two less: products with it, and the sum, are as exact.
            ratios = [self._shared(f"({ratio} * {_UNIT})") for ratio in ratios]
            fixed = self._shared(f"({fixed} * {_UNIT})")
            inner = self._shared(f"tl.fma({b}, {ratios[1]}, {fixed})")
            unit = self._shared(f"(sum_in_unit({a}, {ratios[0]}, {inner}) + {_UNIT_ROUNDING})")
            bits = f"{unit}.to(tl.int32, bitcast=True) - {_UNIT_BITS}"
            return Expr(f"saturated_bytes({bits})", "uint8")
        inner = self._shared(f"tl.fma({b}, {ratios[1]}, {fixed})")
        found = self._shared(f"tl.fma({a}, {ratios[0]}, {inner})")
        return self._nearest(found, None, is_last=is_last)

    def _floats(self, stage: Floats, value: Expr) -> Expr:
        extras = zip(stage.epilogue.extras, stage.rows, stage.grids, strict=True)
        operands: list[Expr] = []
        for number, is_row, grid in extras:
            read = self._row(number) if is_row else self._whole(number)
            text = self._shared(read)
            operands.append(Expr(text, "float32") if grid is None else self._widened(text, grid))
        write: Callable[..., Expr] = stage.epilogue.write
        return write(self.e, value, operands, is_fenced=True)
