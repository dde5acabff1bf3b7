"""One run of one model: what came out, what it took, and who computed it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from ortkit.comparison.values import Statistics, statistics
from ortkit.errors import RunError, UserError
from ortkit.graph.io.npz import write_npz
from ortkit.graph.io.open import open_model
from ortkit.measure.inputs import usual_feeds
from ortkit.runtime.feeds import finite_problems
from ortkit.runtime.session import Session
from ortkit.runtime.targets import short_name
from ortkit.verify.inputs.given import load_arrays, load_feeds
from ortkit.verify.limits import long_loop

#: Half a day at the least; see `ortkit/verify/limits.py`.
_MAX_TRIPS = 1 << 32


def _silent(stage: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class RunResult:
    """What `ortkit run` found."""

    model: Path
    inputs: Mapping[str, tuple[int, ...]]
    outputs: tuple[tuple[str, Statistics], ...]
    """A sequence's parts are called `name[0]`, `name[1]`, ...; what is absent is left out."""
    nodes: Mapping[str, int]
    """By provider, after ONNX Runtime's own optimizations; empty if it does not say."""
    libraries: tuple[Path, ...]
    load_ms: float
    run_ms: float
    """Of the first and only run, warm-up included."""
    written: Path | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return {
            "model": str(self.model),
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "outputs": [{"name": name, **each.to_json()} for name, each in self.outputs],
            "nodes": dict(self.nodes),
            "libraries": [str(path) for path in self.libraries],
            "load_ms": self.load_ms,
            "run_ms": self.run_ms,
            "written": None if self.written is None else str(self.written),
            "notes": list(self.notes),
        }


def run_once(
    model: Path,
    *,
    inputs: Path | None = None,
    outputs: Path | None = None,
    provider: str = "auto",
    shapes: Mapping[str, int] | None = None,
    threads: int = 0,
    cast: bool = False,
    library: Path | None = None,
    trust: bool = False,
    progress: Callable[[str], None] = _silent,
) -> RunResult:
    """Run a model once.

    Args:
        model: The model's file.
        inputs: An npz file; without it inputs are made up, until the model runs on them.
        outputs: An npz file to write; types that numpy lacks are written as `load_feeds` reads
            them, and parts of sequences as arrays of their own.
        provider: See `Target`.
        shapes: Numbers for named sizes of made-up inputs.
        threads: Of the session; 0: ONNX Runtime decides.
        cast: Whether inputs of another type are converted.
        library: The kernel library; by default the model's own.
        trust: Whether the model's own is loaded even if it was built elsewhere.
        progress: Called with what is being done.

    Raises:
        ModelError: It is no valid model.
        UserError: The inputs do not fit, or a setting is not known.
        RunError: ONNX Runtime does not load or run it.
    """
    if inputs is not None and shapes:
        raise UserError("the inputs given have sizes of their own", where="--shape",
                        fix="leave --shape or --inputs out")  # fmt: skip
    if cast and inputs is None:
        raise UserError("there is nothing to convert", where="--cast", fix="give --inputs")
    progress("load")
    opened = open_model(model)
    if reason := long_loop(opened, _MAX_TRIPS):
        raise UserError(reason, where=str(model), fix="use a model whose loops end")
    candidates = (
        usual_feeds(opened, shapes or {})
        if inputs is None
        else iter((load_arrays(inputs) if cast else load_feeds(inputs, opened),))
    )
    # Made before the model is loaded: ONNX Runtime loops over sizes that a model only declares.
    first = next(candidates, None)
    tried = candidates if first is None else chain((first,), candidates)
    started = time.perf_counter()
    with Session(
        model,
        provider,
        kernels="auto" if library is None else library,
        threads=threads,
        trust=trust,
    ) as session:
        load_seconds = time.perf_counter() - started
        progress("run")
        refused: RunError | None = None
        for feeds in tried:
            started = time.perf_counter()
            try:
                found = session.run(feeds, cast=cast)
            except RunError as error:
                if inputs is not None:
                    raise
                refused = refused or error
                continue
            run_seconds = time.perf_counter() - started
            break
        else:
            raise refused or RunError("there are no inputs to run on", where=str(model))
        flat = dict(_flat(found))
        if outputs is not None:
            progress("write")
            write_npz(outputs, {name: _storable(array) for name, array in flat.items()})
        return RunResult(
            model,
            {n: v.shape for n, v in feeds.items() if isinstance(v, np.ndarray)},
            tuple((name, statistics(array)) for name, array in flat.items()),
            _nodes(session),
            session.libraries,
            1e3 * load_seconds,
            1e3 * run_seconds,
            outputs,
            (*finite_problems(feeds.items()), *session.notes),
        )


def _nodes(session: Session) -> dict[str, int]:
    try:
        placement = session.placement()
    except UserError:
        return {}
    return dict(Counter(short_name(item.provider) for item in placement))


def _flat(found: Mapping[str, object]) -> list[tuple[str, np.ndarray]]:
    flat: list[tuple[str, np.ndarray]] = []
    for name, value in found.items():
        if isinstance(value, list | tuple):
            flat += _flat({f"{name}[{index}]": part for index, part in enumerate(value)})
        elif isinstance(value, dict):  # what classifiers of scikit-learn give: by label
            flat += _flat({f"{name}[{key!r}]": part for key, part in value.items()})
        elif value is not None:
            flat.append((name, np.asarray(value)))
    return flat


def _storable(array: np.ndarray) -> np.ndarray:
    """Return an array that npz files hold: text as such, other types as their bits."""
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.isbuiltin == 1:
        return array
    if array.dtype.name.endswith("int4"):
        return array.astype(array.dtype.name.replace("4", "8"))
    return array.view(f"uint{8 * array.dtype.itemsize}")
