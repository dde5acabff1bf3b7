"""An application of Ray Serve: a model on as many replicas and machines as a cluster has.

Source: the API reference of Ray Serve, `serve.deployment` and `serve.batch`.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from ortkit.errors import UserError
from ortkit.integrations.batching import joinable
from ortkit.integrations.packages import require
from ortkit.integrations.ray_model import OrtkitModel

_DEFAULT_BATCH = 8


def application(
    model: str | os.PathLike[str],
    *,
    threads: int = 1,
    target: str = "cpu",
    kernels: str = "auto",
    max_batch: int | None = None,
    wait_s: float = 0.002,
    **deployment_options: Any,
) -> Any:
    """Return an application for `serve.run`, whose replicas each have a session of the model.

    Args:
        model: A path that every replica can read; its library is loaded where it is trusted.
        threads: Threads of a run, and CPUs that Ray reserves for a replica.
        target: As `ortkit.Session` has it.
        kernels: auto, require or never.
        max_batch: Requests that are batched in one run, 0 for none. None: 8 if the model is proven
            to compute each row on its own, else none.
        wait_s: How long a request waits for others.
        deployment_options: More options of `serve.deployment`, such as `num_replicas`.

    Raises:
        ModelError: It is no valid model.
        UserError: A setting cannot be.
        MissingDependencyError: Ray Serve is not installed.
    """
    serve = require("ray.serve", "ray-serve")
    if threads < 1:
        raise UserError("must be one at least", where=f"threads {threads}")
    path = Path(model).absolute()
    batch = _batch(path, max_batch)
    settings = {"threads": threads, "target": target, "kernels": kernels}
    options: dict[str, Any] = {"name": "OrtkitModel", **deployment_options}
    options["ray_actor_options"] = {
        "num_cpus": threads, **(deployment_options.get("ray_actor_options") or {})
    }  # fmt: skip
    if batch:  # Ray's own limit is 5: while one batch runs, the next one fills
        options.setdefault("max_ongoing_requests", 2 * batch)
    return serve.deployment(OrtkitModel, **options).bind(str(path), settings, batch, wait_s)


def _batch(path: Path, asked: int | None) -> int:
    if asked == 0:
        return 0
    if asked is not None and asked < 0:
        raise UserError("is no number of requests", where=f"max_batch {asked}")
    refused = joinable(path)
    if refused is None:
        return asked or _DEFAULT_BATCH
    said = "are batched without a proof that rows are independent" if asked else "are not batched"
    warnings.warn(f"{path}: requests {said}: {refused.reason}", stacklevel=3)
    return asked or 0
