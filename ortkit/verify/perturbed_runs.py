"""Runs of a whole original with every value perturbed by a few roundings of its type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx_ir as ir

from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.runtime.tensor_files import MANIFEST
from ortkit.verify.budget import Budget
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.perturbation import CHOICE_RUNS, ROUNDINGS, RUNS, STEP, perturb
from ortkit.verify.sessions import Setting, run_within
from ortkit.verify.tolerances import TOLERANCES
from ortkit.verify.widening import rounded_to, widened, widened_feeds


class PerturbedRuns:
    """Perturbed runs of one original, made when they are asked for first."""

    def __init__(
        self,
        original: Path,
        feeds: Sequence[Path],
        folder: Path,
        budget: Budget,
        custom_ops: tuple[Path, ...] = (),
    ) -> None:
        """Say of what.

        Args:
            original: An ONNX file.
            feeds: Folders of input sets.
            folder: For all files; made when it is needed.
            budget: The time that is left.
            custom_ops: Libraries that the original needs to load at all.
        """
        self._original = original
        self._feeds = tuple(feeds)
        self._folder = folder
        self._budget = budget
        self._custom_ops = custom_ops
        self.is_late = False
        """Whether there was no time for some of the runs."""
        self._results: dict[tuple[float, int], Path] = {}

    def of(self, feeds: Path, unit: float = 0.0, count: int = RUNS) -> list[dict[str, Value]]:
        """Return the results of each run on an input set; none for a model that does not run so.

        Args:
            feeds: One of the input sets.
            unit: The epsilon of the type that float32 values are rounded to, if that is coarser.
            count: The number of runs.

        Raises:
            MissingDependencyError: ONNX Runtime is not installed.
        """
        key = unit, count
        if key not in self._results:
            self._results[key] = self._run(unit, count)
        return read_runs(self._results[key], feeds.name)

    def _run(self, unit: float, count: int) -> Path:
        folder = self._folder / f"perturbed{len(self._results)}"
        folder.mkdir(parents=True)
        model = perturbed_copy(open_model(self._original), unit)
        path = save_model(
            model, folder / "model.onnx", external_data=True, is_temporary=True
        ).model
        results = folder / "results"
        setting = Setting(path, results, libraries=self._custom_ops, repeats=count)
        wide = [widened_feeds(each, folder / "feeds") for each in self._feeds]
        (found,) = run_within(self._budget, [setting], wide, len(wide))
        self.is_late = self.is_late or found.is_late
        return results


def perturbed_copy(model: ir.Model, unit: float = 0.0) -> ir.Model:
    """Return a wide copy of a model whose values are off by a few roundings of their types.

    Args:
        model: Read, not changed.
        unit: The epsilon of the type that float32 values are rounded to, if that is coarser.
    """
    copy = widened(model)
    perturb(copy, lambda value: max(unit, _epsilon(value)), quantized=STEP)
    return copy


def read_runs(folder: Path, feeds: str) -> list[dict[str, Value]]:
    """Return the results of repeated runs on an input set, none if there were no runs."""
    paths = sorted(folder.glob(f"*/{feeds}/{MANIFEST}"))
    return [read_values(path.parent) for path in paths]


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
