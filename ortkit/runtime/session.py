"""`Session`: what people use in Python instead of `onnxruntime.InferenceSession`."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortkit.errors import UserError
from ortkit.graph.io.open import ModelSource, open_model
from ortkit.runtime.binding import Binding, bind, run_on_values
from ortkit.runtime.capture_gate import GATE, gated
from ortkit.runtime.cuda_graphs import CapturedRuns
from ortkit.runtime.feeds import Array, FeedReader, Given
from ortkit.runtime.loading import load
from ortkit.runtime.memory_devices import HOST, devices_of
from ortkit.runtime.options import explained
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.packed_graphs import PackedRuns, graphs_of
from ortkit.runtime.placement import Placed, read_placement
from ortkit.runtime.settings import Kernels, Optimizations, SessionSettings, SessionTarget
from ortkit.runtime.shared_caches import check_shared
from ortkit.runtime.source import Saveable
from ortkit.runtime.specs import TensorSpec, specs_of
from ortkit.runtime.targets import short_name
from ortkit.temporary import TemporaryFolder

if TYPE_CHECKING:
    from ortkit.runtime.advice.result import Advice
    from ortkit.runtime.advice.use import Goal
    from ortkit.runtime.memory import MemoryReport
    from ortkit.runtime.profiling.recording import Recording

#: Sets of shapes that were found right and are not checked again.
_MOST_KNOWN = 1024


class Session:
    """A model, loaded, with its kernels, on the execution providers that were asked for.

    Use it in a `with` block, or call `close`. `run` may be called from any number of threads.
    """

    def __init__(
        self,
        model: ModelSource | Saveable,
        target: SessionTarget = "auto",
        *,
        kernels: Kernels = "auto",
        trust: bool = False,
        fallback: bool = False,
        threads: int = 0,
        inter_op_threads: int = 0,
        parallel: bool = False,
        deterministic: bool = False,
        cuda_graph: bool = False,
        optimizations: Optimizations = "all",
        check_finite: bool = False,
        memory_arena: bool = True,
        memory_pattern: bool = True,
        shared_arena: bool = False,
        spinning: bool = True,
        log_severity: int = 4,
        config: Mapping[str, str] | None = None,
        free_dimensions: Mapping[str, int] | None = None,
        optimized_model: str | os.PathLike[str] | None = None,
        trace_prefix: str | os.PathLike[str] | None = None,
        libraries: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        """Load a model.

        Args:
            model: A path, bytes, a protobuf, an `ir.Model`, or what `ortkit.optimize` returned.
            target: `auto` (CUDA where this machine has it, else the CPU), `cpu`, `cuda` or an
                execution provider's name. Or a list of these, most wanted first, each as a name
                or as (name, options). The CPU always comes last: it runs what no other takes.
            kernels: `auto` loads `STEM.ops.so` beside the model, or the library embedded in it,
                if it is the model's and was built here; `require` makes it an error if it cannot
                be loaded. `never` loads none; a path names another, which is trusted.
            trust: Whether the model's library is loaded even if it was built elsewhere. It is
                native code: whoever made it decides what this process does.
            fallback: Whether a provider that is missing, or takes no part, is left out with a
                note; otherwise that is an error.
            threads: Of one run within an operator; 0: one for each core.
            inter_op_threads: For independent nodes, with `parallel`.
            parallel: Whether independent nodes run at the same time.
            deterministic: Whether providers choose only kernels that give the same bits again.
            cuda_graph: Whether runs on CUDA are captured, once for each set of shapes, and then
                replayed; outputs are those of a plain run.
            optimizations: ONNX Runtime's own.
            check_finite: Whether NaN and infinite inputs are refused; costs a pass over them.
            memory_arena: Whether the CPU's memory is kept for the next run.
            memory_pattern: Whether buffers of a run are planned from its shapes.
            shared_arena: Whether the CPU's arena is that of all sessions (ONNX Runtime's
                environment), which must have been made before.
            spinning: Whether idle threads of a run wait actively.
            log_severity: ONNX Runtime's: 0 all to 4 fatal only. Errors are raised in any case.
            config: More entries of ONNX Runtime's session configuration.
            free_dimensions: Named sizes to be fixed.
            optimized_model: Where to write ONNX Runtime's own optimized graph.
            trace_prefix: Start of the file name of a trace of all runs; see `profile`.
            libraries: More libraries of ops, such as `ortkit ops build` writes.

        Raises:
            ModelError: There is no such model, or it is none.
            MissingDependencyError: ONNX Runtime, or a provider asked for, is not installed.
            RunError: ONNX Runtime does not load it.
            UserError: A setting is not known.
        """
        settings = SessionSettings(
            target, kernels, trust, fallback, threads, inter_op_threads, parallel,
            deterministic, cuda_graph, optimizations, check_finite, memory_arena, memory_pattern,
            shared_arena, spinning, log_severity, {} if config is None else config,
            {} if free_dimensions is None else free_dimensions,
            optimized_model, trace_prefix, libraries,
        )  # fmt: skip
        self._start(model, settings)

    @classmethod
    def with_settings(cls, model: ModelSource | Saveable, settings: SessionSettings) -> Session:
        """Load a model with settings that another session had."""
        made = cls.__new__(cls)
        made._start(model, settings)
        return made

    def _start(self, model: ModelSource | Saveable, settings: SessionSettings) -> None:
        self._ort = import_onnxruntime()
        self.settings = settings
        self._model = model
        self._scratch: TemporaryFolder | None = None
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._graphs: CapturedRuns | PackedRuns | None = None
        self._lock = threading.Lock()
        self._known: set[object] = set()
        try:
            self._load()
        except BaseException:
            self._release()
            raise

    def _load(self) -> None:
        loaded = load(self._model, self.settings, self._scratch_folder, self._ort)
        self.onnxruntime = loaded.session
        self.providers = loaded.providers
        self.libraries = loaded.libraries
        self.runs_bodies = loaded.runs_bodies
        self.notes = loaded.notes
        hidden = frozenset[str]() if loaded.packed is None else loaded.packed.hidden
        self.inputs = tuple(spec for spec in loaded.inputs if spec.name not in hidden)
        self.outputs = loaded.outputs
        self._devices = devices_of(loaded.session)
        self._reader = FeedReader(
            self.inputs,
            specs_of(loaded.session.get_overridable_initializers()),
            self._ort,
            self.settings.check_finite,
            self._devices.computes,
            self._devices.number,
        )
        self._names = [spec.name for spec in self.outputs]
        is_on_device = self._devices.computes != HOST
        self._run = gated(loaded.session.run) if is_on_device else loaded.session.run
        if loaded.failures is not None:
            self._run = loaded.failures.watched(self._run)
        # bfloat16 and the like: ONNX Runtime's Python binding gives them back as OrtValues only.
        self._is_plain = not any(spec.onnx_code for spec in (*self.inputs, *self.outputs))
        if self.settings.cuda_graph:
            self._graphs = graphs_of(self._ort, loaded, self._devices)

    # ---- running -----------------------------------------------------------------------

    def run(
        self, feeds: Given = None, outputs: Sequence[str] | None = None, *, cast: bool = False
    ) -> dict[str, Any]:
        """Run the model once.

        Args:
            feeds: Arrays by input name, in the inputs' order, as a dataclass's fields, or the
                only input itself; numpy, torch, anything with DLPack, numbers, `OrtValue`s.
            outputs: Names of the outputs that are wanted; all of them by default.
            cast: Whether arrays of another type are converted.

        Returns:
            Outputs by name, as numpy arrays (lists for sequences, None for absent optionals).

        Raises:
            UserError: A feed does not fit the model's signature, or the session is closed.
            RunError: ONNX Runtime failed, also for lack of memory.
        """
        # Feeds like earlier ones need no second check: this is most of what a call costs.
        checked: Any = feeds
        try:
            key: object = tuple(
                [(name, type(item), item.dtype, item.shape) for name, item in checked.items()]
            )
            is_known = key in self._known
        except (AttributeError, TypeError):
            key, is_known = None, False
        if not is_known:
            checked = self._checked(feeds, outputs, key, cast)
        names = self._names if outputs is None else self._chosen(outputs)
        try:
            if self._graphs is not None:
                return self._graphs.run(checked, names)
            if not self._is_plain:
                with GATE:
                    return run_on_values(self._ort, self.onnxruntime, checked, names, self.outputs)
            return dict(zip(names, self._run(names, checked), strict=True))
        except UserError:
            raise
        except Exception as error:
            raise explained(error) from error

    def run_async(
        self, feeds: Given = None, outputs: Sequence[str] | None = None, *, cast: bool = False
    ) -> concurrent.futures.Future[dict[str, Any]]:
        """Run the model in a thread of the session's; returns at once."""
        with self._lock:
            self._check_open()
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(
                    thread_name_prefix="ortkit-session"
                )
            return self._pool.submit(self.run, feeds, outputs, cast=cast)

    def bind(
        self,
        inputs: Given,
        outputs: Mapping[str, object] | Sequence[str] | None = None,
        *,
        device: str | None = None,
        share: Mapping[str, str] | None = None,
    ) -> Binding:
        """Bind memory to inputs and outputs once, for runs that copy nothing.

        Args:
            inputs: Every input, as `run` takes them. An array is shared with the caller (numpy
                on the CPU, torch or DLPack on any device, `OrtValue`); a shape is reserved on
                `device`.
            outputs: Memory for outputs, given in the same way. Names alone, or outputs that
                are left out, are reserved on `device`. This is done at once where their shape
                follows from the inputs', else by ONNX Runtime in each run.
            device: `cpu` or `cuda`; by default that of the first provider.
            share: Inputs to outputs that are to lie in the same memory: caches of a fixed size,
                so that each run appends to what the last one left.

        Raises:
            UserError: Something does not fit the model's signature, or an output cannot lie in
                an input.
        """
        self._check_open()
        if share:
            model = self._model
            if isinstance(model, Saveable):
                model = self._scratch_folder() / "model.onnx"
            check_shared(open_model(model), share)
        devices = self._devices
        if device is not None:
            if device not in (HOST, devices.computes):
                raise UserError(
                    f"{device!r} is not where the session computes", where="device",
                    fix=" or ".join(dict.fromkeys((devices.computes, HOST))),
                )  # fmt: skip
            devices = dataclasses.replace(devices, device=device)
        with GATE:
            return bind(
                self._ort, self.onnxruntime, self._reader, self.outputs, inputs, outputs, devices,
                self._graphs, share or {},
            )  # fmt: skip

    def warmup(self, feeds: Given = None, *, runs: int = 3) -> None:
        """Run the model a few times, so that arenas, caches and CUDA graphs are there.

        Without feeds zeros are used, which needs inputs of known sizes.
        """
        if not isinstance(runs, int) or runs < 0:
            raise UserError(f"{runs!r} is no number of runs", where="runs")
        if feeds is None:
            feeds = {spec.name: _zeros(spec) for spec in self.inputs if not spec.is_optional}
        for _ in range(runs):
            self.run(feeds)

    # ---- looking -----------------------------------------------------------------------

    def placement(self) -> tuple[Placed, ...]:
        """Return which provider runs which node.

        Raises:
            UserError: This ONNX Runtime does not record it.
        """
        self._check_open()
        return read_placement(self.onnxruntime)

    def profile(self, *, warmup: int = 0, provenance: bool = True) -> Recording:
        """Profile the runs of a `with` block: `with session.profile() as p: session.run(...)`.

        Meanwhile runs go to a twin of the session that is traced; afterwards `p.result` holds
        what they took.

        Args:
            warmup: How many of the first runs do not count.
            provenance: Whether ONNX Runtime's own optimized graph is written to the disk for a
                moment, to tell which nodes of the model each node stands for.
        """
        from ortkit.runtime.profiling.recording import Recording

        self._check_open()
        return Recording(self, warmup=warmup, provenance=provenance)

    def memory(self) -> MemoryReport:
        """Return what the session's arenas hold now, and what the process uses."""
        from ortkit.runtime.memory import report_of

        self._check_open()
        return report_of(self)

    def advise(
        self, feeds: Given, *, callers: int = 1, sessions: int = 1, goal: Goal = "latency",
        seconds: float = 3.0,
    ) -> Advice:  # fmt: skip
        """Measure which settings suit a use: `session.twin(**session.advise(feeds).changes)`.

        Threads, active waiting, independent nodes in parallel and the arena are measured, in
        processes of their own, on this machine as it is: what else runs on it counts.

        Args:
            feeds: Of every run, as `run` takes them.
            callers: Run calls at a time of each session.
            sessions: Processes at a time, each with a session of its own.
            goal: `latency` for the least 95th percentile, `throughput` for the most runs.
            seconds: Of runs for each settings that are measured.

        Raises:
            UserError: The session does not run on the CPU alone, or a number makes no sense.
            RunError: A session as this one cannot be made or run in another process.
        """
        from ortkit.runtime.advice.of_source import advise_source
        from ortkit.runtime.advice.use import Use

        self._check_open()
        use = Use(callers, sessions, goal, seconds)
        return advise_source(self._model, self.settings, self._reader.read(feeds), use)

    @property
    def source(self) -> ModelSource | Saveable:
        """What the session was made from."""
        return self._model

    @property
    def version(self) -> str:
        """The version of ONNX Runtime."""
        return str(self._ort.__version__)

    def exchange(self, other: Session) -> None:
        """Trade what is loaded with a twin's: from now on each runs what the other had."""
        with self._lock:
            self._check_open()
            for name in ("onnxruntime", "_run", "_graphs"):
                mine, its = getattr(self, name), getattr(other, name)
                setattr(self, name, its)
                setattr(other, name, mine)

    def twin(self, **changed: Any) -> Session:
        """Load the same model with the same settings, but for those that are given."""
        known = [field.name for field in dataclasses.fields(self.settings)]
        for name in changed:
            if name not in known:
                raise UserError(f"{name!r} is no setting", fix=f"they are {', '.join(known)}")
        return Session.with_settings(self._model, dataclasses.replace(self.settings, **changed))

    # ---- ending ------------------------------------------------------------------------

    def close(self) -> None:
        """Release the model, its memory and its files; runs that are going on end first."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        self._release()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self._model if isinstance(self._model, str | os.PathLike) else "model"
        state = ", ".join(map(short_name, self.providers)) if self._is_open else "closed"
        return f"<ortkit.Session {os.fspath(where)!r} on {state}>"

    # ---- details -----------------------------------------------------------------------

    @property
    def _is_open(self) -> bool:
        return getattr(self, "onnxruntime", None) is not None

    def _check_open(self) -> None:
        if not self._is_open:
            raise UserError("the session is closed", fix="make a new one")

    def _release(self) -> None:
        if self._graphs is not None:
            self._graphs.close()
            self._graphs = None
        self._known.clear()
        self._run = _closed
        with GATE:  # its memory goes back to the device
            self.onnxruntime = None
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.cleanup()

    def _scratch_folder(self) -> Path:
        if self._scratch is None:
            self._scratch = TemporaryFolder("session")
        return self._scratch.path

    def _checked(
        self, feeds: Given, outputs: object, key: object, cast: bool
    ) -> dict[str, object]:
        self._check_open()
        if feeds is None and isinstance(outputs, Mapping):
            raise UserError("feeds come first", fix="write run(feeds, outputs)")
        checked = self._reader.read(feeds, cast=cast)
        if (
            key is not None
            and not self.settings.check_finite
            and isinstance(feeds, dict)
            and all(checked.get(name) is value for name, value in feeds.items())
            and all(type(value) is np.ndarray for value in checked.values())
        ):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known.add(key)
        return checked

    def _chosen(self, outputs: Sequence[str]) -> list[str]:
        if isinstance(outputs, str):
            outputs = [outputs]
        fix = f"the outputs are {', '.join(map(str, self.outputs))}"
        if not outputs or not isinstance(outputs, Iterable):
            raise UserError("no output is named", fix=fix)
        unknown = [name for name in outputs if name not in self._names]
        if unknown:
            raise UserError(f"there is no output {unknown[0]!r}", fix=fix)
        return list(outputs)


def _zeros(spec: TensorSpec) -> Array:
    if spec.dtype is None or spec.shape is None or not all(isinstance(n, int) for n in spec.shape):
        raise UserError(f"the size of {spec} is not known", fix="give warmup feeds")
    return np.zeros([int(size or 0) for size in spec.shape], spec.dtype)


def _closed(*_: object) -> Callable[..., Any]:
    raise UserError("the session is closed", fix="make a new one")
