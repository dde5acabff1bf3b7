"""The completion scripts complete, in each shell that is here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ASK_BASH = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_ortkit
echo "${{COMPREPLY[@]}}"
"""
CASES = [
    (("ortkit", "ins"), {"inspect"}),
    (("ortkit", "passes", "s"), {"show"}),
    (("ortkit", "passes", "list", "--l"), {"--level"}),
    (("ortkit", "optimize", "m.onnx", "--kernels", "o"), {"off"}),
    (("ortkit", "optimize", "m.onnx", "--precision", "fp"), {"fp32", "fp16", "fp8"}),
    (("ortkit", "run", "m.onnx", "--target", "c"), {"cpu", "cuda"}),
    (("ortkit", "passes", "show", "fuse-no"), {"fuse-norm"}),
    (("ortkit", "optimize", "m.onnx", "--passes", "fuse-no"), {"fuse-norm"}),
    (("ortkit", "optimize", "m.onnx", "--inputs", "f"), set()),
    (
        ("ortkit", "completion", ""),
        {"bash", "zsh", "fish", "-h", "--help", "-q", "--quiet", "-v", "--verbose"},
    ),
]


def script(call, shell: str, folder: Path) -> Path:
    done = call("completion", shell)
    assert (done.code, done.err) == (0, "")
    path = folder / f"ortkit.{shell}"
    path.write_text(done.out, encoding="utf-8")
    return path


def ran(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("words", "expected"), CASES)
def test_bash_completes(words: tuple[str, ...], expected: set[str], call, tmp_path: Path) -> None:
    quoted = " ".join(f"'{word}'" for word in words)
    ask = ASK_BASH.format(script=script(call, "bash", tmp_path), words=quoted)
    assert set(ran(["bash", "-c", ask]).split()) == expected


def test_bash_completes_each_pass_of_a_list(call, tmp_path: Path) -> None:
    source = script(call, "bash", tmp_path)
    for word, found in (("div-to-mul,fuse-no", "div-to-mul,fuse-norm"), ("+fuse-no", "+fuse-norm"),
                        ("+div-to-mul,-fuse-no", "+div-to-mul,-fuse-norm")):  # fmt: skip
        words = f"ortkit optimize m.onnx --passes '{word}'"
        ask = ASK_BASH.format(script=source, words=words)
        assert ran(["bash", "-c", ask]).split() == [found]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("words", "expected"), CASES)
def test_fish_completes(words: tuple[str, ...], expected: set[str], call, tmp_path: Path) -> None:
    path = script(call, "fish", tmp_path)
    out = ran(["fish", "-c", f"source {path}; complete -C '{' '.join(words)}'"])
    found = {line.partition("\t")[0] for line in out.splitlines()}
    assert {word for word in expected if not word.startswith("-h") and word != "--help"} <= found


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_script(call, tmp_path: Path) -> None:
    path = script(call, "zsh", tmp_path)
    ran(["zsh", "-n", str(path)])
    # `path` is PATH in zsh: a local of that name would hide every program.
    assert "local path" not in path.read_text(encoding="utf-8")


def test_an_unknown_shell_is_refused(call) -> None:
    assert call("completion", "csh").code == 2
