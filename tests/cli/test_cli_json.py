"""Every command's JSON: one document, its schema, and the keys of docs/reference/cli.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortkit.cli.catalog import COMMANDS, RENAMED
from scripts.json_schemas import FOLDER, Schema, schema, schemas

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
CALLS = {
    "optimize": ("bert.onnx", "--kernels", "off", "-o", "out.onnx"),
    "inspect": ("bert.onnx", "--shape", "batch=2"),
    "diff": ("small.onnx", "bert.onnx"),
    "verify": ("small.onnx", "small.onnx"),
    "bisect": ("small.onnx", "--kernels", "off"),
    "try": ("small.onnx", "--seconds", "2", "--level", "1", "--accept-unverified"),
    "memory": ("small.onnx",),
    "run": ("small.onnx", "--shape", "n=2"),
    "compare": ("small.onnx", "small.onnx", "--batch", "2", "--rounds", "1", "--processes", "1"),
    "profile": ("small.onnx", "--runs", "3"),
    "reduce": ("small.onnx", "--check", "true", "-o", "out.onnx"),
    "compile-provider": ("bert.onnx", "--level", "3", "-o", "out.onnx"),
    "provider": ("test", "CPUExecutionProvider", "--only", "test_add", "--jobs", "1"),
    "bundle": ("triton", "small.onnx", "--repository", "models"),
    "passes": ("list",),
    "cache": ("list",),
    "trust": ("trusted.so",),
    "calibrate": (),
    "tune": ("bert.onnx", "--trials", "1"),
    "ops": ("list",),
    "doctor": (),
}
#: Of the schemas that are not the first.
VERSIONS = {"optimize": 2, "verify": 2, "try": 2}


def documented(command: str) -> set[str]:
    text = PAGE.read_text(encoding="utf-8").partition("\n## JSON\n")[2]
    called = " ".join(RENAMED.get(command, (command,)))
    section = text.partition(f"\n### {called}\n")[2].partition("\n### ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def paths(content: object, known: set[str], at: str = "") -> Iterator[str]:
    """Yield the paths of all leaves; what is documented as a map or as a whole ends a path."""
    if f"{at}{{}}" in known:
        yield f"{at}{{}}"
    elif isinstance(content, dict) and content:
        for key, value in content.items():
            yield from paths(value, known, f"{at}.{key}" if at else key)
    elif at in known:
        yield at
    elif isinstance(content, list) and f"{at}[]" not in known:
        for value in content:
            yield from paths(value, known, f"{at}[]")
    else:
        yield f"{at}[]" if isinstance(content, list) else at


def test_every_command_that_prints_json_is_called_here() -> None:
    assert set(CALLS) == {*COMMANDS, *RENAMED} - {"completion"}


@pytest.mark.parametrize("command", CALLS)
def test_json_is_one_documented_document(
    command: str, call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if command != "provider":  # to make onnx's cases takes seconds
        monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("ortkit.measure.calibrate.MOST_NOISE", 9.0)  # other tests run beside it
    monkeypatch.setattr("ortkit.measure.calibrate._SECONDS", 0.02)
    monkeypatch.setattr("ortkit.measure.calibrate._COPY_SECONDS", 0.01)
    monkeypatch.setattr("ortkit.measure.calibrate._HEAVY_SECONDS", 0.05)
    small = {"pointwise_conv": ((32, 32, 1, 1), 1)}
    monkeypatch.setattr("ortkit.measure.rates._FILTERS", small)
    monkeypatch.setattr("ortkit.measure.calibrate._MOST_OTHERS", 999.0)
    given = [folder / text if (folder / text).exists() else text for text in CALLS[command]]
    done = call(command, *given, "--json")
    assert done.code == 0, done.err
    # In two seconds on a busy machine no time is left for verification, which it says.
    is_renamed = command in RENAMED and f"{command} is called" in done.err
    assert done.err == "" or is_renamed or (command == "try" and "no time is left" in done.err)
    content = json.loads(done.out)
    assert content["schema"] == f"ortkit.{command}/{VERSIONS.get(command, 1)}"
    known = documented(command)
    found = set(paths(content, known))
    assert found - known == set(), "docs/reference/cli.md does not name these"
    top = {re.split(r"[.\[{]", path)[0] for path in known}
    assert top == set(content), "docs/reference/cli.md names other keys"
    called = "-".join(RENAMED.get(command, (command,)))
    assert list(misfits(content, schemas()[f"{called}.json"])) == []


def test_the_schemas_are_those_of_the_page() -> None:
    made = {name: json.dumps(each, indent=2) + "\n" for name, each in schemas().items()}
    kept = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir()}
    assert made == kept, "run python scripts/json_schemas.py"


PYTHON_TYPES = {
    "object": dict, "array": list, "string": str, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def misfits(content: object, schema: Schema, at: str = "document") -> Iterator[str]:
    """Yield what does not fit a schema; of JSON Schema only what `schemas` writes."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(is_of(content, kind) for kind in kinds):
        yield f"{at} is {content!r}, not {kinds}"
    elif isinstance(content, list):
        for each in content:
            yield from misfits(each, schema.get("items", {}), f"{at}[]")
    elif isinstance(content, dict):
        properties = schema.get("properties", {})
        for key, value in content.items():
            inner = properties.get(key, schema.get("additionalProperties", {}))
            yield from misfits(value, inner, f"{at}.{key}")


def is_of(content: object, kind: str) -> bool:
    return isinstance(content, PYTHON_TYPES[kind]) and (
        kind == "boolean" or not isinstance(content, bool)
    )


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"a": 1}, []),
        ({"a": "x"}, ["document.a is 'x', not ['number', 'null']"]),
        ({"b": [{"c": True}]}, ["document.b[].c is True, not ['string']"]),
        ({"m": {"any": None}}, ["document.m.any is None, not ['boolean']"]),
    ],
)
def test_what_does_not_fit_is_found(content: object, found: list[str]) -> None:
    rows = [("a", "number or null", ""), ("b[].c", "text", ""), ("m{}", "true or false", "")]
    assert list(misfits(content, schema("x", rows))) == found


def test_the_paths_of_a_document_are_found() -> None:
    content = {"a": {"x": 1}, "b": [{"c": 1}], "m": {"any": 1}, "t": ["x"], "e": []}
    known = {"a.x", "b[].c", "m{}", "t[]", "e[].f"}
    assert set(paths(content, known)) == {"a.x", "b[].c", "m{}", "t[]"}
