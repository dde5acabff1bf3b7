"""A process that judges cases one after the other, named on stdin; a line of JSON for each."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from ortkit.errors import OrtkitError
from ortkit.provider.conformance.cases import load_case
from ortkit.provider.conformance.judge import judge
from ortkit.provider.conformance.subject import Subject


def main(text: str) -> None:
    """Serve until stdin ends.

    Args:
        text: The subject as JSON: text, library, options; and the folder of the cases.
    """
    # What anything prints must not stand between the lines that are read.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Read when onnxruntime is imported: many cases are of the opset that comes next.
    os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    told = json.loads(text)
    folder = Path(told["cases"])
    library = Path(told["library"]) if told["library"] else None
    subject = Subject(told["text"], library, told["options"])
    try:
        name = subject.register()
    except OrtkitError as error:
        answers.write(json.dumps({"refused": str(error)}) + "\n")
        answers.flush()
        return
    answers.write(json.dumps({"provider": name}) + "\n")
    answers.flush()
    for line in sys.stdin:
        verdict = judge(load_case(folder, line.strip()), name, subject.options)
        answers.write(json.dumps(asdict(verdict)) + "\n")
        answers.flush()
