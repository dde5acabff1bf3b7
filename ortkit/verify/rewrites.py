"""Stage 1: the rewritten graph against the original, step by step, in float32.

Both graphs are widened (`widening.py`), and kernels are left out: the bodies of their functions
stand for them. Every value that both graphs name is computed by the candidate from the original's
values (`steps.py`), so that each rewrite is judged where it is, at the tolerance of float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ortkit.graph.channels_last import restore_channels_first
from ortkit.graph.constants import constant_array
from ortkit.graph.save import save_model
from ortkit.graph.shapes import Shapes
from ortkit.runtime.tensor_files import MANIFEST
from ortkit.verify.compare import OutputComparison
from ortkit.verify.conditioned import Limits, compare_conditioned
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.feeds import Value
from ortkit.verify.perturbation import RUNS, perturb, perturb_constants
from ortkit.verify.random_ops import draws
from ortkit.verify.sessions import SessionResult, Setting, run_sessions
from ortkit.verify.steps import as_steps, computed_values, give, prune
from ortkit.verify.tolerances import TOLERANCES
from ortkit.verify.widening import HALVES, half_constants, widened

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
        compared = [name for name in names if not draws(self._values[name].producer())]
        whole = self._original.clone()
        give(whole, names)
        steps = wide.clone()
        as_steps(steps, names, compared)
        results = self._sessions(
            folder / "job",
            self._setting(whole, folder / "expected"),
            self._setting(steps, folder / "actual", given=folder / "expected"),
        )
        problem = next((each.problem for each in results if each.problem), "")
        if problem:
            return RewriteCheck(problem=problem)
        off = self._off(folder, compared)
        if off:
            rounded = self._newly_rounded(wide)
            self._run_perturbed(wide, names, off, folder, rounded)
            off = self._off(folder, off, _limits(rounded))
        return RewriteCheck(
            tuple(compared),
            tuple(each for each in off.values() if not each.equal),
            tuple(each for each in off.values() if each.is_inconclusive),
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

    def _run_perturbed(
        self,
        wide: ir.Model,
        names: Sequence[str],
        wanted: Collection[str],
        folder: Path,
        rounded: Mapping[str, ir.DataType],
    ) -> None:
        """Run the original's steps with perturbed values, the candidate's with such constants."""
        given = folder / "expected"
        steps = self._original.clone()
        as_steps(steps, names, wanted)
        perturb(steps, TOLERANCES["float32"].epsilon)
        settings = [self._setting(steps, folder / _PERTURBED, given=given, repeats=RUNS)]
        if rounded:
            steps = wide.clone()
            as_steps(steps, names, wanted)
            perturb_constants(steps, {name: _epsilon(each) for name, each in rounded.items()})
            settings.append(self._setting(steps, folder / _ROUNDED, given=given, repeats=RUNS))
        self._sessions(folder / "perturbed_job", *settings)

    def _newly_rounded(self, wide: ir.Model) -> dict[str, ir.DataType]:
        """Return the constants that were rounded to half precision by rewrites, and to which.

        They are those in half precision that the original lacks.
        """
        found = half_constants(wide)
        if not found:
            return {}
        known = {_content(value) for value in half_constants(self._original)}
        return {
            value.name or "": dtype
            for value, dtype in found.items()
            if _content(value) not in known
        }

    def _setting(
        self, model: ir.Model, results: Path, given: Path | None = None, repeats: int = 1
    ) -> Setting:
        prune(model)
        path = save_model(model, results.with_suffix(".onnx")).model
        return Setting(path, results, libraries=self._custom_ops, given=given, repeats=repeats)

    def _sessions(self, job: Path, *settings: Setting) -> list[SessionResult]:
        return run_sessions(settings, self._feeds, len(self._feeds), job, self._timeout_seconds)

    def _off(
        self, folder: Path, names: Iterable[str], limits: Limits = LIMITS
    ) -> dict[str, OutputComparison]:
        """Return the values that are off, or inconclusive, on some input set."""
        off: dict[str, OutputComparison] = {}
        wanted = list(names)
        for feeds in self._feeds:
            expected = read_values(folder / "expected" / feeds.name)
            actual = read_values(folder / "actual" / feeds.name)
            runs, own_runs = (_runs(folder / name, feeds.name) for name in (_PERTURBED, _ROUNDED))
            for name in wanted:
                found = compare_conditioned(
                    name, expected[name], actual[name], limits,
                    [run[name] for run in runs], [run[name] for run in own_runs],
                )  # fmt: skip
                is_off = not found.equal or found.is_inconclusive
                if is_off and (name not in off or off[name].equal):
                    off[name] = found
        return off


#: Epsilons of the type that constants were rounded to, as a part of a row's scale.
_CONSTANTS_CAP_EPS = 16.0
#: Folders of repeated runs: the original's steps with its values perturbed, the candidate's steps
#: with its own constants perturbed.
_PERTURBED, _ROUNDED = "perturbed", "rounded"
_TENSOR = ir.TensorType(ir.DataType.FLOAT)


def _epsilon(dtype: ir.DataType) -> float:
    return TOLERANCES[dtype.numpy().name].epsilon


def _largest(dtype: ir.DataType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]


def _limits(rounded: Mapping[str, ir.DataType]) -> Limits:
    """Return the limits of a candidate some of whose constants were rounded to half precision."""
    if not rounded:
        return LIMITS
    types = set(rounded.values())
    return replace(
        LIMITS,
        own_cap=_CONSTANTS_CAP_EPS * max(map(_epsilon, types)),
        largest=min(map(_largest, types)),
    )


def _runs(folder: Path, feeds: str) -> list[dict[str, Value]]:
    """Return the results of repeated runs on an input set, none if there were no runs."""
    paths = [folder / str(number) / feeds for number in range(RUNS)]
    return [read_values(path) for path in paths if (path / MANIFEST).exists()]


def _content(value: ir.Value) -> tuple[tuple[int, ...], bytes]:
    array = constant_array(value)
    assert array is not None
    return array.shape, hashlib.sha256(array.tobytes()).digest()


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
