"""Which kernel libraries may be loaded: those built here, and those that the user trusts.

A kernel library is native code. Its SHA-256 decides: it must be in the list of this user, or in
the list that `ORTKIT_TRUST` gives. Both have the format of `sha256sum`: a line for each library,
64 hexadecimal digits first. `custom_ops/native/provider/trust.cc` reads the same lists.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from ortkit import env
from ortkit.kernels.cached import write_private
from ortkit.private_folder import make_private_folder, read_private, read_regular

LIST = "trusted-libraries.txt"
_HASH = re.compile(r"[0-9a-fA-F]{64}")
_SEPARATORS = re.compile(r"[\s,]+")
_MAX_PATH_CHARS = 1000

#: Libraries that this process built: they stay trusted where the state folder is read-only.
_BUILT: set[str] = set()


@dataclass(frozen=True)
class Listed:
    """A trusted library."""

    sha256: str
    origin: str
    """Where it was when it was added, and the day."""


def digest(data: bytes) -> str:
    """Return the SHA-256 of a library's bytes as lists and models state it."""
    return hashlib.sha256(data).hexdigest()


def trust_refusal(sha256: str) -> str:
    """Return why a library with this hash must not be loaded; empty if it is trusted."""
    return "" if sha256 in _BUILT else unlisted(sha256)


def unlisted(sha256: str) -> str:
    """Return why other processes of this user must not load a library; empty if they may."""
    problems = []
    for hashes, problem in (_user_hashes(), _given_hashes()):
        if sha256 in hashes:
            return ""
        if problem:
            problems.append(f" ({problem})")
    return f"was not built by this user on this machine{''.join(problems)}"


def trust(sha256: str, origin: Path) -> str:
    """Add a library to the user's list.

    Args:
        sha256: The hash of its bytes, in lower case.
        origin: Its file; a note for readers of the list.

    Returns:
        Why the list cannot be kept, empty if it is. This process trusts the library in any case.
    """
    _BUILT.add(sha256)
    path = user_list()
    if path is None:
        return "there is no home folder; set XDG_STATE_HOME"
    hashes, problem = _user_hashes()
    if problem or sha256 in hashes:
        return problem
    named = "".join(char if char.isprintable() else "?" for char in str(origin.absolute()))
    line = f"{sha256}  {named[-_MAX_PATH_CHARS:]}  {time.strftime('%Y-%m-%d')}\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        make_private_folder(path.parent)
        file = os.open(path, flags, 0o600)
        try:
            os.write(file, line.encode("utf-8", "replace"))  # one call: lines never mix
        finally:
            os.close(file)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""


def untrust(sha256: str) -> str:
    """Remove a library from the user's list; returns why it cannot be, empty if it is."""
    _BUILT.discard(sha256)
    path = user_list()
    try:
        lines = [] if path is None else _lines(read_private(path))
        kept = [line for line in lines if _hash_in(line) != sha256]
        if path is not None and len(kept) < len(lines):
            write_private(path, "".join(f"{line}\n" for line in kept).encode())
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be changed: {error.strerror}"
    return ""


def listed() -> list[Listed]:
    """Return the libraries on the user's list, the newest last.

    Raises:
        OSError: The list cannot be used.
    """
    path = user_list()
    try:
        lines = [] if path is None else _lines(read_private(path))
    except FileNotFoundError:
        return []
    words = [line.split(maxsplit=1) for line in lines if _hash_in(line)]
    return [Listed(each[0].lower(), each[1] if len(each) > 1 else "") for each in words]


def user_list() -> Path | None:
    """Return the file of the user's list, which may not exist; None without a home folder."""
    folder = env.state_dir()
    return None if folder is None else folder / LIST


def _user_hashes() -> tuple[frozenset[str], str]:
    """Return the hashes of the user's list, and why it cannot be used if it cannot."""
    path = user_list()
    if path is None:
        return frozenset(), ""
    try:
        return _hashes_in(read_private(path)), ""
    except FileNotFoundError:
        return frozenset(), ""
    except OSError as error:
        return frozenset(), f"the list {path} is not used: {error.strerror}"


def _given_hashes() -> tuple[frozenset[str], str]:
    """Return the hashes that `ORTKIT_TRUST` gives, and what is wrong with it."""
    given = env.trusted_libraries()
    if given is None:
        return frozenset(), ""
    words = [word for word in _SEPARATORS.split(given) if word]
    if all(_HASH.fullmatch(word) for word in words):
        return frozenset(word.lower() for word in words), ""
    try:
        return _hashes_in(read_regular(Path(given))), ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return frozenset(), f"ORTKIT_TRUST: {given!r} cannot be read: {reason}"


def _hashes_in(content: bytes) -> frozenset[str]:
    return frozenset(sha256 for line in _lines(content) if (sha256 := _hash_in(line)))


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8", "replace").splitlines()


def _hash_in(line: str) -> str:
    """Return the hash that a line begins with; empty for comments and anything else."""
    first = line.split(maxsplit=1)[:1]
    return first[0].lower() if first and _HASH.fullmatch(first[0]) else ""
