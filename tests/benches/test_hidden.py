"""Processes that see no AVX-512: ONNX Runtime's products are slower, kernels are those of AVX2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ortkit.errors import UserError
from ortkit.kernels.c_compiler import find_linker
from ortkit.targets.cpu import _cpu_flags, machine
from scripts.benches import hidden

pytestmark = pytest.mark.skipif(machine() != "x86-64", reason="cpuid is of x86-64")
#: Prints words 1 to 3 of leaf 7, from a second thread.
_PROBE = """
#include <cpuid.h>
#include <pthread.h>
#include <stdio.h>
static void* ask(void* unused) {
  unsigned a, b, c, d;
  __cpuid_count(7, 0, a, b, c, d);
  printf("%u %u %u\\n", b, c, d);
  return unused;
}
int main(void) {
  pthread_t thread;
  pthread_create(&thread, 0, ask, 0);
  return pthread_join(thread, 0);
}
"""


def _words(program: Path) -> list[int]:
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_a_process_sees_no_avx512(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "cpuid_fault" not in _cpu_flags():
        pytest.skip("cpuid does not fault on this processor")
    monkeypatch.setenv("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))
    program = tmp_path / "probe"
    (tmp_path / "probe.c").write_text(_PROBE)
    command = [*find_linker(), str(tmp_path / "probe.c"), "-o", str(program), "-pthread"]
    subprocess.run(command, check=True)
    before = _words(program)
    hidden.hide_avx512(tmp_path)
    after = _words(program)
    assert not after[0] >> 16 & 1
    assert after[0] >> 5 & 1 == before[0] >> 5 & 1  # AVX2 stays
    assert not after[2] >> 24 & 1
    done = subprocess.run([sys.executable, "-c", "import onnxruntime"], check=False)
    assert done.returncode == 0
    subprocess.run(command, check=True)  # compilers have a handler for SIGSEGV of their own


def test_a_machine_without_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    failing = tmp_path / "failing.c"
    failing.write_text(
        "#include <unistd.h>\n__attribute__((constructor)) static void f(void)"
        ' { if (write(2, "no fault\\n", 9)) _exit(3); _exit(3); }\n'
    )
    monkeypatch.setattr(hidden, "_SOURCE", failing)
    with pytest.raises(UserError, match="no fault"):
        hidden.hide_avx512(tmp_path)
    assert os.environ["LD_PRELOAD"] == ""
