"""The same families from transformers with random weights, through torch's own exporters.

`python -m models.export OUTDIR [--small] [--only a,b] [--exporter dynamo,ts]` writes
OUTDIR/NAME.EXPORTER.onnx and OUTDIR/NAME.EXPORTER.npz, which holds one set of inputs (x0, x1)
and torch's output (y). Needs torch and transformers: the extra "export".
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from models.export_families import FULL, SMALL, Family, Sizes, families
from ortkit.errors import CheckError, MissingDependencyError, OrtkitError, UserError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

OPSETS = {"dynamo": 20, "ts": 17}


def main(arguments: list[str] | None = None) -> int:
    """Export what was asked for; return the exit code: 1 if an export failed."""
    options = _parser().parse_args(arguments)
    try:
        _require("torch", "transformers", "onnxscript")
        return _export_all(options)
    except OrtkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m models.export", description=__doc__)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--small", action="store_true", help="two narrow layers, small images")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--exporter", default="dynamo,ts", help="default: dynamo,ts")
    parser.add_argument("--static", action="store_true", help="fix all sizes")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs, default 0")
    return parser


def _require(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise MissingDependencyError(
            f"{' and '.join(missing)} not installed",
            where="models.export",
            fix="install the extra: pip install 'ortkit[export]'",
        )


def _choose(text: str, known: list[str], option: str) -> list[str]:
    chosen = [name for name in text.split(",") if name] or known
    for name in chosen:
        if name not in known:
            fix = f"choose from {', '.join(known)}"
            raise UserError(f"no such name as {name!r}", where=option, fix=fix)
    return chosen


def _export_all(options: argparse.Namespace) -> int:
    every = families()
    names = _choose(options.only, list(every), "--only")
    exporters = _choose(options.exporter, list(OPSETS), "--exporter")
    options.outdir.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        case = _prepare(every[name], SMALL if options.small else FULL, options.seed)
        dynamic = {} if options.static else every[name].dynamic
        for exporter in exporters:
            path = options.outdir / f"{name}.{exporter}.onnx"
            try:
                print(_export(case, exporter, dynamic, path), flush=True)
            except CheckError as error:
                failed += 1
                print(f"{name}.{exporter}: {error}", flush=True)
    return 1 if failed else 0


# ---- one export ----


@dataclass(frozen=True)
class Case:
    """A module with one set of inputs and what it gives for them."""

    module: Module
    inputs: tuple[Tensor, ...]
    output: Tensor


def _prepare(family: Family, sizes: Sizes, seed: int) -> Case:
    """Make the module, move what is trivial in it, and run it once."""
    import torch

    torch.manual_seed(seed)
    inputs = family.inputs(sizes)
    module = _first_output(family.module(sizes)).eval()
    with torch.no_grad():
        # Fresh biases and norms are all 0 or all 1: exporters merge equal ones.
        for parameter in module.parameters():
            if parameter.dim() == 1 and parameter.numel() > 1:
                parameter.add_(0.02 * torch.randn_like(parameter))
        for name, buffer in module.named_buffers():
            if "running_mean" in name:
                buffer.add_(0.1 * torch.randn_like(buffer))
            if "running_var" in name:
                buffer.mul_(1 + 0.2 * torch.rand_like(buffer))
        return Case(module, inputs, module(*inputs))


def _first_output(module: Module) -> Module:
    """Wrap a transformers model so that it returns its last hidden state alone.

    Its second positional argument, if the inputs have one, is the attention mask.
    """
    import torch

    class LastHiddenState(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self, m: Module) -> None:
            super().__init__()
            self.m = m

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            keywords = {} if mask is None else {"attention_mask": mask}
            return self.m(x, **keywords).last_hidden_state

    return LastHiddenState(module)


def _export(case: Case, exporter: str, dynamic: Mapping[int, str], path: Path) -> str:
    """Write the model and its values; return a line that says how it went.

    Raises:
        CheckError: The exporter refused.
    """
    names = [f"x{i}" for i in range(len(case.inputs))]
    started = time.perf_counter()
    try:
        with _quiet():
            _EXPORTERS[exporter](case, names, dynamic, path)
    # torch's exporters wrap what goes wrong in subclasses of these four.
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0][:160]
        raise CheckError(f"export failed: {type(error).__name__}: {reason}") from error
    seconds = time.perf_counter() - started
    values = {name: value.numpy() for name, value in zip(names, case.inputs, strict=True)}
    np.savez(path.with_suffix(".npz"), y=case.output.numpy(), **values)
    nodes = len(onnx.load(path, load_external_data=False).graph.node)
    megabytes = path.stat().st_size / 1e6
    return f"{path.stem}: {seconds:.1f}s {megabytes:.1f}MB nodes={nodes}"


def _dynamo(case: Case, names: list[str], dynamic: Mapping[int, str], path: Path) -> None:
    import torch

    # The wrapper's parameters; torch.export wants one entry for each that is given.
    axes = dict.fromkeys(dynamic, torch.export.Dim.DYNAMIC)
    parameters = ("x", "mask")[: len(names)]
    torch.onnx.export(
        case.module,
        case.inputs,
        path,
        dynamo=True,
        input_names=names,
        output_names=["y"],
        opset_version=OPSETS["dynamo"],
        verbose=False,
        external_data=False,
        dynamic_shapes=dict.fromkeys(parameters, axes) if axes else None,
    )


def _torchscript(case: Case, names: list[str], dynamic: Mapping[int, str], path: Path) -> None:
    import torch

    axes = {name: {0: "batch", **dynamic} for name in names}
    torch.onnx.export(
        case.module,
        case.inputs,
        path,
        dynamo=False,
        input_names=names,
        output_names=["y"],
        opset_version=OPSETS["ts"],
        dynamic_axes=axes if dynamic else None,
    )


_EXPORTERS: dict[str, Callable[[Case, list[str], Mapping[int, str], Path], None]] = {
    "dynamo": _dynamo,
    "ts": _torchscript,
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress, warnings and dumped graphs off the screen.

    TorchScript prints the graph from C++ when it fails, so the file descriptors are redirected
    and not only Python's streams.
    """
    saved = [os.dup(number) for number in (1, 2)]
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), Path(os.devnull).open("wb") as nowhere:
            warnings.simplefilter("ignore")
            sys.stdout.flush()
            for number in (1, 2):
                os.dup2(nowhere.fileno(), number)
            yield
    finally:
        sys.stdout.flush()
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    sys.exit(main())
