"""`ortkit compare --nodes`: two models value by value."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import names, sizes
from ortkit.cli.installations import installations
from ortkit.temporary import TemporaryFolder
from ortkit.text import plural

if TYPE_CHECKING:
    from ortkit.comparison.node_result import NodeReport, ValueRow
    from ortkit.comparison.sides import NodeSide
    from ortkit.runtime.installation import Installation
    from ortkit.verify.inputs.feeds import Feeds

DIVERGES = 1
#: Values in the table: the last ones before the first that diverges, that one, and what follows.
_BEFORE, _AFTER = 4, 4
#: ... and where none diverges, those with the largest errors of their own.
_LARGEST = 8
_NAMES = 3
_TIMEOUT_SECONDS = 600.0


def run_nodes(arguments: argparse.Namespace) -> int:
    """Name the first node that diverges; 1 if there is one, or if outputs differ."""
    from ortkit.comparison.nodes import compare_nodes

    with (
        TemporaryFolder("nodes") as folder,
        show.progress(quiet=arguments.quiet or arguments.json) as progress,
    ):
        before, after = _sides(arguments, folder, progress)
        progress("look for inputs")
        feeds = _feeds(arguments, before, folder)
        found = compare_nodes(before, after, feeds, repro=arguments.repro, progress=progress)
    if arguments.json:
        show.document(found.to_json())
    else:
        _show(found)
    return 0 if found.is_good else DIVERGES


def _feeds(arguments: argparse.Namespace, before: NodeSide, folder: Path) -> Feeds:
    """Return inputs that A runs on; if there are none, the first, to say where it fails."""
    from ortkit.cli.feeds import candidate_feeds, feeds_for
    from ortkit.comparison.feeding import first_that_runs
    from ortkit.errors import RunError
    from ortkit.runtime.opening import SessionPlan
    from ortkit.runtime.settings import SessionSettings

    wanted = arguments.models[0], arguments.inputs, sizes(arguments.shape)
    plan = SessionPlan(
        before.model,
        before.libraries,
        [(name, {}) for name in before.providers],
        SessionSettings(optimizations="off"),
        onnxruntime=before.onnxruntime,
    )
    try:
        return first_that_runs(candidate_feeds(*wanted), plan, folder, _TIMEOUT_SECONDS)[0]
    except RunError:
        return feeds_for(*wanted)


def _sides(
    arguments: argparse.Namespace, folder: Path, progress: Callable[[str], None]
) -> tuple[NodeSide, NodeSide]:
    """Return what is compared: two models, or one under two settings."""
    from ortkit.comparison.optimized_graph import optimized_side

    models: list[Path] = list(arguments.models)
    providers = names(arguments.target, "--target")
    levels = names(arguments.optimizations, "--optimizations")
    installed = installations(arguments, progress)
    # Two ONNX Runtimes are compared as each optimizes the model, two models as they are.
    levels = levels if len(levels) > 1 else levels * 2 if len(installed) > 1 else ("off", "off")
    _check_counts((models, "models"), (providers, "--target"), (levels, "--optimizations"),
                  (installed, "--onnxruntime"))  # fmt: skip
    if len(models) == len(providers) == 1 and levels[0] == levels[1] and len(installed) < 2:
        from ortkit.cli.optimized_form import optimized_form

        progress("optimize")
        models.append(optimized_form(models[0], folder, progress, arguments.precision))
    called = [str(model) for model in arguments.models]
    if len(models) > len(called):
        called.append(f"{called[0]}, optimized")
    sides = []
    for index in range(2):
        at = min(index, len(models) - 1)
        provider = providers[min(index, len(providers) - 1)]
        runtime = installed[min(index, len(installed) - 1)] if installed else None
        side = _side(models[at], provider, called[at], runtime, trust=arguments.trust)
        progress("optimize")
        sides.append(optimized_side(side, levels[index], folder / f"side{index}"))
    return sides[0], sides[1]


def _check_counts(*given: tuple[Sequence[object], str]) -> None:
    from ortkit.errors import UserError

    for values, what in given:
        if len(values) > 2:
            where = "--nodes" if what == "models" else what
            raise UserError(f"{len(values)} of them", where=where, fix="compare two at a time")


def _side(
    model: Path,
    provider: str,
    called: str,
    runtime: tuple[Installation, str] | None,
    *,
    trust: bool,
) -> NodeSide:
    from ortkit.comparison.sides import NodeSide
    from ortkit.runtime.libraries import library_of
    from ortkit.runtime.ort import import_onnxruntime
    from ortkit.runtime.targets import CPU, resolve, short_name

    known = import_onnxruntime() if runtime is None else runtime[0]
    wanted = resolve(provider, known, fallback=False).wanted
    library = library_of(model, trust=trust)
    if library.refusal:
        show.note(f"ortkit: {model}: {library.refusal}; function bodies run instead")
        called = f"{called} (function bodies, no kernels)"
    if runtime is not None:
        called = f"{called}, ONNX Runtime {runtime[1]}"
    short = short_name(wanted[0].name)
    return NodeSide(
        model,
        tuple(item.name for item in wanted),
        library.loaded,
        says=called if wanted[0].name == CPU else f"{called} on {short}",
        onnxruntime=None if runtime is None else runtime[0].folder,
    )


# ---- what is shown ---------------------------------------------------------------------


def _show(found: NodeReport) -> None:
    counts = Counter(row.state for row in found.rows)
    show.pairs(
        [
            ("A", f"{found.before} ({plural(found.nodes_before, 'node')})"),
            ("B", f"{found.after} ({plural(found.nodes_after, 'node')})"),
            ("values", ", ".join(f"{count} {state}" for state, count in counts.most_common())),
        ]
    )
    columns = ("value", "A", "B", "error", "own error", "allowed", "")
    rows = [_row(row) for row in _chosen(found)]
    if rows:
        show.table("errors in epsilons", columns, rows)
    for note in found.notes:
        show.line(f"note: {note}")
    _show_verdict(found)


def _chosen(found: NodeReport) -> Sequence[ValueRow]:
    """Return the rows that tell most, in order."""
    at = found.rows.index(found.first.row) if found.first is not None else None
    if at is not None:
        return found.rows[max(0, at - _BEFORE) : at + 1 + _AFTER]
    off = [row for row in found.rows if row.own_error_eps or row.error_eps]
    largest = sorted(off, key=lambda row: -(row.own_error_eps or 0.0))[:_LARGEST]
    return [row for row in off if row in largest]


def _row(row: ValueRow) -> tuple[object, ...]:
    errors = (row.error_eps, row.own_error_eps, row.allowed_eps)
    return (
        row.value,
        _counted(row.op_before, len(row.before)),
        _counted(row.op_after or "constant", len(row.after)),
        *("" if error is None else f"{error:.4g}" for error in errors),
        row.state,
    )


def _counted(op: str, count: int) -> str:
    return op if count <= 1 else f"{op} +{count - 1}"


def _show_verdict(found: NodeReport) -> None:
    if found.first is None:
        if not found.outputs:
            show.line("no value diverges")
            return
        show.line(f"outputs differ, but no value diverges: {', '.join(found.outputs)}")
        if (row := found.suspect) is not None:
            show.line(f"the largest error of its own has {row.value!r}: {_nodes(row.before)}")
        return
    row = found.first.row
    verb = "fails" if row.state == "fails" else "diverges"
    show.line(f"first {verb}: {row.value!r}: {row.reason}")
    pairs = [("in A", _nodes(row.before)), ("in B", _nodes(row.after) or "a constant")]
    pairs.append(("reads", _short(found.first.inputs)))
    if found.first.inside:
        pairs.append(("inside", found.first.inside))
    if found.first.blame:
        pairs.append(("so", found.first.blame))
    if found.first.reproducer is not None:
        pairs.append(("try", found.first.reproducer.command))
    show.pairs(pairs)


def _nodes(labels: Sequence[str]) -> str:
    """Return the last nodes, which make the value, first."""
    return _short(labels[::-1])


def _short(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _NAMES} more" if len(labels) > _NAMES else ""
    return ", ".join(labels[:_NAMES]) + more
