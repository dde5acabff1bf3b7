"""What `ortkit memory` measures, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli.feeds import blaming_made_up, candidate_feeds
from ortkit.errors import RunError

if TYPE_CHECKING:
    from ortkit.cli.decoding import Decoding
    from ortkit.cli.memory_shown import Shown, ShownPoint
    from ortkit.cli.show import Stages
    from ortkit.measure.decoding import CachedDecoder
    from ortkit.runtime.memory.point import PointPlan
    from ortkit.verify.inputs.feeds import Feeds

#: How long a model is run after its first run.
_SECONDS = 0.5


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
    decoder: CachedDecoder | None = None
    """A decoder whose phases are run; their sizes are `past` and `new`."""

    def decoding(self, given: Decoding) -> Request:
        """Return the request for the phases of a decoder."""
        return replace(
            self,
            model=given.decoder.path,
            threads=given.threads,
            shapes=tuple({"past": each.past, "new": each.new} for each in given.phases),
            swept=("past", "new"),
            decoder=given.decoder,
        )


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
    from ortkit.measure.decoding import Phase
    from ortkit.runtime.memory.point import NotLoadedError, PointPlan, measure_point
    from ortkit.verify.exchange import write_feeds

    problem: RunError | None = None
    decoder = request.decoder
    for number, feeds in enumerate(_candidates(request, shapes)):
        write_feeds(folder / str(number), feeds)
        plan = PointPlan(
            request.model,
            folder / str(number),
            settings={
                "target": request.target,
                "threads": request.threads,
                "trust": request.trust,
            },
            share={} if decoder is None else decoder.share,
            seconds=_SECONDS,
            nodes=True,
        )
        try:
            point = measure_point(plan)
        except NotLoadedError:
            raise
        except RunError as error:
            problem = problem or error
            continue
        arrays = {name: feed for name, feed in feeds.items() if isinstance(feed, np.ndarray)}
        return (
            ShownPoint(
                shapes,
                {name: tuple(map(int, array.shape)) for name, array in arrays.items()},
                sum(int(item.nbytes) for item in arrays.values()),
                point,
                None if decoder is None else decoder.cache_bytes(feeds, Phase(**shapes)),
            ),
            plan,
        )
    with blaming_made_up(request.model, request.inputs):
        raise problem or RunError("there are no inputs to run on", where=str(request.model))


def _candidates(request: Request, shapes: Mapping[str, int]) -> Iterator[Feeds]:
    """Yield inputs of a point, the most wanted first."""
    from ortkit.measure.decoding import Phase

    if request.decoder is not None:
        return request.decoder.feeds(Phase(**shapes))
    return candidate_feeds(request.model, request.inputs, shapes)


def _text(shapes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in shapes.items())
