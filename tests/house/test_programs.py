"""Every program on the site is run by a test: here, where its page has no test of its own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import models.__main__
import ortkit
from ortkit.runtime.session import Session
from tests.house.test_shell import DOCS, ROOT

FENCED = re.compile(r"^```([\w+]+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: Blocks that are no programs: output, diagrams, and what Sphinx reads.
NO_PROGRAMS = {"text", "mermaid"}
_HERE = "tests/house/test_programs.py"
_SHELL = "tests/house/test_shell.py"
_GUIDES = "tests/house/test_guides.py"
_SESSIONS = "tests/house/test_sessions_doc.py"
_OPS = "tests/extend/test_custom_ops_doc.py"
_PROVIDERS = "tests/provider/test_python_doc.py"
_TOOLS = "tests/integrations/test_tool_guides.py"
_UPGRADES = "tests/upgrades/test_guide.py"
_DEPLOY = "tests/native/test_deploy_guide.py"
_PACKAGE = "tests/integrations/test_provider_package.py"
_SERVERS = "tests/integrations/test_server_guides.py"
#: The test that runs what a page has of a language.
RUN_BY = {
    ("add-a-kernel", "python"): "tests/fusion/test_add_a_kernel.py",
    ("concepts/library", "python"): _HERE,
    ("concepts/library", "sh"): _SHELL,
    ("getting-started", "console"): _GUIDES,
    ("getting-started", "python"): _GUIDES,
    ("getting-started", "sh"): _SHELL,
    ("guides/custom-ops", "console"): _OPS,
    ("guides/custom-ops", "python"): _OPS,
    ("guides/custom-ops", "toml"): _HERE,
    ("guides/deploy", "c"): _DEPLOY,
    ("guides/deploy", "cpp"): _DEPLOY,
    ("guides/deploy", "java"): _DEPLOY,
    ("guides/deploy", "js"): _DEPLOY,
    ("guides/deploy", "python"): _DEPLOY,
    ("guides/deploy", "sh"): _SHELL,
    ("guides/gpu", "python"): _GUIDES,
    ("guides/gpu", "sh"): _SHELL,
    ("guides/integrations", "python"): _HERE,
    ("guides/integrations/mlflow", "python"): _SERVERS,
    ("guides/integrations/mlflow", "sh"): _SHELL,
    ("guides/integrations/mlserver", "json"): _SERVERS,
    ("guides/integrations/mlserver", "python"): _SERVERS,
    ("guides/integrations/mlserver", "sh"): _SERVERS,
    ("guides/integrations/olive", "json"): _TOOLS,
    ("guides/integrations/olive", "python"): _TOOLS,
    ("guides/integrations/olive", "sh"): _TOOLS,
    ("guides/integrations/optimum", "python"): _TOOLS,
    ("guides/integrations/optimum", "sh"): _SHELL,
    ("guides/integrations/torch", "python"): _TOOLS,
    ("guides/integrations/torch", "sh"): _SHELL,
    ("guides/integrations/provider-package", "python"): _PACKAGE,
    ("guides/integrations/provider-package", "sh"): _SHELL,
    ("guides/integrations/ray-serve", "python"): _SERVERS,
    ("guides/integrations/ray-serve", "sh"): _SHELL,
    ("guides/integrations/triton", "sh"): _SHELL,
    ("guides/llm", "console"): _GUIDES,
    ("guides/llm", "python"): "tests/genai/test_genai_guide.py",
    ("guides/llm", "sh"): _SHELL,
    ("guides/optimize", "console"): _GUIDES,
    ("guides/optimize", "python"): _GUIDES,
    ("guides/provider", "python"): "tests/provider/test_own.py",
    ("guides/provider", "sh"): _SHELL,
    ("guides/providers", "pycon"): _PROVIDERS,
    ("guides/providers", "python"): _PROVIDERS,
    ("guides/upgrades", "console"): _UPGRADES,
    ("guides/upgrades", "python"): _UPGRADES,
    ("guides/upgrades", "yaml"): _UPGRADES,
    ("reference/model_page", "python"): _HERE,
    ("sessions", "pycon"): _SESSIONS,
    ("sessions/compare", "console"): _SESSIONS,
    ("sessions/cuda", "python"): _HERE,
    ("sessions/decode", "pycon"): _SESSIONS,
    ("sessions/memory", "console"): _SESSIONS,
    ("sessions/memory", "pycon"): _SESSIONS,
    ("sessions/nodes", "console"): _SESSIONS,
    ("sessions/nodes", "pycon"): _SESSIONS,
    ("sessions/profile", "console"): _SESSIONS,
    ("sessions/profile", "python"): _HERE,
    ("sessions/profile_html", "console"): _SESSIONS,
    ("sessions/profile_html", "python"): _HERE,
}
NOT_RUN = {
    ("guides/deploy", "csharp"): "no compiler of C# is among what the tests need; the page says so"
}


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCED.findall(page.read_text("utf-8"))


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS).with_suffix(""))


def test_every_program_has_a_test() -> None:
    found = {
        (name_of(page), language)
        for page in DOCS.rglob("*.md")
        for language, _ in blocks(page)
        if language not in NO_PROGRAMS
    }
    assert found == RUN_BY.keys() | NOT_RUN.keys()
    assert [test for test in RUN_BY.values() if not (ROOT / test).is_file()] == []


def a_session(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what the pages about profiles speak of."""
    with closing(Session(path)) as session:
        tokens = np.ones((1, 16), np.int64)
        yield {
            "ortkit": ortkit,
            "Path": Path,
            "session": session,
            "feeds": {"input_ids": tokens, "attention_mask": tokens},
        }


def options(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the options of a session, beside a kernel library."""
    ortkit.optimize(path).save(path.with_name("model.opt.onnx"))
    yield {"options": onnxruntime.SessionOptions()}


#: What each page has defined by then, and what its programs write.
PAGES: dict[str, tuple[Callable[[Path], Iterator[dict[str, Any]]], str]] = {
    "concepts/library": (options, "model.opt.ops.so"),
    "guides/integrations": (options, "model.opt.ops.so"),
    "reference/model_page": (lambda path: iter([{}]), "page.html"),
    "sessions/profile": (a_session, "model.onnx"),
    "sessions/profile_html": (a_session, "bert.html"),
}


# Three pages optimize or profile a model: 2 to 4 s each.
@pytest.mark.sampled(1)
@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models.__main__.main(["bert", "--spelling", "ts", "-o", "model.onnx"])
    (tmp_path / "bert.onnx").symlink_to("model.onnx")
    surroundings, written = PAGES[page]
    for names in surroundings(tmp_path / "model.onnx"):
        for language, text in blocks(DOCS / f"{page}.md"):
            if language == "python":
                exec(compile(text, page, "exec"), names)
    assert (tmp_path / written).stat().st_size > 0


def test_python_for_a_gpu_compiles() -> None:
    programs = [text for kind, text in blocks(DOCS / "sessions" / "cuda.md") if kind == "python"]
    assert len(programs) == 3
    for program in programs:
        compile(program, "cuda.md", "exec")


def test_the_entry_point_of_a_package_is_read() -> None:
    (text,) = (text for kind, text in blocks(DOCS / "guides" / "custom-ops.md") if kind == "toml")
    assert tomllib.loads(text)["project"]["entry-points"]["ortkit.ops"]
