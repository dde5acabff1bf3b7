"""Kernels of an op called in this process, without ONNX Runtime: what PyTorch's tensors run on."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from ortkit.errors import KernelError, OrtkitError
from ortkit.extend.build.library import built_forms
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.op_schema import Attribute, Types
from ortkit.extend.declare.prepack import workspace_of
from ortkit.extend.declare.size_rules import value_of
from ortkit.extend.declare.variants import Form, forms_of
from ortkit.kernels.backend import Kernel, Launch, PackedInput
from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.sizes import symbols_of
from ortkit.targets.cpu import ask_for_tiles
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder, tools_in

#: Work that takes one core less is not worth another thread's start.
_LEAST_NANOSECONDS = 60_000
#: What packed inputs begin at a multiple of, as in a session.
_LINE = 64


@dataclass(frozen=True)
class NativeKernel:
    """A compiled form, loaded.

    Args:
        form: What it is for.
        launch: Its units and their cost.
        function: Of C: pointers, sizes, begin, end.
    """

    form: Form
    launch: Launch
    function: Any
    packs: tuple[tuple[PackedInput, Any], ...] = ()
    """With the function of each, which is called in each call."""

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The named sizes, in the order of the function's parameters."""
        return symbols_of((*self.form.signature.inputs, *self.form.signature.outputs))

    def call(
        self,
        tensors: Sequence[int],
        attributes: Mapping[str, Attribute],
        sizes: Mapping[str, int],
        threads: int,
    ) -> None:
        """Compute.

        Args:
            tensors: The addresses of the inputs that there are, then of the outputs, dense.
            attributes: All attributes of the node.
            sizes: By name; any number of axes are one.
            threads: At most this many compute at once.

        Raises:
            KernelError: The kernel says that it failed.
        """
        signature = self.form.signature
        numbers = [self._number(name, attributes) for name in self.form.attributes]
        inputs = len(signature.inputs) - len(numbers)
        addresses = [
            *tensors[:inputs],
            *(ctypes.addressof(number) for number in numbers),
            *tensors[inputs:],
        ]
        kept = []
        for pack, function in self.packs:
            workspace = workspace_of(pack, sizes)
            kept.append(ctypes.create_string_buffer(workspace.size + _LINE))
            index = -(-ctypes.addressof(kept[-1]) // _LINE) * _LINE
            arguments = [*map(ctypes.c_void_p, (addresses[pack.input], index)),
                         *map(ctypes.c_int64, (*workspace.sizes, 0, workspace.units))]  # fmt: skip
            if workspace.size and workspace.units and function(*arguments):
                raise KernelError("packing an input failed", where=self.form.op.id)
            addresses[pack.input] = index
        named = [sizes[symbol] for symbol in self.symbols]
        by_symbol = {f"s{index}": size for index, size in enumerate(named)}
        units = prod(value_of(unit, by_symbol) for unit in self.launch.units)
        work = value_of(self.launch.points, by_symbol) * units * self.launch.picoseconds_per_point
        parts = max(1, min(threads, units, work // (1000 * _LEAST_NANOSECONDS)))
        fixed = [*map(ctypes.c_void_p, addresses), *map(ctypes.c_int64, named)]

        def part(number: int) -> int:
            begin, end = number * units // parts, (number + 1) * units // parts
            return int(self.function(*fixed, ctypes.c_int64(begin), ctypes.c_int64(end)))

        if parts == 1:
            codes = [part(0)]
        else:
            others = [_pool().submit(part, number) for number in range(1, parts)]
            codes = [part(0), *(other.result() for other in others)]
        if any(codes):
            raise KernelError(f"its kernel returned {max(codes)}", where=self.form.op.id)

    def _number(self, name: str, attributes: Mapping[str, Attribute]) -> Any:
        value: Any = attributes[name]
        is_float = self.form.op.schema.attributes[name].kind is float
        return ctypes.c_float(value) if is_float else ctypes.c_int64(value)

    def takes(self, attributes: Mapping[str, Attribute], sizes: Mapping[str, int]) -> bool:
        """Say whether it is for these."""
        return takes(self.form, attributes, sizes)


def takes(form: Form, attributes: Mapping[str, Attribute], sizes: Mapping[str, int]) -> bool:
    """Say whether a form is for these attributes and sizes."""
    schema = form.op.schema
    fixed = all(attributes[name] == schema.attributes[name].default for name in form.built_in)
    return fixed and all(rule.holds(sizes) for rule in form.rules)


class NativeOp:
    """An op's kernels for the CPU, each set of types and inputs compiled when it first comes."""

    def __init__(self, op: DeclaredOp) -> None:
        """Compile nothing yet."""
        self.op = op
        self.problem = ""
        """Why there was no kernel the last time; empty if there was one."""
        self._known: dict[object, tuple[NativeKernel, ...]] = {}
        self._lock = threading.Lock()

    def find(
        self,
        types: Types,
        is_present: tuple[bool, ...],
        attributes: Mapping[str, Attribute],
        sizes: Mapping[str, int],
    ) -> NativeKernel | None:
        """Return the first kernel that is for a call, None if there is none."""
        key = tuple(sorted(types.items())), is_present
        with self._lock:
            if key not in self._known:
                self._known[key] = self._load(types, is_present)
        return next(
            (
                native_kernel
                for native_kernel in self._known[key]
                if native_kernel.takes(attributes, sizes)
            ),
            None,
        )

    def _load(self, types: Types, is_present: tuple[bool, ...]) -> tuple[NativeKernel, ...]:
        if not self.op.bodies and not any(kernel.is_on_host for kernel in self.op.kernels):
            self.problem = "it has neither a body nor a kernel for CPUs"
            return ()
        try:
            return tuple(self._compiled(types, is_present))
        except OrtkitError as error:  # without toolchains the reference computes
            self.problem = str(error)
            return ()

    def _compiled(self, types: Types, is_present: tuple[bool, ...]) -> list[NativeKernel]:
        found = [
            item
            for item in forms_of(self.op, list(types.values()), "cpu")
            if not isinstance(item, Form)
            or (item.types == types and item.is_present == is_present)
        ]
        forms = [one for one in found if isinstance(one, Form)]
        reasons = [one[1] for one in found if not isinstance(one, Form)]
        with (
            built_forms([(form, Target()) for form in forms]) as (made, _),
            TemporaryFolder("ops") as folder,
        ):
            pairs = list(zip(forms, made, strict=True))
            kernels = [(form, one) for form, one in pairs if isinstance(one, Kernel)]
            reasons += [getattr(one, "reason", "") for _, one in pairs]
            self.problem = (
                "" if kernels else next((reason for reason in reasons if reason), "none fits")
            )
            if not kernels:
                return []
            library = _linked([one for _, one in kernels], folder / "kernels.so")

        def loaded(kernel: Kernel) -> Any:
            function = getattr(library, kernel.symbol)
            function.restype = ctypes.c_int32
            return function

        result = [
            NativeKernel(form, one.launch, loaded(one),
                         tuple((pack, loaded(pack.kernel)) for pack in one.packs))
            for form, one in kernels
        ]  # fmt: skip
        return sorted(result, key=lambda native_kernel: len(native_kernel.packs))


def _linked(kernels: Sequence[Kernel], path: Path) -> ctypes.CDLL:
    """Load what kernels are linked into; the file is not needed afterwards."""
    for level in {kernel.target.level for kernel in kernels}:
        if not ask_for_tiles(level):
            raise KernelError(f"the system does not let this process run code for {level}")
    objects = {part.symbol: str(part.artifact) for kernel in kernels for part in kernel.parts}
    command = [*find_linker(), "-shared", "-o", str(path), *objects.values(), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env=tools_in(path.parent))  # fmt: skip
    if done.returncode != 0:
        raise KernelError(f"{command[0]} failed: {done.stderr.strip()[-300:]}")
    return ctypes.CDLL(str(path))


_threads: ThreadPoolExecutor | None = None
_owner = 0


def _pool() -> ThreadPoolExecutor:
    """Return threads for parts of work; a forked process makes its own."""
    global _threads, _owner
    if _threads is None or _owner != os.getpid():
        _threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ortkit")
        _owner = os.getpid()
    return _threads
