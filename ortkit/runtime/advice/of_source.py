"""Advice on sessions of a model as `Session` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ortkit.errors import UserError
from ortkit.graph.io.open import ModelSource
from ortkit.runtime.advice.advise import advise
from ortkit.runtime.advice.result import Advice
from ortkit.runtime.advice.use import Use
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.source import Saveable, loadable
from ortkit.runtime.tensor_files import of_ort_value, of_plain, write_manifest
from ortkit.runtime.workers.planning import plan_session
from ortkit.temporary import TemporaryFolder


def advise_source(
    source: ModelSource | Saveable,
    settings: SessionSettings,
    feeds: Mapping[str, object],
    use: Use,
) -> Advice:
    """Measure in processes of their own what suits sessions of a model; see `Session.advise`.

    Args:
        source: The model.
        settings: Settings of the session that is to be better.
        feeds: Inputs of every run, as ONNX Runtime takes them.
        use: What the sessions are to do.

    Raises:
        UserError: The session does not run on the CPU alone, or writes files.
        RunError: Such a session cannot be made or run in another process.
    """
    if settings.trace_prefix is not None or settings.optimized_model is not None:
        raise UserError(
            "is for sessions that write nothing", where="advise",
            fix="leave trace_prefix and optimized_model out",
        )  # fmt: skip
    with TemporaryFolder("advise") as folder:
        plan = plan_session(_as_file(source, folder), settings, lambda: folder)
        inputs = folder / "feeds"
        inputs.mkdir()
        entries = []
        for index, (name, value) in enumerate(feeds.items()):
            write = of_ort_value if hasattr(value, "tensor_size_in_bytes") else of_plain
            entries.append(write(name, index, value, inputs))
        write_manifest(inputs, entries)
        return advise(plan, inputs, use)


def _as_file(source: ModelSource | Saveable, folder: Path) -> Path:
    """Return the model as a file, written to the folder if it is none."""
    content = loadable(source, lambda: folder).content
    if isinstance(content, Path):
        return content
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path
