"""Opening: every kind of source, external data, and what onnx-ir cannot hold by itself."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from ortkit.errors import ModelError
from ortkit.graph.check.model import check_model
from ortkit.graph.io.framing import parse_without_large_tensors
from ortkit.graph.io.open import open_model
from ortkit.graph.io.origin import Source, source_of
from ortkit.graph.io.save import save_model

LARGE = 1 << 18


def value(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def add_model(*tensors: TensorProto) -> onnx.ModelProto:
    """Return y = x + the first tensor; the others are unused."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", tensors[0].name], ["y"], "sum")],
        "g",
        [value("x", ["n"])],
        [value("y", ["n"])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def floats(name: str, count: int) -> TensorProto:
    return numpy_helper.from_array(np.arange(count, dtype=np.float32), name)


@pytest.mark.parametrize("source", [None, 3, ["m.onnx"]])
def test_what_is_no_source_is_said(source: object) -> None:
    with pytest.raises(ModelError, match="is no model; give a path, bytes or an ONNX model"):
        open_model(source)  # type: ignore[arg-type]


def test_a_source_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    data = add_model(floats("w", 3)).SerializeToString()
    path.write_bytes(data)
    assert source_of(open_model(str(path))) == Source(path, len(data))
    assert source_of(open_model(data)) == Source(None, len(data))
    assert source_of(open_model(open_model(path))) == Source(path, len(data))
    assert source_of(ir.from_proto(add_model(floats("w", 3)))) is None


@pytest.mark.parametrize("count", [3, LARGE])
def test_a_copy_is_private(count: int) -> None:
    proto = add_model(floats("w", count))
    original = ir.from_proto(proto)
    before = proto.SerializeToString()
    for source in (proto, original):
        model = open_model(source)
        node = model.graph[0]
        node.name = "changed"
        node.outputs[0].name = "z"
        model.graph.initializers["w"].name = "v"
        model.graph.inputs[0].shape = ir.Shape([7])
        model.opset_imports["new"] = 1
        assert ir.to_proto(model).graph.initializer[0].name == "v"
        assert original.graph[0].name == "sum"
        assert list(original.graph.initializers) == ["w"]
        assert original.opset_imports == {"": 21}
        assert proto.SerializeToString() == before


def test_tensors_share_their_data() -> None:
    original = open_model(add_model(floats("w", 3)).SerializeToString())
    original.graph.initializers["w"].const_value = ir.tensor(np.zeros(3, np.float32), name="w")
    tensor = original.graph.initializers["w"].const_value
    model = open_model(original)
    model.graph.initializers["w"].name = "v"
    assert tensor.name == "w"
    assert np.shares_memory(model.graph.initializers["v"].const_value.numpy(), tensor.numpy())


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_not_copied_per_tensor(kind: type) -> None:
    data = add_model(floats("w", LARGE), floats("v", 3)).SerializeToString()
    model = open_model(kind(data))
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.Tensor)
    assert not tensor.numpy().flags.owndata
    np.testing.assert_array_equal(tensor.numpy(), np.arange(LARGE, dtype=np.float32))


DTYPES = [
    np.float16,
    np.int64,
    np.bool_,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.int4,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", ["single file", "bytes", "external"])
def test_large_tensors_of_every_size_of_element(dtype: type, way: str, tmp_path: Path) -> None:
    # Odd, so that 4-bit values do not fill the last byte; large enough to stay in the file.
    values = (np.arange(3_000_001) % 2).astype(dtype)
    path = tmp_path / "m.onnx"
    proto = add_model(floats("x0", 3), numpy_helper.from_array(values, "w"))
    if way == "external":
        onnx.save(proto, path, save_as_external_data=True, location="d.bin")
    else:
        path.write_bytes(proto.SerializeToString())
    model = open_model(path.read_bytes() if way == "bytes" else path)
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), values)
    assert tensor.dtype == ir.DataType.from_numpy(np.dtype(dtype))
    saved = save_model(model, tmp_path / "n.onnx", external_data=way == "single file")
    np.testing.assert_array_equal(
        numpy_helper.to_array(onnx.load(saved.model).graph.initializer[1]), values
    )


def test_what_is_framed_is_what_protobuf_parses() -> None:
    proto = add_model(floats("w", LARGE), floats("v", 3), floats("u", LARGE))
    proto.graph.initializer[0].doc_string = "after the data"
    data = proto.SerializeToString()
    framed = parse_without_large_tensors(data)
    assert framed is not None
    assert sorted(framed.large) == [0, 2]
    for index, (offset, length) in framed.large.items():
        framed.proto.graph.initializer[index].raw_data = data[offset : offset + length]
    assert framed.proto == proto


def test_unusual_frames_are_left_to_protobuf() -> None:
    data = add_model(floats("w", LARGE)).SerializeToString()
    twice = data + add_model(floats("v", LARGE)).SerializeToString()
    assert parse_without_large_tensors(twice) is None  # two graphs, which protobuf merges
    assert parse_without_large_tensors(data[:-1]) is None
    assert parse_without_large_tensors(data[:20]) is None
    assert parse_without_large_tensors(data + b"\x0b\x0c") is None  # a group


def external_model(folder: Path, location: str = "d.bin", **entries: object) -> Path:
    """Save a model whose 16 bytes of weights are at `location`."""
    proto = add_model(floats("w", 4))
    tensor = proto.graph.initializer[0]
    (folder / "d.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(entry))
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def weights(model: ir.Model) -> list[float]:
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    return list(tensor.numpy().tolist())


@pytest.mark.parametrize("entries", [{}, {"offset": 0}, {"length": 16}, {"checksum": "abc"}])
def test_external_data(entries: dict[str, object], tmp_path: Path) -> None:
    path = external_model(tmp_path, **entries)
    assert weights(open_model(path)) == [0, 1, 2, 3]
    assert weights(open_model(path.read_bytes(), folder=tmp_path)) == [0, 1, 2, 3]
    assert weights(open_model(ir.load(path))) == [0, 1, 2, 3]


REFUSED = {
    "missing": ("gone.bin", {}, "'gone.bin' of tensor 'w' is missing"),
    "too short": ("d.bin", {"offset": 4}, "bytes 4 to 20 of 'd.bin', which has 16"),
    "other length": ("d.bin", {"length": 12}, "has 12 bytes, and type and shape ask for 16"),
    "no number": ("d.bin", {"offset": "0x4"}, "offset '0x4' of its external data"),
    "negative": ("d.bin", {"offset": -4}, "offset '-4' of its external data"),
    "no location": ("", {}, "has no location"),
    "absolute": ("/etc/passwd", {}, "'/etc/passwd' of tensor 'w' is absolute"),
    "of another system": ("C:\\d.bin", {}, "is absolute"),
    "upwards": ("../d.bin", {}, "leads out of the model's folder"),
    "up and down": ("x/../../m/d.bin", {}, "leads out of the model's folder"),
    "backslashes": ("..\\d.bin", {}, "leads out of the model's folder"),
    "a folder": (".", {}, "leads out of the model's folder"),
    "through a link": ("link.bin", {}, "leads out of the model's folder"),
    "through a linked folder": ("linked/d.bin", {}, "leads out of the model's folder"),
    "a pipe": ("pipe", {}, "not a regular file"),
    "a null byte": ("a\0b", {}, "is no file name"),
    "a name too long": ("n" * 300, {}, "cannot be read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_bad_external_data(name: str, tmp_path: Path) -> None:
    import os

    location, entries, expected = REFUSED[name]
    folder, other = tmp_path / "m", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "d.bin").write_bytes(b"\0" * 16)
    (folder / "link.bin").symlink_to(other / "d.bin")
    (folder / "linked").symlink_to(other)
    os.mkfifo(folder / "pipe")
    path = external_model(folder, location, **entries)
    for source in (path, path.read_bytes()):
        with pytest.raises(ModelError) as caught:
            open_model(source, folder=folder)
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_download_cache_of_links_is_one_folder(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    external_model(blobs)
    (snapshot / "m.onnx").symlink_to("../../blobs/m.onnx")
    (snapshot / "d.bin").symlink_to("../../blobs/d.bin")
    assert weights(open_model(snapshot / "m.onnx")) == [0, 1, 2, 3]


def test_replaced_external_data_is_an_error_not_other_numbers(tmp_path: Path) -> None:
    path = external_model(tmp_path)
    model, used = open_model(path), open_model(path)
    assert weights(used) == [0, 1, 2, 3]
    (tmp_path / "d.bin").unlink()
    (tmp_path / "d.bin").write_bytes(b"\0" * 16)
    with pytest.raises(ModelError, match="changed or went away after the model was opened"):
        weights(model)
    assert weights(used) == [0, 1, 2, 3]
    save_model(used, tmp_path / "n.onnx", external_data=False)
    assert weights(open_model(tmp_path / "n.onnx")) == [0, 1, 2, 3]


def sparse(dims: list[int], indices: list[int] | list[list[int]]) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        helper.make_tensor("w", TensorProto.FLOAT, [2], [5.0, 6.0]),
        numpy_helper.from_array(np.array(indices, np.int64), "w_indices"),
        dims,
    )


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
@pytest.mark.parametrize("place", ["initializer", "constant"])
def test_sparse_constants_become_dense(indices: list[int], place: str, tmp_path: Path) -> None:
    proto = add_model(floats("w", 3))
    proto.graph.ClearField("initializer")
    if place == "initializer":
        proto.graph.sparse_initializer.append(sparse([2, 3], indices))
    else:
        node = helper.make_node("Constant", [], ["w"], sparse_value=sparse([2, 3], indices))
        proto.graph.node.insert(0, node)
    before = proto.SerializeToString()
    saved = onnx.load(save_model(open_model(proto), tmp_path / "m.onnx").model)
    tensor = (
        saved.graph.initializer[0]
        if place == "initializer"
        else saved.graph.node[0].attribute[0].t
    )
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), [[0, 5, 0], [0, 0, 6]])
    assert proto.SerializeToString() == before


@pytest.mark.parametrize(
    ("dims", "indices"),
    [([2, 3], [1, 6]), ([2, 3], [-1, 2]), ([2, 3], [1]), ([1 << 40], [0, 1]), ([0], [0, 1])],
)
def test_refuses_bad_sparse_tensors(dims: list[int], indices: list[int]) -> None:
    proto = add_model(floats("w", 3))
    proto.graph.ClearField("initializer")
    proto.graph.sparse_initializer.append(sparse(dims, indices))
    with pytest.raises(ModelError, match="sparse tensor 'w'"):
        open_model(proto)


def test_types_that_onnx_ir_lacks_are_carried(tmp_path: Path) -> None:
    proto = add_model(floats("w", 3))
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    proto.graph.node.add(op_type="ZipMap", domain="ai.onnx.ml", input=["y"], output=["z"])
    info = proto.graph.output.add(name="z")
    map_type = info.type.sequence_type.elem_type.map_type
    map_type.key_type = TensorProto.INT64
    map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    before = proto.SerializeToString()
    model = open_model(open_model(proto))
    check_model(model)
    saved = onnx.load(save_model(model, tmp_path / "m.onnx").model)
    assert saved.graph.output == proto.graph.output
    assert proto.SerializeToString() == before


def test_what_is_dropped_is_recorded() -> None:
    proto = add_model(floats("w", 3))
    proto.training_info.add().algorithm.name = "sgd"
    source = source_of(open_model(proto))
    assert source is not None
    assert source.dropped == ("training_info",)


def test_the_default_domain_has_one_spelling() -> None:
    proto = add_model(floats("w", 3))
    proto.opset_import[0].domain = "ai.onnx"
    proto.graph.node[0].domain = "ai.onnx"
    model = open_model(proto)
    assert model.opset_imports == {"": 21}
    assert model.graph[0].domain == ""


def test_opening_needs_neither_runtime_nor_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, ortkit.graph.io.open, ortkit.graph.io.save\n"
        "print(*{'onnxruntime', 'torch', 'tvm', 'onnxscript', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


_FUNCTIONS_NAMED_LIKE_OPERATORS = [
    ("", "Relu", 21, TensorProto.FLOAT, False),
    ("ai.onnx", "Relu", 21, TensorProto.FLOAT, False),
    # Without a kernel for the type, ONNX Runtime does not fall back on the function.
    ("", "Relu", 21, TensorProto.INT16, False),
    # ONNX's own body of the operator is run.
    ("", "Swish", 24, TensorProto.FLOAT, False),
    ("", "Gelu", 17, TensorProto.FLOAT, True),
    ("com.microsoft", "Gelu", 21, TensorProto.FLOAT, False),
    ("com.microsoft", "QuickGelu", 21, TensorProto.DOUBLE, False),
    ("com.microsoft", "Mine", 21, TensorProto.FLOAT, True),
    ("ai.onnx.ml", "Binarizer", 21, TensorProto.FLOAT, False),
]


@pytest.mark.parametrize(
    ("domain", "op", "opset", "dtype", "remains"), _FUNCTIONS_NAMED_LIKE_OPERATORS
)
def test_a_function_with_the_name_of_an_operator(
    domain: str, op: str, opset: int, dtype: int, remains: bool
) -> None:
    """It stays only where ONNX Runtime has no such operator, as it runs no other function."""
    model = _negating(domain, op, opset, dtype)
    sources = (model, model.SerializeToString(), ir.serde.deserialize_model(model))
    assert [len(open_model(source).functions) for source in sources] == [remains] * 3
    x = np.array([3], helper.tensor_dtype_to_np_dtype(dtype))
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
    # ONNX Runtime runs no function in the default domain, also where the opset has no operator.
    except (runtime.InvalidGraph, runtime.NotImplemented):
        assert dtype == TensorProto.INT16 or not domain
    else:
        (got,) = session.run(None, {"x": x})
        assert (got[0] == -3) == remains


def test_a_function_that_only_functions_import_the_domain_of() -> None:
    model = _negating("com.microsoft", "Gelu", 21, TensorProto.FLOAT)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    call = helper.make_node("Gelu", ["a"], ["b"], domain="com.microsoft")
    model.functions.append(helper.make_function("mine", "F", ["a"], ["b"], [call], imports))
    model.graph.node[0].op_type, model.graph.node[0].domain = "F", "mine"
    model.opset_import[1].domain = "mine"
    assert [key[1] for key in open_model(model).functions] == ["F"]


def _negating(domain: str, op: str, opset: int, dtype: int) -> onnx.ModelProto:
    """Return a call of a function `op` that computes -x."""
    default = helper.make_opsetid("", opset)
    node = helper.make_node(op, ["x"], ["y"], domain=domain)
    x, y = (helper.make_tensor_value_info(name, dtype, ["n"]) for name in "xy")
    body = [helper.make_node("Neg", ["a"], ["b"])]
    imports = [default]
    if domain not in ("", "ai.onnx"):
        imports.append(helper.make_opsetid(domain, 3 if domain == "ai.onnx.ml" else 1))
    return helper.make_model(
        helper.make_graph([node], "g", [x], [y]),
        functions=[helper.make_function(domain, op, ["a"], ["b"], body, [default])],
        opset_imports=imports,
        ir_version=10,
    )
