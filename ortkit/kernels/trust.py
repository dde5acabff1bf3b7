"""Which kernel libraries may be loaded: those built here, and those that the user trusts.

A kernel library is native code. Its SHA-256 decides: it must be in the list of this user, or in
the list that `ORTKIT_TRUST` gives. Both have the format of `sha256sum`: a line for each library,
64 hexadecimal digits first. `custom_ops/native/provider/trust.cc` reads the same lists.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from ortkit import env
from ortkit.kernels.cache_files import write_private
from ortkit.private_folder import make_private_folder, read_private, read_regular

LIST = "trusted-libraries.txt"
_HASH = re.compile(r"[0-9a-fA-F]{64}")
#: Of a line: other white space may stand in the name of a file, as `sha256sum` writes it.
_LISTED = re.compile(rb"[ \t]*([0-9a-fA-F]{64})(?:[ \t\r]+(.*))?")
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
    try:
        content = read_private(path)
    except FileNotFoundError:
        content = b""
    except OSError as error:
        return f"the list {path} is not used: {error.strerror}"
    if sha256 in _hashes_in(content):
        return ""
    named = "".join(char if char.isprintable() else "?" for char in str(origin.absolute()))
    begin = "" if content.endswith(b"\n") or not content else "\n"
    line = f"{begin}{sha256}  {named[-_MAX_PATH_CHARS:]}  {time.strftime('%Y-%m-%d')}\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        make_private_folder(path.parent)
        file = os.open(path, flags, 0o600)
        try:
            data = line.encode("utf-8", "replace")
            if os.write(file, data) < len(data):  # one call: lines never mix
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
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
        lines = [] if path is None else read_private(path).split(b"\n")
        kept = [line for line in lines if sha256 not in _hashes_in(line)]
        if path is not None and len(kept) < len(lines):
            write_private(path, b"\n".join(kept))
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
        lines = [] if path is None else read_private(path).split(b"\n")
    except FileNotFoundError:
        return []
    found = (_LISTED.fullmatch(line) for line in lines)
    return [
        Listed(each[1].decode().lower(), (each[2] or b"").decode("utf-8", "replace").strip())
        for each in found
        if each is not None
    ]


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
    found = (_LISTED.fullmatch(line) for line in content.split(b"\n"))
    return frozenset(each[1].decode().lower() for each in found if each is not None)


def as_hash(text: str) -> str:
    """Return a text that is a hash in lower case; empty if it is something else."""
    return text.lower() if _HASH.fullmatch(text) else ""
