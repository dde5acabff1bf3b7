"""One thing has one name, the one of the field: phrases that were replaced do not come back.

Only phrases without a plain use stand here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ("ortkit", "custom_ops", "docs", "scripts", "README.md", "CONTRIBUTING.md")
SUFFIXES = {".py", ".md", ".h", ".cc", ".sh"}

#: Retired phrase -> standard term.
RETIRED = {
    r"matri(?:x|ces) (?:is |are |stored )?turned": "transposed weight",
    r"turn_before|lies_turned|turned_weights\(": "transpose",
    r"is_flipped|IS_FLIPPED|IS_TURNED": "transposed operand",
    r"halves (?:that |both )?meet|halved_products\(|predict_halved": "gate-up projection",
    r"line_behind|(?:\bline of|\bthe line) (?:pointwise )?nodes behind": "epilogue chain",
    r"with_tails|MOST_TAIL|norm_before": "epilogue, prologue",
    r"written behind (?:this text|both) for each region": "appended",
    r"joined_candidates|predict_joined|JoinedProduct|join_kernel\b": "split-K",
    r"FewProduct8|FewTile|_LEAST_OF_MANY|\bFEW_ROWS": "small M, batched",
    r"EightLowering|eight_ns|eight-bit floats": "fp8",
    r"\b(?:in|of|only) fewer bits\b(?! than)": "lower precision",
    r"def spread_kernel|planes spread before": "space-to-depth",
    r"channels innermost": "NHWC",
    r"hand-shaped": "hand-written",
    r"OrtkitRoom": "OrtkitStorage",
    r"\bis_there\b": "is_present",
    r"laid out anew|lays out anew": "prepacked",
    r"\b(?:measured|run|runs|ran|timed) in turns\b|\bby turns\b": "interleaved",
    r"left as it was:": "unchanged",
    r"find the guilty": "breaking rewrite",
    r"\banew\b": "again",
    r"\b[Bb]esides\b": "in addition to",
    r"\b[Ss]o many\b": "this many",
}
PATTERNS = {re.compile(old): term for old, term in RETIRED.items()}
#: What begins a line of a comment.
MARKS = ("#: ", "# ", "// ")


def _files() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each source and page."""
    for place in PLACES:
        path = ROOT / place
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and (file.suffix in SUFFIXES or file.parent == ROOT / "scripts"):
                yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")


def _retired(text: str) -> list[str]:
    """Return a line for each retired phrase; line breaks count as spaces."""
    plain = " ".join(map(_unmarked, text.splitlines()))
    return [f"{m[0]}: {new}" for old, new in PATTERNS.items() for m in old.finditer(plain)]


def _unmarked(line: str) -> str:
    line = line.strip()
    return next((line.removeprefix(mark) for mark in MARKS if line.startswith(mark)), line)


def test_retired_phrases_stay_away() -> None:
    found = {name: phrases for name, text in _files() if (phrases := _retired(text))}
    assert found == {}


def test_a_phrase_is_seen_across_lines() -> None:
    assert "laid out anew: prepacked" in _retired("# Weights are laid out\n# anew.")
    assert _retired("Models are measured in\nturns.") == ["measured in turns: interleaved"]
    assert _retired("Each kernel in its turn.") == []
