"""Which of racecheck's reports are about the code that Triton puts around warps with roles.

Where warps have roles of their own (`warp_specialize`), the first ones write the others' roles
into shared memory, four or eight bytes at a time, and each other warp reads its byte behind a
barrier at which all meet, each in its own place of the program. racecheck takes only warps that
wait in the same place for ones that meet (compute-sanitizer 2025.3), so it reports each such pair.
What else it reports stays an error, in these kernels too.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ortkit.kernels.cuda import CudaKernel

_ACCESS = re.compile(r"(Read|Write) access at (\w+)\+(0x[0-9a-f]+)")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_HAND_OVER = {"Read": ("LDS.U8",), "Write": ("STS", "STS.64")}

#: Of each function's name the programs (variants share it): what each address does.
Programs = Mapping[str, Sequence[Mapping[int, str]]]


def hand_overs(said: str, programs: Programs) -> list[str]:
    """Return the reports in racecheck's output that are about roles handed over.

    Args:
        said: What racecheck printed; each report begins with "Race reported".
        programs: The kernels it ran.
    """
    _, *reports = re.split(r"(?=Race reported between)", said)
    return [report.strip() for report in reports if _is_hand_over(report, programs)]


def _is_hand_over(report: str, programs: Programs) -> bool:
    found = _ACCESS.findall(report)
    entries = {entry for _, entry, _ in found}
    return len(entries) == 1 and any(
        all(program.get(int(address, 16)) in _HAND_OVER[access] for access, _, address in found)
        for program in programs.get(entries.pop(), ())
    )


def programs_of(
    kernels: Sequence[CudaKernel], architecture: int
) -> dict[str, list[dict[int, str]]]:
    """Disassemble what a GPU runs of some kernels, with the nvdisasm that Triton brings.

    Raises:
        RuntimeError: It fails.
    """
    found: dict[str, list[dict[int, str]]] = {}
    for kernel in kernels:
        for image in kernel.images:
            if image.architecture == architecture and not image.is_ptx:
                step = kernel.variants[image.variant].steps[image.step]
                found.setdefault(step.entry, []).append(_instructions(image.path))
    return found


def _instructions(cubin: Path) -> dict[int, str]:
    import triton

    tool = triton.knobs.nvidia.nvdisasm.path
    done = subprocess.run([tool, str(cubin)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvdisasm failed on {cubin}: {done.stderr.strip()}")
    return instructions_in(done.stdout)


def instructions_in(listing: str) -> dict[int, str]:
    """Return what each address does, from a listing of nvdisasm's."""
    return {int(place, 16): name for place, name in _INSTRUCTION.findall(listing)}
