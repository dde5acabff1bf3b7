"""What each replica of a Ray Serve deployment runs: a session, and requests that are batched."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ortkit.errors import UserError
from ortkit.integrations.packages import require
from ortkit.integrations.served import served_session

Arrays: TypeAlias = Mapping[str, np.ndarray]
Answer: TypeAlias = dict[str, np.ndarray] | UserError
#: What JSON and numpy raise where a request does not fit.
_NOT_DECODED = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
_log = logging.getLogger("ray.serve")


class OrtkitModel:
    """A served model.

    It is called with arrays by input name, or over HTTP with `{"inputs": {name: lists}}`, and
    answers with arrays by output name, or `{"outputs": {name: lists}}`.
    """

    def __init__(
        self, model: str, settings: Mapping[str, object], max_batch: int, wait_s: float
    ) -> None:
        """Load it.

        Args:
            model: A path that this replica can read.
            settings: As `served_session` takes them.
            max_batch: Requests that are batched in one run; 0 for none.
            wait_s: How long a request waits for others.
        """
        self._session = served_session(Path(model), settings)
        for note in self._session.notes:
            _log.warning("%s: %s", model, note)
        self._dtypes = {spec.name: spec.dtype for spec in self._session.inputs}
        self._batched: Any = None
        if max_batch:
            batch = require("ray.serve", "ray-serve").batch
            self._batched = batch(max_batch_size=max_batch, batch_wait_timeout_s=wait_s)(
                self._run_batch
            )

    async def __call__(self, request: Any) -> Any:
        """Answer a call of a handle, or an HTTP request."""
        if isinstance(request, dict):  # HTTP requests of Starlette are mappings, too
            return await self.run(request)
        try:
            content = await request.json()
            inputs = content["inputs"].items()
            feeds = {name: np.asarray(value, self._dtypes.get(name)) for name, value in inputs}
            found = await self.run(feeds)
        except (UserError, *_NOT_DECODED) as error:
            response = require("starlette.responses", "ray-serve").JSONResponse
            return response({"error": str(error)}, status_code=400)
        return {"outputs": {name: value.tolist() for name, value in found.items()}}

    async def run(self, feeds: Arrays) -> dict[str, np.ndarray]:
        """Run the model on arrays by input name, perhaps together with other requests."""
        if self._batched is None:
            return await asyncio.wrap_future(self._session.run_async(dict(feeds)))
        answer: Answer = await self._batched(feeds)
        if isinstance(answer, UserError):
            raise answer
        return answer

    async def _run_batch(self, requests: Sequence[Arrays]) -> list[Answer]:
        """Run requests whose rows fit together in one run; an error is its request's own."""
        groups: dict[object, list[int]] = defaultdict(list)
        for index, feeds in enumerate(requests):
            groups[_key(index, feeds)].append(index)
        answers: list[Answer] = [{}] * len(requests)
        for indices in groups.values():
            found = await self._run_group([requests[index] for index in indices])
            for index, answer in zip(indices, found, strict=True):
                answers[index] = answer
        return answers

    async def _run_group(self, requests: Sequence[Arrays]) -> Sequence[Answer]:
        if len(requests) == 1:
            return [await self._run_alone(requests[0])]
        feeds = {
            name: np.concatenate([request[name] for request in requests]) for name in requests[0]
        }
        rows = [len(next(iter(request.values()))) for request in requests]
        found = await self._run_alone(feeds)
        if isinstance(found, UserError):  # perhaps of one of them only
            return [await self._run_alone(request) for request in requests]
        wrong = [name for name, value in found.items() if not _has_rows(value, sum(rows))]
        if wrong:
            error = UserError(f"output {wrong[0]!r} has no row for each of the batch",
                              where="max_batch", fix="use 0")  # fmt: skip
            return [error] * len(requests)
        ends = np.cumsum(rows)[:-1]
        parts = {name: np.split(value, ends) for name, value in found.items()}
        return [{name: each[index] for name, each in parts.items()} for index in range(len(rows))]

    async def _run_alone(self, feeds: Arrays) -> Answer:
        try:
            return await asyncio.wrap_future(self._session.run_async(dict(feeds)))
        except UserError as error:
            return error


def _has_rows(value: object, count: int) -> bool:
    return isinstance(value, np.ndarray) and value.shape[:1] == (count,)


def _key(index: int, feeds: Arrays) -> object:
    """Return what two requests must have in common to be batched; others get one of their own."""
    arrays = [feeds[name] for name in sorted(feeds)]
    if not all(isinstance(array, np.ndarray) and array.ndim for array in arrays):
        return index
    if len({len(array) for array in arrays}) != 1:
        return index
    return tuple((name, feeds[name].dtype.str, feeds[name].shape[1:]) for name in sorted(feeds))
