"""Tracing a session's runs: `with session.profile() as profile: session.run(...)`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ortkit.errors import ModelError, RunError, UserError
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.profiling.about import about_runs, threads_of
from ortkit.runtime.profiling.build import Context, Joined, profile_of
from ortkit.runtime.profiling.peaks import Peaks, load_peaks
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.profiling.trace import Trace, read_trace

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortkit.graph.open import ModelSource
    from ortkit.runtime.session import Session
    from ortkit.runtime.source import Saveable

_GRAPH, _WEIGHTS = "graph.onnx", "graph.weights"
#: Of the optimized graph: weights go to a file of their own, which is not read.
_CONFIG = {
    "session.optimized_model_external_initializers_file_name": _WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
}


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
        self._folder = tempfile.TemporaryDirectory(prefix="ortkit-profile-")
        folder = Path(self._folder.name)
        self._graph: Path | None = folder / _GRAPH if provenance else None
        prefix = folder / "trace"
        try:
            if self._graph is None:
                self.session = load(trace_prefix=prefix)
                return
            try:
                self.session = load(
                    trace_prefix=prefix,
                    optimized_model=self._graph,
                    config={**config, **_CONFIG},
                )
            except RunError as error:
                # Nodes that a provider has compiled cannot be written, nor can what finds no
                # room; whether the graph is at fault at all the second try shows.
                self._graph = None
                self.session = load(trace_prefix=prefix)
                self.notes.append(f"origins and work are not known: {error.problem}")
        except BaseException:
            self._folder.cleanup()
            raise

    def end(self) -> Trace:
        """End the tracing; the session goes on without.

        Raises:
            UserError: No run was traced.
        """
        return read_trace(Path(self.session.onnxruntime.end_profiling()))

    def threads(self, trace: Trace) -> int:
        """Return how many threads work on a node, 0 if that is not known."""
        return threads_of(trace) or 0

    def joined(self, trace: Trace) -> Joined | None:
        """Join a trace with the graph that ran, if that was written."""
        if self._graph is None:
            return None
        from onnx_ir import load

        from ortkit.runtime.profiling.joining import joined_of

        try:
            original = _opened(self.session.source)
        except ModelError as error:  # it has been moved away since
            original = None
            self.notes.append(f"origins are not known: {error.problem}")
        return joined_of(trace.nodes, load(self._graph), original)

    def close(self) -> None:
        """Release the session and its files."""
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
            UserError: It has not.
        """
        if self._result is None:
            raise UserError("the runs are still being traced", fix="ask after the `with` block")
        return self._result

    def __enter__(self) -> Recording:
        self._traced = TracedSession(
            self._session.twin, self._session.settings.config, provenance=self._provenance
        )
        self._session.exchange(self._traced.session)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        traced, self._traced = self._traced, None
        assert traced is not None
        self._session.exchange(traced.session)
        try:
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
    known = peaks or load_peaks(session.providers[0], about.threads or 0, about.machine or "")
    joined = traced.joined(trace)
    context = Context(about, plain_us, known, joined, tuple(traced.notes))
    return profile_of(trace, context, warmup=warmup)


def _opened(source: ModelSource | Saveable) -> ir.Model:
    """Open what a session was made from."""
    from ortkit.graph.open import open_model
    from ortkit.runtime.source import Saveable

    if not isinstance(source, Saveable):
        return open_model(source)
    model = getattr(source, "model", None)
    if model is None:
        raise ModelError("the model in memory cannot be read again")
    return open_model(model)
