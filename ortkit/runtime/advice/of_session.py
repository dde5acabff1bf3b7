"""Advice on a session that is open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.errors import UserError
from ortkit.runtime.advice.advise import advise
from ortkit.runtime.source import loadable
from ortkit.runtime.tensor_files import of_ort_value, of_plain, write_manifest
from ortkit.runtime.workers.planning import plan_session
from ortkit.temporary import TemporaryFolder

if TYPE_CHECKING:
    from ortkit.runtime.advice.result import Advice
    from ortkit.runtime.advice.use import Use
    from ortkit.runtime.session import Session


def advise_session(session: Session, feeds: object, use: Use) -> Advice:
    """Measure in processes of their own what suits a session; see `Session.advise`.

    Args:
        session: It is not run: other processes make sessions of its model and settings.
        feeds: Of every run.
        use: What the sessions are to do.

    Raises:
        UserError: A feed does not fit, or the session does not run on the CPU alone.
        RunError: A session as this one cannot be made or run in another process.
    """
    if session.settings.trace_prefix is not None or session.settings.optimized_model is not None:
        raise UserError(
            "is for sessions that write nothing", where="advise",
            fix="leave trace_prefix and optimized_model out",
        )  # fmt: skip
    read = session.read_feeds(feeds)
    with TemporaryFolder("advise") as folder:
        model = _as_file(session, folder)
        plan = plan_session(model, session.settings, lambda: folder)
        inputs = folder / "feeds"
        inputs.mkdir()
        write_manifest(
            inputs,
            [
                (of_ort_value if hasattr(value, "tensor_size_in_bytes") else of_plain)(
                    name, index, value, inputs
                )
                for index, (name, value) in enumerate(read.items())
            ],
        )
        return advise(plan, inputs, use)


def _as_file(session: Session, folder: Path) -> Path:
    """Return the session's model as a file, written to the folder if it is none."""
    source = loadable(session.source, lambda: folder)
    if isinstance(source.content, Path):
        return source.content
    path = folder / "model.onnx"
    path.write_bytes(source.content)
    return path
