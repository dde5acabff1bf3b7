"""Which of racecheck's reports are about the code that Triton puts around warps with roles.

Where warps have roles of their own (`warp_specialize`), the first ones write the others' roles,
and the values that these are given, into shared memory and then meet all others at a barrier,
twice: after the first one each other warp reads its role, a byte, and the values; the second one
says that it has. Warps reach these barriers in different places of the program, and racecheck
takes only warps that wait in the same place for ones that meet (compute-sanitizer 2025.3), so it
reports each such pair. What else it reports stays an error, in these kernels too.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ortkit.kernels.cuda import CudaKernel

_ACCESS = re.compile(r"(Read|Write) access at (\w+)\+(0x[0-9a-f]+)")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*[^;/]*)")
#: Where all warps of a block meet: barriers of some of them have a number of threads behind.
_MEETING = re.compile(r"BAR\.SYNC\S* 0x1")

#: Of each function's name the programs (variants share it): what each address does, in order.
Programs = Mapping[str, Sequence[Mapping[int, str]]]


def hand_overs(said: str, programs: Programs) -> list[str]:
    """Return the reports in racecheck's output that are about roles handed over.

    Args:
        said: What racecheck printed; each report begins with "Race reported".
        programs: The kernels it ran.
    """
    return [report for report in _reports(said) if _is_hand_over(report, programs)]


def of_libraries(said: str, own: Collection[str]) -> list[str]:
    """Return the reports in racecheck's output that are about kernels of libraries alone.

    A region's step may be a product by cuBLAS, whose kernels order their accesses by barriers in
    shared memory that racecheck does not follow. A report that names a kernel of ours is none.

    Args:
        said: What racecheck printed.
        own: The names of the regions' kernels.
    """
    return [
        report
        for report in _reports(said)
        if (entries := {entry for _, entry, _ in _ACCESS.findall(report)})
        and entries.isdisjoint(own)
    ]


def _reports(said: str) -> list[str]:
    _, *reports = re.split(r"(?=Race reported between)", said)
    return [report.strip() for report in reports]


def _is_hand_over(report: str, programs: Programs) -> bool:
    found = _ACCESS.findall(report)
    entries = {entry for _, entry, _ in found}
    return len(entries) == 1 and any(
        all(_hands_over(kind, int(address, 16), program) for kind, _, address in found)
        for program in programs.get(entries.pop(), ())
    )


def _hands_over(kind: str, address: int, program: Mapping[int, str]) -> bool:
    """Say whether an access is one of those around a role."""
    instruction = program.get(address, "")
    barriers = [
        text for place, text in program.items() if place > address and text.startswith("BAR.")
    ]
    if kind == "Write":
        return instruction.startswith("STS") and _all_meet(barriers[:2], 2)
    if instruction.startswith("LDS.U8"):
        return True
    return instruction.startswith("LDS") and _all_meet(barriers[:1], 1)


def _all_meet(barriers: Sequence[str], count: int) -> bool:
    """Say whether this many barriers are there, and are such that all warps of a block reach."""
    meeting = [text for text in barriers if _MEETING.fullmatch(text)]
    return len(meeting) == len(barriers) == count


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
    return {int(place, 16): text.strip() for place, text in _INSTRUCTION.findall(listing)}
