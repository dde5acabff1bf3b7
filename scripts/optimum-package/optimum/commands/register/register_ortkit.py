"""`optimum-cli ortkit optimize`; Optimum imports each file of this folder at every start."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo


class OptimizeCommand(BaseOptimumCLICommand):
    """A folder that Optimum exported in, one with optimized models and their kernels out."""

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        """Add the flags; the first two are those of `optimum-cli onnxruntime optimize`."""
        add = parser.add_argument
        add("--onnx_model", type=Path, required=True, help="Folder with the ONNX models.")
        add("-o", "--output", type=Path, required=True, help="New folder, made here.")
        add("--level", type=int, choices=range(4), default=2,
            help="0 clean, 1 folds, 2 fusions that pay (default), 3 every fusion.")  # fmt: skip

    def run(self) -> None:
        """Optimize, report, and exit as `ortkit optimize` does."""
        from ortkit.cli.optimize_optimum import run

        raise SystemExit(run(self.args.onnx_model, self.args.output, self.args.level))


class OrtkitCommand(BaseOptimumCLICommand):
    """What ortkit offers here."""

    COMMAND = CommandInfo("ortkit", help="Optimize ONNX models with ortkit's kernels.")
    SUBCOMMANDS = (
        CommandInfo(
            "optimize", help="Optimize and verify a folder.", subcommand_class=OptimizeCommand
        ),
    )


REGISTER_COMMANDS = [OrtkitCommand]
