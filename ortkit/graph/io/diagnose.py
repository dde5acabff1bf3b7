"""What a file is that should have been a model."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from google.protobuf.message import DecodeError, Message

from ortkit.errors import ModelError
from ortkit.graph.io.framing import Buffer, missing_bytes

_EXPORT = "export the model to ONNX first"
# (position, bytes, what it is, what to do)
_SIGNATURES: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, perhaps a PyTorch or Keras checkpoint", _EXPORT),
    (0, b"GGUF", "a GGUF file", "use the ONNX version of the model"),
    (0, b"\x89PNG", "a PNG picture", "name the model file"),
    (0, b"\xff\xd8\xff", "a JPEG picture", "name the model file"),
    (0, b"%PDF", "a PDF document", "name the model file"),
    (0, b"\x93NUMPY", "a NumPy array", "name the model file"),
    (0, b"\x89HDF\r\n", "an HDF5 file, perhaps of Keras", _EXPORT),
    (0, b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (0, b"BZh", "a bzip2 archive", "unpack it first"),
    (0, b"\xfd7zXZ", "an xz archive", "unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it first"),
    (0, b"7z\xbc\xaf", "a 7-zip archive", "unpack it first"),
    (257, b"ustar", "a tar archive", "unpack it first"),
    (0, b"\x7fELF", "a program or shared library", "name the model file"),
    (0, b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"),
    (4, b"ORTM", "an ORT format model", "use the ONNX model that it was made from"),
    (4, b"TFL3", "a TensorFlow Lite model", "convert it to ONNX first"),
    (8, b'{"', "a safetensors file", _EXPORT),
)
_PICKLES = tuple(bytes((0x80, version)) for version in range(2, 6))
_TEXT_STARTS: tuple[tuple[str, str, str], ...] = (
    ("<!doctype html", "a web page", "download the model file itself"),
    ("<html", "a web page", "download the model file itself"),
    ("<?xml", "an XML document, perhaps of OpenVINO", "use the ONNX version of the model"),
    ("{", "JSON text", "name it .json if it is an ONNX model in JSON"),
    ("<ir_version", "ONNX text", "name it .onnxtxt"),
    ("ir_version:", "protobuf text", "name it .textproto"),
)
_HEAD_BYTES = 512

# How to parse it, what it is, and whether what was parsed makes sense as that.
_MESSAGES: tuple[tuple[Callable[[bytes], Message], str, Callable[[Message], bool]], ...] = (
    (onnx.GraphProto.FromString, "graph", lambda m: m.node and all(n.op_type for n in m.node)),
    (onnx.TensorProto.FromString, "tensor", lambda m: m.data_type != 0),
    (onnx.FunctionProto.FromString, "function", lambda m: m.name and m.node),
    (onnx.NodeProto.FromString, "node", lambda m: m.op_type and (m.input or m.output)),
)


def not_a_model(buffer: Buffer, where: str, reason: str = "") -> ModelError:
    """Say as well as possible what `buffer` is, given that it is no ONNX model.

    Args:
        buffer: The file's bytes.
        where: The file as the user named it.
        reason: What the parser said, for a file that looks like nothing else.
    """
    if len(buffer) == 0:
        return ModelError("the file is empty", where=where, fix="copy or export the model again")
    looks, fix = _looks_like(bytes(buffer[:_HEAD_BYTES]))
    if looks:
        return ModelError(f"no ONNX model; it looks like {looks}", where=where, fix=fix)
    kind = _other_message(buffer)
    if kind:
        return ModelError(
            f"no ONNX model but an ONNX {kind} on its own",
            where=where,
            fix="put it into a model, or name the model's file",
        )
    missing = missing_bytes(buffer)
    if missing and bytes(buffer[:1]) == b"\x08":  # ir_version, with which exporters begin
        return ModelError(
            f"the file is cut off: at least {missing} bytes are missing",
            where=where,
            fix="copy or download it again",
        )
    said = f" ({reason})" if reason else ""
    return ModelError(
        f"no ONNX model, or a damaged one{said}", where=where, fix="copy or export the model again"
    )


def _looks_like(head: bytes) -> tuple[str, str]:
    for position, signature, looks, fix in _SIGNATURES:
        if head[position : position + len(signature)] == signature:
            return looks, fix
    if head.startswith(_PICKLES):
        return "a Python pickle, perhaps a PyTorch checkpoint", _EXPORT
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < _HEAD_BYTES - 4 or len(head) < _HEAD_BYTES:
            return "", ""
        text = head[: error.start].decode()
    if not all(char.isprintable() or char in "\t\r\n\f" for char in text):
        return "", ""
    start = text.lstrip("\ufeff \t\r\n").lower()
    for beginning, looks, fix in _TEXT_STARTS:
        if start.startswith(beginning):
            return looks, fix
    return "text", "name the model file; ONNX text is read from files named .onnxtxt"


def _other_message(buffer: Buffer) -> str:
    """Name the ONNX message other than a model that the bytes are, if they are one."""
    if len(buffer) > 1 << 20:
        return ""
    data = bytes(buffer)
    for parse, what, is_plausible in _MESSAGES:
        try:
            message = parse(data)
        except (DecodeError, UnicodeDecodeError):  # the latter by protobuf written in Python
            continue
        if is_plausible(message) and message.SerializeToString() == data:
            return what
    return ""
