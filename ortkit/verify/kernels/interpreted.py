"""The ways in which Triton's interpreter runs a kernel: each of its variants.

For processes with TRITON_INTERPRET=1. The interpreter computes what the generated code says, in
numpy and one program after the other. It shows neither what threads do to each other nor what a
GPU's compiler makes of the code.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from types import ModuleType

import numpy as np

from ortkit.kernels.triton.interpreter import Interpreter
from ortkit.kernels.triton.launches import (
    SizesError,
    block_count,
    fitting,
    launches_of,
    shape_of,
    sizes_of,
)
from ortkit.kernels.triton.source import VariantSource
from ortkit.verify.kernels.blocks import Block, HostBlock, Operand, guarded
from ortkit.verify.kernels.bodies import device_body
from ortkit.verify.kernels.job import KernelJob, KernelsJob, NotThisWayError, one_line
from ortkit.verify.kernels.native import Run
from ortkit.verify.kernels.source import KernelSource, is_gluon

#: A case is run by as many variants, those first that were run least.
_VARIANTS = 3
#: Parts of a kernel's time that one run may take, and all runs of a case together.
_RUN_PART, _CASE_PART = 1 / 3, 1 / 12
#: Bytes of scratch memory before a launch: NaN in every type.
_NAN = 0xFF


class InterpretedWays:
    """The variants of one kernel that Triton's interpreter runs, and the kernel's body."""

    def __init__(self, ort: ModuleType, job: KernelsJob, kernel: KernelJob) -> None:
        """Read the kernel's source.

        Raises:
            NotRunError: ONNX Runtime does not load the body.
        """
        assert kernel.source is not None
        found: KernelSource = pickle.loads(kernel.source.read_bytes())
        self._signature, self._sources = found.signature, found.variants
        self._variants = [source.variant([0] * len(source.steps)) for source in self._sources]
        self._tensors = len(self._signature.inputs) + len(self._signature.outputs)
        self._seconds_of_run = _RUN_PART * job.most_seconds
        self._seconds_of_case = _CASE_PART * job.most_seconds
        self._runs = Counter[int]()
        self._seconds: dict[int, float] = {}
        """Processor time for a block of threads, by the code that ran."""
        codes = [_code(source) for source in self._sources]
        self._same = [codes.index(code) for code in codes]
        self._problems = {
            number: "it is in Gluon, which has no interpreter"
            for number, source in enumerate(self._sources)
            if is_gluon(source)
        }
        self.body = device_body(ort, kernel, job.custom_ops)
        self._interpreter = Interpreter(kernel.source.parent)

    @property
    def note(self) -> str:
        """Which variants were not run, and why."""
        reasons: dict[str, list[int]] = {}
        for number in range(len(self._sources)):
            if not self._count(number):
                why = self._problems.get(number, "its conditions hold at no size that was tried")
                reasons.setdefault(why, []).append(number)
        parts = [f"{', '.join(map(str, numbers))} ({why})" for why, numbers in reasons.items()]
        return f"variants that were not run: {'; '.join(parts)}" if parts else ""

    def ways(
        self, operands: Sequence[Operand], body: Sequence[np.ndarray]
    ) -> Iterator[tuple[str, Run]]:
        """Yield the variants that may be launched at these sizes; see `NativeWays.ways`."""
        specs = [(x.shape, x.dtype) for x in body]
        try:
            sizes = sizes_of(self._signature, [each.array.shape for each in operands])
        except SizesError:
            return  # no launch has such sizes
        region = self._signature
        if [x.shape for x in body] != [
            shape_of(output, region, sizes) for output in region.outputs
        ]:
            return
        found = fitting(self._variants, sizes)
        fit = {self._same[n]: n for n in found if n not in self._problems}
        # The first size is the smallest: there each variant shows what a block takes.
        is_first = not self._seconds
        spent = 0.0
        for number in sorted(fit.values(), key=self._count)[: None if is_first else _VARIANTS]:
            cost = self._predicted(number, sizes)
            is_late = spent and not is_first and spent + cost > self._seconds_of_case
            if cost > self._seconds_of_run or is_late:
                continue
            spent += cost
            run = partial(self._launch, number, sizes)
            yield (
                f"variant {number} interpreted",
                partial(guarded, run, HostBlock, operands, specs, is_aligned=True),
            )

    def _count(self, number: int) -> int:
        """Return how often the code of a variant was run."""
        return self._runs[self._same[number]]

    def _predicted(self, number: int, sizes: Sequence[int]) -> float:
        """Return processor time of a run, by this code's last run, or the slowest code's."""
        slowest = max(self._seconds.values(), default=0.0)
        for_each = self._seconds.get(self._same[number], slowest)
        return for_each * block_count(self._variants[number], sizes)

    def _launch(
        self, number: int, sizes: Sequence[int], inputs: Sequence[Block], outputs: Sequence[Block]
    ) -> None:
        """Launch a variant.

        Raises:
            NotThisWayError: The interpreter does not run it.
        """
        started = time.process_time()
        try:
            found = launches_of(
                self._sources[number], self._variants[number], self._tensors, sizes
            )
            scratch = [np.full(size, _NAN, np.uint8) for size in found.scratch]
            addresses = [block.address for block in (*inputs, *outputs)]
            addresses += [memory.ctypes.data for memory in scratch]
            for launch in found.launches:
                self._interpreter.launch(launch, addresses)
        except Exception as error:
            self._problems[number] = f"Triton's interpreter does not run it: {one_line(error)}"
            raise NotThisWayError(self._problems[number]) from error
        self._runs[self._same[number]] += 1
        blocks = max(1, block_count(self._variants[number], sizes))
        self._seconds[self._same[number]] = (time.process_time() - started) / blocks


def _code(source: VariantSource) -> object:
    """Return what the interpreter runs of a variant; many differ in what a compiler knows."""
    steps = [
        (
            step.text,
            step.is_gluon,
            step.grid,
            step.maps,
            [(parameter.type, parameter.argument) for parameter in step.parameters],
        )
        for step in source.steps
    ]
    return steps, source.scratch
