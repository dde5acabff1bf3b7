"""Tracing a session's runs: `with session.profile() as profile: session.run(...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.errors import ModelError, RunError, UserError
from ortkit.kernels.metadata import is_made_by_ortkit
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.profiling.about import about_runs
from ortkit.runtime.profiling.build import profile_of
from ortkit.runtime.profiling.context import Context, Joined
from ortkit.runtime.profiling.graph_file import GRAPH_CONFIG
from ortkit.runtime.profiling.peaks import Peaks, load_peaks, threads_for
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.profiling.trace.devices import attach_kernels
from ortkit.runtime.profiling.trace.read import read_trace
from ortkit.runtime.profiling.trace.trace import Trace
from ortkit.runtime.targets import CUDA
from ortkit.temporary import TemporaryFolder

if TYPE_CHECKING:
    from ortkit.runtime.profiling.cuda_activity import CudaActivity
    from ortkit.runtime.session import Session

_GRAPH = "graph.onnx"


class TracedSession:
    """A session that traces its runs, and what is read from its trace. Close it."""

    def __init__(
        self,
        load: Callable[..., Session],
        config: Mapping[str, str],
        *,
        provenance: bool,
    ) -> None:
        """Load the session.

        Args:
            load: Makes it, with the settings that it is given.
            config: Entries of the session's configuration that are kept.
            provenance: Whether ONNX Runtime's own optimized graph is written out.

        Raises:
            What `load` does.
        """
        self.notes: list[str] = []
        self.has_device_times = False
        self._activity: CudaActivity | None = None
        self._folder = TemporaryFolder("profile")
        folder = self._folder.path
        self._graph: Path | None = folder / _GRAPH if provenance else None
        try:
            self.session = self._loaded(load, config, folder / "trace")
        except BaseException:
            self._folder.cleanup()
            raise
        try:
            self._start_activity()
        except BaseException:
            self.close()
            raise

    def _loaded(
        self, load: Callable[..., Session], config: Mapping[str, str], prefix: Path
    ) -> Session:
        if self._graph is not None:
            try:
                return load(
                    trace_prefix=prefix,
                    optimized_model=self._graph,
                    config={**config, **GRAPH_CONFIG},
                )
            except RunError as error:
                # Nodes that a provider has compiled cannot be written, nor can what finds no
                # room; whether the graph is at fault at all the second try shows.
                self._graph = None
                self.notes.append(f"origins and work are not known: {error.problem}")
        return load(trace_prefix=prefix, optimized_model=None)

    def _start_activity(self) -> None:
        """Record what the GPU does, where NVIDIA's CUPTI is there."""
        if self.session.providers[0] != CUDA:
            return
        from ortkit.runtime.native_library import NotAvailableError
        from ortkit.runtime.profiling.cuda_activity import CudaActivity

        try:
            self._activity = CudaActivity()
            self._activity.__enter__()
        except NotAvailableError as error:
            self._activity = None
            self.notes.append(f"what the device did is not known: {error}")

    def end(self) -> Trace:
        """End the tracing; the session goes on without.

        Raises:
            UserError: No run was traced.
        """
        inner = self.session.onnxruntime
        since = inner.get_profiling_start_time_ns()
        activity, self._activity = self._activity, None
        if activity is not None:
            activity.__exit__(None, None, None)
        trace = read_trace(Path(inner.end_profiling()))
        if activity is None:
            self.has_device_times = bool(trace.kernels)
            return trace
        if activity.lost:
            self.notes.append(f"{activity.lost} events of the device were lost")
        self.has_device_times = True
        return attach_kernels(trace, activity.events(since))

    def joined(self, trace: Trace) -> Joined | None:
        """Join a trace with the graph that ran, if that was written."""
        if self._graph is None:
            return None
        from ortkit.graph.io.ort_dump import read_written
        from ortkit.runtime.profiling.joining import joined_of, opened

        try:
            original = opened(self.session.source)
        except ModelError as error:  # it has been moved away since
            original = None
            self.notes.append(f"origins are not known: {error.problem}")
        return joined_of(trace.nodes, read_written(self._graph), original)

    def close(self) -> None:
        """Release the session and its files."""
        if self._activity is not None:
            self._activity.__exit__(None, None, None)
        self.session.close()
        self._folder.cleanup()


class Recording:
    """Traces the runs of a session within a `with` block.

    Inside, a twin of the session, loaded with tracing on, does the session's runs; bindings made
    before go on with the session itself and are not seen.
    """

    def __init__(self, session: Session, *, warmup: int = 0, provenance: bool = True) -> None:
        """Prepare; nothing is loaded yet.

        Args:
            session: Whose runs are traced.
            warmup: How many of the first runs do not count. The twin's first run reserves
                memory; others do not.
            provenance: Whether ONNX Runtime's own optimized graph is written out, to tell which
                nodes of the model a node stands for and what it computes. It takes as much room
                on the disk as the model's weights, for a moment.
        """
        self._session = session
        self._warmup = warmup
        self._provenance = provenance
        self._result: Profile | None = None
        self._traced: TracedSession | None = None

    @property
    def result(self) -> Profile:
        """The profile, once the block has ended.

        Raises:
            UserError: It has not, or not well.
        """
        if self._result is None:
            raise UserError(
                "there is no profile: its `with` block has not ended, or ended with an error",
                fix="ask after the block",
            )
        return self._result

    def __enter__(self) -> Recording:
        traced = TracedSession(
            self._session.twin, self._session.settings.config, provenance=self._provenance
        )
        try:
            self._session.exchange(traced.session)
        except BaseException:
            traced.close()
            raise
        self._traced = traced
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        traced, self._traced = self._traced, None
        assert traced is not None
        try:
            self._session.exchange(traced.session)
            if kind is None:
                self._result = finished(traced, traced.end(), warmup=self._warmup)
        finally:
            traced.close()


def finished(
    traced: TracedSession,
    trace: Trace,
    *,
    warmup: int,
    plain_us: Sequence[float] = (),
    feeds: Mapping[str, object] | None = None,
    peaks: Peaks | None = None,
) -> Profile:
    """Return the profile of a session that was traced.

    Args:
        traced: The session.
        trace: What `traced.end` gave.
        warmup: How many of the first runs do not count.
        plain_us: Runs that were not traced.
        feeds: The inputs.
        peaks: The machine's; by default those that were measured before, if any.

    Raises:
        UserError: There are no runs after the warm-up.
    """
    session = traced.session
    about = about_runs(trace, session.source, import_onnxruntime().__version__, feeds)
    metadata = session.onnxruntime.get_modelmeta().custom_metadata_map
    about = replace(
        about, function_bodies=session.runs_bodies, made_by_ortkit=is_made_by_ortkit(metadata)
    )
    first = session.providers[0]
    known = peaks or load_peaks(first, threads_for(first, about.threads), about.machine or "")
    added = traced.joined(trace)
    context = Context(
        about,
        plain_us,
        known,
        added,
        (*session.notes, *traced.notes),
        device_times=traced.has_device_times,
    )
    return profile_of(trace, context, warmup=warmup)
