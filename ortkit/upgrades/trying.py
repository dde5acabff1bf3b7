"""Sessions of a model with optimizers off, judged by the model without optimizations."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from ortkit.comparison.differences import Judge
from ortkit.isolation.ended import Ended
from ortkit.isolation.run import Imports, IsolatedObject
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.ort import require_onnxruntime
from ortkit.runtime.settings import Optimizations
from ortkit.upgrades.names import Applied
from ortkit.upgrades.probe_child import Probe, Probed, Prober
from ortkit.upgrades.result import OPTION, Tried
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.feeds import Value

#: The severity at which ONNX Runtime logs its optimizers.
_LOG_INFO = 1


@dataclass
class Trying:
    """Makes sessions in one process after the other, and judges what they give.

    A context manager: it ends the process.
    """

    plan: SessionPlan
    """The session that is varied."""
    feeds: Path
    """A folder with inputs."""
    folder: Path
    judge: Judge
    expected: Mapping[str, Value]
    """Outputs without optimizations."""
    timeout_seconds: float
    sessions: int = 0
    _known: dict[tuple[str, frozenset[str]], Tried] = field(default_factory=dict)
    _prober: IsolatedObject[Prober] | None = None
    _number: Iterator[int] = field(default_factory=itertools.count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def level(self) -> str:
        """The level of optimizations that is varied."""
        return self.plan.settings.optimizations

    def without(self, names: Collection[str], level: str = "") -> Tried:
        """Judge a session with these optimizers off; each one is made once."""
        key = level or self.level, frozenset(names)
        if key not in self._known:
            self._known[key] = self._compared(*self._probed(self.planned(names, level)))
        return self._known[key]

    def is_bad(self, names: Collection[str]) -> bool:
        """Say whether something is wrong with these optimizers off."""
        return self.without(names).is_bad

    def with_option(self, names: Collection[str]) -> Tried:
        """Judge a session in a new process that has the session option for these names."""
        self._end()
        config = {**self.plan.settings.config, OPTION: ";".join(names)}
        plan = replace(self.plan, settings=replace(self.plan.settings, config=config))
        return self._compared(*self._probed(plan))

    def applied(self, level: str = "", names: Collection[str] = ()) -> tuple[Applied, ...]:
        """Return the optimizers that run at a level with these off, as ONNX Runtime logs them."""
        plan = self.planned(names, level)
        logged = replace(plan, settings=replace(plan.settings, log_severity=_LOG_INFO))
        return self._probed(logged)[0].applied

    def planned(self, names: Collection[str], level: str = "") -> SessionPlan:
        """Return the plan of a session with these optimizers off."""
        settings = self.plan.settings
        if level:
            settings = replace(settings, optimizations=cast(Optimizations, level))
        return replace(self.plan, settings=settings, disabled_optimizers=tuple(sorted(names)))

    def _probed(self, plan: SessionPlan) -> tuple[Probed, Path]:
        self.sessions += 1
        folder = self.folder / f"try{next(self._number)}"
        folder.mkdir()
        job = Probe(plan, self.feeds, folder / "results", folder / "log")
        if self._prober is None:
            require_onnxruntime()
            # A process that others are forked from has the installed ONNX Runtime.
            imports: Imports = "ortkit" if plan.onnxruntime is None else "nothing"
            self._prober = IsolatedObject(Prober, plan.onnxruntime, imports=imports)
        answer = self._prober.call(self.timeout_seconds, Prober.probe, job)
        if isinstance(answer, Ended):
            self._end()
            return Probed("run", f"the process {answer}"), folder
        return answer, folder

    def _compared(self, probed: Probed, path: Path) -> Tried:
        try:
            if probed.at != "done":
                return Tried("fails", probed.problem)
            found = self.judge.compare(self.expected, read_values(path / "results"))
            worst = max((each.judged.max_error_eps for each in found), default=0.0)
            wrong = [each.judged for each in found if not each.judged.equal]
            if not wrong:
                return Tried("equal", "", worst)
            return Tried("different", f"output {wrong[0].name!r}: {wrong[0].reason}", worst)
        finally:
            shutil.rmtree(path)

    def _end(self) -> None:
        if self._prober is not None:
            self._prober.close()
            self._prober = None
