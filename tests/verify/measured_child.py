"""The process that runs sessions, which notes the most memory that it held at the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ortkit.verify import child
from ortkit.verify.child import Outcome, SettingsJob

#: The environment variable with the file that peaks are added to, one line for each process.
PEAKS = "TEST_PEAKS"


def run_settings(job: SettingsJob, tell: Callable[[Outcome], None]) -> None:
    """Run a job as `child.run_settings` does."""
    try:
        child.run_settings(job, tell)
    finally:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        with Path(os.environ[PEAKS]).open("a", encoding="ascii") as file:
            file.write(f"{peak}\n")
