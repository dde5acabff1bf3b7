"""What each tool recognises of the spelling suite: `scripts/bench spelling`.

Each case of tests/spelling is written to a file and given to each tool. It counts as recognised
if the result holds one of the ops that the case may be lowered to, nothing of what it was made
of, loads in ONNX Runtime and computes the same at two sizes. Of a near miss, a result that
holds the op or computes something else counts as wrongly fused.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx

from scripts.benches import output
from scripts.benches.spelling_worker import TOOLS
from tests.spelling.case import Case, Formula
from tests.spelling.catalog import near_misses, spellings
from tests.spelling.judge import differences, not_as_wanted

#: What each tool is called, and the packages its version is read from.
TITLES = {
    "ortkit": ("ortkit", "ortkit"),
    "onnxsim": ("onnxsim", "onnxsim"),
    "onnxslim": ("onnxslim", "onnxslim"),
    "onnxscript": ("onnxscript", "onnxscript"),
    "onnxruntime": ("ORT", "onnxruntime"),
    "transformers": ("tf.optimizer", "onnxruntime"),
}
WORKER = Path(__file__).with_name("spelling_worker.py")
MISSING = 3
Verdicts = dict[str, dict[str, list[str]]]


def main() -> int:
    """Run the tools, print the table, write the numbers."""
    options = _parser().parse_args()
    chosen = options.tools.split(",")
    if unknown := sorted(set(chosen) - set(TOOLS)):
        print(
            f"no such tool: {', '.join(unknown)}; choose from {', '.join(TOOLS)}", file=sys.stderr
        )
        return 2
    every = [case for case in (*spellings(), *near_misses()) if options.only in case.name]
    peers = options.peers_python or Path(sys.executable)
    results: dict[str, object] = {
        "machine": output.machine(peers),
        "tools": _versions(peers, chosen),
    }
    print(f"machine: {results['machine']}\ntools: {results['tools']}")
    verdicts: Verdicts = {}
    with tempfile.TemporaryDirectory(prefix="ortkit-spelling-") as folder:
        source = Path(folder, "models")
        source.mkdir()
        for number, case in enumerate(every):
            onnx.save(case.build()[0], source / f"{number:04}.onnx")
        for tool in chosen:
            output.say(f"spelling: {tool}")
            python = Path(sys.executable) if tool == "ortkit" else peers
            target = Path(folder, tool)
            target.mkdir()
            found = _run(tool, python, source, target)
            if found is not None:
                print(f"{tool} is not here and left out: {found}", file=sys.stderr)
                continue
            verdicts[tool] = _judged(every, target)
    results["cases"] = verdicts
    _print(every, verdicts)
    print(f"\nwrote {output.write(results, Path('bench-results'), 'spelling')}")
    return 0


def _run(tool: str, python: Path, source: Path, target: Path) -> str | None:
    """Run a tool on all models; say what is missing if it cannot run."""
    command = [str(part) for part in (python, WORKER, tool, source, target)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == MISSING:
        return ended.stderr.strip().rpartition("\n")[2]
    if ended.returncode != 0:
        raise RuntimeError(f"{tool}: {ended.stderr.strip()[-500:]}")
    return None


def _judged(cases: Sequence[Case], target: Path) -> dict[str, list[str]]:
    """Return for each case what is wrong with a tool's result; nothing if it is right."""
    return {
        case.name: _faults(case, target / f"{number:04}.onnx") for number, case in enumerate(cases)
    }


def _faults(case: Case, path: Path) -> list[str]:
    if not path.exists():
        reason = path.with_suffix(".txt").read_text(encoding="utf-8")
        # A tool that fails on a near miss has not fused it.
        return [reason] if isinstance(case.what, Formula) else []
    before, feeds = case.build()
    try:
        after = onnx.load(path)
        return [*not_as_wanted(case, after), *differences(before, after, feeds)]
    except Exception as error:  # noqa: BLE001  ONNX Runtime's own have no other base
        return [f"does not run: {type(error).__name__}: {str(error)[:300]}"]


def _print(cases: Sequence[Case], verdicts: Verdicts) -> None:
    tools = list(verdicts)
    header = ["op", *(TITLES[tool][0] for tool in tools)]
    right = [case for case in cases if isinstance(case.what, Formula)]
    near = [case for case in cases if not isinstance(case.what, Formula)]
    ops = dict.fromkeys(case.what.op for case in right)
    rows = [_row(op, [case for case in right if case.what.op == op], verdicts) for op in ops]
    rows.append(_row("all", right, verdicts))
    output.table("Spellings recognised", header, rows)
    wrong = [sum(bool(found[case.name]) for case in near) for found in verdicts.values()]
    cells = [f"{count}/{len(near)}" for count in wrong]
    output.table("Near misses wrongly fused", header, [["near misses", *cells]])


def _row(name: str, cases: Sequence[Case], verdicts: Verdicts) -> list[output.Cell]:
    counts = [sum(not found[case.name] for case in cases) for found in verdicts.values()]
    return [name, *(f"{count}/{len(cases)}" for count in counts)]


def _versions(python: Path, tools: Sequence[str]) -> dict[str, str]:
    names = sorted({TITLES[tool][1] for tool in tools} - {"ortkit"})
    code = (
        "import importlib.metadata as m\n"
        f"for n in {names!r}: print(n, next((d.version for d in m.distributions(name=n)), '-'))"
    )
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(line.split() for line in asked.stdout.splitlines())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench spelling", description=__doc__)
    add = parser.add_argument
    add("--tools", default=",".join(TOOLS), help=f"default: {','.join(TOOLS)}")
    add("--only", default="", help="cases with this in their name only")
    add("--peers-python", type=Path, help="a Python whose environment has the other tools")
    return parser


if __name__ == "__main__":
    sys.exit(main())
