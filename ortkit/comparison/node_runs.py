"""Running parts of two models for the values in them, a bounded batch at a time."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.comparison.cuts import MADE, Given, element_type
from ortkit.comparison.sides import Prepared
from ortkit.runtime.tensor_files import Entry, read_manifest, write_manifest
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.inputs.feeds import Feeds, Value
from ortkit.verify.sessions import SessionResult, Setting, run_sessions

#: Added to the names of values whose shapes are looked for.
SHAPE = "/shape-of"

Values = Mapping[str, Value]


@dataclass(frozen=True)
class Failed:
    """Why a part did not run."""

    reason: str


@dataclass(frozen=True)
class Part:
    """A part of a model, to be run."""

    side: Prepared
    """What it was cut from."""
    model: onnx.ModelProto
    with_kernels: bool = True
    """Whether the library's kernels run, or the functions in their place."""


@dataclass
class Runner:
    """Runs parts of models in child processes; results lie in files until `forget`."""

    folder: Path
    feeds: Feeds
    timeout_seconds: float
    _number: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        """Write the inputs down."""
        write_feeds(self.inputs, self.feeds)

    @property
    def inputs(self) -> Path:
        """Where the models' own inputs lie."""
        return self.folder / "feeds" / "own"

    def run(self, parts: Sequence[Part], feeds: Sequence[Path]) -> list[list[Values] | Failed]:
        """Run parts, ONNX Runtime's optimizations off; return what each gives on each input set.

        Args:
            parts: They run one after the other, in one process; where the first does not run,
                the others do not either.
            feeds: Folders with inputs.
        """
        folder = self.folder / f"run{next(self._number)}"
        settings = []
        for number, part in enumerate(parts):
            side = part.side.side
            model = part.side.path.with_name(f"{folder.name}.{number}.onnx")
            model.write_bytes(part.model.SerializeToString())
            libraries = side.libraries if part.with_kernels else side.custom_ops
            settings.append(
                Setting(
                    model,
                    folder / f"results{number}",
                    libraries=libraries,
                    providers=side.providers,
                    weights_folder=part.side.path.parent,
                    onnxruntime=side.onnxruntime,
                )
            )
        try:
            found = self._sessions(settings, feeds)
        finally:
            for setting in settings:
                setting.model.unlink()
        return [
            Failed(result.problem or "it was not run")
            if result.problem or len(result.done) < len(feeds)
            else [read_values(setting.results / each.name) for each in feeds]
            for setting, result in zip(settings, found, strict=True)
        ]

    def _sessions(self, settings: Sequence[Setting], feeds: Sequence[Path]) -> list[SessionResult]:
        """Run sessions in one process for each ONNX Runtime; none after one that failed."""
        found: list[SessionResult] = []
        for _, group in itertools.groupby(settings, lambda setting: setting.onnxruntime):
            wanted = list(group)
            if any(result.problem for result in found):
                found += [SessionResult(problem="not run") for _ in wanted]
            else:
                found += run_sessions(wanted, feeds, len(feeds), self.timeout_seconds)
        return found

    def run_one(self, part: Part, feeds: Path) -> Values | Failed:
        """Run one part on one input set."""
        (found,) = self.run([part], [feeds])
        return found if isinstance(found, Failed) else found[0]

    def upto(self, side: Prepared, wanted: Sequence[str]) -> Values | Failed:
        """Return values of a whole model, computed from its own inputs."""
        found = self.run_one(Part(side, side.cutter.upto(wanted)), self.inputs)
        return found if isinstance(found, Failed) else _unmade(found, wanted)

    def find_sizes(self, side: Prepared, names: Sequence[str]) -> None:
        """Note how large values of unknown shape are, for these inputs: only shapes are kept."""
        unknown = [name for name in names if name not in side.sizes and name in side.element_types]
        if not unknown:
            return
        part = side.cutter.upto(unknown)
        del part.graph.output[:]
        for name in unknown:
            part.graph.node.add(op_type="Shape", input=[name], output=[f"{name}{SHAPE}"])
            part.graph.output.add(name=f"{name}{SHAPE}")
        found = self.run_one(Part(side, part), self.inputs)
        if isinstance(found, Failed):
            return
        for name in unknown:
            shape, bits = found[f"{name}{SHAPE}"], side.element_types[name].bitwidth
            if isinstance(shape, np.ndarray):
                side.sizes[name] = int(np.prod(shape)) * max(bits, 8) // 8

    def both(
        self, before: tuple[Prepared, Sequence[str]], after: tuple[Prepared, Sequence[str]]
    ) -> tuple[Values | Failed, Values | Failed]:
        """Return values of two whole models."""
        pair = before, after
        parts = [Part(side, side.cutter.upto(wanted)) for side, wanted in pair]
        one, other = (
            each if isinstance(each, Failed) else _unmade(each[0], wanted)
            for each, (_, wanted) in zip(self.run(parts, [self.inputs]), pair, strict=True)
        )
        return one, other

    def steps(
        self,
        side: Prepared,
        wanted: Sequence[str],
        known: Values,
        stops: Collection[str],
        *,
        with_kernels: bool = True,
    ) -> Values | Failed:
        """Return each value as it is made from the given values around it.

        Args:
            side: The model.
            wanted: Values that it computes.
            known: What `stops` are.
            stops: Values that are given and not computed.
            with_kernels: Whether the library's kernels run.
        """
        names = [name for name in side.cutter.given_to(wanted, stops) if name in stops]
        feeds, given = self.give(side, {name: known[name] for name in names})
        part = Part(side, side.cutter.steps(wanted, given), with_kernels)
        found = self.run_one(part, feeds)
        return found if isinstance(found, Failed) else _unmade(found, wanted)

    def give(self, side: Prepared, known: Values) -> tuple[Path, list[Given]]:
        """Write values beside the model's own inputs, in the types that `side` has them in."""
        feeds = self.folder / "feeds" / str(next(self._number))
        arrays: dict[str, Value] = {}
        given = []
        for name, value in known.items():
            assert isinstance(value, np.ndarray), "only tensors are given"
            dtype = ir.DataType(element_type(value))
            own = side.element_types.get(name, dtype)
            if own != dtype and own.is_floating_point() and dtype.is_floating_point():
                value, dtype = value.astype(own.numpy()), own
            arrays[name] = value
            given.append(Given(name, dtype.value, value.shape))
        write_feeds(feeds, arrays)
        own_entries: list[Entry] = []
        for entry in read_manifest(self.inputs):
            if entry["name"] in arrays:
                continue
            for item in entry["items"]:
                item["file"] = str(self.inputs / item["file"]) if item["file"] else ""
            own_entries.append(entry)
        write_manifest(feeds, [*own_entries, *read_manifest(feeds)])
        return feeds, given

    def forget(self) -> None:
        """Remove results and given values; arrays that are mapped from them stay usable."""
        for folder in (*self.folder.glob("run*"), *(self.folder / "feeds").glob("[0-9]*")):
            shutil.rmtree(folder)


def _unmade(values: Values, wanted: Sequence[str]) -> dict[str, Value]:
    """Return values under their own names."""
    return {name: values[name if name in values else f"{name}{MADE}"] for name in wanted}


def batches(side: Prepared, wanted: Sequence[str], limit_bytes: int) -> Iterator[list[str]]:
    """Yield values in order, together about as large as the limit at most."""
    batch: list[str] = []
    size_so_far = 0
    for name in wanted:
        size = side.bytes_of(name)
        if batch and size_so_far + size > limit_bytes:
            yield batch
            batch, size_so_far = [], 0
        batch.append(name)
        size_so_far += size
    if batch:
        yield batch


def first_failing(runner: Runner, side: Prepared, wanted: Sequence[str]) -> tuple[str, str]:
    """Return the first value that a model fails to compute, and how it fails; empty if none."""
    low, high, reason = 0, len(wanted), ""
    while low < high:
        middle = (low + high) // 2
        part = side.cutter.upto(wanted[middle : middle + 1], running=wanted[:middle])
        found = runner.run_one(Part(side, part), runner.inputs)
        runner.forget()
        if isinstance(found, Failed):
            high, reason = middle, found.reason
        else:
            low = middle + 1
    return (wanted[high], reason) if high < len(wanted) else ("", "")
