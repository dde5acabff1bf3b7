"""Models as text: for golden tests, and for the files that people write by hand."""

from __future__ import annotations

import re

import google.protobuf.json_format
import google.protobuf.text_format
import onnx
import onnx_ir as ir
from onnx import ModelProto

from ortkit.errors import ModelError, UserError
from ortkit.graph.io.convert import printable, to_ir
from ortkit.graph.io.encode import initializers_of, skeleton, whole_tensor

_FORMATS = {
    ".onnxtxt": "onnxtxt",
    ".onnxtext": "onnxtxt",
    ".txt": "onnxtxt",
    ".txtpb": "textproto",
    ".textproto": "textproto",
    ".prototxt": "textproto",
    ".pbtxt": "textproto",
    ".json": "json",
    ".onnxjson": "json",
}
# The parser of ONNX text recurses without a bound of its own.
_DEEPEST = 100
# Strings and arrows hold brackets that are none.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|=>|[(){}\[\]<>]')
_POSITION = re.compile(r"\(line: (\d+) column: (\d+)\)")


def to_text(model: ir.Model) -> str:
    """Return `model` as ONNX text: opset imports sorted by domain, the rest in its own order.

    Raises:
        UserError: The model holds strings that are not UTF-8.
    """
    proto = skeleton(model)
    for name, tensor in initializers_of(model.graph):
        proto.graph.initializer.append(whole_tensor(tensor, name))
    imports = sorted(proto.opset_import, key=lambda entry: entry.domain)
    del proto.opset_import[:]
    proto.opset_import.extend(imports)
    return _print(proto).rstrip() + "\n"


def from_text(text: str) -> ir.Model:
    """Return the model that ONNX text describes.

    Raises:
        ModelError: It does not describe a model.
    """
    return to_ir(parse_text(text.encode(), ".onnxtxt", "text"), "text")


def is_text_suffix(suffix: str) -> bool:
    """Say whether files with this suffix hold a model as text."""
    return suffix.lower() in _FORMATS


def parse_text(data: bytes, suffix: str, where: str) -> ModelProto:
    """Parse a model written as text; `suffix` says in which format.

    Raises:
        ModelError: It is no text, or no model.
    """
    kind = _FORMATS[suffix.lower()]
    if not data.strip():
        raise ModelError("the file is empty", where=where, fix="copy or export the model again")
    try:
        text = data.decode("utf-8-sig")
        if kind == "onnxtxt":
            _check_depth(text)
            model = onnx.parser.parse_model(text)
        elif kind == "json":
            model = google.protobuf.json_format.Parse(text, ModelProto())
        else:
            model = google.protobuf.text_format.Parse(text, ModelProto())
    except UnicodeDecodeError as error:
        raise ModelError(
            "the file is not text", where=where, fix="name it .onnx if it is a binary model"
        ) from error
    except (
        onnx.parser.ParseError,
        google.protobuf.json_format.ParseError,
        google.protobuf.text_format.ParseError,
        # What the parser of ONNX text, which is C++, raises beside its own: numbers out of range.
        IndexError,
        RuntimeError,
        RecursionError,
        ValueError,
    ) as error:
        raise ModelError(
            f"no model in {_NAMES[kind]}: {_gist(error)}",
            where=where,
            fix="correct the text, or name the file after its format",
        ) from error
    if not model.HasField("graph"):
        raise ModelError("the text holds no graph", where=where, fix="name a model's file")
    return model


_NAMES = {"onnxtxt": "ONNX text", "json": "JSON", "textproto": "protobuf text"}


def format_text(model: ModelProto, suffix: str) -> bytes:
    """Return `model` as text in the format that `suffix` names.

    Raises:
        UserError: The format is ONNX text and the model holds strings that are not UTF-8.
    """
    kind = _FORMATS[suffix.lower()]
    if kind == "onnxtxt":
        return _print(model).encode()
    if kind == "json":
        written = google.protobuf.json_format.MessageToJson(
            model, preserving_proto_field_name=True
        )
    else:
        written = google.protobuf.text_format.MessageToString(model)
    return str(written).encode()


def _print(model: ModelProto) -> str:
    try:
        return str(onnx.printer.to_text(model))
    except UnicodeDecodeError as error:
        raise UserError(
            "the model holds strings that are not UTF-8",
            where="ONNX text",
            fix="use .json, .textproto or .onnx",
        ) from error


def _check_depth(text: str) -> None:
    depth = 0
    for found in _BRACKETS.finditer(text):
        token = found.group()
        depth += 1 if token in "({[<" else -1 if token in ")}]>" else 0
        if depth > _DEEPEST:
            raise ValueError(f"brackets are nested more than {_DEEPEST} deep")


def _gist(error: BaseException) -> str:
    """Return one line of a parser's message, with the position that it names."""
    said = error.args[0] if error.args else ""
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    position = _POSITION.search(lines[0])
    if position is None:
        return printable(lines[0])
    return printable(f"line {position[1]}, column {position[2]}: {lines[-1]}")
