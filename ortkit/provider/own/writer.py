"""The C function of one program."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ortkit.kernels.backend import Kernel
from ortkit.kernels.link.csource import c_text
from ortkit.kernels.sizes import Extent, product, symbols_of
from ortkit.provider.own.program import Program, Step
from ortkit.provider.own.scratch import Slots
from ortkit.provider.own.sizes import ProgramSizes, dims_of

_INVALID = 2


class ProgramWriter:
    """Writes one program."""

    def __init__(self, program: Program, kernels: Mapping[str, Kernel]) -> None:
        self.program = program
        self.kernels = kernels
        self.sizes = ProgramSizes(program)
        self.files: dict[str, bytes] = {}

    def text(self) -> str:
        program = self.program
        lines = [
            f"__attribute__((visibility(\"default\"))) int32_t {program.symbol}("
            "void* user, OrtkitKernelContext* context) {",
            "(void)user;",
            *self._read(),
            *self._check(),
            *self._memory(),
            *(line for number, step in enumerate(program.steps) for line in
              self._step(number, step)),
            "return 0;",
        ]  # fmt: skip
        return "\n  ".join(lines) + "\n}\n"

    def _read(self) -> list[str]:
        given, made = len(self.program.inputs), len(self.program.outputs)
        lines = [
            f"if (context->input_count != {given} || context->output_count != {made}) "
            f"return context->fail(context, {_INVALID}, "
            f"{c_text(f'a kernel of {given} inputs and {made} outputs is given others')});",
            f"char* data[{len(self.program.tensors)}];",
        ]
        for index, number in enumerate(self.program.inputs):
            rank = len(self.program.tensors[number].shape)
            name = self.program.tensors[number].name
            reason = c_text(f"input '{name}' is absent or not of rank {rank}")
            lines += [
                f"if (context->inputs[{index}].element_type == 0 || "
                f"context->inputs[{index}].tensor.rank != {rank}) "
                f"return context->fail(context, {_INVALID}, {reason});",
                *self._check_type(f"context->inputs[{index}]", number),
                f"const int64_t* const x{index} = context->inputs[{index}].tensor.dims;",
                f"(void)x{index};",
                f"data[{number}] = (char*)context->inputs[{index}].tensor.data;",
            ]
        return lines

    def _check(self) -> list[str]:
        lines = list(self.sizes.lines)
        conditions: dict[str, str] = {}
        for text, extent in self.sizes.checks:
            wanted = self.sizes.text(extent)
            conditions[f"({text}) != ({wanted})"] = str(extent)
        lines += [
            f"if ({condition}) return context->fail(context, {_INVALID}, "
            f"{c_text(f'a size is not {wanted}, as it was in the model')});"
            for condition, wanted in conditions.items()
        ]
        return lines

    def _check_type(self, view: str, index: int) -> list[str]:
        """Refuse another element type: a model may name a library that was made for another."""
        spec = self.program.tensors[index]
        reason = c_text(f"'{spec.name}' is not of {spec.dtype}, as it was in the model")
        return [
            f"if ({view}.element_type != {_element_type(spec.dtype)}) "
            f"return context->fail(context, {_INVALID}, {reason});"
        ]

    def _memory(self) -> list[str]:
        """Give every tensor its address."""
        program = self.program
        lines = ["int32_t code = 0;"]
        for index, tensor in enumerate(program.outputs):
            dims, rank = self._dims(tensor), len(program.tensors[tensor].shape)
            lines += [
                f"const int64_t made{index}[] = {{{', '.join(dims) or '0'}}};",
                f"OrtkitView result{index};",
                f"code = context->make_output(context, {index}, made{index}, {rank}, "
                f"&result{index});",
                "if (code != 0) return code;",
                *self._check_type(f"result{index}", tensor),
                f"data[{program.root(tensor)}] = (char*)result{index}.tensor.data;",
            ]
        for tensor, array in program.constants.items():
            name = f"{program.symbol}_c{tensor}"
            self.files[name] = np.ascontiguousarray(array).tobytes() or b"\0"
            lines.append(f"data[{tensor}] = (char*){name};")
        for index, tensor in enumerate(program.weights):
            lines.append(f"data[{tensor}] = ((char* const*)user)[{index}];")
        slots = Slots.of(program)
        for number, extents in enumerate(slots.sizes):
            size = self.sizes.known(extents)
            lines += [
                f"char* const slot{number} = context->scratch(context, (size_t)({size}));",
                f"if (slot{number} == NULL && ({size}) > 0) "
                'return context->fail(context, 1, "no memory between kernels");',
            ]
        lines += [f"data[{tensor}] = slot{number};" for tensor, number in slots.slot_of.items()]
        lines += [f"data[{tensor}] = data[{program.root(tensor)}];" for tensor in program.views]
        return lines

    def _dims(self, index: int) -> list[str]:
        return [self.sizes.known(extent) for extent in dims_of(self.program.tensors[index])]

    def _step(self, number: int, step: Step) -> list[str]:
        specs = (*step.signature.inputs, *step.signature.outputs)
        symbols = symbols_of(specs)
        arguments = ", ".join(f"data[{position}]" for position in (*step.inputs, *step.outputs))
        given = ", ".join(self.sizes.known(Extent(1, (symbol,))) for symbol in symbols)
        kernel = self.kernels[step.signature.key]
        # The launch calls sizes by their places; see `Launch`.
        names = {f"s{index}": symbol for index, symbol in enumerate(symbols)}
        units = self.sizes.known(_renamed(product(kernel.launch.units), names))
        points = self.sizes.known(_renamed(kernel.launch.points, names))
        work = [self.sizes.known(product(dims_of(spec))) for spec in step.signature.outputs]
        has_work = " || ".join(f"({text}) > 0" for text in work)
        return [
            f"char* const data{number}[] = {{{arguments}}};",
            f"const int64_t sizes{number}[] = {{{given or '0'}}};",
            f"code = run_step(context, call_{step.signature.key}, data{number}, sizes{number}, "
            f"{has_work} ? {units} : 0, (OrtkitUnitCost){{{points}, "
            f"{kernel.launch.picoseconds_per_point}, {kernel.launch.shared_nanoseconds}, "
            f"{kernel.launch.slice_picoseconds}}});",
            "if (code != 0) return code;",
        ]


def adapter(step: Step, kernel: Kernel) -> str:
    """Return the C function that calls a kernel with the sizes and data of arrays."""
    specs = (*step.signature.inputs, *step.signature.outputs)
    tensors, sizes = len(specs), len(symbols_of(specs))
    parameters = "void*, " * tensors + "int64_t, " * sizes
    arguments = "".join(f"data[{index}], " for index in range(tensors))
    arguments += "".join(f"sizes[{index}], " for index in range(sizes))
    return (
        f"int32_t {kernel.symbol}({parameters}int64_t, int64_t);\n"
        f"static int32_t call_{step.signature.key}(char* const* data, const int64_t* sizes, "
        f"int64_t begin, int64_t end) {{\n  (void)sizes;\n"
        f"  return {kernel.symbol}({arguments}begin, end);\n}}\n"
    )


def _renamed(extent: Extent, names: Mapping[str, str]) -> Extent:
    return Extent(extent.factor, tuple(sorted(names[symbol] for symbol in extent.symbols)))


def _element_type(dtype: str) -> int:
    """Return the number that ONNX has for an element type."""
    if dtype == "bfloat16":
        return int(ir.DataType.BFLOAT16)
    return int(ir.DataType.from_numpy(np.dtype(dtype)))
