"""Find the ONNX Runtimes that a user names: by version, by folder, or the installed one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ortkit.env import cache_dir
from ortkit.errors import UserError
from ortkit.private_folder import private_folder_refusal
from ortkit.runtime.installation import Installation
from ortkit.runtime.ort import onnxruntime_packages
from ortkit.upgrades.examine import examine
from ortkit.upgrades.fetch import fetch

INSTALLED = "installed"
#: `1.24.4`, `1.32.0.dev20261101`, `onnxruntime-gpu==1.24.4`.
_VERSION = re.compile(
    r"(?:(?P<package>onnxruntime[a-z-]*|ort-[a-z-]+)==)?(?P<version>\d[\w.]{0,63})"
)
_FLAG = "--onnxruntime"
#: Folder of the cache with the versions that were fetched.
_FOLDER = "onnxruntimes"


def _silent(stage: str) -> None:
    """Ignore progress."""


def find_installations(
    named: Sequence[str], *, install: bool = False, progress: Callable[[str], None] = _silent
) -> tuple[Installation, ...]:
    """Return the ONNX Runtimes that are named, in order; each was imported once.

    Args:
        named: Versions, folders, or `installed`. A folder is one of `pip install --target`, a
            virtual environment, or the package's own.
        install: Whether versions that are not there are fetched with pip.
        progress: Called with the name of each stage.

    Raises:
        UserError: One is not there, does not load, or is named twice.
        MissingDependencyError: No ONNX Runtime is installed.
    """
    found: list[Installation] = []
    for name in named:
        progress(f"ONNX Runtime {name}")
        installation = _found(name, install=install, progress=progress)
        if any(
            (installation.folder, installation.version) == (each.folder, each.version)
            for each in found
        ):
            raise UserError(f"{name!r} is named twice", where=_FLAG, fix="name it once")
        found.append(installation)
    return tuple(found)


def labels(found: Sequence[Installation]) -> tuple[str, ...]:
    """Return what reports call them: the version, with the folder where versions are equal."""
    versions = [installation.version for installation in found]
    return tuple(
        item.version
        if versions.count(item.version) == 1
        else f"{item.version} ({item.folder or INSTALLED})"
        for item in found
    )


def kept_in(package: str, wanted: str) -> Path:
    """Return the folder that a version is fetched into, for this Python."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return cache_dir() / _FOLDER / f"{package}-{wanted}-{python}"


def kept() -> tuple[Path, ...]:
    """Return the folders of all versions that were fetched, for any Python."""
    return tuple(path for path in sorted((cache_dir() / _FOLDER).glob("*-cp*")) if path.is_dir())


def _found(name: str, *, install: bool, progress: Callable[[str], None]) -> Installation:
    if name == INSTALLED:
        return _examined(name, None)
    match = _VERSION.fullmatch(name)
    if match is not None and not os.path.isdir(name):  # noqa: PTH112  (never raises)
        return _of_version(match, name, install=install, progress=progress)
    return _examined(name, _package_folder(name))


def _of_version(
    match: re.Match[str], name: str, *, install: bool, progress: Callable[[str], None]
) -> Installation:
    package, wanted = match["package"] or "onnxruntime", match["version"]
    if _installed_version(package) == wanted and package in onnxruntime_packages():
        return _examined(name, None)
    folder = kept_in(package, wanted)
    if reason := private_folder_refusal(folder):
        raise UserError(reason, where=_FLAG)
    if not (folder / "onnxruntime").is_dir():
        if not install:
            fix = "add --install to fetch it with pip, or name a folder"
            raise UserError(f"{name} is not there", where=_FLAG, fix=fix)
        progress(f"fetch {package} {wanted}")
        fetch(f"{package}=={wanted}", folder)
    return _examined(name, folder.resolve())


def _installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _package_folder(name: str) -> Path:
    """Return the folder that holds the package `onnxruntime`."""
    try:
        folder = Path(name).expanduser().resolve()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError):  # too long, a loop of links, or a user who is not known
        is_folder = False
    if not is_folder:
        raise UserError(f"{name!r} is no version and no folder", where=_FLAG,
                        fix="name a version such as 1.24.4, a folder, or installed")  # fmt: skip
    folders = [folder, *sorted(folder.glob("lib/python3*/site-packages")), folder.parent]
    for index in folders:
        package = index / "onnxruntime"
        if (package / "capi").is_dir() and (index != folder.parent or package == folder):
            return index
    fix = "name a folder of `pip install --target`, or a virtual environment"
    raise UserError(f"there is no onnxruntime in {name}", where=_FLAG, fix=fix)


def _examined(name: str, folder: Path | None) -> Installation:
    found = examine(folder)
    if isinstance(found, str):
        raise UserError(f"ONNX Runtime {name} does not load: {found}", where=_FLAG)
    return found
