"""The guide to language models and the chat, with the real onnxruntime-genai."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ortkit.cli.main import run
from tests.genai.folders import add_tokenizer, genai_folder

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "llm.md").read_text("utf-8")
SECTION = GUIDE[GUIDE.index("## A folder of onnxruntime-genai") : GUIDE.index("## An export")]
GENAI = pytest.importorskip("onnxruntime_genai")


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_tokenizer(genai_folder(tmp_path / "llama-int4"))
    (tmp_path / "sample.txt").write_text("the kernel computes each row of a product")
    monkeypatch.chdir(tmp_path)
    commands = [
        line
        for block in re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
        for line in block.splitlines()
    ]
    assert [command.split()[1] for command in commands] == [
        "optimize", "optimize", "verify", "profile", "memory", "compare", "compare"
    ]  # fmt: skip
    for command in commands:
        brief = {"profile": ["--runs", "1"], "compare": ["--rounds", "1", "--processes", "1"]}
        given = shlex.split(command)[1:]
        assert run([*given, *brief.get(given[0], ())]) == 0, command


def test_the_programs_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genai_folder(tmp_path / "llama-int4")
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "llm.md", "exec"), {})


def test_the_example_chats(tmp_path: Path) -> None:
    folder = genai_folder(tmp_path / "f")
    add_tokenizer(folder)
    command = [sys.executable, ROOT / "examples" / "chat" / "chat.py", folder, "--tokens", "5"]
    done = subprocess.run(command, input="hello\nagain\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\[[1-5] tokens, [\d.]+ tokens/s\]", done.stdout)) == 2
