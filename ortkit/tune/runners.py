"""Who measures kernels: this machine, those behind a tracker of TVM's, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ortkit.errors import UserError
from ortkit.kernels.tuning.calibration import processor
from ortkit.targets.catalog import load, traits_of
from ortkit.targets.target import Target
from ortkit.tune.options import TuneOptions
from ortkit.tune.timing import Timer, time_choices
from ortkit.tune.timing_cuda import this_gpu

LOCAL, RAY, RPC = "local", "ray", "rpc://"
#: Whose kernels are compiled together: a process that has made one for a GPU makes the next
#: several times as fast.
_REGIONS_ON_GPU = 4


@dataclass(frozen=True)
class Runner:
    """What measures kernels.

    Args:
        time: See `time_choices`.
        target: Resolved, and of the machines that measure.
        processor: Their model.
        workers: How many batches are compiled or measured at once.
        is_here: Whether that is this machine, and no other one for each batch.
    """

    time: Timer
    target: Target
    processor: str
    workers: int = 1
    is_here: bool = False


def processor_runner(options: TuneOptions) -> Runner:
    """Return this machine's processor."""
    target = Target(options.target, options.cpu).resolved()
    return Runner(time_choices, target, processor(), is_here=True)


def gpu_runner(options: TuneOptions) -> Runner:
    """Return this machine's GPU.

    Raises:
        UserError: There is none, or kernels are not made for it.
    """
    gpu = this_gpu()
    target = Target(options.target, gpu.level)
    return Runner(time_choices, target, gpu.name, _REGIONS_ON_GPU, is_here=True)


@contextmanager
def runner_for(options: TuneOptions) -> Iterator[Runner]:
    """Return who measures kernels, and let go of it after the `with` block.

    Raises:
        UserError: There is no such runner, or nobody answers.
        MissingDependencyError: What it needs is not installed.
    """
    if options.runner == LOCAL:
        yield load(traits_of(options.target).runner)(options)
        return
    target = Target(options.target, options.cpu).resolved()
    if options.runner == RAY:
        from ortkit.tune.on_ray import ray_cluster

        with ray_cluster() as cluster:
            yield Runner(cluster.time, target, cluster.processor, cluster.workers)
    elif options.runner.startswith(RPC):
        from ortkit.tune.rpc import tracker_of

        tracker = tracker_of(options.runner)
        tracker.check(target)
        yield Runner(tracker.time, target, tracker.processor, tracker.workers)
    else:
        raise UserError(
            f"{options.runner!r} measures nothing",
            where="--runner",
            fix=f"give {LOCAL}, {RPC}HOST:PORT/KEY or {RAY}",
        )
