"""What a provider learns of a session and of its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ortkit.provider.native import library
from ortkit.provider.slots import Slots

#: OrtLoggingLevel
_VERBOSE, _INFO, _WARNING, _ERROR = range(4)


class Logger:
    """ONNX Runtime's logger of one session; what it shows is the session's setting."""

    def __init__(self, api: int, handle: int | None) -> None:
        self._api = api
        self._handle = handle

    def verbose(self, message: str) -> None:
        """Log what helps to find a bug."""
        self._log(_VERBOSE, message)

    def info(self, message: str) -> None:
        """Log what is as it should be."""
        self._log(_INFO, message)

    def warning(self, message: str) -> None:
        """Log what somebody should look at."""
        self._log(_WARNING, message)

    def error(self, message: str) -> None:
        """Log what failed."""
        self._log(_ERROR, message)

    def close(self) -> None:
        """Forget the session, which ends; later messages go nowhere."""
        self._handle = None

    def _log(self, severity: int, message: str) -> None:
        if self._handle is not None:
            text = message.encode("utf-8", "replace")
            library().ortkit_provider_log(self._api, self._handle, severity, text)


@dataclass(frozen=True)
class SessionInfo:
    """The session that a provider works for."""

    options: Mapping[str, str]
    """What the caller gave this provider."""
    config: Mapping[str, str]
    """All entries of the session's configuration."""
    devices: tuple[int, ...]
    """Which of the provider's `devices` the session uses."""
    logger: Logger = field(repr=False)


@dataclass(frozen=True)
class RunInfo:
    """One run, as it starts or ends."""

    _entry: Callable[[str], str | None] = field(repr=False)

    def config(self, key: str) -> str | None:
        """Return an entry of the run's configuration (`RunOptions.add_run_config_entry`)."""
        return self._entry(key)


def run_info(api: int, options: int) -> RunInfo:
    """Return what a callback gets of a run; to be used within the callback."""
    slots = Slots(api)

    def entry(key: str) -> str | None:
        found = slots.GetRunConfigEntry(options, key.encode())
        return None if found is None else found.decode(errors="replace")

    return RunInfo(entry)
