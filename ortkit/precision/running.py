"""Running trials: models of `trials.py` on input sets, in child processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.errors import CheckError
from ortkit.graph.io.save import save_model
from ortkit.precision.forms import Form
from ortkit.precision.products import Product
from ortkit.precision.trials import ERRORS, FLAGS, RANGES, errors_model, ranges_model
from ortkit.runtime.tensor_files import Entry, plain_item, read_manifest, write_manifest
from ortkit.verify.accuracy import OutputAccuracy, largest_error, measure, worst
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.feeds import Value
from ortkit.verify.sessions import Setting, run_sessions

_SECONDS = 600.0


class Runner:
    """Runs models on input sets; everything that it writes lies in one folder."""

    def __init__(self, folder: Path, sets: Sequence[Path]) -> None:
        """Take the folders of the input sets, as `verify.exchange` writes them."""
        self.folder = folder
        self.sets = tuple(sets)
        self.run_seconds = 0.0
        """What one input set took in the latest run, without loading the model."""
        self._count = 0
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, model: ir.Model, name: str) -> Path:
        """Write a model for several runs."""
        folder = self._fresh(name)
        folder.mkdir()
        return save_model(model, folder / "model.onnx", is_temporary=True).model

    def run(
        self,
        model: Path,
        sets: Sequence[Path],
        *,
        optimize: bool = True,
        libraries: tuple[Path, ...] = (),
    ) -> Path:
        """Run a model on input sets; the results lie in folders of the same names below.

        Raises:
            CheckError: It cannot be loaded, or fails on one of them.
        """
        folder = self._fresh("run")
        setting = Setting(model, folder / "results", optimize, libraries)
        (result,) = run_sessions([setting], sets, len(sets), _SECONDS)
        if not result.is_loaded or len(result.done) < len(sets):
            raise CheckError(f"a trial in a lower precision does not run: {result.problem}")
        self.run_seconds = result.run_seconds / max(1, len(sets))
        return folder / "results"

    def ranges(self, model: ir.Model, products: Sequence[Product]) -> dict[str, np.ndarray]:
        """Return the largest magnitude of each column of what products multiply, by key."""
        if not products:
            return {}
        results = self.run(self.save(ranges_model(model, products), "ranges"), self.sets)
        found: dict[str, np.ndarray] = {}
        for each in self.sets:
            values = read_values(results / each.name)
            for number, product in enumerate(products):
                value = _array(values, f"{RANGES}/{number}")
                known = found.get(product.key)
                found[product.key] = value if known is None else np.maximum(known, value)
        return found

    def errors(self, model: ir.Model, forms: Sequence[Form]) -> list[float]:
        """Return each form's own error: of its product's value, on the original's input to it."""
        if not forms:
            return []
        results = self.run(self.save(errors_model(model, forms), "errors"), self.sets)
        sums = np.zeros((len(forms), 2))
        for each in self.sets:
            values = read_values(results / each.name)
            sums += [_array(values, f"{ERRORS}/{number}") for number in range(len(forms))]
        return [
            math.sqrt(error / square) if square > 0 and np.isfinite(error) else math.inf
            for error, square in sums.tolist()
        ]

    def with_flags(
        self, switched: Path, choices: Sequence[Sequence[bool]], sets: Sequence[Path]
    ) -> list[list[dict[str, Value]]]:
        """Run a switched model with flags; the results by choice, then by input set."""
        run_folder = self._fresh("flags")
        folders = []
        for number, choice in enumerate(choices):
            for index, feeds in enumerate(sets):
                folder = run_folder / f"{number}-{index}"
                write_flags(folder, feeds, choice)
                folders.append(folder)
        results = self.run(switched, folders)
        return [
            [read_values(results / f"{number}-{index}") for index in range(len(sets))]
            for number in range(len(choices))
        ]

    def _fresh(self, name: str) -> Path:
        self._count += 1
        return self.folder / f"{name}{self._count}"


def accuracies(
    expected: Sequence[Mapping[str, Value]], actual: Sequence[Mapping[str, Value]]
) -> tuple[OutputAccuracy, ...]:
    """Compare the outputs of several input sets with the original's, at worst over them."""
    by_name: dict[str, list[OutputAccuracy]] = {}
    for want, got in zip(expected, actual, strict=True):
        for name, value in want.items():
            if name in got and (found := measure(name, value, got[name])) is not None:
                by_name.setdefault(name, []).append(found)
    return tuple(worst(each) for each in by_name.values())


def error_of(
    expected: Sequence[Mapping[str, Value]], actual: Sequence[Mapping[str, Value]]
) -> float:
    """Return the error of the worst output over input sets."""
    return largest_error(accuracies(expected, actual))


def write_flags(folder: Path, feeds: Path, choice: Sequence[bool]) -> None:
    """Write an input set with flags; the other tensors stay where they are."""
    folder.mkdir(parents=True)
    entries: list[Entry] = []
    for entry in read_manifest(feeds):
        items = [
            {**item, "file": str((feeds / item["file"]).resolve())} if item["file"] else item
            for item in entry["items"]
        ]
        entries.append({**entry, "items": items})  # type: ignore[typeddict-item]
    item = plain_item(np.array(choice, bool), folder, "flags.bin")
    write_manifest(folder, [*entries, {"name": FLAGS, "kind": "tensor", "items": [item]}])


def _array(values: Mapping[str, Value], name: str) -> np.ndarray:
    value = values[name]
    assert isinstance(value, np.ndarray)
    return value
