"""Reading back what `ortkit profile --json` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ortkit.errors import UserError
from ortkit.kernels.cache_files import DAMAGED
from ortkit.private_folder import read_regular
from ortkit.runtime.profiling.peaks import Peaks
from ortkit.runtime.profiling.result import (
    SCHEMA,
    About,
    Balance,
    KernelRow,
    OpRow,
    Overall,
    Profile,
    Row,
    Times,
    Work,
)
from ortkit.runtime.profiling.trace.events import TensorShape


def read_profile_document(path: Path) -> Profile:
    """Read a profile that was saved; the trace and what is by event or by run is not in it.

    Raises:
        UserError: It cannot be read, is no such document, or is one of another version.
    """
    try:
        document = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no JSON document"
        raise UserError(f"cannot read the profile: {reason}", where=str(path)) from error
    return profile_from(document, where=str(path))


def profile_from(document: Mapping[str, Any], *, where: str = "") -> Profile:
    """Read what `to_json` gave; the trace and what is by event or by run is not there.

    Raises:
        UserError: It is no such document, or of another version.
    """
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if schema != SCHEMA:
        raise UserError(
            f"is no profile of this version: its schema is {schema!r}, not {SCHEMA!r}",
            where=where,
            fix="write it again with `ortkit profile MODEL --json`",
        )
    try:
        return Profile(
            about=_about(document["about"]),
            rows=tuple(_row(item) for item in document["nodes"]),
            ops=tuple(_op_row(one) for one in document["ops"]),
            overall=_overall(document["overall"]),
            runs=int(document["runs"]),
            load_us=document["load_us"],
            initialize_us=document["initialize_us"],
            peaks=None if document["peaks"] is None else Peaks.from_json(document["peaks"]),
            notes=tuple(document["notes"]),
            regions={int(number): size for number, size in document["regions"].items()},
            kernels=tuple(KernelRow(**one) for one in document["kernels"]),
        )
    except DAMAGED as error:
        raise UserError(f"the profile lacks or misstates a field: {error}", where=where) from error


def _about(given: Mapping[str, Any]) -> About:
    inputs = {name: tuple(shape) for name, shape in given["inputs"].items()}
    return About(**{**given, "providers": tuple(given["providers"]), "inputs": inputs})


def _times(given: Mapping[str, Any] | None) -> Times | None:
    return None if given is None else Times(**given)


def _overall(given: Mapping[str, Any]) -> Overall:
    known = {field.name: given[field.name] for field in fields(Overall)}
    return Overall(
        **{**known, "profiled": Times(**known["profiled"]), "plain": _times(known["plain"])}
    )


def _row(given: Mapping[str, Any]) -> Row:
    balance = given["balance"]
    return Row(
        **{
            **given,
            "run": Times(**given["run"]),
            "call": Times(**given["call"]),
            "work": Work(**given["work"]),
            "balance": None
            if balance is None
            else Balance(**{**balance, "tasks": tuple(balance["tasks"])}),
            "inputs": _shapes(given["inputs"]),
            "outputs": _shapes(given["outputs"]),
            "origins": tuple(given["origins"]),
        }
    )


def _op_row(given: Mapping[str, Any]) -> OpRow:
    times = {name: Times(**given[name]) for name in ("run", "call")}
    return OpRow(**{**given, **times, "work": Work(**given["work"])})


def _shapes(given: Any) -> tuple[TensorShape, ...]:
    return tuple((str(dtype), tuple(dims)) for dtype, dims in given)
