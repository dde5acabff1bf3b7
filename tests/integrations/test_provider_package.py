"""The package onnxruntime-ep-ortkit: the convention, models compiled earlier, other plugins."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortkit
from ortkit.provider import native
from ortkit.runtime.library_files import library_hashes
from tests.provider.native_library import build
from tests.provider.native_providers import floats
from tests.provider.test_native_context import expected, write

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "scripts" / "provider-package"
MODULE = "onnxruntime_ep_ortkit"
#: Without ortkit: what the package's users have.
_HOST = """
import json, sys
import numpy as np
import onnxruntime as ort
import onnxruntime_ep_ortkit as package
from onnxruntime.capi import _pybind_state

path, name, is_explicit = json.loads(sys.argv[1])
if name:
    from tests.provider.python_providers import NumpyProvider
    import ortkit

    class Other(NumpyProvider):
        pass

    Other.name = name
    ortkit.register_provider(Other())
(own,) = package.get_ep_names()
assert own == package.get_ep_name()
ort.register_execution_provider_library(own, package.get_library_path())
devices = [each for each in ort.get_ep_devices() if each.ep_name == own]
options = ort.SessionOptions()
if is_explicit:
    options.add_provider_for_devices(devices, {})
else:
    options.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_CPU)
said = {"ortkit": "ortkit" in sys.modules}
if text := _pybind_state.get_compatibility_info_from_model(path, own):
    said["verdict"] = _pybind_state.get_model_compatibility_for_ep_devices(devices, text).name
try:
    session = ort.InferenceSession(path, options)
    generator = np.load(sys.argv[2])
    said["y"] = session.run(None, dict(generator))[0].tolist()
    said["providers"] = session.get_providers()
except Exception as error:
    said["error"] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package as a wheel has it."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(PACKAGE / MODULE, folder / MODULE)
    shutil.copy(native.library_path(), folder / MODULE)
    return folder


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that was compiled ahead of time, with inputs beside it."""
    folder = tmp_path_factory.mktemp("compiled")
    np.savez(folder / "inputs.npz", **floats("abc", 3, 4))
    return write(build(folder), folder)


def hashes(model: Path) -> str:
    """Return the hashes of the libraries in a model, as `ORTKIT_TRUST` takes them."""
    return ",".join(library_hashes(model))


def host(
    package: Path, model: Path, name: str = "", *, is_explicit: bool = True, trust: str = ""
) -> dict[str, Any]:
    """Run a session in a process that has the package, and another provider if it is named."""
    given = json.dumps([str(model), name, is_explicit])
    paths = [str(package), str(ROOT)] if name else [str(package)]
    done = subprocess.run(
        [sys.executable, "-c", _HOST, given, model.with_name("inputs.npz")],
        env={
            **os.environ, "PYTHONPATH": os.pathsep.join(paths), "ORTKIT_TRUST": trust,
            "XDG_STATE_HOME": str(package / "state"),
        },
        cwd=package, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_a_compiled_model_runs_without_ortkit(package: Path, compiled: Path) -> None:
    said = host(package, compiled, trust=hashes(compiled))
    assert said["ortkit"] is False
    assert said["verdict"] == "EP_SUPPORTED_OPTIMAL"
    assert said["providers"][0] == "OrtkitExecutionProvider"
    np.testing.assert_allclose(said["y"], expected(floats("abc", 3, 4)), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("other", "first"),
    [
        ("", "OrtkitExecutionProvider"),
        pytest.param("AnyExecutionProvider", "AnyExecutionProvider", marks=pytest.mark.slow),
        pytest.param("ZenExecutionProvider", "OrtkitExecutionProvider", marks=pytest.mark.slow),
    ],
)
def test_automatic_selection_goes_by_name_beside_another_plugin(
    package: Path, compiled: Path, other: str, first: str
) -> None:
    """ONNX Runtime takes one plugin for the CPU, the first by name, and its own provider.

    A plain model shows it: the provider runs what was compiled for it, and leaves the rest.
    """
    plain = compiled.with_name("model.onnx")
    said = host(package, plain, other, is_explicit=False)
    assert said["providers"] == [first, "CPUExecutionProvider"]
    plainly = expected(floats("abc", 3, 4)) / 3  # what is compiled gives three times the result
    np.testing.assert_allclose(said["y"], plainly, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_a_compiled_model_needs_the_provider_to_be_named_beside_one_that_comes_first(
    package: Path, compiled: Path
) -> None:
    trust = hashes(compiled)
    said = host(package, compiled, "AnyExecutionProvider", is_explicit=False, trust=trust)
    assert "EPContext" in said["error"]
    said = host(package, compiled, "AnyExecutionProvider", trust=trust)
    assert said["providers"] == ["OrtkitExecutionProvider", "CPUExecutionProvider"]


def test_a_library_that_is_not_trusted_is_not_loaded(package: Path, compiled: Path) -> None:
    for is_explicit in (True, False):
        said = host(package, compiled, is_explicit=is_explicit)
        assert "set the provider option trust to 1" in said["error"]


def test_the_program_of_the_guide_runs(package: Path, compiled: Path) -> None:
    page = ROOT / "docs" / "guides" / "integrations" / "provider-package.md"
    (program,) = re.findall(
        r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    done = subprocess.run(
        [sys.executable, "-c", program + "print(session.get_providers()[0])"],
        env={**os.environ, "PYTHONPATH": str(package), "ORTKIT_TRUST": hashes(compiled)},
        cwd=compiled.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "OrtkitExecutionProvider\n", done.stderr


def test_the_package_is_of_the_tree(package: Path) -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["version"] == ortkit.__version__
    assert "dependencies" not in project["project"]
    assert (package / MODULE / "libortkit_provider.so").is_file()


@pytest.mark.slow
def test_its_wheel_has_the_library_and_nothing_else(tmp_path: Path, compiled: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path, PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr or "Connection" in done.stderr:
        pytest.skip("what builds it cannot be installed: no network")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("onnxruntime_ep_ortkit-*.whl")
    assert "-py3-none-linux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith(f"{MODULE}/")}
        archive.extractall(tmp_path / "wheel")
    assert names == {f"{MODULE}/__init__.py", f"{MODULE}/libortkit_provider.so"}
    said = host(tmp_path / "wheel", compiled, trust=hashes(compiled))
    assert said["providers"][0] == "OrtkitExecutionProvider"
