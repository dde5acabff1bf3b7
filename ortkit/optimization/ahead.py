"""A verifier that runs the original while kernels are compiled, where there are cores for both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from ortkit.isolation.group import ProcessGroup
from ortkit.runtime.cpu_limits import cpu_limits

if TYPE_CHECKING:
    from ortkit.verify.fixed_batch import BatchVerifier
    from ortkit.verify.verifier import Verifier

    AnyVerifier: TypeAlias = Verifier | BatchVerifier

#: Compilers and sessions have threads of their own: with fewer cores they delay each other.
_CORES = 4


def has_room() -> bool:
    """Return whether stages of an optimization gain by running side by side on this machine."""
    return cpu_limits().whole >= _CORES


class VerifierAhead:
    """Makes verifiers of one original; the first may be at work before it is asked for."""

    def __init__(self, make: Callable[[], AnyVerifier]) -> None:
        """Say how verifiers are made; nothing runs yet."""
        self._make = make
        self._begun: Future[AnyVerifier] | None = None
        self._group = ProcessGroup()

    def begin(self) -> None:
        """Run the original in a thread."""
        pool = ThreadPoolExecutor(1, "verifier")
        self._begun = pool.submit(self._group.call, self._prepared)
        pool.shutdown(wait=False)

    def _prepared(self) -> AnyVerifier:
        with ExitStack() as stack:
            found = self._make().__enter__()
            stack.push(found)
            found.prepare()
            stack.pop_all()
        return found

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End a verifier that was not asked for."""
        if error is not None:
            self._group.end()
        begun, self._begun = self._begun, None
        if begun is not None and begun.exception() is None:
            begun.result().__exit__(kind, error, trace)

    @contextmanager
    def verifier(self) -> Iterator[AnyVerifier]:
        """Return a verifier that has run the original, and end it with the block.

        Raises:
            Exception: See `Verifier.__enter__`.
        """
        begun, self._begun = self._begun, None
        found = self._make().__enter__() if begun is None else begun.result()
        with ExitStack() as stack:
            stack.push(found)
            yield found
