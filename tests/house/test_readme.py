"""What README.md says is so; its Python is run, in order, in one folder, as a newcomer would.

README.zh-CN.md says the same: its code, its commands and its numbers are those of README.md.
"""

from __future__ import annotations

import re
import statistics
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import models.__main__
import ortkit
from ortkit.provider.registration import registered_providers
from ortkit.targets.catalog import KINDS
from ortkit.targets.cuda import DEFAULT_LEVEL
from scripts.charts import charts

PAGE = Path(__file__).parents[2] / "README.md"
CHINESE = PAGE.with_name("README.zh-CN.md")
CODE = re.compile(r"```\w+\n.*?```|(?:^    \S[^\n]*\n)+", re.DOTALL | re.MULTILINE)
HEADLINE = re.compile(
    r"^\S+: \d+ -> \d+ nodes, \d+ kernels in \d+ places, verified, ", re.MULTILINE
)
FENCED = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_first_screen_says_what_is_so() -> None:
    screen = PAGE.read_text("utf-8").partition("\n## ")[0]
    project = tomllib.loads((PAGE.parent / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    (runtime,) = (extra for extra in extras["cpu"] if extra.startswith("onnxruntime"))
    assert runtime.removeprefix("onnxruntime") in extras["cuda"][0]
    assert f"Python {span(project['requires-python'])}," in screen
    assert f"ONNX Runtime {span(runtime)} " in screen
    assert {*re.findall(r'"\.\[(\w+)\]"', screen)} == {*KINDS} <= {*extras}
    assert f"NVIDIA GPUs from {DEFAULT_LEVEL.partition(',')[0]} on" in screen
    images = {Path(item).name for item in re.findall(r"!\[[^\]]+\]\(docs/images/(.*?)\)", screen)}
    assert images == {"before_after.svg", *charts()}
    assert len(re.findall(r"^    \S", screen, re.MULTILINE)) == 2  # two commands
    assert HEADLINE.search(screen)
    assert len(screen.splitlines()) <= 25


def test_what_is_said_of_the_charts() -> None:
    text = PAGE.read_text("utf-8")
    cpu, cuda = charts().values()
    for series, said in zip(cpu.series, ("runs {} times as fast as ONNX", "OpenVINO {} times:"),
                            strict=True):  # fmt: skip
        mean = statistics.geometric_mean(value for value in series.values if value is not None)
        assert said.format(f"{mean:.2f}") in text
    words = {6: "six", 8: "eight", 11: "eleven"}
    for chart in (cpu, cuda):
        assert f"over ONNX Runtime of {words[len(chart.labels)]} models" in text


def span(requirement: str) -> str:
    """Return the versions of a requirement, such as `>=3.11,<3.14`, as `3.11 to 3.13`."""
    low, major, end = re.findall(r">=([\d.]+),<(\d+)\.(\d+)", requirement)[0]
    return f"{low} to {major}.{int(end) - 1}"


def test_what_is_shown_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models.__main__.main(["bert", "--spelling", "ts", "-o", str(tmp_path / "model.onnx")])
    monkeypatch.chdir(tmp_path)
    tokens = np.ones((1, 8), np.int64)
    names: dict[str, Any] = {
        "numpy": np, "onnxruntime": onnxruntime, "ids": tokens, "mask": tokens,
    }  # fmt: skip
    blocks = FENCED.findall(PAGE.read_text("utf-8"))
    assert any("register_custom_ops_library" in block for block in blocks)
    try:
        for block in blocks:
            exec(block, names)
        assert "ReluExecutionProvider" in registered_providers()
    finally:
        ortkit.unregister_provider("ReluExecutionProvider")
    assert (tmp_path / "model.opt.ops.so").is_file()
    shape = names["session"].run(None, {"input_ids": tokens, "attention_mask": tokens})[0].shape
    assert shape == names["outputs"]["last_hidden_state"].shape


def commands(text: str) -> list[str]:
    """Return the blocks of code without comments, which are in the page's language."""
    return [re.sub(r"  #.*", "", block) for block in CODE.findall(text)]


def numbers(text: str) -> Counter[str]:
    """Return the numbers outside of code and of links' targets."""
    plain = re.sub(r"\]\([^)]*\)|`[^`]*`", "]", CODE.sub("", text))
    return Counter(re.findall(r"(?<![A-Za-z_\d.,])\d[\d,.]*(?<=\d)", plain))


def test_the_chinese_page_says_the_same() -> None:
    english, chinese = PAGE.read_text("utf-8"), CHINESE.read_text("utf-8")
    assert commands(chinese) == commands(english)
    assert numbers(chinese) - numbers(english) == Counter(), "numbers that README.md has not"
    assert numbers(english) - numbers(chinese) == Counter(), "numbers that are missing"
    assert names(chinese) == names(english)


def names(text: str) -> set[str]:
    """Return the names of commands and flags: code without a space."""
    spans = re.findall(r"`([^`]+)`", CODE.sub("", text))
    return {span for span in spans if " " not in span}


def test_other_numbers_and_commands_are_seen() -> None:
    assert numbers("1.28 and 1,051, see [2](3.md) and `4`.") == {"1.28": 1, "1,051": 1, "2": 1}
    assert commands("    ortkit run x  # says\n") == ["    ortkit run x\n"]
