"""Two saved profiles or traces compared."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ortkit.errors import UserError
from ortkit.graph.analysis.provenance import Alignment, align
from ortkit.graph.io.open import open_model
from ortkit.private_folder import open_regular
from ortkit.runtime.intervals import CONFIDENCE, Direction, Speedup
from ortkit.runtime.profiling.about import sha256_of
from ortkit.runtime.profiling.diff import ProfileDiff, Side, diff_profiles
from ortkit.runtime.profiling.diff_sides import side_of_profile
from ortkit.runtime.profiling.document import read_profile_document
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.profiling.saved_trace import profile_saved

Kind = Literal["model", "profile", "trace"]
_SPACE = b" \t\r\n"


def kind_of(path: Path) -> Kind:
    """Say what a file is, by how it begins: JSON is no model.

    Raises:
        UserError: It cannot be read.
    """
    try:
        with open_regular(path) as file:
            start = file.read(64).lstrip(_SPACE)[:1]
    except OSError as error:
        raise UserError(error.strerror or str(error), where=str(path)) from error
    return {b"{": "profile", b"[": "trace"}.get(start, "model")  # type: ignore[return-value]


def diff_saved(paths: tuple[Path, Path], models: tuple[Path | None, Path | None]) -> ProfileDiff:
    """Compare what was profiled before.

    Args:
        paths: Documents of `ortkit profile --json`, or traces of ONNX Runtime.
        models: What A and B are of; None: the model that a document names, if it is still
            there and the same.

    Raises:
        UserError: A file is no profile and no trace, or of another version.
        ModelError: A model cannot be read.
    """
    notes = [
        "A and B did not run interleaved: what differed on the machine is no part of the intervals"
    ]
    profiles = [_read(path, model) for path, model in zip(paths, models, strict=True)]
    found = [
        _model_of(profile, model, path, notes)
        for profile, model, path in zip(profiles, models, paths, strict=True)
    ]
    alignment: Alignment | None = None
    if found[0] is not None and found[1] is not None:
        alignment = align(open_model(found[0]), open_model(found[1]))
    else:
        notes.append("nodes are matched by their names: --model-a and --model-b give the models")
    sides = [
        side_of_profile(profile, str(path)) for profile, path in zip(profiles, paths, strict=True)
    ]
    if any((p.overall.plain is None) for p in profiles):
        notes.append("whole runs are those with tracing, which costs time at each node")
    return diff_profiles(
        sides[0], sides[1], _speedup(*sides), alignment, in_turns=False, notes=notes
    )


def _read(path: Path, model: Path | None) -> Profile:
    if kind_of(path) == "profile":
        return read_profile_document(path)
    return profile_saved(path, model)


def _model_of(profile: Profile, given: Path | None, path: Path, notes: list[str]) -> Path | None:
    """Return the model whose nodes the profile's origins are."""
    if given is not None:
        return given
    about = profile.about
    if about.model is None:
        return None
    model = Path(about.model)
    found = sha256_of(model)
    if found is None:
        notes.append(f"{path}: its model {model} is not there any more")
    elif found != about.sha256:
        notes.append(f"{path}: its model {model} is not the same any more")
    return model if found is not None and found == about.sha256 else None


def _speedup(before: Side, after: Side) -> Speedup:
    """Compare medians of whole runs taken at different times; bounds are of both intervals."""
    first, second = before.run_us, after.run_us
    assert first["median"] is not None and second["median"] is not None
    ratio = first["median"] / max(second["median"], 1e-9)
    bounds = first["low"], first["high"], second["low"], second["high"]
    if any(bound is None for bound in bounds):
        return Speedup(ratio, None, None, CONFIDENCE, "not known")
    low, high, other_low, other_high = (max(bound or 0.0, 1e-9) for bound in bounds)
    least, most = low / other_high, high / other_low
    direction: Direction = "faster" if least > 1 else "slower" if most < 1 else "no difference"
    return Speedup(ratio, least, most, CONFIDENCE, direction)
