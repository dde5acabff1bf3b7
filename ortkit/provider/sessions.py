"""A provider's callbacks for sessions: create, claim, compile, run."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.provider import bridge, native
from ortkit.provider.base import ExecutionProvider, declared_dims, overrides
from ortkit.provider.failures import describe
from ortkit.provider.graph_view import GraphView, read_fused_graph, read_graph
from ortkit.provider.groups import Group, check_claims
from ortkit.provider.kernel import Kernel
from ortkit.provider.kernel_table import KERNELS
from ortkit.provider.python_kernel import Expected, PythonFunction, PythonKernel
from ortkit.provider.session_info import Logger, SessionInfo, run_info
from ortkit.provider.slots import Slots

_DONE, _FAIL, _INVALID = 0, 1, 2
#: Functions that hold a graph. ONNX Runtime shows it, writes the function out, and shows it again;
#: of what was claimed before it makes an invalid model (1.31.1, 2026-11).
_WRITTEN_OUT = frozenset({"SequenceMap"})
Callback = Callable[..., int]


class SessionCallbacks:
    """What native code calls for the sessions of one provider; alive as long as the process."""

    def __init__(self, provider: ExecutionProvider) -> None:
        self._provider = provider
        self._sessions: dict[int, ExecutionProvider] = {}
        #: One for each session whose kernels must not run at the same time.
        self._locks: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._keeps_lock = all(device.memory is None for device in provider.devices)
        #: Functions of ctypes: they must not be collected.
        self._kept: list[object] = []

    def install(self, definition: bridge.Provider) -> None:
        """Put the callbacks into a definition."""
        provider = self._provider
        self._set(definition, "create_ep", bridge.CREATE_EP, self._create, "start")
        definition.release_ep = self._keep(bridge.RELEASE_EP(self._release))
        if overrides(provider, "get_capability"):
            self._set(
                definition, "get_capability", bridge.GET_CAPABILITY, self._claim, "get_capability"
            )
            self._set(definition, "compile", bridge.COMPILE, self._compile, "compile")
        if overrides(provider, "run_started"):
            self._set(definition, "run_start", bridge.RUN_START, self._run_start, "run_started")
        if overrides(provider, "run_ended"):
            self._set(definition, "run_end", bridge.RUN_END, self._run_end, "run_ended")
        name = "set_dynamic_options"
        self._set(definition, name, bridge.SET_DYNAMIC_OPTIONS, self._set_options, name)
        if overrides(provider, "session_initialized"):
            name = "session_initialized"
            self._set(definition, name, bridge.SESSION_INITIALIZED, self._initialized, name)
        if overrides(provider, "compatibility"):
            name = "compatibility"
            self._set(definition, name, bridge.COMPATIBILITY, self._compatibility, name)
        if overrides(provider, "validate"):
            self._set(definition, "validate", bridge.VALIDATE, self._validate, "validate")

    def in_turn(self, kernel: Callable[[int], int], ep: int) -> Callable[[int], int]:
        """Return a session's kernel, which waits for the others if the provider wants that.

        ONNX Runtime has a way to keep runs apart, too. It waits for its lock with the
        interpreter's held, and a kernel that wants the latter never ends (1.31.1, 2026-11).
        """
        if self._provider.concurrent_kernels:
            return kernel
        lock = self._locks.setdefault(ep, threading.RLock())

        def waiting(context: int) -> int:
            with lock:
                return kernel(context)

        return waiting

    def _keep(self, function: Any) -> Any:
        self._kept.append(function)
        return function

    def _set(
        self, definition: bridge.Provider, name: str, kind: Any, inner: Any, method: str
    ) -> None:
        setattr(definition, name, self._keep(kind(guarded(inner, method))))

    def _create(self, _user: int, session: Any, ep: Any, _error: int) -> None:
        contents = session.contents
        info = SessionInfo(
            options=contents.options.as_dict(),
            config=contents.config.as_dict(),
            devices=tuple(contents.devices[: contents.device_count]),
            logger=Logger(contents.api, contents.logger),
        )
        number = next(self._numbers)
        self._sessions[number] = self._provider.for_session(info)
        ep[0] = number

    def _release(self, _user: int, ep: int) -> None:
        provider = self._sessions.pop(ep, None)
        self._locks.pop(ep, None)
        if provider is None:
            return
        try:
            provider.close()
        except BaseException as error:  # noqa: BLE001 - nobody is left to be told but the log
            provider.session.logger.error(describe(error, "close"))
        finally:
            provider.session.logger.close()

    def _claim(self, _user: int, ep: int, graph: Any, groups: int, error: int) -> None:
        provider, contents = self._sessions[ep], graph.contents
        view = read_graph(Slots(contents.api), contents.graph)
        if view.parent_op in _WRITTEN_OUT:
            return
        try:
            for claim in check_claims(view, provider.get_capability(view)):
                self._add(provider, view, claim, groups, error)
        finally:
            kept = view.close()
        _check_kept(kept, "get_capability")

    def _add(
        self,
        provider: ExecutionProvider,
        view: GraphView,
        claim: ir.Node | Group,
        groups: int,
        error: int,
    ) -> None:
        if isinstance(claim, ir.Node):
            handle = view.handles[claim]
            if provider.kernels and native.has_kernel(groups, handle, error):
                native.add_single(groups, handle, error)
                return
            claim = Group((claim,))
        drop = provider.drop_constants if claim.drop_constants is None else claim.drop_constants
        nodes = [view.handles[node] for node in claim.nodes]
        native.add_group(groups, nodes, drop_constant_initializers=drop, error=error)

    def _compile(self, _user: int, ep: int, contents: Any, kernels: int, error: int) -> None:
        provider, request = self._sessions[ep], contents.contents
        slots = Slots(request.api)
        for index in range(request.count):
            view = read_fused_graph(slots, request.graphs[index], request.nodes[index])
            try:
                _check_types(view)
                compiled = provider.compile(view)
                self._set_kernel(ep, view, compiled, kernels, index, error)
            finally:
                kept = view.close()
            _check_kept(kept, "compile")

    def _set_kernel(
        self,
        ep: int,
        view: GraphView,
        compiled: object,
        kernels: int,
        index: int,
        error: int,
    ) -> None:
        if isinstance(compiled, Kernel):
            KERNELS.give_native(compiled, kernels, index, error)
            return
        if not callable(compiled) and not isinstance(compiled, PythonFunction):
            raise UserError(
                f"compile returned a value of type {type(compiled).__name__}",
                fix="return a function of arrays, or an ortkit.provider.Kernel",
            )
        expected = [
            Expected(value.name or "", value.dtype, declared_dims(value)) for value in view.outputs
        ]
        kernel = PythonKernel(compiled, expected=expected, keeps_lock=self._keeps_lock)
        KERNELS.give_python(self.in_turn(kernel, ep), view.name, kernels, index, error)

    def _run_start(self, _user: int, ep: int, run: Any, _error: int) -> None:
        self._sessions[ep].run_started(run_info(run.contents.api, run.contents.options))

    def _run_end(self, _user: int, ep: int, run: Any, synchronous: int, _error: int) -> None:
        info = run_info(run.contents.api, run.contents.options)
        self._sessions[ep].run_ended(info, synchronous=bool(synchronous))

    def _set_options(self, _user: int, ep: int, options: Any, _error: int) -> None:
        self._sessions[ep].set_dynamic_options(options.contents.as_dict())

    def _initialized(self, _user: int, ep: int, _error: int) -> None:
        self._sessions[ep].session_initialized()

    def _compatibility(self, _user: int, ep: int, graph: Any, answer: int) -> None:
        view = read_graph(Slots(graph.contents.api), graph.contents.graph)
        try:
            native.set_error(answer, self._sessions[ep].compatibility(view))
        finally:
            view.close()

    def _validate(self, _user: int, text: bytes | None, verdict: Any, _error: int) -> None:
        verdict[0] = int(self._provider.validate((text or b"").decode(errors="replace")))


def guarded(inner: Callable[..., None], where: str) -> Callback:
    """Return a callback that turns what `inner` raises into a code and a message.

    The last argument of each is the OrtkitError that takes the message.
    """

    def callback(*arguments: Any) -> int:
        try:
            inner(*arguments)
        except UserError as error:
            native.set_error(arguments[-1], describe(error, where))
            return _INVALID
        except BaseException as error:  # noqa: BLE001 - it must not leave the callback
            native.set_error(arguments[-1], describe(error, where))
            return _FAIL
        return _DONE

    return callback


def _check_types(view: GraphView) -> None:
    for value in (*view.inputs, *view.outputs):
        if not isinstance(value.type, ir.TensorType):
            kind = value.type if value.type is not None else "of a type that onnx-ir has none for"
            raise UserError(
                f"the group {view.name!r} has {value.name!r} at its edge, which is {kind}",
                fix="claim groups whose inputs and outputs are tensors",
            )


def _check_kept(kept: list[str], method: str) -> None:
    if kept:
        raise UserError(
            f"{method} keeps an array over the initializer {kept[0]!r}, whose memory ONNX Runtime "
            "takes back",
            fix="keep a copy: numpy.array(value.const_value.numpy())",
        )
