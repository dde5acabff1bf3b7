"""Write docs/reference/schemas from the tables of docs/reference/cli.md.

usage: python scripts/json_schemas.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "cli.md"
FOLDER = ROOT / "docs" / "reference" / "schemas"
_ROW = re.compile(r"^\| `([^`]+)` \| ([^|]*) \| (.*) \|$", re.MULTILINE)
#: A word of the column "type" -> its type in a schema.
_TYPES = {
    "number": "number", "text": "string", "true": "boolean", "false": "boolean", "bool": "boolean",
    "object": "object", "map": "object", "list": "array", "null": "null", "`infinite`": "string",
}  # fmt: skip
Schema = dict[str, Any]


def schemas() -> dict[str, Schema]:
    """Return the schema of each document, by the name of its file."""
    text = PAGE.read_text("utf-8").partition("\n## JSON\n")[2]
    found = {}
    for part in text.split("\n### ")[1:]:
        head, _, body = part.partition("\n")
        if rows := _ROW.findall(body.partition("\n## ")[0]):
            name = head.strip().replace(" ", "-")
            found[f"{name}.json"] = schema(head.strip(), rows)
    return found


def schema(title: str, rows: list[tuple[str, str, str]]) -> Schema:
    """Return the schema of a document.

    Args:
        title: The command.
        rows: Path, type and meaning of each key.
    """
    top: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"ortkit {title} --json",
        "type": "object",
    }
    for path, kind, meaning in rows:
        place = top
        for word in re.findall(r"[^.\[\]{}]+|\[\]|\{\}", path):
            place = below(place, word)
        # A map of maps, whose values the meaning describes.
        place |= {} if path.endswith("{}") and kind.strip() == "map" else types(kind)
        if meaning.strip():
            place["description"] = meaning.strip().replace("\\|", "|")
    return top


def below(place: Schema, word: str) -> Schema:
    """Return what stands below a key: a list's item, a map's value, or a property."""
    if word == "[]":
        place.setdefault("type", "array")
        item: Schema = place.setdefault("items", {})
        return item
    place.setdefault("type", "object")
    if word == "{}":
        value: Schema = place.setdefault("additionalProperties", {})
        return value
    inner: Schema = place.setdefault("properties", {}).setdefault(word, {})
    return inner


def types(kind: str) -> Schema:
    """Return the type that a cell names: `list of numbers`, `text or null`."""
    outer, _, inner = kind.strip().partition(" of ")
    words = [_TYPES[word] for word in re.split(r", | or |/| ", outer) if word]
    found = list(dict.fromkeys(words))
    if not found:
        return {}
    result: Schema = {"type": found[0] if len(found) == 1 else found}
    if inner:
        result["items"] = types(inner.removesuffix("s"))
    return result


def main() -> None:
    """Write one file for each document."""
    FOLDER.mkdir(exist_ok=True)
    for name, content in schemas().items():
        (FOLDER / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
