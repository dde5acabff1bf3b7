"""A checkout beside an installed wheel: `ortkit.custom_ops` comes from the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
