"""Kernels one by one: each distinct one beside its function body, over many sizes.

A kernel of generated code serves all sizes, and a model is run at a few. Here each kernel is a
model of its own, run at the edges of its tiles with values of several kinds. A kernel for the CPU
is run on aligned memory and not, by one thread and two; one for CUDA on a GPU, or its source by
Triton's interpreter. A verdict is kept with the kernel's key, so that it is made once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx_ir as ir

from ortkit.isolation.group import in_current_group
from ortkit.refusal import Refused
from ortkit.runtime.cpu_limits import cpu_limits
from ortkit.runtime.ort import require_onnxruntime
from ortkit.runtime.targets import device_count, device_name
from ortkit.temporary import TemporaryFolder
from ortkit.verify.inputs.covering import Level
from ortkit.verify.kernels.models import KernelNode, kernel_nodes
from ortkit.verify.kernels.process import Checks, Order
from ortkit.verify.kernels.report import KernelReport as KernelReport
from ortkit.verify.kernels.report import KernelRow as KernelRow
from ortkit.verify.kernels.source import (
    SourceOf,
    interpreted_way,
    not_interpreted,
    sources_of_library,
)
from ortkit.verify.kernels.verdicts import Verdicts

#: Seconds of processor time for sizes that are not required, of all kernels of a model together.
SECONDS: Mapping[Level, float] = {"quick": 2.0, "full": 300.0}
#: Seconds of processor time that Triton's interpreter has for the sizes of one kernel that are not
#: required (all kernels together have no more than `SECONDS`), and after which it is interrupted.
_INTERPRETED: Mapping[Level, tuple[float, float]] = {"quick": (0.5, 6.0), "full": (20.0, 60.0)}
_NO_LIBRARY = "there is no kernel library"


def check_kernels(
    model: ir.Model,
    library: Path | None,
    *,
    custom_ops: Sequence[Path] = (),
    seconds: float = SECONDS["quick"],
    verdicts: Verdicts | None = None,
    interpret: Level | None = None,
    source_of: SourceOf | None = None,
) -> KernelReport:
    """Compare each distinct kernel of a model with its body.

    Args:
        model: A model with fused nodes and their bodies.
        library: Their kernels; None where they are interpreted only.
        custom_ops: Libraries that bodies need.
        seconds: Processor time for sizes that are not required, of all kernels together.
        verdicts: Verdicts that are kept; by default in the user's cache.
        interpret: How much Triton's interpreter runs of kernels for CUDA where there is no GPU;
            None for nothing.
        source_of: The source of these; by default what the library was built from here.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed.
    """
    started = time.perf_counter()
    kernels = list(kernel_nodes(model))
    rows = {
        kernel.op_type: KernelRow(kernel.op_type, "not run", kernel.problem)
        for kernel in kernels
        if kernel.problem
    }
    wanted = [kernel for kernel in kernels if not kernel.problem]
    check = _Check(library, custom_ops, verdicts or Verdicts.of(library))
    if interpret is not None and not device_count():  # a GPU runs them
        rows |= check.interpreted(wanted, source_of, interpret)
    rows |= check.run([kernel for kernel in wanted if kernel.op_type not in rows], seconds)
    found = tuple(rows[kernel.op_type] for kernel in kernels)
    return KernelReport(found, time.perf_counter() - started)


@dataclass(frozen=True)
class _Check:
    """The check of one library's kernels."""

    library: Path | None
    custom_ops: Sequence[Path]
    verdicts: Verdicts

    def run(self, kernels: Sequence[KernelNode], seconds: float) -> dict[str, KernelRow]:
        """Run kernels of the library; return their rows by op type."""
        if self.library is None:
            return {
                kernel.op_type: KernelRow(kernel.op_type, "not run", _NO_LIBRARY)
                for kernel in kernels
            }
        device = device_name() if kernels else ""
        return self._rows([Order(kernel, device) for kernel in kernels], seconds)

    def interpreted(
        self, kernels: Sequence[KernelNode], source_of: SourceOf | None, level: Level
    ) -> dict[str, KernelRow]:
        """Interpret kernels whose source is known; return their rows by op type."""
        source_of = source_of or sources_of_library(self.verdicts.library)
        rows: dict[str, KernelRow] = {}
        orders: list[Order] = []
        for kernel in kernels:
            source = source_of(kernel.op_type)
            if isinstance(source, Refused):
                continue
            if problem := not_interpreted(source):
                rows[kernel.op_type] = KernelRow(
                    kernel.op_type, "not run", problem, needs_hardware=True, is_interpreted=True
                )
                continue
            orders.append(Order(kernel, interpreted_way(source, level), source))
        usual, most = _INTERPRETED[level]
        seconds = min(usual * len(orders), SECONDS[level])
        return rows | self._rows(orders, seconds, most)

    def _rows(
        self, orders: Sequence[Order], seconds: float, most_seconds: float = 0.0
    ) -> dict[str, KernelRow]:
        """Return the rows of kernels by op type, those that are known without a run.

        Args:
            orders: The kernels.
            seconds: Processor time for sizes that are not required, of all kernels together.
            most_seconds: See `Checks`.
        """
        rows: dict[str, KernelRow] = {}
        wanted: list[Order] = []
        for order in orders:
            known = self.verdicts.find(order.kernel, order.way)
            has_more = order.source is None and seconds > SECONDS["quick"]
            if known is None or (known["left_out"] and has_more):
                wanted.append(order)
            else:
                rows[order.kernel.op_type] = KernelRow(**{**known, "is_cached": True})
        if not wanted:
            return rows
        require_onnxruntime()
        with TemporaryFolder("kernels") as folder:
            for order, row in self._run(wanted, folder, seconds, most_seconds):
                rows[order.kernel.op_type] = row
                if row.verdict == "passed":
                    self.verdicts.keep(order.kernel, order.way, asdict(row))
        self.verdicts.trim()
        return rows

    def _run(
        self, orders: Sequence[Order], folder: Path, seconds: float, most_seconds: float
    ) -> list[tuple[Order, KernelRow]]:
        """Run kernels, in several processes where there are cores for them."""
        count = min(len(orders), cpu_limits().whole)
        parts = [orders[number::count] for number in range(count)]

        def rows_of(number: int) -> list[KernelRow]:
            own = folder / str(number)
            own.mkdir()
            part, share = parts[number], seconds * len(parts[number]) / len(orders)
            return Checks(part, self.library, self.custom_ops, own, share, most_seconds).rows()

        with ThreadPoolExecutor(count) as pool:
            found = list(pool.map(in_current_group(rows_of), range(count)))
        return [
            pair for part, rows in zip(parts, found, strict=True)
            for pair in zip(part, rows, strict=True)
        ]  # fmt: skip
