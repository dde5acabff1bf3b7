"""`optimum-cli ortkit optimize`: the models of a folder that Hugging Face Optimum exported."""

from __future__ import annotations

from pathlib import Path

from ortkit.cli import show, verdicts
from ortkit.cli.optimize_tables import headline
from ortkit.env import keep_runtime_log_off
from ortkit.errors import OrtkitError


def run(source: Path, output: Path, level: int) -> int:
    """Optimize, write a new folder, and report, one line for each model.

    Args:
        source: The folder.
        output: The new folder, made here.
        level: As of `ortkit optimize`.

    Returns:
        The exit code of `ortkit optimize`.
    """
    keep_runtime_log_off()
    from ortkit.integrations.optimum import optimized_models, write_folder
    from ortkit.optimization.call import OptimizeOptions

    try:
        with show.progress(quiet=False) as progress:
            options = OptimizeOptions(level=level, progress=progress, count=progress.count)
            found = optimized_models(source, output, options)
            write_folder(source, output, found)
    except OrtkitError as error:
        show.note(f"ortkit: {error}")
        return error.exit_code
    reports = {name: optimized.report for name, optimized in found.items()}
    for name, report in reports.items():
        show.line(headline(report, name))
    show.labelled("wrote", str(output))
    worst = verdicts.worst(
        report.verification for report in reports.values() if report.verification is not None
    )
    outcome = verdicts.outcome_of(worst, accepts=False)
    verdicts.say(outcome, worst)
    return outcome.code
