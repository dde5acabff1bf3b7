"""The regions of a model: at which sizes they run, and what part of the time they take."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.kernels.signature import DOMAIN, RegionSignature
from ortkit.targets.target import Target
from ortkit.tune.cases import Shape, TuneCase, solve_sizes

_EVENT = "_kernel_time"


class Asked:
    """A chooser that always chooses the default, and remembers for which regions it was asked."""

    def __init__(self) -> None:
        self.regions: dict[str, tuple[RegionSignature, str]] = {}
        """Op type -> the region, and the backend that makes its kernel."""

    def __call__(self, signature: RegionSignature, backend: str, target: Target) -> str:
        """See `Chooser`."""
        del target
        self.regions[signature.op_type] = (signature, backend)
        return ""


@dataclass(frozen=True)
class Use:
    """A fused operator at given sizes, in a profile."""

    op: str
    shapes: tuple[Shape, ...]
    nodes: int
    share: float
    """Of the time of all nodes, 0 to 1."""


def uses_in(profile: Path, ops: Collection[str]) -> tuple[Use, ...]:
    """Return where the time of some operators goes, the most first.

    Args:
        profile: ONNX Runtime's.
        ops: Names of operators.

    Raises:
        UserError: It is no profile.
    """
    total = 0
    durations: dict[tuple[str, tuple[Shape, ...]], int] = defaultdict(int)
    nodes: dict[tuple[str, tuple[Shape, ...]], set[str]] = defaultdict(set)
    try:
        for event in json.loads(profile.read_text("utf-8")):
            name, args = str(event.get("name", "")), event.get("args", {})
            if event.get("cat") != "Node" or not name.endswith(_EVENT):
                continue
            total += int(event["dur"])
            if (op := args.get("op_name")) not in ops:
                continue
            given = [shape for arg in args["input_type_shape"] for shape in arg.values()]
            key = op, tuple(tuple(map(int, shape)) for shape in given)
            durations[key] += int(event["dur"])
            nodes[key].add(name)
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise UserError(f"is no profile: {error}", where=str(profile)) from error
    uses = [
        Use(op, shapes, len(nodes[op, shapes]), time / max(1, total))
        for (op, shapes), time in durations.items()
    ]
    return tuple(sorted(uses, key=lambda use: -use.share))


def fused_ops(model: ir.Model) -> frozenset[str]:
    """Return the fused operators that a model has functions of."""
    return frozenset(name for domain, name, _ in model.functions if domain == DOMAIN)


def cases_of(
    uses: Sequence[Use], regions: Mapping[str, tuple[RegionSignature, str]]
) -> tuple[list[tuple[TuneCase, str]], list[str]]:
    """Return what can be timed by itself, with its backend; and why the rest cannot.

    Uses of one region whose sizes fall into one bucket are one case, at the sizes that take the
    most time.
    """
    found: dict[tuple[str, str], tuple[TuneCase, str]] = {}
    problems: list[str] = []
    for use in uses:
        if use.op not in regions:
            problems.append(f"{use.op}: its kernel was not made here")
            continue
        signature, backend = regions[use.op]
        sizes = solve_sizes(signature, use.shapes)
        if sizes is None:
            problems.append(f"{use.op}: its inputs do not tell all sizes, or one of them is 0")
            continue
        case = TuneCase(signature, sizes, use.share, use.nodes)
        before = found.get((use.op, case.bucket))
        if before is not None:
            share, nodes = before[0].share + use.share, before[0].nodes + use.nodes
            case = TuneCase(signature, before[0].sizes, share, nodes)
        found[use.op, case.bucket] = (case, backend)
    return sorted(found.values(), key=lambda one: -one[0].share), problems
