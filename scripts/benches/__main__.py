"""Command line of `scripts/bench graph`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from scripts.benches import corpus, memory, nodes, output, scaling, startup, wall
from scripts.benches.tools import fusing, ortkit, peers

PARTS = ("nodes", "wall", "scaling", "memory", "startup")
#: Endings of the two models that whole-process times are promised for, in the corpus or built.
TIMED = (("bert.ts", "bert.ts.full"), ("mobilenet_v2.ts", "mobilenet_v2.ts.full"))
MEMORY_DISK = Path("/dev/shm")


def main() -> int:
    """Measure what was asked for."""
    options = _parser().parse_args()
    chosen = options.parts.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        print(
            f"no such part: {', '.join(unknown)}; choose from {', '.join(PARTS)}", file=sys.stderr
        )
        return 2
    peers_python = _peers_python(options.peers_python)
    if peers_python is None:
        print("onnxsim and onnxslim are not here: ortkit is measured alone", file=sys.stderr)
    results: dict[str, object] = {"machine": output.machine(peers_python)}
    print(f"machine: {results['machine']}")
    # Results go to memory, so that no disk is measured.
    disk = MEMORY_DISK if MEMORY_DISK.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="ortkit-bench-", dir=disk))
    try:
        for part in chosen:
            results[part] = _measure(part, options, peers_python, folder)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        shutil.rmtree(folder)
        print(f"\nwrote {output.write(results, Path('bench-results'))}")
    return 0


def _measure(
    part: str, options: argparse.Namespace, peers_python: Path | None, folder: Path
) -> list[dict[str, object]]:
    others = peers(peers_python) if peers_python else ()
    timeout: float = options.timeout
    match part:
        case "nodes":
            entries = [e for e in _entries(options) if options.only in e.name]
            fusers = fusing(peers_python) if peers_python else ()
            tools = (ortkit(1), ortkit(3), *others, *fusers)
            return nodes.measure(entries, tools, folder, timeout)
        case "wall":
            timed = _timed(_entries(options))
            return wall.measure(timed, (ortkit(1), *others), folder, options.rounds, timeout)
        case "scaling":
            return scaling.measure((1, 3), others, folder, options.rounds, timeout)
        case "memory":
            # A sparse file that is read fills a memory disk, so this is measured on a real one.
            with tempfile.TemporaryDirectory(prefix="ortkit-bench-", dir="build") as disk:
                return memory.measure((ortkit(1), *others), Path(disk), timeout)
        case _:
            return startup.measure(peers_python, 3 * options.rounds)


def _entries(options: argparse.Namespace) -> list[corpus.Entry]:
    if options.corpus is not None:
        return corpus.given(options.corpus)
    return corpus.made(Path("build/corpus"), tuple(options.sizes.split(",")))


def _timed(entries: list[corpus.Entry]) -> list[corpus.Entry]:
    found = [[e for e in entries if e.name in names] for names in TIMED]
    return [entry for several in found for entry in several[-1:]]


def _peers_python(named: Path | None) -> Path | None:
    if named is not None:
        return named
    return Path(sys.executable) if find_spec("onnxsim") and find_spec("onnxslim") else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench graph", description=__doc__)
    add = parser.add_argument
    add("--corpus", type=Path, help="a folder of models (default: what models/ builds)")
    add("--sizes", default="tiny,full", help="of built models (default: tiny,full)")
    add("--parts", default=",".join(PARTS), help=f"default: {','.join(PARTS)}")
    add("--only", default="", help="node counts of models with this in their name only")
    add("--rounds", type=int, default=5, help="of each timing (default: 5)")
    add("--timeout", type=float, default=600, help="seconds for one run (default: 600)")
    add("--peers-python", type=Path, help="a Python whose environment has onnxsim and onnxslim")
    return parser


if __name__ == "__main__":
    sys.exit(main())
