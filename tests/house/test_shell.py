"""Every command of the site and of README.md is run by bash, page by page, in a folder of its own.

The folder has what the page speaks of, under the page's names. `console` blocks show outputs
too: test_guides.py, test_sessions_doc.py and tests/extend/test_custom_ops_doc.py run them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import models.__main__
from ortkit.cli.main import run
from ortkit.graph.io.open import open_model
from ortkit.verify.inputs.feeds import make_feeds
from scripts.wheel_smoke import build
from tests.genai.folders import add_tokenizer, genai_folder
from tests.native.test_deploy import runtime
from tests.native.test_deploy_guide import HEADERS, program

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )?"
    r"(?:ortkit|scripts/\w|python|pip|c\+\+|g\+\+|sha256sum|docker|\./)(?:\S* .*)?"
)
#: Searches that users give minutes get seconds here.
_SECONDS = re.compile(r"--seconds \d+")

_INSTALLS = "it installs from the network; scripts/release runs it for the wheel"
_MEASURES = "it measures for minutes to hours; tests/benches has its parts"
_WAITS = "it serves until it is stopped; tests/tune/test_runners.py starts both"
_CASES = "1,884 cases take minutes; tests/provider/test_conformance.py runs them all"
_GPU = "it needs a GPU"
#: Why a command is not run: (the name of a page, how the command begins) -> the reason.
_FETCHES = "it needs a package index; tests/upgrades/test_compare_versions.py fetches versions"
NOT_RUN = {
    ("README", 'pip install ".[cpu]"'): _INSTALLS,
    ("README", "scripts/demo"): "it makes an environment; scripts/release runs the demo",
    ("docs/getting-started", "pip install "): _INSTALLS,
    ("docs/guides/gpu", "ortkit verify "): _GPU,
    ("docs/guides/integrations/mlflow", "pip install "): _INSTALLS,
    ("docs/guides/integrations/mlserver", "pip install "): _INSTALLS,
    ("docs/guides/integrations/olive", "pip install "): _INSTALLS,
    ("docs/guides/integrations/optimum", "pip install "): _INSTALLS,
    ("docs/guides/integrations/torch", "pip install "): _INSTALLS,
    ("docs/guides/integrations/provider-package", "pip wheel "): (
        "it installs what builds; tests/integrations/test_provider_package.py runs it"
    ),
    ("docs/guides/integrations/ray-serve", "pip install "): _INSTALLS,
    ("docs/guides/provider", "ortkit provider test "): _CASES,
    ("docs/guides/tuning", "python -m tvm.exec.rpc_"): _WAITS,
    ("docs/guides/tuning", "ortkit tune model.onnx --runner rpc:"): _WAITS,
    ("docs/guides/tuning", "scripts/tune-defaults "): _MEASURES,
    ("docs/guides/upgrades", "ortkit compare bert.onnx --onnxruntime "): _FETCHES,
    ("docs/guides/upgrades", "ortkit bisect --onnxruntime-optimizers "): _FETCHES,
    ("docs/benchmarks/cpu", "scripts/bench "): _MEASURES,
    ("docs/benchmarks/cpu", "ortkit compare "): _MEASURES,
    ("docs/benchmarks/cpu", "scripts/test -k region_fuzz"): "the suite has this test",
    ("docs/benchmarks/llm", "scripts/bench "): _MEASURES,
    ("docs/benchmarks/precision", "scripts/bench "): _MEASURES,
    ("docs/benchmarks/spelling", "scripts/bench "): _MEASURES,
    ("models/README", "python -m models bert --size full "): "the model has 400 MB",
}  # fmt: skip


def bert(folder: Path) -> None:
    """Write the model that most pages speak of, under both of its names."""
    for name in ("model.onnx", "bert.onnx"):
        models.__main__.main(["bert", "--spelling", "ts", "-o", str(folder / name)])


def newcomer(folder: Path) -> None:
    """Write the model, beside our examples and a release of ONNX Runtime."""
    bert(folder)
    runtime_archive(folder, "onnxruntime")
    (folder / "examples").symlink_to(ROOT / "examples")


def nothing(folder: Path) -> None:
    """The page makes what it needs."""


def optimized(folder: Path) -> None:
    """Write a small model and its optimized form with a kernel library."""
    onnx.save(build(), folder / "model.onnx")
    assert run(["optimize", str(folder / "model.onnx"), "--no-verify", "--quiet"]) == 0


def runtime_archive(folder: Path, name: str) -> None:
    """Make a folder like that of ONNX Runtime's release."""
    (folder / name / "lib").mkdir(parents=True)
    (folder / name / "include").symlink_to(HEADERS)
    for suffix in ("so", "so.1"):
        (folder / name / "lib" / f"libonnxruntime.{suffix}").symlink_to(runtime())


def deploy(folder: Path) -> None:
    optimized(folder)
    runtime_archive(folder, "ort")
    (folder / "deploy.cc").write_text(program("cpp"), "utf-8")


def library(folder: Path) -> None:
    runtime_archive(folder, "onnxruntime")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "serve.py").write_text(
        'import ortkit\n\nortkit.Session("model.opt.onnx", kernels="require").close()\n'
    )


def language_models(folder: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    add_tokenizer(genai_folder(folder / "llama-int4"))
    (folder / "sample.txt").write_text("the kernel computes each row of a product")
    path = folder / "decoder.onnx"
    models.__main__.main(["decoder_kv", "--spelling", "dynamo", "-o", str(path)])
    feeds = make_feeds(open_model(path), 1)[0]
    np.savez(folder / "tokens.npz", **{name: np.asarray(value) for name, value in feeds.items()})


def ops(folder: Path) -> None:
    bert(folder)
    (folder / "ops.py").write_text(_OPS)


def two_models(folder: Path) -> None:
    bert(folder)
    (folder / "a.onnx").symlink_to("model.onnx")
    assert run(["optimize", str(folder / "a.onnx"), "-o", str(folder / "b.onnx"), "--quiet"]) == 0


def profiles(folder: Path) -> None:
    """Write two models and a trace of ONNX Runtime for each, under the page's names."""
    bert(folder)
    (folder / "old.onnx").symlink_to("bert.onnx")
    for name in ("fast.onnx", "new.onnx"):
        command = ["optimize", str(folder / "bert.onnx"), "-o", str(folder / name), "--level", "1"]
        assert run([*command, "--no-verify", "--quiet"]) == 0
    feeds = {
        "input_ids": np.ones((1, 16), np.int64), "attention_mask": np.ones((1, 16), np.int64),
    }  # fmt: skip
    for name in ("old", "new"):
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / name)
        session = onnxruntime.InferenceSession(folder / f"{name}.onnx", options)
        for _ in range(20):
            session.run(None, feeds)
        Path(session.end_profiling()).rename(folder / f"{name}.json")


def fish(folder: Path) -> None:
    """Make the folder that fish has."""
    (folder / ".config" / "fish" / "completions").mkdir(parents=True)


_OPS = """
import numpy
import ortkit
from tvm import te


@ortkit.custom_op("mine::MyOp", version=1)
def my_op(x: ortkit.Float32["m k"], w: ortkit.Float32["k n"]) -> ortkit.Float32["m n"]:
    return x @ w


@my_op.kernel("tvm", split="m")
def my_op_te(x, w):
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute(
        (x.shape[0], w.shape[1]), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), "y"
    )
"""

#: What makes the folder of a page: of those that take a second or two, and of the others.
QUICK: dict[str, Callable[[Path], None]] = {
    "docs/guides/deploy": deploy,
    "docs/guides/integrations/triton": optimized,
    "docs/reference/cli": fish,
    "docs/sessions": nothing,
    "models/README": nothing,
}
SLOW: dict[str, Callable[[Path], None]] = {
    "README": newcomer,
    "docs/concepts/fusion": bert,
    "docs/concepts/library": library,
    "docs/guides/gpu": bert,
    "docs/guides/llm": language_models,
    "docs/guides/integrations/provider-package": bert,
    "docs/guides/provider": bert,
    "docs/guides/tuning": ops,
    "docs/reference/model_page": two_models,
    "docs/sessions/nodes": bert,
    "docs/sessions/profile_html": profiles,
}


def lines(page: Path) -> Iterator[str]:
    """Yield the lines of `sh` and unnamed blocks, and of indented blocks outside of lists."""
    fence, is_list, is_apart = "", False, True
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("```"):
            fence = "" if fence else line
        elif fence in ("```", "```sh") or (
            not fence and line.startswith("    ") and is_apart and not is_list
        ):
            yield line.strip()
            continue
        if line.strip() and not line.startswith(" "):
            is_list = bool(re.match(r"[-*]|\d+\.", line))
        is_apart = not line.strip()


def commands(page: Path) -> list[str]:
    return [line for line in lines(page) if _COMMAND.fullmatch(line)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "models" / "README.md"]


def reason(page: str, command: str) -> str | None:
    """Return why a command is not run."""
    found = (
        why for (at, start), why in NOT_RUN.items() if at == page and command.startswith(start)
    )
    return next(found, None)


def check(page: str, setup: Callable[[Path], None], folder: Path) -> None:
    """Run the commands of a page in order, each by a bash that stops at what fails."""
    setup(folder)
    environment = {
        **os.environ,
        "HOME": str(folder),
        "ORTKIT_CACHE": os.environ.get("ORTKIT_CACHE", str(Path.home() / ".cache" / "ortkit")),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "ORT": str(folder / "onnxruntime"),
    }
    for command in commands(ROOT / f"{page}.md"):
        if reason(page, command) is not None:
            continue
        shorter = _SECONDS.sub("--seconds 3", command)
        done = subprocess.run(
            # The model is what a script of a page gets as its argument.
            ["bash", "-euo", "pipefail", "-c", shorter, page, "model.onnx"],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        # That a model is slower is an answer.
        expected = {0, 1} if "--fail-slower" in command else {0}
        assert done.returncode in expected, f"$ {command}\n{done.stdout}{done.stderr}"


# Each command is a process of its own, and one page compiles C++: 4 s for all pages.
@pytest.mark.sampled(3)
@pytest.mark.parametrize("page", QUICK)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    check(page, QUICK[page], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_the_commands_of_a_long_page_run(page: str, tmp_path: Path) -> None:
    check(page, SLOW[page], tmp_path)


def test_every_page_with_commands_is_run() -> None:
    found = {
        name
        for page in PAGES
        if any(reason(name := name_of(page), command) is None for command in commands(page))
    }
    assert found == QUICK.keys() | SLOW.keys()


def test_what_is_not_run_is_on_its_page() -> None:
    for page, start in NOT_RUN:
        assert any(each.startswith(start) for each in commands(ROOT / f"{page}.md")), start


def test_commands_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text\n\n    ortkit x  # y\n\n- item\n\n    ortkit no\n\nText\n```sh\nA=1 python b.py\n"
        "./c d\nthe output\n```\n```text\nortkit no\n```\n\n    ortkit z\n"
    )
    assert commands(page) == ["ortkit x  # y", "A=1 python b.py", "./c d", "ortkit z"]
