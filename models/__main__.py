"""Command line: `python -m models NAME [--size S] [--spelling S] [--seed N] [-o FILE]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import onnx

from models.catalog import BUILDERS, build, spellings
from ortkit.errors import OrtkitError, UserError


def main(arguments: list[str] | None = None) -> int:
    """Build one model, or list them; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.list:
            for name in BUILDERS:
                print(f"{name:16} {' '.join(spellings(name))}")
            return 0
        return _write(options)
    except OrtkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m models", description="Build a test model.")
    parser.add_argument("name", nargs="?", help="which model; see --list")
    parser.add_argument("--list", action="store_true", help="list models and their spellings")
    parser.add_argument("--size", default="tiny", help="tiny (default) or full")
    parser.add_argument("--spelling", default="", help="default: the model's first")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, default 0")
    parser.add_argument("-o", "--output", type=Path, help="default: NAME.SPELLING.SIZE.onnx")
    return parser


def _write(options: argparse.Namespace) -> int:
    if options.name is None:
        raise UserError("no model named", where="python -m models", fix="name one, or pass --list")
    spelling = options.spelling or spellings(options.name)[0]
    model = build(options.name, options.size, spelling, options.seed)
    path = options.output or Path(f"{options.name}.{spelling}.{options.size}.onnx")
    try:
        onnx.save(model, path)
    except OSError as error:
        raise UserError(
            f"cannot write the model: {error.strerror}", where=str(path), fix="choose another file"
        ) from error
    print(f"{path}: {len(model.graph.node)} nodes, {model.ByteSize() / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
