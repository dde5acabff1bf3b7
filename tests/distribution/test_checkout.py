"""A checkout beside an installed wheel has its native part from there, and does the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import ortkit.custom_ops
import pytest

from scripts.wheel_smoke import build

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "ortkit").is_dir(), reason="the tests stand alone here, beside no checkout"
)
PROGRAM = """
import sys
# As without the editable install that the tests run from.
sys.meta_path[:] = [f for f in sys.meta_path if "skbc" not in type(f).__module__]
sys.path[:] = [CHECKOUT, *(p for p in sys.path if p != CHECKOUT), WHEEL]
import ortkit, ortkit.custom_ops
from ortkit.kernels.link.linker import find_shim
print(ortkit.__file__, ortkit.custom_ops.__file__, find_shim()[0])
"""


def test_the_native_part_is_that_of_the_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "site-packages"
    shutil.copytree(ROOT / "custom_ops", wheel / "ortkit" / "custom_ops")
    (wheel / "ortkit" / "__init__.py").touch()
    native = wheel / "ortkit" / "custom_ops"
    (native / "libortkit_shim.a").touch()
    shutil.copy(native / "native" / "manifest.h", native)
    program = f"CHECKOUT = {str(ROOT)!r}\nWHEEL = {str(wheel)!r}\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    package, custom_ops, shim = done.stdout.split()
    assert Path(package) == ROOT / "ortkit" / "__init__.py"
    assert Path(custom_ops).is_relative_to(wheel)
    assert Path(shim) == native / "libortkit_shim.a"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel of this checkout installs."""
    folder = tmp_path_factory.mktemp("site-packages")
    shutil.copytree(ROOT / "ortkit", folder / "ortkit")
    shutil.copytree(ROOT / "custom_ops", folder / "ortkit" / "custom_ops")
    for path in ortkit.custom_ops.__path__:
        native = (*Path(path).glob("*.so"), *Path(path).glob("*.a"), *Path(path).glob("*.h"))
        for file in native:
            shutil.copy(file, folder / "ortkit" / "custom_ops")
    return folder


# Two processes that compile two kernels each, and the provider's: 8 s.
@pytest.mark.slow
def test_the_checkout_does_what_the_wheel_does(installed: Path, tmp_path: Path) -> None:
    """Without `site`, the editable install that the tests run from is out of the way."""
    onnx.save(build(), tmp_path / "model.onnx")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    results = {}
    for name, folder in (("checkout", ROOT), ("wheel", tmp_path)):
        (tmp_path / name).mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(installed), *packages]),
            "ORTKIT_CACHE": str(tmp_path / name / "cache"),
        }
        python = [sys.executable, "-S", "-m", "ortkit"]
        said = []
        for arguments in (
            ["optimize", "--no-verify", "--quiet", "-o", str(tmp_path / name / "fast.onnx")],
            ["provider", "compile", "--level", "3", "-o", str(tmp_path / name / "context.onnx")],
        ):
            done = subprocess.run(
                [*python, *arguments, str(tmp_path / "model.onnx")],
                cwd=folder, env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            said.append(done.stdout.replace(str(tmp_path / name), ""))
        files = sorted((tmp_path / name).glob("*.*"))
        results[name] = said, {file.name: file.read_bytes() for file in files}
    assert len(results["wheel"][1]) == 3
    assert results["checkout"] == results["wheel"]
