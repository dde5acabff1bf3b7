"""`scripts/bench products`: single matrix products and convolutions in bfloat16 on the CPU.

Our kernels, oneDNN's bfloat16 through torch (with --torch-python), and ONNX Runtime's float32,
interleaved in processes that live side by side.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ortkit.targets import cpu
from scripts.benches import output, products_cases


def main() -> int:
    """Measure what was asked for."""
    options = _parser().parse_args()
    level = cpu.native_level() if options.cpu == "native" else options.cpu
    if not (cpu.has_bf16(level) and cpu.runs_here(level)):
        print(f"this machine runs no products of bfloat16 at the level {level}", file=sys.stderr)
        return 2
    results: dict[str, object] = {"machine": output.machine(None), "level": level}
    print(f"machine: {results['machine']}; level {level}")
    try:
        with tempfile.TemporaryDirectory(prefix="ortkit-products-") as folder:
            for threads in map(int, options.threads.split(",")):
                results[f"products, {threads} threads"] = products_cases.measure(
                    options.only,
                    threads,
                    level,
                    options.torch_python,
                    Path(folder),
                    options.rounds,
                )
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(f"\nwrote {output.write(results, Path('bench-results'), 'products')}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench products", description=__doc__)
    add = parser.add_argument
    add("--only", default="", help="products with this in their name only")
    add("--threads", default="1,2", help="of each engine (default: 1,2)")
    add("--rounds", type=int, default=3, help="turns of each engine (default: 3)")
    add("--cpu", default="native", help="x86-64-v4-bf16 or x86-64-v4-amx (default: native)")
    add("--torch-python", type=Path, help="a Python that has torch")
    return parser


if __name__ == "__main__":
    sys.exit(main())
