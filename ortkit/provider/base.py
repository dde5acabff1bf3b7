"""What a provider written in Python is: subclass `ExecutionProvider`."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Self

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.provider.devices import Device
from ortkit.provider.graph_view import GraphView
from ortkit.provider.groups import Claim
from ortkit.provider.kernel import Kernel
from ortkit.provider.op_kernels import OpKernel, OpKey
from ortkit.provider.python_kernel import PythonFunction
from ortkit.provider.session_info import RunInfo, SessionInfo

#: What `compile` may return: Python over numpy arrays, or something native.
Compiled = Callable[..., object] | PythonFunction | Kernel


class Compatibility(enum.IntEnum):
    """What a provider says of a model that was compiled earlier, perhaps elsewhere."""

    NOT_APPLICABLE = 0
    """It is not one of this provider's."""
    OPTIMAL = 1
    OUTDATED = 2
    """It runs; compiled again it would be faster."""
    UNSUPPORTED = 3


class ExecutionProvider:
    """An execution provider of ONNX Runtime's, in Python.

    Subclass it, give it a name, and say which nodes it takes and what they run: either
    `get_capability` and `compile`, or `kernels`. Register an object of it with
    `ortkit.register_provider`. Each session gets a shallow copy of that object, with `session`
    set, so what a session stores in `self` is its own.

    Methods are called on the thread that creates or runs the session. What they raise becomes
    an error of ONNX Runtime's with the message and the place. What `get_capability` raises is
    only logged by ONNX Runtime, unless the session sets the option `strict` to 1.
    """

    name: ClassVar[str] = ""
    """As sessions ask for it: "MyExecutionProvider"."""
    vendor: ClassVar[str] = "ortkit"
    version: ClassVar[str] = "0.0.0"
    vendor_id: ClassVar[int] = 0
    """Of its devices' memory, which it tells from others' by this number."""
    devices: Sequence[Device] = (Device(),)
    """What sessions may choose of; one that works in the CPU's memory by default."""
    kernels: Mapping[OpKey, Callable[..., object] | OpKernel] = {}
    """Kernels for single operators: ("", "Relu", 14) -> a function of arrays."""
    drop_constants: ClassVar[bool] = False
    """Whether `compile` copies what it needs of the initializers, and kernels do without them.
    Otherwise they are among the kernel's inputs."""
    concurrent_kernels: ClassVar[bool] = True
    """Whether the Python functions of one session may run at the same time, in several threads.
    Otherwise each waits until no other does."""

    reads_contexts: ClassVar[bool] = False
    """Whether EPContext nodes that name this provider as their source are run by the kernel
    libraries in them, without asking `get_capability`."""

    session: SessionInfo
    """The session that this copy works for; not there before."""

    def for_session(self, session: SessionInfo) -> Self:
        """Return the object that works for one session: a shallow copy, started."""
        made = copy.copy(self)
        made.session = session
        made.start()
        return made

    def start(self) -> None:
        """Prepare for a session: read `self.session.options`, make what the session needs."""

    def close(self) -> None:
        """Release what `start` made, as the session is gone."""

    def get_capability(self, graph: GraphView) -> Iterable[Claim]:
        """Say which nodes to take; called for the graph, and before for each in it.

        By default the nodes that one of `kernels` fits.

        Returns:
            Lists of nodes (or `Group`s), each to be compiled as one. Or nodes by themselves,
            which run one of `kernels` where one fits, else are compiled like a list of one.
        """
        raise NotImplementedError

    def compile(self, subgraph: GraphView) -> Compiled:
        """Return what a group runs.

        Args:
            subgraph: The group's nodes; `subgraph.inputs` and `outputs` are, in this order, what
                the kernel is called with and what it returns.
        """
        raise NotImplementedError

    def run_started(self, run: RunInfo) -> None:
        """Note that a run of the session starts."""

    def run_ended(self, run: RunInfo, *, synchronous: bool) -> None:
        """Note that a run ends; if `synchronous`, all work must be done on return."""

    def set_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Take options that the caller sets between runs (`set_ep_dynamic_options`).

        By default none is known.
        """
        raise UserError(f"{self.name} has no dynamic options", where=", ".join(options))

    def session_initialized(self) -> None:
        """Note that the session is ready; by ONNX Runtime 1.27 and newer."""

    def compatibility(self, graph: GraphView) -> str:
        """Return a text that goes into models compiled ahead of time, and comes back later."""
        raise NotImplementedError

    def validate(self, compatibility: str) -> Compatibility:
        """Judge such a text; called without a session."""
        raise NotImplementedError


def overrides(provider: ExecutionProvider, method: str) -> bool:
    """Return whether a provider has a method of its own."""
    return getattr(type(provider), method) is not getattr(ExecutionProvider, method)


def check_provider(provider: object) -> None:
    """Check what can be checked before a session.

    Raises:
        UserError: The object is none, or it lacks what a provider needs.
    """
    if not isinstance(provider, ExecutionProvider):
        fix = "make an object of it: register_provider(MyProvider())"
        if isinstance(provider, type) and issubclass(provider, ExecutionProvider):
            raise UserError(f"{provider.__name__} is a class", fix=fix)
        raise UserError(
            f"register_provider got a value of type {type(provider).__name__}",
            fix="give it an object of a subclass of ortkit.ExecutionProvider",
        )
    where = type(provider).__name__
    name = provider.name
    if not isinstance(name, str) or not name or "\0" in name:
        raise UserError("the provider has no name", where=where, fix='set name = "..."')
    claims, compiles = overrides(provider, "get_capability"), overrides(provider, "compile")
    if not claims and not provider.kernels:
        raise UserError(
            "the provider takes no nodes", where=where, fix="write get_capability, or set kernels"
        )
    if claims and not compiles and not provider.kernels:
        raise UserError("the provider has no compile", where=where, fix="write compile")
    if not provider.devices:
        raise UserError("the provider has no devices", where=where, fix="leave devices out")


def declared_dims(value: ir.Value) -> tuple[int | None, ...] | None:
    """Return a value's dims, None for those that are not fixed, or for a rank that is not."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)
