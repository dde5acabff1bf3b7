"""Stage 1: the rewritten graph against the original, step by step, in float32.

Both graphs are widened (`widening.py`), and kernels are left out: the bodies of their functions
stand for them. Every value that both graphs name is computed by the candidate from the original's
values (`steps.py`), so that each rewrite is judged where it is, at the tolerance of float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.graph.channels_last import restore_channels_first
from ortkit.graph.save import save_model
from ortkit.graph.shapes import Shapes
from ortkit.verify.compare import OutputComparison
from ortkit.verify.conditioned import Limits, compare_conditioned
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.feeds import Value
from ortkit.verify.perturbation import RUNS, perturb
from ortkit.verify.random_ops import random_nodes
from ortkit.verify.sessions import SessionResult, Setting, run_sessions
from ortkit.verify.steps import as_steps, computed_values, give, prune
from ortkit.verify.tolerances import TOLERANCES
from ortkit.verify.widening import HALVES, widened

#: A step is a few nodes; ONNX Runtime's kernels for one node differ from the standard's order of
#: operations by up to 14 epsilons of float32 (BatchNormalization folded into a convolution of 576
#: products; onnxruntime 1.31.1).
LIMITS = Limits({"float32": 32.0}, 2.0**-10)


@dataclass(frozen=True)
class RewriteCheck:
    """What stage 1 found."""

    compared: tuple[str, ...] = ()
    """The values that were compared, by name."""
    wrong: tuple[OutputComparison, ...] = ()
    inconclusive: tuple[OutputComparison, ...] = ()
    problem: str = ""
    """Why nothing was compared; empty if something was."""


class RewriteStage:
    """Compares the values of candidates with those of one original, on the same inputs."""

    def __init__(
        self,
        original: ir.Model,
        feeds: Sequence[Path],
        folder: Path,
        timeout_seconds: float,
        custom_ops: tuple[Path, ...] = (),
    ) -> None:
        """Prepare the original.

        Args:
            original: Not changed.
            feeds: Folders of input sets, in the original's types.
            folder: For all files of this stage; made here.
            timeout_seconds: For the runs of one candidate.
            custom_ops: Libraries that the models need to load at all.
        """
        self._original = widened(original)
        self._values = computed_values(self._original)
        self._shapes = Shapes.infer(self._original)
        self._random = random_nodes(self._original)
        self._folder = folder
        self._timeout_seconds = timeout_seconds
        self._custom_ops = custom_ops
        self._checks = 0
        self._feeds = [_widened_feeds(each, folder / "feeds") for each in feeds]

    def check(self, candidate: ir.Model) -> RewriteCheck:
        """Compare every value that a candidate shares with the original.

        Raises:
            MissingDependencyError: ONNX Runtime is not installed.
        """
        self._checks += 1
        folder = self._folder / f"rewrites{self._checks}"
        folder.mkdir(parents=True)
        wide = widened(candidate)
        # A name in a function's body is no name of the graph.
        own = set(computed_values(candidate))
        restored = restore_channels_first(wide, self._original)
        own.update(value.name or "" for node in restored for value in node.outputs)
        names = self._shared(computed_values(wide), own)
        if not names:
            return RewriteCheck(problem="the graphs have no value in common")
        drawn = {name for name in names if self._values[name].producer() in self._random}
        compared = [name for name in names if name not in drawn]
        results = self._run(wide, names, compared, folder)
        problem = next((each.problem for each in results if each.problem), "")
        if problem:
            return RewriteCheck(problem=problem)
        off = self._off(folder, compared)
        if off:
            self._run_perturbed(names, off, folder)
            off = self._off(folder, off)
        found = list(off.values())
        return RewriteCheck(
            tuple(compared),
            tuple(each for each in found if not each.equal),
            tuple(each for each in found if each.is_inconclusive),
        )

    def _shared(self, theirs: dict[str, ir.Value], own: set[str]) -> list[str]:
        """Return the values that both compute, whose type ONNX Runtime takes as an input."""
        names = []
        for name, value in self._values.items():
            dtype = self._shapes.dtype(value)
            if name not in own or name not in theirs or dtype is None:
                continue
            if dtype == ir.DataType.STRING or not isinstance(value.type or _TENSOR, ir.TensorType):
                continue
            value.type = theirs[name].type = ir.TensorType(dtype)
            names.append(name)
        return names

    def _run(
        self, wide: ir.Model, names: Sequence[str], compared: Sequence[str], folder: Path
    ) -> list[SessionResult]:
        """Run the original for the values, and the candidate's steps on them."""
        whole = self._original.clone()
        give(whole, names)
        prune(whole)
        as_steps(wide, names, compared)
        prune(wide)
        expected, actual = folder / "expected", folder / "actual"
        settings = [
            Setting(_saved(whole, folder / "whole.onnx"), expected, libraries=self._custom_ops),
            Setting(
                _saved(wide, folder / "steps.onnx"), actual, libraries=self._custom_ops,
                given=expected,
            ),
        ]  # fmt: skip
        return self._sessions(settings, folder / "job")

    def _run_perturbed(self, names: Sequence[str], wanted: Iterable[str], folder: Path) -> None:
        """Run the original's own steps with perturbed values."""
        steps = self._original.clone()
        as_steps(steps, names, list(wanted))
        prune(steps)
        epsilon = TOLERANCES["float32"].epsilon
        perturb(steps, lambda _: epsilon)
        setting = Setting(
            _saved(steps, folder / "perturbed.onnx"), folder / "perturbed",
            libraries=self._custom_ops, given=folder / "expected", repeats=RUNS,
        )  # fmt: skip
        self._sessions([setting], folder / "perturbed_job")

    def _sessions(self, settings: Sequence[Setting], job: Path) -> list[SessionResult]:
        return run_sessions(
            settings, self._feeds, len(self._feeds), job, self._timeout_seconds
        )

    def _off(self, folder: Path, names: Iterable[str]) -> dict[str, OutputComparison]:
        """Return the values that are off, or inconclusive, on some input set."""
        off: dict[str, OutputComparison] = {}
        wanted = list(names)
        for feeds in self._feeds:
            expected = read_values(folder / "expected" / feeds.name)
            actual = read_values(folder / "actual" / feeds.name)
            runs = [
                read_values(path)
                for number in range(RUNS)
                if (path := folder / "perturbed" / str(number) / feeds.name).is_dir()
            ]
            for name in wanted:
                moved: list[Value] = [run[name] for run in runs]
                found = compare_conditioned(name, expected[name], actual[name], LIMITS, moved)
                is_off = not found.equal or found.is_inconclusive
                if is_off and (name not in off or off[name].equal):
                    off[name] = found
        return off


_TENSOR = ir.TensorType(ir.DataType.FLOAT)


def _saved(model: ir.Model, path: Path) -> Path:
    return save_model(model, path).model


def _widened_feeds(feeds: Path, folder: Path) -> Path:
    """Return an input set in which half precision is float32; the same one if there is none."""
    values = read_values(feeds)
    halves = {half.numpy() for half in HALVES}
    if not any(_has(value, halves) for value in values.values()):
        return feeds
    wide = folder / feeds.name
    write_feeds(wide, {name: _wide(value, halves) for name, value in values.items()})
    return wide


def _has(value: Value, types: set[np.dtype]) -> bool:
    parts = value if isinstance(value, list) else [value]
    return any(part is not None and part.dtype in types for part in parts)


def _wide(value: Value, types: set[np.dtype]) -> Value:
    if isinstance(value, list):
        return [part.astype(np.float32) if part.dtype in types else part for part in value]
    if value is None or value.dtype not in types:
        return value
    return value.astype(np.float32)
