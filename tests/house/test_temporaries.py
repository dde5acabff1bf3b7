"""All temporary files and folders are of one kind, which a later run can remove."""

from __future__ import annotations

import re
from pathlib import Path

import ortkit

SOURCE = Path(ortkit.__file__).parent


def test_temporaries_come_from_one_module() -> None:
    """`TemporaryFile` of `tempfile` has no name and ends with its process."""
    named = re.compile(r"\b(mkdtemp|mkstemp|mktemp|TemporaryDirectory|NamedTemporaryFile)\b")
    found = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if named.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
