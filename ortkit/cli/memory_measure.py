"""What `ortkit memory` measures, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli.feeds import blaming_made_up, candidate_feeds
from ortkit.errors import RunError

if TYPE_CHECKING:
    from ortkit.cli.memory_shown import Shown, ShownPoint
    from ortkit.cli.show import Stages
    from ortkit.runtime.memory.point import PointPlan


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    model: Path
    target: str
    threads: int
    inputs: Path | None
    shapes: tuple[Mapping[str, int], ...]
    """One for each point."""
    swept: tuple[str, ...]
    arena: bool
    layout: bool
    trust: bool = False


def measure(request: Request, folder: Path, progress: Stages) -> Shown:
    """Measure each point in a process of its own, then what else was asked for at the first.

    Raises:
        UserError: The model, the inputs or a size is wrong.
        RunError: It does not run.
    """
    from ortkit.cli.memory_shown import Shown
    from ortkit.graph.analysis.weights import weights_of
    from ortkit.graph.io.open import open_model

    weights = weights_of(open_model(request.model))
    stopped = ""
    points: list[ShownPoint] = []
    plans: list[PointPlan] = []
    for number, shapes in enumerate(request.shapes):
        progress("measure the model at " + (_text(shapes) or "usual sizes"))
        progress.count(number, len(request.shapes))
        try:
            point, plan = _point(request, shapes, folder / f"point{number}")
        except RunError as error:
            if not points:
                raise
            # Such as memory that runs out: what was measured before is worth having.
            stopped = f"{_text(shapes)}: {error.problem}"
            break
        points.append(point)
        plans.append(plan)
    options = layouts = None
    if request.arena:
        from ortkit.runtime.memory.arena_options import measure_options

        options = measure_options(plans[0], folder, progress=progress)
    if request.layout:
        from ortkit.measure.layout import measure_layouts

        layouts = measure_layouts(plans[0], folder, progress=progress)
    return Shown(
        request.model,
        request.target,
        weights,
        tuple(points),
        request.swept,
        stopped,
        options,
        layouts,
    )


def _point(
    request: Request, shapes: Mapping[str, int], folder: Path
) -> tuple[ShownPoint, PointPlan]:
    """Measure at the first inputs that the model runs on."""
    import numpy as np

    from ortkit.cli.memory_shown import ShownPoint
    from ortkit.runtime.memory.point import NotLoadedError, PointPlan, measure_point
    from ortkit.verify.exchange import write_feeds

    problem: RunError | None = None
    for number, feeds in enumerate(candidate_feeds(request.model, request.inputs, shapes)):
        write_feeds(folder / str(number), feeds)
        plan = PointPlan(
            request.model,
            folder / str(number),
            settings={
                "target": request.target,
                "threads": request.threads,
                "trust": request.trust,
            },
            nodes=True,
        )
        try:
            point = measure_point(plan)
        except NotLoadedError:
            raise
        except RunError as error:
            problem = problem or error
            continue
        arrays = {name: one for name, one in feeds.items() if isinstance(one, np.ndarray)}
        return (
            ShownPoint(
                shapes,
                {name: tuple(map(int, one.shape)) for name, one in arrays.items()},
                sum(int(one.nbytes) for one in arrays.values()),
                point,
            ),
            plan,
        )
    with blaming_made_up(request.model, request.inputs):
        raise problem or RunError("there are no inputs to run on", where=str(request.model))


def _text(shapes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in shapes.items())
