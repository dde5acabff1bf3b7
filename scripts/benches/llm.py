"""Language models: a folder of onnxruntime-genai beside its optimized form and llama.cpp.

All engines have a process each and take turns, at some numbers of threads and at their own.
Weights are random. `FOLDER` gets what is missing in it: the decoder in int4, its optimized form,
and the same sizes in Q4_0. Memory is read before and after the tokens of each engine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ortkit
from scripts.benches import output
from scripts.benches.llm_models import Q4_BLOCK, Sizes, genai_folder, gguf_file, weights_of
from scripts.benches.llm_rows import Row, header, merged
from scripts.benches.read_bandwidth import Reader, reader

#: Passes over memory before the tokens of an engine, and after them.
_PASSES = 4


class Engine:
    """A process that runs one row."""

    def __init__(self, row: Row, sizes: Sizes) -> None:
        """Start it, and wait until its model is there."""
        self.row, self.words = row, sizes.words
        #: New tokens of the last turn, by the tokens before them.
        self.new: dict[int, list[int]] = {}
        command = [sys.executable, "-m", "scripts.benches.llm_worker", row.engine, row.path]
        self.process = subprocess.Popen(
            [*map(str, command), str(row.threads), str(sizes.context)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        created = self._answer()
        row.create_ms.append(created["create_ms"])
        row.before = created["before"]

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def warm_up(self, prompt: int) -> None:
        """Read a prompt that does not count."""
        self._ask(prompt, 0)

    def prefill(self, prompt: int) -> None:
        """Read a prompt."""
        found = self._ask(prompt, 0)
        self.row.prefill_ms.setdefault(prompt, []).append(found["prefill_ms"])
        self.row.cpu_ms.setdefault(prompt, []).append(found["cpu_ms"])

    def decode(self, prompt: int, tokens: int) -> list[float]:
        """Read a prompt, add some tokens to it, and return the ms of each."""
        found = self._ask(prompt, tokens)
        self.row.prefill_ms.setdefault(prompt, []).append(found["prefill_ms"])
        self.row.token_ms.setdefault(prompt, []).extend(found["token_ms"])
        if found["tokens_cpu_ms"] is not None:
            each = found["tokens_cpu_ms"] / tokens
            self.row.token_cpu_ms.setdefault(prompt, []).append(each)
        self.new[prompt] = list(found["new"])
        return list(found["token_ms"])

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


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    folder: Path
    sizes: Sizes
    name: str
    """Of the builder's folder in `folder`."""
    threads: Sequence[int]
    prompts: Sequence[int]
    tokens: int
    rounds: int
    has_defaults: bool


def rows_of(plan: Plan) -> list[Row]:
    """Return the engines that there are, at some numbers of threads and at their own."""
    paths = {"genai": plan.folder / plan.name, "ortkit": plan.folder / f"{plan.name}.opt"}
    rows = []
    for threads in (*plan.threads, *([0] if plan.has_defaults else [])):
        at = f"{threads} threads" if threads else "default"
        rows += [Row(f"{name}, {at}", "genai", path, threads) for name, path in paths.items()]
        if threads and find_spec("xllamacpp") is not None and plan.sizes.block == Q4_BLOCK:
            rows.append(Row(f"llama.cpp, {at}", "llama.cpp", plan.folder / "q4_0.gguf", threads))
    for row in rows:
        row.weights, parts = weights_of(row.path)
        # llama.cpp keeps keys and values in float16.
        narrow = 2 if row.engine == "llama.cpp" else 1
        row.read = {n: parts + plan.sizes.cache_bytes(n) // narrow for n in plan.prompts}
    return rows


def prepare(plan: Plan) -> None:
    """Make what is missing in the folder."""
    folder = plan.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / plan.name).is_dir():
        genai_folder(plan.sizes, folder / plan.name)
    if not (folder / f"{plan.name}.opt").is_dir():
        options = ortkit.OptimizeOptions(verify=False)
        ortkit.optimize_genai(folder / plan.name, folder / f"{plan.name}.opt", options)
    if find_spec("gguf") is not None and not (folder / "q4_0.gguf").is_file():
        gguf_file(plan.sizes, folder / "q4_0.gguf")


def measure(plan: Plan, memory: Reader) -> tuple[list[Row], dict[int, list[float]]]:
    """Return the rows with their times, and bytes a second of each pass over memory by threads."""
    rows = rows_of(plan)
    rates: dict[int, list[float]] = {}

    def decode(engine: Engine, prompt: int) -> None:
        count = engine.row.threads or max(plan.threads)
        passes = memory.rates(count, _PASSES)
        times = engine.decode(prompt, plan.tokens)
        passes += memory.rates(count, _PASSES)
        engine.row.add_share(prompt, times, passes)
        rates.setdefault(count, []).extend(passes)

    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(row, plan.sizes)) for row in rows]
        for engine in engines:  # the first prompt pays for new pages
            engine.warm_up(plan.prompts[0])
        for _ in range(plan.rounds):
            for prompt in plan.prompts:
                for engine in engines:
                    engine.prefill(prompt)
            for prompt in plan.prompts:
                for engine in engines:
                    decode(engine, prompt)
    return rows, rates


def add_calls_before(path: Path, rows: list[Row], rates: dict[int, list[float]]) -> list[Row]:
    """Return rows with those of a file of earlier calls, and add its rates."""
    if not path.is_file():
        return merged(rows)
    before = json.loads(path.read_text())
    for count, found in before["bandwidth"].items():
        rates[int(count)] = [*found, *rates.get(int(count), [])]
    return merged([*map(Row.of, before["rows"]), *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="scripts/bench llm", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--block", type=int, default=Q4_BLOCK, help="weights of a scale")
    parser.add_argument("--threads", default="2", help="for all alike, such as 1,2 (default: 2)")
    parser.add_argument("--tokens", type=int, default=32, help="after a prompt (default: 32)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: 3)")
    parser.add_argument("--prompts", default="128,1024", help="tokens (default: 128,1024)")
    parser.add_argument("--no-defaults", action="store_true", help="equal threads only")
    parser.add_argument("--prepare", action="store_true", help="make the models and end")
    parser.add_argument("--into", type=Path, metavar="FILE", help="add to what earlier calls took")
    options = parser.parse_args(arguments)
    sizes = Sizes(layers=options.layers, block=options.block)
    plan = Plan(
        options.folder, sizes, "int4" if sizes.block == Q4_BLOCK else f"int4-{sizes.block}",
        [int(each) for each in options.threads.split(",")],
        [int(each) for each in options.prompts.split(",")],
        options.tokens, options.rounds, not options.no_defaults,
    )  # fmt: skip
    prepare(plan)
    if options.prepare:
        return
    with reader() as memory:
        rows, rates = measure(plan, memory)
    if options.into:
        rows = add_calls_before(options.into, rows, rates)
    title = f"{options.layers} layers of 2,048 x 8,192 in int4, blocks of {sizes.block}"
    output.table(title, header(plan.prompts), [row.cells() for row in rows])
    for count, found in sorted(rates.items()):
        low, middle, high = (f"{each / 1e9:.1f}" for each in spread(found))
        print(f"{count} threads read {low} to {high} GB/s, {middle} by the median")
    versions = {
        name: metadata.version(name)
        for name in ("onnxruntime", "onnxruntime-genai", "xllamacpp")
        if find_spec(name.replace("-", "_")) is not None
    }
    results: dict[str, object] = {
        "machine": output.machine(None), "versions": versions,
        "bandwidth": rates,
        "rows": [row.document() for row in rows],
    }  # fmt: skip
    if options.into:
        options.into.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwrote {options.into or output.write(results, Path('bench-results'))}")


def spread(rates: Sequence[float]) -> tuple[float, float, float]:
    """Return the least, the median and the most."""
    return min(rates), statistics.median(rates), max(rates)


if __name__ == "__main__":
    main()
