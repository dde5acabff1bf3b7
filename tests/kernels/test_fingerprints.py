"""A backend's fingerprint depends on all code that decides what its kernels are, at any depth."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from ortkit.errors import InternalError
from ortkit.kernels.triton import backend as triton_backend
from ortkit.kernels.triton.hand import kernel_text
from ortkit.kernels.tvm import backend as tvm_backend

BACKENDS = {
    "tvm": (tvm_backend, tvm_backend.TvmBackend()),
    "triton": (triton_backend, triton_backend.TritonBackend()),
}
CHANGES = (
    "kernels/{}/inner/new.py",
    "kernels/region/inner/new.py",
    "kernels/layouts/inner/new.py",
    "custom_ops/{}/inner/new.py",
    "custom_ops/forms/inner/new.py",
)


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let both backends read their code from copies that a test may change."""
    modules: list[tuple[ModuleType, str]] = [(each, name) for name, (each, _) in BACKENDS.items()]
    for module, name in modules:
        kernels = Path(str(module.__file__)).parents[1]
        shutil.copytree(kernels, tmp_path / "kernels", dirs_exist_ok=True)
        monkeypatch.setattr(module, "__file__", str(tmp_path / "kernels" / name / "backend.py"))
    for name in (*BACKENDS, "forms"):
        package = import_module(f"ortkit.custom_ops.{name}")
        templates = tmp_path / "custom_ops" / name
        shutil.copytree(package.__path__[0], templates)
        monkeypatch.setattr(package, "__path__", [str(templates)])
    return tmp_path


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_in_a_folder_in_a_folder_counts(copies: Path, name: str, change: str) -> None:
    _, backend = BACKENDS[name]
    before = backend.fingerprint()
    path = copies / change.format(name)
    path.parent.mkdir()
    path.write_text("A = 1\n")
    first = backend.fingerprint()
    path.write_text("A = 2\n")
    assert len({before, first, backend.fingerprint()}) == 3


def test_a_kernel_is_read_from_a_folder_in_the_folder(copies: Path) -> None:
    folder = copies / "custom_ops" / "triton" / "inner"
    folder.mkdir()
    (folder / "sought_kernel.py").write_text("A = 1\n")
    assert kernel_text("sought_kernel") == "A = 1\n"
    (folder.parent / "sought_kernel.py").write_text("A = 2\n")
    with pytest.raises(InternalError, match="2 files hold"):
        kernel_text("sought_kernel")
