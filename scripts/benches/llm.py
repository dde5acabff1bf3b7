"""Language models: a folder of onnxruntime-genai beside its optimized form and llama.cpp.

All engines have a process each and take turns, at some numbers of threads and at their own.
Weights are random. `FOLDER` gets what is missing in it: the decoder in int4, its optimized form,
and the same sizes in Q4_0.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ortkit
from scripts.benches import output
from scripts.benches.llm_models import Sizes, genai_folder, gguf_file, weights_of
from scripts.benches.read_bandwidth import measured


@dataclass
class Row:
    """One engine with a number of threads, and what it took."""

    name: str
    engine: str
    path: Path
    threads: int
    create_ms: float = 0.0
    prefill_ms: dict[int, list[float]] = field(default_factory=dict)
    token_ms: dict[int, list[float]] = field(default_factory=dict)
    """By the tokens before it."""
    cpu_ms: dict[int, list[float]] = field(default_factory=dict)
    """Processor time of all threads for a prompt."""
    token_cpu_ms: dict[int, list[float]] = field(default_factory=dict)
    resident: int = 0
    before: int = 0
    """Bytes in memory before the model was loaded."""
    weights: int = 0
    """Bytes of the model's weights."""
    read: dict[int, int] = field(default_factory=dict)
    """Bytes of weights and caches that a token behind a prompt reads."""

    def shares(self, bandwidth: Mapping[int, float]) -> list[float]:
        """Return the part of the bandwidth that tokens use, by the tokens before them.

        Args:
            bandwidth: Bytes a second, by threads; 0 is taken for the most.
        """
        most = bandwidth.get(self.threads, max(bandwidth.values()))
        times = {prompt: statistics.median(each) for prompt, each in self.token_ms.items()}
        return [self.read[prompt] / (1e-3 * ms * most) for prompt, ms in times.items()]

    def cells(self, bandwidth: Mapping[int, float]) -> tuple[object, ...]:
        """Return the cells of the table; see `shares`."""
        return (
            self.name,
            *(f"{min(each):,.0f}" for each in self.prefill_ms.values()),
            *(f"{statistics.median(each):.2f}" for each in self.token_ms.values()),
            *(f"{min(each):,.0f}" for each in self.cpu_ms.values()),
            *(f"{min(each):.2f}" for each in self.token_cpu_ms.values()),
            f"{self.create_ms:,.0f}",
            f"{self.resident / 1e6:,.0f}",
            *(f"{share:.0%}" for share in self.shares(bandwidth)),
            f"{(self.resident - self.before) / self.weights:.2f}",
        )


class Engine:
    """A process that runs one row."""

    def __init__(self, row: Row, sizes: Sizes) -> None:
        """Start it, and wait until its model is there."""
        self.row, self.words = row, sizes.words
        command = [sys.executable, "-m", "scripts.benches.llm_worker", row.engine, row.path]
        self.process = subprocess.Popen(
            [*map(str, command), str(row.threads), str(sizes.context)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        created = self._answer()
        row.create_ms, row.before = created["create_ms"], created["before"]

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def prefill(self, prompt: int) -> None:
        """Read a prompt."""
        found = self._ask(prompt, 0)
        self.row.prefill_ms.setdefault(prompt, []).append(found["prefill_ms"])
        self.row.cpu_ms.setdefault(prompt, []).append(found["cpu_ms"])

    def decode(self, prompt: int, tokens: int) -> None:
        """Read a prompt, and add some tokens to it."""
        found = self._ask(prompt, tokens)
        self.row.token_ms.setdefault(prompt, []).extend(found["token_ms"])
        used = found["cpu_ms"] - min(self.row.cpu_ms[prompt])
        self.row.token_cpu_ms.setdefault(prompt, []).append(used / tokens)

    def _ask(self, prompt: int, tokens: int) -> Mapping[str, Any]:
        assert self.process.stdin is not None
        request = {"prompt": prompt, "tokens": tokens, "words": self.words}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        found = self._answer()
        self.row.resident = max(self.row.resident, found["resident"])
        return found

    def _answer(self) -> Mapping[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: Mapping[str, Any] = json.loads(line)
                return found
        raise SystemExit(f"{self.row.name} ended")


def rows_of(folder: Path, numbers: Sequence[int], *, has_defaults: bool) -> list[Row]:
    """Return the engines that there are, at some numbers of threads and at their own."""
    paths = {"genai": folder / "int4", "ortkit": folder / "int4.opt"}
    rows = []
    for threads in (*numbers, *([0] if has_defaults else [])):
        at = f"{threads} threads" if threads else "default"
        rows += [Row(f"{name}, {at}", "genai", path, threads) for name, path in paths.items()]
        if threads and find_spec("xllamacpp") is not None:
            rows.append(Row(f"llama.cpp, {at}", "llama.cpp", folder / "q4_0.gguf", threads))
    return rows


def prepare(folder: Path, sizes: Sizes) -> None:
    """Make what is missing in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "int4").is_dir():
        genai_folder(sizes, folder / "int4")
    if not (folder / "int4.opt").is_dir():
        options = ortkit.OptimizeOptions(verify=False)
        ortkit.optimize_genai(folder / "int4", folder / "int4.opt", options)
    if find_spec("gguf") is not None and not (folder / "q4_0.gguf").is_file():
        gguf_file(sizes, folder / "q4_0.gguf")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="scripts/bench llm", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", default="2", help="for all alike, such as 1,2 (default: 2)")
    parser.add_argument("--tokens", type=int, default=32, help="after a prompt (default: 32)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    parser.add_argument("--prompts", default="128,1024", help="tokens (default: 128,1024)")
    parser.add_argument("--no-defaults", action="store_true", help="equal threads only")
    parser.add_argument("--prepare", action="store_true", help="make the models and end")
    options = parser.parse_args(arguments)
    sizes = Sizes(layers=options.layers)
    prompts = [int(each) for each in options.prompts.split(",")]
    prepare(options.folder, sizes)
    if options.prepare:
        return
    numbers = [int(each) for each in options.threads.split(",")]
    bandwidth = {count: measured(count) for count in numbers}
    rows = rows_of(options.folder, numbers, has_defaults=not options.no_defaults)
    for row in rows:
        row.weights, parts = weights_of(row.path)
        # llama.cpp keeps keys and values in float16.
        narrow = 2 if row.engine == "llama.cpp" else 1
        row.read = {prompt: parts + sizes.cache_bytes(prompt) // narrow for prompt in prompts}
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(row, sizes)) for row in rows]
        for _ in range(options.rounds):
            for prompt in prompts:
                for engine in engines:
                    engine.prefill(prompt)
            for prompt in prompts:
                for engine in engines:
                    engine.decode(prompt, options.tokens)
    output.table(
        f"{options.layers} layers of 2,048 x 8,192 in int4",
        [
            "engine",
            *(f"{n}, ms" for n in prompts),
            *(f"token after {n}" for n in prompts),
            *(f"{n}, CPU ms" for n in prompts),
            *(f"token after {n}, CPU" for n in prompts),
            "load, ms",
            "resident, MB",
            *(f"of bandwidth after {n}" for n in prompts),
            "added, of the weights",
        ],
        [row.cells(bandwidth) for row in rows],
    )
    print(*(f"{n} threads read {bandwidth[n] / 1e9:.1f} GB/s" for n in numbers), sep="\n")
    versions = {
        name: metadata.version(name)
        for name in ("onnxruntime", "onnxruntime-genai", "xllamacpp")
        if find_spec(name.replace("-", "_")) is not None
    }
    results: dict[str, object] = {
        "machine": output.machine(None), "versions": versions,
        "bandwidth": bandwidth,
        "rows": [{**asdict(row), "path": row.path.name} for row in rows],
    }  # fmt: skip
    print(f"\nwrote {output.write(results, Path('bench-results'))}")


if __name__ == "__main__":
    main()
