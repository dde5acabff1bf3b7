"""The process that runs sessions, which notes the most memory that it held at the end."""

from __future__ import annotations

import os
from pathlib import Path

from ortkit.verify import child

#: The environment variable with the file that peaks are added to, one line for each process.
PEAKS = "TEST_PEAKS"


def main(job: str) -> None:
    """Run a job as `child.main` does."""
    try:
        child.main(job)
    finally:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        with Path(os.environ[PEAKS]).open("a", encoding="ascii") as file:
            file.write(f"{peak}\n")
