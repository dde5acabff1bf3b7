"""Cases judged one after the other, in a process of their own; see `pool.py`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ortkit.provider.conformance.cases import load_case
from ortkit.provider.conformance.judge import judge
from ortkit.provider.conformance.subject import Subject
from ortkit.provider.conformance.verdict import Verdict


@dataclass(frozen=True)
class ConformanceJob:
    """What is tested, and the folder of the cases."""

    subject: Subject
    cases: Path


class CaseJudge:
    """Judges cases of one provider."""

    def __init__(self, job: ConformanceJob) -> None:
        """Register nothing yet."""
        # Read when onnxruntime is imported: many cases are of the opset that comes next.
        os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
        self._job = job
        self._provider = ""

    def register(self) -> str:
        """Make the provider known; returns its name."""
        self._provider = self._job.subject.register()
        return self._provider

    def judge(self, case: str) -> Verdict:
        """Judge a case by its name."""
        found = load_case(self._job.cases, case)
        return judge(found, self._provider, self._job.subject.options)
