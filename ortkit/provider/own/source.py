"""C source of programs: functions as custom_ops/native/provider/kernel.h declares them.

A program reads its inputs' sizes, checks that they are what it was made for, makes the outputs,
and runs its kernels on the session's threads. What lies between them is given back after the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ortkit.kernels.backend import Kernel, Refused
from ortkit.kernels.csource import c_text
from ortkit.kernels.signature import TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, product, symbols_of
from ortkit.provider.own.program import Program, Step

#: Work is cut into slices as in custom_ops/native/kernel.cc.
_PRELUDE = """#include "kernel.h"

#include <stdatomic.h>

#define SLICE_PICOSECONDS 16e6
#define VECTOR 64

typedef int32_t (*Call)(char* const* data, const int64_t* sizes, int64_t begin, int64_t end);
typedef struct Work {
  Call call;
  char* const* data;
  const int64_t* sizes;
  int64_t units, slice;
  atomic_int failure;
} Work;

static void run_slice(void* user, size_t index) {
  Work* work = user;
  const int64_t begin = (int64_t)index * work->slice;
  const int64_t left = work->units - begin;
  const int64_t end = begin + (left < work->slice ? left : work->slice);
  const int32_t code = work->call(work->data, work->sizes, begin, end);
  if (code != 0) atomic_store_explicit(&work->failure, code, memory_order_relaxed);
}

static inline int32_t run_step(OrtkitKernelContext* context, Call call, char* const* data,
                               const int64_t* sizes, int64_t units, int64_t points,
                               int64_t picoseconds, int64_t shared_nanoseconds) {
  if (units <= 0) return 0;
  Work work = {call, data, sizes, units, units, 0};
  const double shared = (double)shared_nanoseconds * 1e3 / (double)units;
  const double unit = (double)points * (double)picoseconds + shared + 1;
  if (unit * (double)units > SLICE_PICOSECONDS) {
    int64_t slice = (int64_t)(SLICE_PICOSECONDS / unit) + 1;
    if (points == 1 && slice > VECTOR) slice = (slice + VECTOR - 1) / VECTOR * VECTOR;
    if (slice < units) work.slice = slice;
  }
  if (work.slice == units) {
    run_slice(&work, 0);
  } else {
    const int32_t code =
        context->parallel_for(context, run_slice, (size_t)((units - 1) / work.slice + 1), &work);
    if (code != 0) return code;
  }
  const int code = atomic_load_explicit(&work.failure, memory_order_relaxed);
  return code == 0 ? 0 : context->fail(context, 1, "a kernel failed");
}
"""

_INVALID = 2


def fingerprint() -> str:
    """Name what writes programs: libraries of another one are made again."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]


def unsolved(program: Program) -> Refused | None:
    """Say which size of a program its inputs do not tell; None if they tell all."""
    found = _Sizes(program)
    return None if not found.unknown else Refused(f"no input tells the size {found.unknown[0]!r}")


def programs_source(
    programs: Sequence[Program], kernels: Mapping[str, Kernel]
) -> tuple[str, dict[str, bytes]]:
    """Return the C source of programs, and the files of constants that it includes by name.

    Args:
        programs: Of each key one; `unsolved` of each is None.
        kernels: By the keys of signatures.
    """
    files: dict[str, bytes] = {}
    parts = [_PRELUDE]
    for key in sorted({step.signature.key for one in programs for step in one.steps}):
        step = next(s for one in programs for s in one.steps if s.signature.key == key)
        parts.append(_adapter(step, kernels[key]))
    for program in sorted(programs, key=lambda one: one.symbol):
        writer = _Writer(program, kernels)
        parts.append(writer.text())
        files |= writer.files
    if files:
        names = "\n".join(f"CONSTANT({name});" for name in sorted(files))
        parts.insert(1, f"{_CONSTANT}\n{names}\n")
    return "\n".join(parts), {f"{name}.bin": content for name, content in files.items()}


_CONSTANT = (
    "#define CONSTANT(name) \\\n"
    '  __asm__(".pushsection .rodata.constants,\\"a\\",@progbits\\n.balign 64\\n" \\\n'
    '          #name ":\\n.incbin \\"" #name ".bin\\"\\n.popsection\\n"); \\\n'
    '  extern const char name[] __attribute__((visibility("hidden")))'
)


class _Sizes:
    """How the sizes that a program's kernels ask for follow from the sizes of its inputs."""

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
            for index, place in enumerate(program.inputs)
            for axis, extent in enumerate(_dims(program.tensors[place]))
        ]
        self._solve(pending)
        # A size may be called otherwise where equal sizes meet: kernels say what they take it for.
        for step in program.steps:
            specs = (*step.signature.inputs, *step.signature.outputs)
            for place, spec in zip((*step.inputs, *step.outputs), specs, strict=True):
                own = _dims(program.tensors[place])
                pairs = zip(own, _dims(spec), strict=True)
                told = [(self.text(mine), extent) for mine, extent in pairs if self._knows(mine)]
                self._solve([(text, extent) for text, extent in told if text is not None])
        asked = [extent for tensor in program.tensors for extent in _dims(tensor)]
        asked += [
            extent
            for step in program.steps
            for spec in (*step.signature.inputs, *step.signature.outputs)
            for extent in _dims(spec)
        ]
        every = dict.fromkeys(symbol for extent in asked for symbol in extent.symbols)
        self.unknown = [symbol for symbol in every if symbol not in self.expressions]

    def _knows(self, extent: Extent) -> bool:
        return all(symbol in self.expressions for symbol in extent.symbols)

    def _solve(self, pending: list[tuple[str, Extent]]) -> None:
        """Learn sizes from equations; those that tell nothing new become checks.

        One with several unknown sizes waits until others have told all of them but one.
        """
        waiting = [*self._waiting, *pending]
        while True:
            self._waiting = [one for one in waiting if not self._settle(*one)]
            if len(self._waiting) == len(waiting):
                return
            waiting = self._waiting

    def _settle(self, text: str, extent: Extent) -> bool:
        """Learn from one equation, or check it; False if it has several unknown sizes."""
        unknown = [one for one in extent.symbols if one not in self.expressions]
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


class _Writer:
    """Writes one program."""

    def __init__(self, program: Program, kernels: Mapping[str, Kernel]) -> None:
        self.program = program
        self.kernels = kernels
        self.sizes = _Sizes(program)
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
        for index, place in enumerate(self.program.inputs):
            rank = len(self.program.tensors[place].shape)
            name = self.program.tensors[place].name
            reason = c_text(f"input '{name}' is absent or not of rank {rank}")
            lines += [
                f"if (context->inputs[{index}].element_type == 0 || "
                f"context->inputs[{index}].tensor.rank != {rank}) "
                f"return context->fail(context, {_INVALID}, {reason});",
                f"const int64_t* const x{index} = context->inputs[{index}].tensor.dims;",
                f"(void)x{index};",
                f"data[{place}] = (char*)context->inputs[{index}].tensor.data;",
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

    def _memory(self) -> list[str]:
        """Give every tensor its address."""
        program = self.program
        words = [
            word
            for place in program.outputs
            for word in (str(len(program.tensors[place].shape)), *self._dims(place))
        ]
        count = len(program.outputs)
        lines = [
            f"const int64_t made[] = {{{', '.join(words)}}};",
            f"void* results[{count}];",
            "int32_t code = context->make_outputs(context, made, results);",
            "if (code != 0) return code;",
        ]
        addressed = set(program.inputs)
        for index, place in enumerate(program.outputs):
            root = program.root(place)
            lines.append(f"data[{root}] = results[{index}];")
            addressed.add(root)
        for place, array in program.constants.items():
            name = f"{program.symbol}_c{place}"
            self.files[name] = np.ascontiguousarray(array).tobytes() or b"\0"
            lines.append(f"data[{place}] = (char*){name};")
            addressed.add(place)
        for place in range(len(program.tensors)):
            if place in addressed or place in program.views:
                continue
            lines += [
                f"data[{place}] = context->scratch(context, (size_t)({self._bytes(place)}));",
                f"if (data[{place}] == NULL && ({self._bytes(place)}) > 0) "
                'return context->fail(context, 1, "no memory between kernels");',
            ]
        lines += [f"data[{place}] = data[{program.root(place)}];" for place in program.views]
        return lines

    def _dims(self, place: int) -> list[str]:
        return [self._known(extent) for extent in _dims(self.program.tensors[place])]

    def _bytes(self, place: int) -> str:
        spec = self.program.tensors[place]
        return self._known(product(_dims(spec)) * Extent(itemsize(spec.dtype)))

    def _known(self, extent: Extent) -> str:
        text = self.sizes.text(extent)
        assert text is not None, f"{extent} is not known"
        return text

    def _step(self, number: int, step: Step) -> list[str]:
        specs = (*step.signature.inputs, *step.signature.outputs)
        symbols = symbols_of(specs)
        places = ", ".join(f"data[{place}]" for place in (*step.inputs, *step.outputs))
        given = ", ".join(self._known(Extent(1, (symbol,))) for symbol in symbols)
        kernel = self.kernels[step.signature.key]
        # The launch calls sizes by their places; see `Launch`.
        names = {f"s{index}": symbol for index, symbol in enumerate(symbols)}
        units = self._known(_renamed(product(kernel.launch.units), names))
        points = self._known(_renamed(kernel.launch.points, names))
        work = [self._known(product(_dims(spec))) for spec in step.signature.outputs]
        has_work = " || ".join(f"({text}) > 0" for text in work)
        return [
            f"char* const data{number}[] = {{{places}}};",
            f"const int64_t sizes{number}[] = {{{given or '0'}}};",
            f"code = run_step(context, call_{step.signature.key}, data{number}, sizes{number}, "
            f"{has_work} ? {units} : 0, {points}, {kernel.launch.picoseconds_per_point}, "
            f"{kernel.launch.shared_nanoseconds});",
            "if (code != 0) return code;",
        ]


def itemsize(dtype: str) -> int:
    """Return the bytes of an element, by numpy's name or that of a type that numpy lacks."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _adapter(step: Step, kernel: Kernel) -> str:
    """Return what calls a kernel with the sizes and data of arrays."""
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


def _dims(tensor: TensorSpec) -> list[Extent]:
    return [extent_of(dim) for dim in tensor.shape]


def _renamed(extent: Extent, names: Mapping[str, str]) -> Extent:
    return Extent(extent.factor, tuple(sorted(names[symbol] for symbol in extent.symbols)))
