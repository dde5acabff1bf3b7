"""Saving: what survives the round trip, atomicity, external data, and memory."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortkit.errors import ModelError, UserError
from ortkit.graph.io.atomic import Draft, write_whole
from ortkit.graph.io.open import open_model
from ortkit.graph.io.origin import source_of
from ortkit.graph.io.save import save_model
from ortkit.graph.io.text import from_text, to_text

LARGE = 1 << 18  # elements; larger than what is left in the file


def rich_model() -> onnx.ModelProto:
    """Return a model that uses much of what ONNX can say."""
    branches = [
        helper.make_graph(
            [helper.make_node("Mul", ["x", f"k{i}"], [f"b{i}"], name=f"mul{i}")],
            f"branch{i}",
            [],
            [helper.make_tensor_value_info(f"b{i}", TensorProto.FLOAT, ["batch", 2])],
            [numpy_helper.from_array(np.full(2, i, np.float32), f"k{i}")],
        )
        for i in range(2)
    ]
    nodes = [
        helper.make_node(
            "If", ["c"], ["t"], "pick", then_branch=branches[0], else_branch=branches[1]
        ),
        helper.make_node(
            "Odd", ["t", "", "w"], ["u", "", "v"], "odd", domain="acme", s="text", f=[0.5]
        ),
        helper.make_node("Twice", ["u"], ["y"], "call", domain="mine", doc_string="a call"),
        helper.make_node("Identity", ["words"], ["z"], "id"),
    ]
    nodes[0].metadata_props.add(key="namespace", value="a/b")
    graph = helper.make_graph(
        nodes,
        "rich",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2], "an input"),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("z", TensorProto.STRING, [2]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2]),
        ],
        [
            numpy_helper.from_array(np.arange(6, dtype=np.float32), "w"),
            helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"\xff"]),
            helper.make_tensor("half", TensorProto.FLOAT16, [3], [1.0, 2.0, 3.0]),
            helper.make_tensor("int4", TensorProto.INT4, [3], [1, -2, 3]),
        ],
        "the graph's text",
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, ["batch", 2])],
    )
    graph.metadata_props.add(key="who", value="me")
    graph.initializer[0].doc_string = "weights"
    note = graph.quantization_annotation.add(tensor_name="t")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    note = graph.quantization_annotation.add(tensor_name="w")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="half")
    function = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"], name="sum")],
        [helper.make_opsetid("", 21)],
    )
    imports = [helper.make_opsetid(d, v) for d, v in (("", 21), ("acme", 3), ("mine", 1))]
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=10)
    model.producer_name, model.producer_version = "maker", "1.2"
    model.domain, model.model_version, model.doc_string = "org.me", 7, "the model's text"
    model.metadata_props.add(key="license", value="none")
    return model


def large_model(*, count: int = 2) -> onnx.ModelProto:
    """Return a chain of additions of large tensors and small ones."""
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.standard_normal(LARGE).astype(np.float32), f"w{i}")
        for i in range(count)
    ]
    tensors.insert(1, numpy_helper.from_array(np.float32([3]), "small"))
    names = ["x", *(f"v{i}" for i in range(len(tensors)))]
    nodes = [
        helper.make_node("Add", [names[i], tensor.name], [names[i + 1]], name=f"n{i}")
        for i, tensor in enumerate(tensors)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "large",
        [value("x", TensorProto.FLOAT, [LARGE])],
        [value(names[-1], TensorProto.FLOAT, [LARGE])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def canonical(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` without what may differ: order of annotations, and spelled-out defaults."""
    for graph in graphs_in(model.graph):
        for tensor in tensors_in(graph):
            if tensor.data_location == TensorProto.DEFAULT:
                tensor.ClearField("data_location")
    for entries, key in (
        (model.graph.quantization_annotation, "tensor_name"),
        (model.graph.value_info, "name"),
    ):
        ordered = sorted((type(e).FromString(e.SerializeToString()) for e in entries),
                         key=lambda e: getattr(e, key))  # fmt: skip
        del entries[:]
        entries.extend(ordered)
    return model


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_in(attribute.g)


def tensors_in(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from (a.t for node in graph.node for a in node.attribute if a.HasField("t"))


@pytest.mark.parametrize("make", [rich_model, large_model])
@pytest.mark.parametrize("form", ["path", "bytes", "proto", "ir"])
def test_everything_survives(
    make: Callable[[], onnx.ModelProto], form: str, tmp_path: Path
) -> None:
    proto = make()
    source = tmp_path / "in.onnx"
    source.write_bytes(proto.SerializeToString())
    model = open_model({
        "path": source,
        "bytes": source.read_bytes(),
        "proto": make(),
        "ir": ir.from_proto(make()),
    }[form])  # fmt: skip

    saved = save_model(model, tmp_path / "out.onnx")

    assert saved.model_bytes == saved.model.stat().st_size
    assert saved.data is None
    assert canonical(onnx.load(saved.model)) == canonical(proto)


@pytest.mark.parametrize("suffix", [".onnxtxt", ".json", ".textproto"])
def test_text_formats_are_read_and_written(suffix: str, tmp_path: Path) -> None:
    proto = large_model(count=0) if suffix == ".onnxtxt" else rich_model()
    saved = save_model(open_model(proto), tmp_path / f"m{suffix}")
    again = save_model(open_model(saved.model), tmp_path / "out.onnx")
    loaded = canonical(onnx.load(again.model))
    if suffix == ".onnxtxt":  # which writes numbers
        loaded.graph.initializer[0].CopyFrom(proto.graph.initializer[0])
    assert loaded.graph == canonical(proto).graph


def test_text_is_the_same_for_the_same_model() -> None:
    model = open_model(large_model(count=0))
    other = open_model(large_model(count=0))
    model.opset_imports["acme"] = 3
    other.opset_imports.clear()
    other.opset_imports.update({"acme": 3, "": 21})
    assert to_text(model) == to_text(other)
    assert to_text(from_text(to_text(model))) == to_text(model)


def test_what_text_cannot_hold_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="strings that are not UTF-8"):
        to_text(open_model(rich_model()))
    with pytest.raises(UserError, match="strings that are not UTF-8"):
        save_model(open_model(rich_model()), tmp_path / "m.onnxtxt")


def test_saving_changes_neither_the_model_nor_its_source() -> None:
    proto = rich_model()
    model = open_model(proto)
    model.graph.initializers["w"].name = "renamed"
    before = proto.SerializeToString(deterministic=True)
    tensor = model.graph.initializers["renamed"].const_value
    with pytest.raises(UserError):
        save_model(model, "/proc/none/out.onnx")
    assert proto.SerializeToString(deterministic=True) == before
    assert tensor is model.graph.initializers["renamed"].const_value


def test_large_tensors_stay_in_the_file_until_used(tmp_path: Path) -> None:
    proto = large_model()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    model = open_model(path)
    tensor = model.graph.initializers["w1"].const_value
    assert tensor is not None
    assert isinstance(tensor, ir.LazyTensor)
    np.testing.assert_array_equal(
        tensor.numpy(), numpy_helper.to_array(proto.graph.initializer[2])
    )
    assert ir.to_proto(model).graph.initializer[2].raw_data == proto.graph.initializer[2].raw_data


def test_a_model_can_be_saved_over_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(large_model().SerializeToString())
    model = open_model(path)
    model.graph.initializers["w0"].const_value = ir.tensor(np.ones(LARGE, np.float32))
    save_model(model, path)
    # And once more: the first save took the name away from the file that `w1` lies in.
    save_model(model, path)
    saved = onnx.load(path)
    np.testing.assert_array_equal(numpy_helper.to_array(saved.graph.initializer[0]), 1)
    assert saved.graph.initializer[2] == large_model().graph.initializer[2]


def test_weights_that_changed_under_the_model_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(large_model().SerializeToString())
    model = open_model(path)
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ModelError, match="changed or went away after the model was opened"):
        save_model(model, tmp_path / "out.onnx")
    tensor = model.graph.initializers["w1"].const_value
    assert tensor is not None
    with pytest.raises(ModelError, match="changed or went away"):
        tensor.numpy()
    assert names_in(tmp_path) == ["m.onnx"]


def test_external_data_goes_beside_the_model(tmp_path: Path) -> None:
    saved = save_model(open_model(large_model()), tmp_path / "m.onnx", external_data=True)
    assert saved.data is not None
    digest = hashlib.sha256(saved.data.read_bytes()).hexdigest()
    assert saved.data == tmp_path / f"m.onnx.{digest[:16]}.data"
    assert saved.data.stat().st_size == saved.data_bytes
    assert saved.model_bytes == saved.model.stat().st_size < 2000
    loaded = onnx.load(saved.model)
    assert [t.raw_data for t in loaded.graph.initializer] == [
        t.raw_data for t in large_model().graph.initializer
    ]
    assert onnx.load(saved.model, load_external_data=False).graph.initializer[1].raw_data


def test_temporary_files_are_not_forced_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise AssertionError("a temporary file waits for the disk")

    monkeypatch.setattr(os, "fsync", refuse)
    model = open_model(large_model())
    saved = save_model(model, tmp_path / "m.onnx", external_data=True, is_temporary=True)
    assert saved.data == tmp_path / "m.onnx.data"
    assert [t.raw_data for t in onnx.load(saved.model).graph.initializer] == [
        t.raw_data for t in large_model().graph.initializer
    ]


def test_external_data_stays_external_and_is_mapped(tmp_path: Path) -> None:
    first = save_model(open_model(large_model()), tmp_path / "m.onnx", external_data=True)
    model = open_model(first.model)
    source = source_of(model)
    assert source is not None
    assert source.had_external_data
    tensor = model.graph.initializers["w0"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert not tensor.numpy().flags.writeable
    (tmp_path / "b").mkdir()
    second = save_model(model, tmp_path / "b" / "m.onnx")
    assert second.data is not None
    assert first.data is not None
    assert second.data.name == first.data.name
    assert second.data.read_bytes() == first.data.read_bytes()
    whole = save_model(model, tmp_path / "whole.onnx", external_data=False)
    assert whole.data is None
    assert onnx.load(whole.model) == large_model()


def test_a_clone_of_a_model_with_external_data_keeps_it_external(tmp_path: Path) -> None:
    path = save_model(open_model(large_model()), tmp_path / "m.onnx", external_data=True).model
    assert save_model(open_model(path).clone(), tmp_path / "n.onnx").data is not None
    assert save_model(ir.load(path), tmp_path / "o.onnx").data is not None
    assert onnx.load(tmp_path / "o.onnx") == onnx.load(tmp_path / "n.onnx")


def test_a_model_can_be_saved_over_its_own_external_data(tmp_path: Path) -> None:
    path = save_model(open_model(large_model()), tmp_path / "m.onnx", external_data=True).model
    model = open_model(path)
    model.graph.initializers["w0"].const_value = ir.tensor(np.ones(LARGE // 2, np.float32))
    for _ in range(2):  # the second time `w1` lies in a file that has no name any more
        saved = save_model(model, path)
        loaded = onnx.load(path)
        np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.initializer[0]), 1)
        assert loaded.graph.initializer[2].raw_data == large_model().graph.initializer[2].raw_data
    tensor = model.graph.initializers["w1"].const_value
    assert tensor is not None
    expected = numpy_helper.to_array(large_model().graph.initializer[2])
    np.testing.assert_array_equal(tensor.numpy(), expected)
    assert saved.data is not None
    assert names_in(tmp_path) == ["m.onnx", saved.data.name]


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    model = open_model(large_model())
    model.graph.initializers["w1"].const_value = model.graph.initializers["w0"].const_value
    saved = save_model(model, tmp_path / "m.onnx", external_data=True)
    assert saved.data_bytes == 4 * LARGE
    again = save_model(open_model(saved.model), tmp_path / "n.onnx")
    assert again.data_bytes == 4 * LARGE


def nested_model() -> onnx.ModelProto:
    """Return a model whose large tensors are in a branch and in a node."""
    weights = numpy_helper.from_array(np.arange(LARGE, dtype=np.float32), "w")
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["b"])],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [LARGE])],
        [weights],
    )
    nodes = [
        helper.make_node("Constant", [], ["k"], value=weights),
        helper.make_node("If", ["c"], ["t"], then_branch=branch, else_branch=branch),
        helper.make_node("Mul", ["t", "k"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "nested",
        [value("x", TensorProto.FLOAT, [LARGE]), value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [LARGE])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_external_data_inside_nodes(tmp_path: Path) -> None:
    proto = nested_model()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="d.bin", convert_attribute=True)
    assert path.stat().st_size < 5000
    model = open_model(path)
    (tmp_path / "b").mkdir()
    saved = save_model(model, tmp_path / "b" / "m.onnx")
    assert saved.data is not None
    assert canonical(onnx.load(saved.model)) == nested_model()
    whole = save_model(model, tmp_path / "whole.onnx", external_data=False)
    assert canonical(onnx.load(whole.model)) == nested_model()


def test_large_models_get_external_data_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortkit.graph.io.save.EXTERNAL_ABOVE_BYTES", 4 * LARGE)
    assert save_model(open_model(large_model()), tmp_path / "m.onnx").data is not None
    assert save_model(open_model(large_model(count=0)), tmp_path / "n.onnx").data is None


def test_what_is_too_large_for_one_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortkit.graph.io.save._MOST_BYTES", 4 * LARGE)
    with pytest.raises(UserError, match="with external data"):
        save_model(open_model(large_model()), tmp_path / "m.onnx", external_data=False)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("where", ["write", "rename"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failed_save_leaves_everything_as_it_was(
    where: str, failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_model(open_model(large_model()), tmp_path / "m.onnx", external_data=True).model
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    model = open_model(path)
    model.graph.initializers["w0"].const_value = ir.tensor(np.ones(LARGE, np.float32))
    calls = 0

    def fail_second(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise failure
        return original(*args)

    name = "ortkit.graph.io.layout.write_tensor" if where == "write" else "pathlib.Path.replace"
    if where == "write":
        from ortkit.graph.io import layout

        original: Callable[..., object] = layout.write_tensor
    else:
        original = Path.replace
    monkeypatch.setattr(name, fail_second)
    with pytest.raises((KeyboardInterrupt, UserError)) as caught:
        save_model(model, path)
    monkeypatch.undo()

    if isinstance(caught.value, UserError):
        assert "no space left" in str(caught.value)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """A file size limit stops the writing for real, in the middle."""
    path = tmp_path / "m.onnx"
    path.write_bytes(large_model().SerializeToString())
    code = (
        "import resource, sys\n"
        "from ortkit.errors import UserError\n"
        "from ortkit.graph.io.open import open_model\n"
        "from ortkit.graph.io.save import save_model\n"
        "model = open_model(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: save_model(model, sys.argv[2])\n"
        "except UserError as error: print(error)\n"
    )
    done = run_python(code, str(path), str(tmp_path / "out.onnx"))
    assert "bytes are more than a file may have here" in done
    assert names_in(tmp_path) == ["m.onnx"]


REFUSED_TARGETS = {
    "no such folder": ("none/m.onnx", "there is no folder"),
    "a folder": ("folder", "is a folder"),
    "below a file": ("file/m.onnx", "cannot be written"),
    "not a regular file": ("/dev/null", "is no regular file"),
    "a null byte": ("a\0b", "cannot be written"),
    "a read-only file system": ("/proc/m.onnx", "cannot be written"),
    "a name too long": ("n" * 300, "cannot be written"),
}


@pytest.mark.parametrize("name", REFUSED_TARGETS)
def test_refuses_targets_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    target, expected = REFUSED_TARGETS[name]
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as caught:
        save_model(open_model(rich_model()), tmp_path / target)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == ["file", "folder"]


def test_permissions_follow_the_replaced_file_or_the_umask(tmp_path: Path) -> None:
    old = tmp_path / "old.onnx"
    old.touch(mode=0o640)
    old.chmod(0o640)
    model = open_model(rich_model())
    assert save_model(model, old).model.stat().st_mode & 0o777 == 0o640
    umask = os.umask(0o027)
    try:
        assert save_model(model, tmp_path / "new.onnx").model.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(umask)


def test_a_link_is_replaced_and_its_file_kept(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    link = tmp_path / "m.onnx"
    link.symlink_to("kept")
    save_model(open_model(rich_model()), link)
    assert not link.is_symlink()
    assert (tmp_path / "kept").read_bytes() == b"kept"


MEMORY = """
import sys
import numpy as np, onnx_ir as ir
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model

def dirty():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Private_Dirty"):
            return int(line.split()[1]) << 10

model = open_model(sys.argv[1])
first = model.graph.initializers["w0"]
first.const_value = ir.tensor(first.const_value.numpy() + np.float32(1))
save_model(model, sys.argv[2])
# Not ru_maxrss: a process inherits that from the one that started it.
status = open("/proc/self/status").read()
peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
print(dirty(), int(peak.split()[1]) << 10)
"""


def test_three_gigabytes_do_not_pass_through_memory(tmp_path: Path) -> None:
    count, each = 48, 64 << 20
    proto = large_model(count=0)
    del proto.graph.node[:], proto.graph.initializer[:]
    size = each // 4
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = size
    for i in range(count):
        out = "v0" if i == count - 1 else f"u{i}"
        proto.graph.node.add(
            op_type="Add", input=[f"u{i - 1}" if i else "x", f"w{i}"], output=[out]
        )
        tensor = proto.graph.initializer.add(
            name=f"w{i}", data_type=1, dims=[size], data_location=1
        )
        for key, value in (("location", "d.bin"), ("offset", i * each), ("length", each)):
            tensor.external_data.add(key=key, value=str(value))
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with (tmp_path / "d.bin").open("wb") as file:
        file.truncate(count * each)
        file.seek(5 * each)
        file.write(b"\1" * 4096)

    dirty, peak = map(int, run_python(MEMORY, str(path), str(tmp_path / "out.onnx")).split())

    allowed = (500 << 20) + 13 * each // 10
    assert dirty < allowed
    # The changed tensor was mapped to be read: its clean pages count in the peak.
    assert peak < allowed + each
    (data,) = tmp_path.glob("out.onnx.*.data")
    assert data.stat().st_size == count * each
    assert data.stat().st_blocks * 512 < 2 * each  # holes stay holes
    with data.open("rb") as file:
        assert file.read(4) == np.float32(1).tobytes()
        file.seek(5 * each)
        assert file.read(4097) == b"\1" * 4096 + b"\0"


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "page.html"
    write_whole(target, "grün")
    assert target.read_bytes() == "grün".encode()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(UserError, match=r"page\.html"):
        write_whole(target, "another")
    assert target.read_bytes() == "grün".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


NAMED = "m.opt.onnx.{}.data"


@pytest.mark.parametrize("digits", ["of its content", "0123456789abcdef"])
def test_data_that_another_model_names_stay(tmp_path: Path, digits: str) -> None:
    """Whoever made that model chose the name, or copied a model that was saved here."""
    weights = np.arange(4096, dtype=np.float32)
    if digits == "of its content":
        digits = hashlib.sha256(weights.tobytes()).hexdigest()[:16]
    tensor = numpy_helper.from_array(weights, "w")
    value = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4096])
    graph = helper.make_graph([], "g", [], [value], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    data = tmp_path / NAMED.format(digits)
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location=data.name,
        size_threshold=0,
    )  # fmt: skip
    precious = tmp_path / NAMED.format("00000000deadbeef")
    precious.write_text("precious")
    save_model(open_model(tmp_path / "m.onnx"), tmp_path / "m.opt.onnx", external_data=False)
    assert data.exists()
    assert precious.read_text() == "precious"
    (tmp_path / "m.onnx").unlink()
    save_model(open_model(tmp_path / "m.opt.onnx"), tmp_path / "m.opt.onnx", external_data=False)
    assert data.exists() == (digits == "0123456789abcdef"), "unused, and named by its content"


def test_an_output_that_holds_the_weights_is_refused(tmp_path: Path) -> None:
    weights = np.arange(4096, dtype=np.float32)
    tensor = numpy_helper.from_array(weights, "w")
    value = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4096])
    graph = helper.make_graph([], "g", [], [value], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="m.opt.onnx",
        size_threshold=0,
    )  # fmt: skip
    before = (tmp_path / "m.opt.onnx").read_bytes()
    opened = open_model(tmp_path / "m.onnx")
    with pytest.raises(UserError, match="holds weights of the model"):
        save_model(opened, tmp_path / "m.opt.onnx")
    beside = (Draft.of(tmp_path / "m.opt.onnx", b"library"),)
    with pytest.raises(UserError, match="holds weights of the model"):
        save_model(opened, tmp_path / "other.onnx", beside=beside)
    assert (tmp_path / "m.opt.onnx").read_bytes() == before
    save_model(opened, tmp_path / "m.onnx")
    assert open_model(tmp_path / "m.onnx").graph.initializers["w"].const_value is not None
