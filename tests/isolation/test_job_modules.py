"""Modules of jobs are imported by a process that forks others: they start no threads there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import ortkit

ROOT = Path(ortkit.__file__).parent
CALL = re.compile(r"(?:\w+_isolated|\w+_in_process|IsolatedObject)\(\s*(\w+)")
#: Toolchains and runtimes, which start threads or read the environment when they are imported.
LATE = ("onnxruntime", "tvm", "triton", "torch")
LOAD = """
import os, sys
import numpy
threads = len(os.listdir('/proc/self/task'))
import importlib
modules = [importlib.import_module(name) for name in sys.argv[1:]]
print(len(os.listdir('/proc/self/task')) - threads, *sys.modules)
early = [module.before_jobs for module in modules if hasattr(module, 'before_jobs')]
os.environ['ORT_DISABLE_TELEMETRY'] = '1'
for load in early:
    load()
print(len(early), len(os.listdir('/proc/self/task')) - threads, 'onnxruntime' in sys.modules)
"""


def test_modules_of_jobs_load_nothing_that_starts_threads() -> None:
    found = {
        (path, name)
        for path in ROOT.rglob("*.py")
        if path.parent != ROOT / "isolation"
        for name in CALL.findall(path.read_text(encoding="utf-8"))
    }
    modules = set()
    for path, name in found:
        text = path.read_text(encoding="utf-8")
        given = re.search(rf"from ([\w.]+) import (?:\([^)]*)?[^(\n]*\b{name}\b", text)
        if given is not None:
            modules.add(given[1])
    assert len(modules) > 12, modules
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *sorted(modules)], capture_output=True, text=True, check=True
    )
    at_import, before_jobs = done.stdout.splitlines()
    threads, *loaded = at_import.split()
    assert threads == "0"
    assert not {*LATE} & {*loaded}
    early, threads, is_loaded = before_jobs.split()
    assert int(early) >= 6
    assert (threads, is_loaded) == ("0", "True")
