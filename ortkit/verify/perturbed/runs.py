"""Runs of a whole original with every value perturbed by a few roundings of its type."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import onnx_ir as ir

from ortkit.graph.io.open import open_model
from ortkit.graph.io.parts import share_weights, write_part
from ortkit.runtime.tensor_files import MANIFEST
from ortkit.verify.budget import Budget
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.perturbed.perturbation import CHOICE_RUNS, ROUNDINGS, RUNS, STEP, perturb
from ortkit.verify.sessions import Setting, run_within
from ortkit.verify.tolerances import TOLERANCES
from ortkit.verify.widening import rounded_to, widened, widened_feeds


class PerturbedRuns:
    """Perturbed runs of one original, made when they are asked for first."""

    def __init__(
        self,
        original: Path,
        folder: Path,
        budget: Budget,
        custom_ops: tuple[Path, ...] = (),
    ) -> None:
        """Say of what.

        Args:
            original: An ONNX file.
            folder: For all files; made when it is needed.
            budget: The time that is left.
            custom_ops: Libraries that the original needs to load at all.
        """
        self._original = original
        self._folder = folder
        self._budget = budget
        self._custom_ops = custom_ops
        self.is_late = False
        """Whether there was no time for some of the runs."""
        self._run_counts: dict[tuple[float, str], int] = {}
        """How many runs were made, by unit and input set."""
        self._wide: tuple[ir.Model, Path] | None = None
        """The original in float32, and where its weights lie; made when they are needed."""
        self._wide_feeds: dict[str, Path] = {}

    def of(self, feeds: Path, unit: float = 0.0, count: int = RUNS) -> list[dict[str, Value]]:
        """Return the results of each run on an input set; none for a model that does not run so.

        Those of an input set that is not asked for are not made, nor are any made twice.

        Args:
            feeds: An input set.
            unit: The epsilon of the type that float32 values are rounded to, if that is coarser.
            count: The number of runs.

        Raises:
            MissingDependencyError: ONNX Runtime is not installed.
        """
        results = self._folder / f"perturbed-{unit:g}"
        made = self._run_counts.get((unit, feeds.name), 0)
        if made < count:
            self._run_counts[unit, feeds.name] = count
            self._run(feeds, unit, made, count, results)
        return read_runs(results, feeds.name)[:count]

    def _run(self, feeds: Path, unit: float, first: int, count: int, results: Path) -> None:
        """Make the runs of an input set from number `first` to number `count`."""
        results.mkdir(parents=True, exist_ok=True)
        wide, weights = self._widened()
        path = results / f"from{first}.onnx"
        if not path.exists():
            copy = wide.clone()
            _perturb_all(copy, unit, first)
            write_part(copy, path, weights)
        setting = Setting(
            path,
            results,
            libraries=self._custom_ops,
            weights_folder=weights,
            repeats=count - first,
            first=first,
        )
        if feeds.name not in self._wide_feeds:
            self._wide_feeds[feeds.name] = widened_feeds(feeds, self._folder / "wide feeds")
        (found,) = run_within(self._budget, [setting], [self._wide_feeds[feeds.name]], 1)
        self.is_late = self.is_late or found.is_late

    def _widened(self) -> tuple[ir.Model, Path]:
        if self._wide is None:
            wide = widened(open_model(self._original))
            self._wide = wide, share_weights(wide, self._folder / "wide.onnx")
        return self._wide


def perturbed_copy(model: ir.Model) -> ir.Model:
    """Return a wide copy of a model whose values are off by a few roundings of their types.

    Args:
        model: Read, not changed.
    """
    copy = widened(model)
    _perturb_all(copy)
    return copy


def _perturb_all(model: ir.Model, unit: float = 0.0, first: int = 0) -> None:
    """Perturb all values of a wide model.

    Args:
        model: Changed in place.
        unit: The epsilon of the type that float32 values are rounded to, if that is coarser.
        first: As for `perturb`.
    """
    perturb(model, lambda value: max(unit, _epsilon(value)), quantized=STEP, first=first)


def read_runs(
    folder: Path, feeds: str, names: Collection[str] | None = None
) -> list[dict[str, Value]]:
    """Return the results of repeated runs on an input set, none if there were no runs.

    Args:
        folder: Holds folders 0, 1, ... of runs.
        feeds: The name of the input set.
        names: Of the values that are wanted; None for all.
    """
    found = [path.parent for path in folder.glob(f"*/{feeds}/{MANIFEST}")]
    numbered = [path for path in found if path.parent.name.isdecimal()]
    numbered.sort(key=lambda path: int(path.parent.name))
    return [read_values(path, names) for path in numbered]


def runs_for(kinds: Iterable[str]) -> int:
    """Return the number of runs that values of these types need; see `OutputComparison.dtype`."""
    return RUNS if all(kind in TOLERANCES for kind in kinds) else CHOICE_RUNS


def unit_of(error: float) -> float:
    """Return the epsilon at which every value is perturbed by `error`, as a part of itself."""
    return error / ROUNDINGS


def _epsilon(value: ir.Value) -> float:
    half = rounded_to(value)
    dtype = value.dtype if half is None else half
    name = "float32" if dtype is None else dtype.numpy().name
    return TOLERANCES[name].epsilon if name in TOLERANCES else 0.0
