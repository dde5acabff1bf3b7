"""Fetch a version of ONNX Runtime with pip into a folder of its own, on explicit request."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from ortkit.errors import UserError
from ortkit.temporary import TemporaryFolder, tools_in

_SECONDS = 600.0
#: What pip says where it reaches no index.
_NO_NETWORK = re.compile(
    r"name resolution|Failed to establish|ConnectTimeout|Connection refused|unreachable"
    r"|ProxyError|Max retries|Read timed out",
    re.I,
)
_VERSIONS = re.compile(r"\(from versions: (?P<versions>[^)]*)\)")
_SHOWN = 6


def fetch(requirement: str, folder: Path) -> None:
    """Install a package without what it needs into a new folder, all of it or nothing.

    Args:
        requirement: Such as `onnxruntime==1.24.4`.
        folder: Made here; its last part appears when everything is in it.

    Raises:
        UserError: pip is not there, reaches no index, or finds no such version.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFolder("fetch", inside=folder.parent) as temporary:
            _install(requirement, temporary / "content")
            if not _is_whole(folder):  # else another process fetched it meanwhile, and may use it
                with suppress(FileNotFoundError):
                    shutil.rmtree(folder)
                (temporary / "content").rename(folder)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(folder)) from error


def _is_whole(folder: Path) -> bool:
    """Say whether a folder has been fetched into: it appears with everything in it."""
    return (folder / "onnxruntime").is_dir()


def _install(requirement: str, target: Path) -> None:
    command = [
        sys.executable, "-m", "pip", "install", requirement, "--target", str(target),
        "--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check",
        "--retries", "1", "--timeout", "15",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL,
            env=tools_in(target.parent),
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UserError(f"pip took longer than {_SECONDS:g} seconds", where=requirement) from error
    if done.returncode == 0:
        return
    raise _refusal(requirement, done.stdout + done.stderr)


def _refusal(requirement: str, said: str) -> UserError:
    """Return why pip did not do it, as one line."""
    if "No module named pip" in said:
        return UserError("this Python has no pip", where=f"--install {requirement}",
                         fix="install the version into a folder, and name that")  # fmt: skip
    if _NO_NETWORK.search(said):
        return UserError("pip reaches no package index", where=f"--install {requirement}",
                         fix="name a folder with that version instead")  # fmt: skip
    if (known := _VERSIONS.search(said)) is not None:
        versions = [
            part.strip() for part in known["versions"].split(",") if part.strip() != "none"
        ]
        fix = f"there are ..., {', '.join(versions[-_SHOWN:])}" if versions else ""
        problem = "there is no such version for this Python and this machine"
        return UserError(problem, where=f"--install {requirement}", fix=fix)
    errors = [line for line in said.splitlines() if line.startswith("ERROR")]
    reason = (errors or said.splitlines() or ["it said nothing"])[-1].removeprefix("ERROR: ")
    return UserError(f"pip failed: {reason}", where=f"--install {requirement}")
