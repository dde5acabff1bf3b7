"""`ortkit tune`: the kernels that take a model's time, tried in turn and kept in the database."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from ortkit.errors import KernelError, UserError
from ortkit.graph.io.save import save_model
from ortkit.kernels.build.compiler import cores, staying
from ortkit.kernels.build.library import missing_toolchain
from ortkit.kernels.catalog import load_backend
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tuning.calibration import machine
from ortkit.kernels.tuning.database import Chooser, RecordKey, cache_file
from ortkit.kernels.tuning.defaults import default_choices
from ortkit.measure.inputs import shapes_in, write_inputs
from ortkit.optimization.call import Optimized, optimize
from ortkit.optimization.options import OptimizeOptions
from ortkit.runtime.ort import require_onnxruntime
from ortkit.runtime.settings import SessionSettings
from ortkit.runtime.timing.variants import NotTimed, Timing, Variant, time_variants
from ortkit.targets.catalog import traits_of
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder
from ortkit.tune.alternatives import Alternatives, ways_of
from ortkit.tune.cases import TuneCase
from ortkit.tune.loop import Loop
from ortkit.tune.model import Asked, cases_of, fused_ops, uses_in
from ortkit.tune.options import TuneOptions as TuneOptions
from ortkit.tune.region import TuningRegion
from ortkit.tune.result import Alternative, TuneResult
from ortkit.tune.runners import Runner, runner_for
from ortkit.tune.store import TuneStore
from ortkit.tune.timing import Effort

#: Seconds for runs of the whole model, and for their profile.
_RUN_SECONDS, _PROFILE_SECONDS = 0.5, 1.0
_TIMEOUT_SECONDS = 300.0
#: Parts of the budget that go to kernels.
_LEAST_FOR_KERNELS, _MOST_FOR_KERNELS = 0.25, 0.6
#: The toolchain stays loaded while kernels are timed.
_TOOLCHAIN_SECONDS = 60.0
#: Regions that take less of the time are left as they are.
_LEAST_SHARE = 0.001


def _rules(signature: RegionSignature, backend: str, target: Target) -> str:
    """Choose what the rules of the backends say, for every kernel."""
    del signature, backend, target
    return ""


def tune(source: Path, options: TuneOptions | None = None) -> TuneResult:
    """Tune the kernels of a model, those first that take the most time.

    What was found is on disk after each batch of trials: an interrupted run goes on where it was.

    Raises:
        ModelError: The source is not a valid model.
        UserError: Options or a database make no sense, or nothing can be written.
        MissingDependencyError: ONNX Runtime or a toolchain is not installed.
    """
    require_onnxruntime()
    options = options or TuneOptions()
    if (missing := missing_toolchain(target=Target(options.target))) is not None:
        raise missing
    store = TuneStore(options.db, options.merge)
    with (
        TemporaryFolder("tune") as folder,
        staying(_TOOLCHAIN_SECONDS),
        runner_for(options) as runner,
    ):
        return Tuner(source, options, store, runner, folder).run()


class Tuner:
    """One call of `tune`: what its stages share."""

    def __init__(
        self, source: Path, options: TuneOptions, store: TuneStore, runner: Runner, folder: Path
    ) -> None:
        self.source = source
        self.options = options
        self.store = store
        self.runner = runner
        self.folder = folder
        self.target = runner.target
        self.loop = Loop(
            store, runner.target, options.trials, options.seconds, options.progress,
            runner.workers, runner.is_here,
        )  # fmt: skip
        self.notes = self.loop.notes
        self.prepared = 0.0
        """Seconds that optimizing, loading and profiling the model took."""

    @property
    def regions(self) -> list[TuningRegion]:
        """What is tuned."""
        return self.loop.regions

    def run(self) -> TuneResult:
        """Do one stage after the other."""
        self.options.progress("optimize")
        optimized, asked = self._optimized()
        self.options.progress("profile")
        timing = self._profiled(optimized)
        self.prepared = self.loop.spent
        self.loop.regions += self._regions(optimized, asked, timing)
        self.loop.search(self._kernel_seconds())
        self.loop.confirm()
        alternatives = () if timing is None else self._alternatives(optimized, timing)
        files = [cache_file(), *([self.options.db] if self.options.db is not None else [])]
        return TuneResult(
            source=str(self.source),
            machine=machine() if self.target.traits.is_host else self.runner.processor,
            level=self.target.level,
            inputs={} if timing is None else shapes_in(timing.feeds),
            regions=tuple(region.result() for region in self.regions),
            alternatives=alternatives,
            trials=self.loop.new_trials,
            predicted_gain=self.loop.predicted_gain(),
            files=tuple(str(path) for path in files if path.exists()),
            notes=tuple(self.notes),
            seconds=round(self.loop.spent, 2),
        )

    def _optimized(self) -> tuple[Optimized, Asked]:
        asked = Asked()
        return optimize(self.source, self._making(asked)), asked

    def _making(self, chooser: Chooser) -> OptimizeOptions:
        options = self.options
        arch = "native" if self.target.traits.is_host else self.target.level
        return OptimizeOptions(
            target=options.target, level=options.level, precision=options.precision,
            cpu=options.cpu, arch=arch, verify=False,
            check_load=False, chooser=chooser,
        )  # fmt: skip

    def _profiled(self, optimized: Optimized) -> Timing | None:
        """Run the model with its kernels as they are by default."""
        if optimized.library is None:
            self.notes.append("there are no kernels to tune in this model")
            return None
        path = self.folder / "default.onnx"
        save_model(optimized.model, path, is_temporary=True)
        inputs = write_inputs(
            optimized.model, self.options.inputs, self.options.shapes, self.folder
        )
        for one in inputs:
            # One by one: which sizes are tuned is not to depend on how busy the machine is now,
            # or a run that is resumed would begin again at others.
            found = time_variants(
                [Variant(path, optimized.library)],
                [one],
                self.folder,
                seconds=_RUN_SECONDS,
                profile_seconds=_PROFILE_SECONDS,
                timeout_seconds=_TIMEOUT_SECONDS,
                providers=traits_of(self.options.target).providers,
                threads=self.options.threads,
            )
            if not isinstance(found, NotTimed):
                break
        if isinstance(found, NotTimed) or found.profile_file is None:
            reason = found.reason if isinstance(found, NotTimed) else "it was not profiled"
            raise UserError(
                f"the model does not run: {reason}",
                where=str(self.source),
                fix="give it inputs with --inputs or sizes with --shape",
            )
        return found

    def _regions(
        self, optimized: Optimized, asked: Asked, timing: Timing | None
    ) -> list[TuningRegion]:
        if timing is None or timing.profile_file is None:
            return []
        uses = uses_in(timing.profile_file, fused_ops(optimized.model))
        cases, problems = cases_of(uses, asked.regions)
        self.notes += problems
        if not self.target.traits.is_host:
            # What a profile says of nodes on a device is how long the host took to launch them.
            cases = self._shares_measured(cases, timing.fastest[0])
        return [
            self._region(case, backend) for case, backend in cases if case.share >= _LEAST_SHARE
        ]

    def _shares_measured(
        self, cases: list[tuple[TuneCase, str]], run_seconds: float
    ) -> list[tuple[TuneCase, str]]:
        """Return cases with the parts of a run that their kernels take by themselves."""
        found = []
        for case, backend in cases:
            try:
                (elapsed,) = self.runner.time(case, self.target, backend, [""], Effort())
            except KernelError as error:
                self.notes.append(f"{case.signature.op_type}: {error}")
                continue
            share = min(1.0, 1e-9 * elapsed.median_ns * case.nodes / run_seconds)
            found.append((replace(case, share=share), backend))
        return sorted(found, key=lambda one: -one[0].share)

    def _region(self, case: TuneCase, backend: str) -> TuningRegion:
        key, bucket = case.signature.key, case.bucket
        record_key = RecordKey(self.runner.processor, self.target.level, backend, key, bucket)
        maker = load_backend(backend)
        record = self.store.record(record_key, case.signature.op_type, maker.fingerprint())
        shipped = default_choices(case.signature, maker, self.target)
        return TuningRegion(
            case, backend, self.target, record_key, record, self.runner.time, shipped=shipped
        )

    def _kernel_seconds(self) -> float:
        """Return when to end with kernels: what they can give is their part of the time."""
        if self.options.seconds is None:
            return math.inf
        share = sum(region.promise for region in self.regions if region.parameters)
        part = min(_MOST_FOR_KERNELS, max(_LEAST_FOR_KERNELS, 2 * share))
        return self.loop.spent + part * self.loop.left

    def _alternatives(self, base: Optimized, timing: Timing) -> tuple[Alternative, ...]:
        """Time other ways to run the model, if there is a budget for it."""
        if self.options.seconds is None:
            return ()
        making = self._making(_rules)
        settings = SessionSettings(threads=self.options.threads)
        found = self.store.database.chooser()
        shares: dict[str, float] = {}
        for region in self.regions:
            op = region.case.signature.op_type
            shares[op] = shares.get(op, 0.0) + region.case.share
        ways = list(ways_of(base, making, settings, found, cores(), shares))
        if all(not region.record.best for region in self.regions):
            ways = [way for way in ways if way.options is None or way.options.chooser is not found]
        tried = Alternatives(
            self.source, base, making, settings, timing.feeds, self.folder,
            run_seconds=timing.fastest[0], expected=self.prepared,
            providers=traits_of(self.options.target).providers,
        )  # fmt: skip
        return tried.try_all(ways, lambda: self.loop.left, self.options.progress)
