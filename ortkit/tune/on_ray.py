"""Compiling and measuring on a Ray cluster: a batch of kernels is a task of one processor.

Source: docs.ray.io, ray 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ortkit import env
from ortkit.errors import KernelError, MissingDependencyError, UserError
from ortkit.kernels.tuning.calibration import processor
from ortkit.targets.cpu import runs_here
from ortkit.targets.target import Target
from ortkit.tune.cases import TuneCase
from ortkit.tune.timing import Effort, Times, time_choices

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster.

    Args:
        ray: The module, connected.
        processor: The model of the processors, that of this machine.
        workers: How many of them there are.
    """

    ray: Any
    processor: str
    workers: int

    def time(
        self, case: TuneCase, target: Target, backend: str, choices: Sequence[str], effort: Effort
    ) -> list[Times]:
        """Do what `time_choices` does, on one processor of the cluster.

        Raises:
            KernelError: As there, or the worker ended meanwhile.
            UserError: The cluster is gone, or its machines are of another kind than this one.
        """
        given = (self.processor, case, target, backend, list(choices), effort)
        try:
            task = self.ray.remote(num_cpus=1, max_retries=0)(_measured)
            found: list[Times] | str = self.ray.get(task.remote(*given))
        except self.ray.exceptions.WorkerCrashedError as error:
            raise KernelError(f"the worker that times kernels ended: {_line(error)}") from error
        except (self.ray.exceptions.RayError, ConnectionError) as error:
            if isinstance(cause := getattr(error, "cause", None), KernelError | UserError):
                raise cause from error
            raise UserError(
                f"Ray failed: {_line(error)}", where="--runner ray",
                fix="run this again; no trial is lost",
            ) from error  # fmt: skip
        if isinstance(found, str):
            raise UserError(found, where="--runner ray", fix="use machines that are alike")
        return found


def _measured(
    model: str,
    case: TuneCase,
    target: Target,
    backend: str,
    choices: Sequence[str],
    effort: Effort,
) -> list[Times] | str:
    """Time kernels in a worker; text if it is the wrong kind of machine."""
    if processor() != model or not runs_here(target.level):
        return f"a worker has the processor {processor()}, and not {model} at {target.level}"
    return time_choices(case, target, backend, choices, effort)


@contextmanager
def ray_cluster() -> Iterator[Cluster]:
    """Connect to the cluster that `RAY_ADDRESS` names, or start one that only listens here.

    Raises:
        MissingDependencyError: Ray is not installed.
        UserError: There is no cluster to connect to.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            "Ray is not installed", fix="run `pip install ray`"
        ) from error
    is_ours = not ray.is_initialized()
    if is_ours:
        try:
            ray.init(
                **_where(), log_to_driver=False, include_dashboard=False, logging_level="ERROR"
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"no cluster can be reached or started: {_line(error)}",
                where="--runner ray", fix="check RAY_ADDRESS",
            ) from error  # fmt: skip
    try:
        workers = int(ray.cluster_resources().get("CPU", 1))
        yield Cluster(ray, processor(), max(1, workers))
    finally:
        if is_ours:
            ray.shutdown()


def _where() -> dict[str, str]:
    """Return which cluster to connect to, as `ray.init` takes it.

    Whoever reaches a cluster runs code there. So one of ours listens on the loopback interface
    alone, and one that another user has started on this machine is not looked for.
    """
    named = env.ray_address()
    return {"address": named} if named else {"address": "local", "_node_ip_address": LOOPBACK}


def _line(error: Exception) -> str:
    """Return the last line of what Ray says, which has a trace before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
