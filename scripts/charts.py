"""Charts of what optimizing gives, from the tables that the documentation holds."""

from __future__ import annotations

import re
from pathlib import Path

from ortkit.page.chart import Chart, Series

ROOT = Path(__file__).parents[1]
_NUMBER = re.compile(r"[\d.]+")


def charts() -> dict[str, Chart]:
    """Return the charts of README.md by the names of their files."""
    return {"speedup_cpu.svg": cpu_chart(), "speedup_cuda.svg": cuda_chart()}


def cpu_chart() -> Chart:
    """Return how many times as fast float32 models are on a CPU."""
    text = (ROOT / "docs" / "benchmarks" / "cpu.md").read_text("utf-8")
    (part,) = found(r"\n### Zen 4: eleven models beside OpenVINO.*?\n(.*?\n)(?=### )", text)
    rows = table(part, "| model | with kernels [95 %] |")
    day, processor, runtime, other = found(
        r"Measured (\S+) on a (.*?) machine .*?(onnxruntime \S+), (OpenVINO [\d.]+)\. ",
        " ".join(part.split()),
    )
    return Chart(
        "CPU, float32: times as fast as ONNX Runtime with all of its optimizations",
        "times as fast",
        [row["model"].partition(",")[0] for row in rows],
        [
            Series("ortkit optimize", [number(row["with kernels [95 %]"]) for row in rows]),
            Series(other, [number(row["OpenVINO"]) for row in rows]),
        ],
        level=("", 1.0),
        note=f"{day}, 2 cores of a virtual machine ({processor}), {runtime}; full size, batch 1",
        digits=2,
        size=(900, 320),
    )


def cuda_chart() -> Chart:
    """Return how many times as fast float16 models are on a GPU."""
    text = (ROOT / "docs" / "benchmarks" / "gpu.md").read_text("utf-8")
    (part,) = found(r"\n### One H100, one sample\n(.*?\n)(?=### )", text)
    day, gpu, runtime, torch = found(
        r"(\S+) on one (NVIDIA \S+) .*?(onnxruntime-gpu \S+), (torch \S+),", " ".join(part.split())
    )
    rows = table(part, "| model | plain | plain graph")
    plain = [number(row["plain"]) for row in rows]
    ways = {
        "ortkit optimize, CUDA graph": "**ortkit graph**",
        "ONNX Runtime, CUDA graph": "plain graph",
        "torch.compile, reduce-overhead": "torch.compile",
    }
    return Chart(
        "CUDA, float16: times as fast as ONNX Runtime's CUDA provider",
        "times as fast",
        [row["model"].partition(",")[0] for row in rows],
        [
            Series(name, [item / number(row[way]) for item, row in zip(plain, rows, strict=True)])
            for name, way in ways.items()
        ],
        level=("", 1.0),
        note=f"{day}, one {gpu}, {runtime}, {torch}; exports of torch, batch 1",
        digits=1,
        size=(900, 320),
    )


def table(text: str, head: str) -> list[dict[str, str]]:
    """Return the rows of the table whose first line begins like this, by its titles."""
    lines = text[text.index(head) :].partition("\n\n")[0].splitlines()
    titles, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(titles, row, strict=True)) for row in rows]


def number(cell: str) -> float:
    """Return the first number of a cell, such as that of `**1.37** [1.31, 1.42]`."""
    (value, *_) = _NUMBER.findall(cell)
    return float(value)


def found(pattern: str, text: str) -> tuple[str, ...]:
    """Return the groups of a pattern, which the text must hold."""
    match = re.search(pattern, text, re.DOTALL)
    if match is None:
        raise ValueError(f"the documentation no longer says {pattern!r}")
    return match.groups()
