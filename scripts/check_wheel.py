"""Check a wheel before it gets its platform tag: `check_wheel.py AUDIT.json WHEEL PLATFORM`.

The audit is what `auditwheel show --json` prints. Exits 1 with a reason.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

#: By distribution: what kernels are linked with, and what is loaded at run time.
NEEDED = {
    "ortkit": (
        "libortkit_shim.a", "libortkit_runtime.so", "libortkit_provider.so", "manifest.h",
        "names.h", "kernel.h", "bridge.h", "program.h", "slices.h",
    ),
    "onnxruntime_ep_ortkit": ("libortkit_provider.so",),
}  # fmt: skip
#: `e_machine` of an ELF file.
MACHINES = {"x86_64": 62, "aarch64": 183}


def main(audit: Path, wheel: Path, platform: str) -> None:
    """Check policy, contents and processor of a wheel."""
    found = json.loads(audit.read_text("utf-8"))
    problem = problem_of(found, platform) or problem_inside(wheel, platform)
    if problem:
        sys.exit(f"{wheel.name}: {problem}")
    print(f"  {wheel.name}: fits {platform}, needs {found['overall_tag']}")


def problem_of(audit: dict[str, object], platform: str) -> str:
    """Return why a wheel is not what a platform promises; empty if it is."""
    name = str(audit["overall_tag"])
    if audit["external_libs"]:
        return f"it needs libraries that are not in it: {audit['external_libs']}"
    needed, allowed = glibc(name), glibc(platform)
    if needed is None:
        return f"it fits no manylinux policy: {name}"
    if allowed is None or needed > allowed or name.split("_", 3)[3:] != platform.split("_", 3)[3:]:
        return f"it needs {name}, more than {platform}"
    return ""


def glibc(platform: str) -> tuple[int, int] | None:
    """Return the glibc that a manylinux tag names."""
    found = re.match(r"manylinux_(\d+)_(\d+)_", platform)
    return (int(found[1]), int(found[2])) if found else None


def problem_inside(wheel: Path, platform: str) -> str:
    """Return what is missing in a wheel, or for another processor; empty if nothing is."""
    machine = next(number for name, number in MACHINES.items() if platform.endswith(name))
    contents = NEEDED[wheel.name.partition("-")[0]]
    with zipfile.ZipFile(wheel) as archive:
        names = {name.rpartition("/")[2]: name for name in archive.namelist()}
        for needed in contents:
            if needed not in names:
                return f"{needed} is missing"
        for name in (each for each in contents if each.endswith(".so")):
            head = archive.read(names[name])[:20]
            if int.from_bytes(head[18:20], "little") != machine:
                return f"{name} is for another processor"
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
