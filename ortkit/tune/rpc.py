"""Measuring on other machines, by TVM's RPC: a tracker hands out its servers.

Kernels are compiled and linked here; a server loads the library, and keeps the tensors. What
runs there is a function of plain C that takes the time, called through TVM's C interface.
Source: tvm/ffi/c_api.h of apache-tvm-ffi 0.1; tvm.rpc of apache-tvm 0.27.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ortkit.errors import KernelError, MissingDependencyError, UserError
from ortkit.kernels.backend import Kernel
from ortkit.kernels.cuda import CudaKernel
from ortkit.targets.cpu import level_of, runs_on
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder
from ortkit.tune import timing_cpu
from ortkit.tune.cases import TuneCase, tensors_of
from ortkit.tune.timing import Effort, Times, time_with
from ortkit.tune.timing_child import POISON, KernelTimes, empty, filled, is_equal, time_kernels

_ADDRESS = re.compile(r"rpc://(?P<host>[^/:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d+)/(?P<key>[^/]+)")
_SERVER = "python -m tvm.exec.rpc_server --host 127.0.0.1"
_FIX = "give rpc://HOST:PORT/KEY, as the tracker and the servers were started with"
_CONNECT_SECONDS = 5.0
#: What a tracker may take for an answer that it has at once.
_ANSWER_SECONDS = 20.0
#: What a server may take for one batch before it ends it.
_SESSION_SECONDS = 120
#: How long to wait for a server that others use.
_FREE_SECONDS = 4.0 * _SESSION_SECONDS
#: Bytes of a server's /proc/cpuinfo that are read: the first processor's.
_CPUINFO_BYTES = 1 << 14
#: What comes of a tracker or server that ends, does not answer, or is something else.
_FAILURES = (OSError, RuntimeError, ValueError, TypeError, LookupError, struct.error)
# How TVM calls functions of C. Tensors are pointers to a DLTensor, whose first field is the data,
# or objects that have it after a head of 24 bytes.
_CALLS = """#include <stdint.h>
#include <stdio.h>
typedef struct {
  int32_t type;
  uint32_t zero;
  union { int64_t number; void *pointer; } value;
} any;
static void *data_of(const any *one) {
  void **tensor = one->value.pointer;
  return one->type == 7 ? tensor[0] : tensor[3];
}
static int32_t returned(any *result, int64_t number) {
  result->type = 1;
  result->zero = 0;
  result->value.number = number;
  return 0;
}
"""
_CPUINFO = """
int32_t __tvm_ffi_ortkit_cpuinfo(void *self, const any *given, int32_t count, any *result) {
  FILE *file = fopen("/proc/cpuinfo", "r");
  const int64_t size = file ? (int64_t)fread(data_of(given), 1, given[1].value.number, file) : 0;
  if (file) fclose(file);
  return returned(result, size);
}
"""
_TIME = """
int32_t __tvm_ffi_ortkit_time(void *self, const any *given, int32_t count, any *result) {
  void *tensors[%(tensors)d];
  int64_t sizes[%(sizes)d + 1];
  for (int i = 0; i < %(sizes)d; ++i) sizes[i] = given[3 + i].value.number;
  for (int i = 0; i < %(tensors)d; ++i) tensors[i] = data_of(given + 3 + %(sizes)d + i);
  return returned(result, ortkit_time((int32_t)given[0].value.number, tensors, sizes,
                                      given[1].value.number, given[2].value.number));
}
"""


@dataclass(frozen=True)
class Cpu:
    """A server's processor."""

    model: str
    level: str


@dataclass
class Tracker:
    """The servers of one key behind a tracker; several threads may use it at once.

    Args:
        host: Of the tracker.
        port: Of the tracker.
        key: Of the servers.
    """

    host: str
    port: int
    key: str

    def __str__(self) -> str:
        """Return it as the user names it."""
        return f"rpc://{self.host}:{self.port}/{self.key}"

    def check_answers(self) -> None:
        """Ask the tracker for anything.

        Raises:
            UserError: It does not answer.
            MissingDependencyError: TVM is not installed.
        """
        try:
            from tvm.rpc.base import TrackerCode
        except ImportError as error:
            raise MissingDependencyError(f"TVM's RPC cannot be used: {error}") from error
        try:
            self._asked(TrackerCode.SUMMARY)
        except _FAILURES as error:
            raise UserError(
                f"no tracker answers: {_line(error)}", where=str(self), fix=_FIX
            ) from error

    def _asked(self, code: int, *arguments: object, seconds: float | None = None) -> Any:
        """Return what the tracker answers, over a connection that is made for it.

        TVM's own client has one connection for all threads, and waits for an answer for ever.
        """
        from tvm.rpc import base

        with socket.create_connection((self.host, self.port), _CONNECT_SECONDS) as to:
            to.settimeout(_ANSWER_SECONDS)
            to.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            if struct.unpack("<i", base.recvall(to, 4))[0] != base.RPC_TRACKER_MAGIC:
                raise OSError("what answers is no tracker")
            to.settimeout(seconds or _ANSWER_SECONDS)
            base.sendjson(to, [code, *arguments])
            status, *answer = base.recvjson(to)
            if status != base.TrackerCode.SUCCESS:
                raise OSError(f"it refuses with {status}")
            return answer[0]

    @property
    def workers(self) -> int:
        """How many servers of the key there are, busy ones too.

        Raises:
            UserError: The tracker is gone.
        """
        from tvm.rpc.base import TrackerCode

        try:
            servers = self._asked(TrackerCode.SUMMARY)["server_info"]
            return sum(str(server["key"]) == f"server:{self.key}" for server in servers)
        except _FAILURES as error:
            raise self._gone(error) from error

    @cached_property
    def cpu(self) -> Cpu:
        """The processor of the servers, which has to be the same for all.

        Raises:
            UserError: There are none, or of several models.
        """
        count, at = self.workers, f"{self.host}:{self.port}"
        if not count:
            raise UserError(
                f"no server of the key {self.key!r} is known to the tracker",
                where=str(self),
                fix=f"start some with `{_SERVER} --key {self.key} --tracker {at}`",
            )  # fmt: skip
        with TemporaryFolder("tune") as folder:
            library = timing_cpu.shared_library(_CALLS + _CPUINFO, (), folder)
            found = {_cpu_of(session, library) for session in self._all(count)}
        if len(found) > 1:
            names = ", ".join(sorted(item.model for item in found))
            raise UserError(
                f"servers of one key have to be alike: {names}",
                where=str(self), fix="give each kind of machine a key of its own",
            )  # fmt: skip
        return found.pop()

    @property
    def processor(self) -> str:
        """The model of the servers' processors."""
        return self.cpu.model

    def check(self, target: Target) -> None:
        """Check that the servers run kernels for a target.

        Raises:
            UserError: They do not, or do not answer.
        """
        if not runs_on(target.level, self.cpu.level):
            raise UserError(
                f"the servers run {self.cpu.level}, kernels are made for {target.level}",
                where="--cpu", fix=f"give --cpu {self.cpu.level}",
            )  # fmt: skip

    def time(
        self, case: TuneCase, target: Target, backend: str, choices: Sequence[str], effort: Effort
    ) -> list[Times]:
        """Do what `time_choices` does, on one of the servers.

        Raises:
            KernelError: As there, or the server ended meanwhile.
            UserError: The tracker is gone.
        """
        return time_with(self._measured, case, target, backend, choices, effort)

    def _measured(
        self, case: TuneCase, kernels: Sequence[Kernel | CudaKernel], effort: Effort, folder: Path
    ) -> list[KernelTimes]:
        for_cpu = [kernel for kernel in kernels if isinstance(kernel, Kernel)]
        tensors = len(case.signature.inputs) + len(case.signature.outputs)
        source = _CALLS + _TIME % {"tensors": tensors, "sizes": len(case.sizes)}
        library = timing_cpu.link(for_cpu, case, folder, source)
        return [self._process(library, for_cpu, case, effort) for _ in range(effort.processes)]

    def _process(
        self, library: Path, kernels: Sequence[Kernel], case: TuneCase, effort: Effort
    ) -> KernelTimes:
        """Measure in one session; a server has a process for each."""
        session = self._request()
        try:
            session.upload(str(library))
            function = session.load_module(library.name)["ortkit_time"]
            return _timed(session, function, kernels, case, effort)
        except _FAILURES as error:
            _ = self.workers  # which raises if it was the tracker
            raise KernelError(f"the server that times kernels failed: {_line(error)}") from error

    def _all(self, count: int) -> list[Any]:
        """Return a session with each of the servers, all at once."""
        return [self._request() for _ in range(count)]

    def _request(self) -> Any:
        if not self.workers:  # it would wait for one
            raise self._gone(RuntimeError("no server is left"))
        from tvm import rpc
        from tvm.rpc.base import TrackerCode

        try:
            # Whoever asks, and how urgent it is.
            asked = (self.key, "", 1)
            host, port, match = self._asked(TrackerCode.REQUEST, *asked, seconds=_FREE_SECONDS)
            return rpc.connect(host, port, match, _SESSION_SECONDS)
        except _FAILURES as error:
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> UserError:
        return UserError(
            f"the tracker went away or has no server: {_line(error)}",
            where=str(self), fix="start it and run this again; no trial is lost",
        )  # fmt: skip


def tracker_of(address: str) -> Tracker:
    """Return a tracker that answers, such as `rpc://localhost:9190/kind`.

    Raises:
        UserError: It is no address, or nobody answers.
        MissingDependencyError: TVM is not installed.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        raise UserError(f"{address!r} is no tracker", where="--runner", fix=_FIX)
    tracker = Tracker(match["host"].strip("[]"), int(match["port"]), match["key"])
    tracker.check_answers()
    return tracker


def _timed(
    session: Any, function: Any, kernels: Sequence[Kernel], case: TuneCase, effort: Effort
) -> KernelTimes:
    random = np.random.default_rng(0)
    given, made = tensors_of(case)
    specs, inputs = [*given, *made], len(given)
    arrays = [filled(spec, random) for spec in specs[:inputs]]
    arrays += [empty(spec) for spec in specs[inputs:]]
    there = [_tensor(session, _bytes(array)) for array in arrays]
    units = [timing_cpu.units_of(kernel, case) for kernel in kernels]

    def nanoseconds(number: int, runs: int) -> float:
        return float(function(number, units[number], runs, *case.sizes, *there)) / runs

    def outputs(*, reset: bool) -> list[np.ndarray]:
        if reset:
            for array, tensor in zip(arrays[inputs:], there[inputs:], strict=True):
                tensor.copyfrom(np.full(_bytes(array).shape, POISON, np.uint8))
            return []
        return [
            tensor.numpy().view(array.dtype).reshape(array.shape)
            for array, tensor in zip(arrays[inputs:], there[inputs:], strict=True)
        ]

    def is_same(first: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> bool:
        return all(map(is_equal, specs[inputs:], first, found))

    return time_kernels(
        len(kernels), nanoseconds, outputs, is_same, effort.rounds, effort.seconds, random
    )


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _tensor(session: Any, array: np.ndarray) -> Any:
    from tvm import runtime

    return runtime.tensor(array, device=session.cpu(0))


def _cpu_of(session: Any, library: Path) -> Cpu:
    """Ask a server for its processor."""
    buffer = _tensor(session, np.zeros(_CPUINFO_BYTES, np.uint8))
    session.upload(str(library))
    size = session.load_module(library.name)["ortkit_cpuinfo"](buffer, _CPUINFO_BYTES)
    text = buffer.numpy()[:size].tobytes().decode(errors="replace")

    def value(name: str) -> str:
        lines = (line for line in text.splitlines() if line.startswith(name))
        return next(lines, "").partition(":")[2].strip()

    return Cpu(value("model name") or "unknown", level_of(frozenset(value("flags").split())))


def _line(error: Exception) -> str:
    """Return the last line of what TVM says, which has a trace before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
