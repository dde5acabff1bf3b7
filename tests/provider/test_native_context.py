"""Models compiled ahead of time: EPContext nodes written, and run by the library alone."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortkit.cli.main import run
from ortkit.kernels.link.manifest import MANIFEST_VERSION
from ortkit.provider import native
from ortkit.targets.cpu import machine, native_level
from tests.provider.native_library import LibraryProvider, build
from tests.provider.native_providers import (
    TRIPLE,
    Graph,
    TestProvider,
    floats,
    model,
    placed,
    registered,
    session,
    triple,
)
from tests.runtime.foreign import compile_foreign

OWN = "OrtkitExecutionProvider"
TRUST = {"trust": "1"}
# Two groups of one library, and a Softmax that stays with ONNX Runtime.
MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] a, float[n, 4] b, float[n, 4] c) => (float[n, 4] y)
{ s = Add(a, b)  m = Mul(s, c)  r = Relu(m)  p = Softmax<axis = -1>(r)  y = Add(p, c) }
"""


class Writing(LibraryProvider):
    """Writes what the built-in provider reads."""

    name = OWN
    label = b"a region"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("library"))


def write(library: Path, folder: Path, text: str = MODEL, embed: str = "1") -> Path:
    """Compile a model ahead of time and return the result's path."""
    source, made = folder / "model.onnx", folder / "model_ctx.onnx"
    source.write_bytes(model(text))
    config = {
        "ep.context_enable": "1",
        "ep.context_file_path": str(made),
        "ep.context_embed_mode": embed,
    }
    with registered(Writing(library)):
        session(str(source), OWN, config=config)
    return made


@contextmanager
def alone() -> Iterator[None]:
    """Register the library under a name that nobody defined: as a C program gets it."""
    ort.register_execution_provider_library("ahead-of-time", str(native.library_path()))
    try:
        yield
    finally:
        ort.unregister_execution_provider_library("ahead-of-time")


def expected(feeds: dict[str, np.ndarray]) -> np.ndarray:
    exponents = np.exp(triple(feeds) - triple(feeds).max(axis=-1, keepdims=True))
    result: np.ndarray = 3 * (exponents / exponents.sum(axis=-1, keepdims=True) + feeds["c"])
    return result


def context_nodes(path: Path) -> list[dict[str, object]]:
    return [
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        for node in onnx.load(path).graph.node
        if node.op_type == "EPContext"
    ]


@pytest.mark.parametrize("embed", ["1", "0"])
def test_written_and_run_by_the_library_alone(library: Path, tmp_path: Path, embed: str) -> None:
    made = write(library, tmp_path, embed=embed)
    (tmp_path / "model.onnx").unlink()
    with alone():
        loaded = session(str(made), OWN)
        assert placed(loaded, OWN) == [["EPContext"], ["EPContext"]]
        for rows in (1, 9):
            feeds = floats("abc", rows, 4)
            np.testing.assert_allclose(loaded.run(None, feeds)[0], expected(feeds), rtol=1e-5)


def test_what_the_nodes_say(library: Path, tmp_path: Path) -> None:
    first, second = context_nodes(write(library, tmp_path))
    content = library.read_bytes()
    assert first["main_context"] == 1
    assert first["ep_cache_context"] == content
    assert second["main_context"] == 0
    assert "ep_cache_context" not in second
    for node in (first, second):
        assert node["embed_mode"] == 1
        assert node["source"] == OWN.encode()
        assert node["partition_name"] == hashlib.sha256(content).hexdigest().encode()
        assert node["hardware_architecture"] == native_level().encode()
        assert node["ep_sdk_version"] == f"ortkit-manifest {MANIFEST_VERSION}".encode()
        assert b"label=a region\n" in node["notes"]


def test_a_library_beside_the_model(library: Path, tmp_path: Path) -> None:
    first, second = context_nodes(write(library, tmp_path, embed="0"))
    name = f"model_ctx.{hashlib.sha256(library.read_bytes()).hexdigest()[:12]}.so"
    assert first["ep_cache_context"] == name.encode()
    assert second["main_context"] == 0
    assert (tmp_path / name).read_bytes() == library.read_bytes()
    assert [path.name for path in tmp_path.glob("*.so*")] == [name]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("embed", ["1", "0"])
def test_libraries_from_elsewhere_need_trust(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embed: str
) -> None:
    made = write(library, tmp_path, embed=embed)
    content = library.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    state, listed = tmp_path / "state", tmp_path / "allowed.txt"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))  # of a user who built nothing
    listed.write_text(f"# ours\n{'0' * 64}  other\n\n {sha256.upper()} *{library}\n")
    with alone():
        for settings in ({}, {"trust": "0"}):
            with pytest.raises(Exception, match=r"was not built by .* option trust to 1"):
                session(str(made), OWN, settings)
        for given in (sha256, f"{'0' * 64}, {sha256}", str(listed)):
            with monkeypatch.context() as allowed:
                allowed.setenv("ORTKIT_TRUST", given)
                session(str(made), OWN)
        for given in (f"{sha256[:-1]}", f"{sha256}0", str(tmp_path / "missing"), ""):
            with monkeypatch.context() as allowed:
                allowed.setenv("ORTKIT_TRUST", given)
                with pytest.raises(Exception, match="was not built by this user"):
                    session(str(made), OWN)
        session(str(made), OWN, TRUST)
        assert run(["trust", str(made)]) == 0
        session(str(made), OWN)
        (state / "ortkit").chmod(0o777)
        with pytest.raises(Exception, match="other users can write"):
            session(str(made), OWN)


def test_trust_for_one_session_is_not_kept(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor by a session that writes the model again."""
    made = write(library, tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = {"ep.context_enable": "1", "ep.context_file_path": str(tmp_path / "again.onnx")}
    with alone():
        session(str(made), OWN, TRUST, config=config)
        with pytest.raises(Exception, match="was not built by this user"):
            session(str(made), OWN)


def test_a_list_behind_a_link_that_others_can_change(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = write(library, tmp_path)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "shared" / "state").symlink_to(tmp_path / "state")
    with alone():
        session(str(made), OWN)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "shared" / "state"))
        with pytest.raises(Exception, match="other users can write"):
            session(str(made), OWN)


def test_what_a_model_brings_is_not_loaded_before_it_is_trusted(tmp_path: Path) -> None:
    """The library's constructor is what counts, whatever its manifest says."""
    mark = tmp_path / "was-loaded"
    foreign = compile_foreign(tmp_path, mark)
    content = foreign.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    beside = f"m.{sha256[:12]}.so"
    (tmp_path / beside).write_bytes(content)
    (tmp_path / "m.onnx.data").write_bytes(content)
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / beside).write_bytes(content)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / beside)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / beside).symlink_to(tmp_path / "away" / beside)
    with alone():
        for folder, mode, held, settings, says in (
            (tmp_path, 1, content, {}, "was not built by this user"),
            (tmp_path, 0, beside, {}, "was not built by this user"),
            (tmp_path, 0, "m.onnx.data", TRUST, "must lie beside the model and end in"),
            (tmp_path, 0, f"away/{beside}", TRUST, "must lie beside the model and end in"),
            (tmp_path / "links", 0, beside, TRUST, "is a link out of the model's folder"),
            (tmp_path / "pipe", 0, beside, TRUST, "no file with content"),
        ):
            path = context_model(folder, mode, held, sha256)
            with pytest.raises(Exception, match=says):
                session(str(path), OWN, settings)
            assert not mark.exists(), says
        path = context_model(tmp_path, 1, content, sha256)
        with pytest.raises(Exception, match="it is no kernel library of ortkit"):
            session(str(path), OWN, TRUST)
        assert mark.exists()


def context_model(folder: Path, mode: int, held: bytes | str, sha256: str) -> Path:
    """Write a model of one EPContext node."""
    node = onnx.helper.make_node(
        "EPContext", ["a"], ["b"], domain="com.microsoft", main_context=1, embed_mode=mode,
        ep_cache_context=held, partition_name=sha256, source=OWN,
        notes="op=x\ninputs=0\noutputs=0\n",
    )  # fmt: skip
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in "ab"]
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:])
    path = folder / "context.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def change(path: Path, index: int, **values: object) -> None:
    """Change attributes of an EPContext node."""
    proto = onnx.load(path)
    nodes = [node for node in proto.graph.node if node.op_type == "EPContext"]
    for name, value in values.items():
        kept = [attribute for attribute in nodes[index].attribute if attribute.name != name]
        del nodes[index].attribute[:]
        nodes[index].attribute.extend(kept)
        if value is not None:
            nodes[index].attribute.append(onnx.helper.make_attribute(name, value))
    onnx.save(proto, path)


@pytest.mark.parametrize(
    ("index", "changes", "says"),
    [
        (0, {"ep_cache_context": None}, "has no ep_cache_context"),
        (0, {"ep_cache_context": b"not a library"}, "its SHA-256 differs"),
        (0, {"main_context": 0}, "names a kernel library that no node holds"),
        (1, {"partition_name": b"other"}, "names a kernel library that no node holds"),
        (1, {"notes": b""}, "does not say what it runs"),
        (1, {"notes": b"op=x\ninputs=\noutputs=0\n"}, "the kernel library has no x"),
        (1, {"notes": b"op=system\ninputs=0\noutputs=0\n"}, "the kernel library has no system"),
        (1, {"notes": b"op=scaled_sum\ninputs=0,99\noutputs=0\n"}, "is the node's 99"),
        (1, {"notes": b"op=scaled_sum\ninputs=0,1\noutputs=-1\n"}, "is the node's -1"),
        (0, {"embed_mode": 0, "ep_cache_context": b"../x.so"}, "must lie beside the model"),
        (0, {"embed_mode": 0, "ep_cache_context": b"/bin/x"}, "must lie beside the model"),
        (0, {"embed_mode": 0, "ep_cache_context": b"none.so"}, "must lie beside the model"),
    ],
)
def test_what_is_wrong_in_a_compiled_model(
    library: Path, tmp_path: Path, index: int, changes: dict[str, object], says: str
) -> None:
    made = write(library, tmp_path)
    change(made, index, **changes)
    with alone(), pytest.raises(Exception, match=f"{OWN}: .*{says}"):
        session(str(made), OWN, TRUST)


def test_a_library_that_is_missing(library: Path, tmp_path: Path) -> None:
    made = write(library, tmp_path, embed="0")
    (beside,) = tmp_path.glob("*.so")
    beside.unlink()
    with alone(), pytest.raises(Exception, match=f"{beside.name}: No such file"):
        session(str(made), OWN)


def test_a_library_beside_the_model_that_was_replaced(library: Path, tmp_path: Path) -> None:
    made = write(library, tmp_path, embed="0")
    (beside,) = tmp_path.glob("*.so")
    other = build(tmp_path, "other.so", 5)
    beside.write_bytes(other.read_bytes())
    with alone(), pytest.raises(Exception, match="its SHA-256 differs"):
        session(str(made), OWN)


def test_a_model_from_memory_finds_its_library_where_it_is_told(
    library: Path, tmp_path: Path
) -> None:
    made = write(library, tmp_path, embed="0")
    feeds = floats("abc", 2, 4)
    with alone():
        with pytest.raises(Exception, match=r"comes from memory .*; set ep.context_file_path"):
            session(made.read_bytes(), OWN)
        loaded = session(made.read_bytes(), OWN, config={"ep.context_file_path": str(made)})
        np.testing.assert_allclose(loaded.run(None, feeds)[0], expected(feeds), rtol=1e-5)


def test_the_compiler_of_onnxruntime(library: Path, tmp_path: Path) -> None:
    with registered(Writing(library)):
        options = ort.SessionOptions()
        devices = [device for device in ort.get_ep_devices() if device.ep_name == OWN]
        options.add_provider_for_devices(devices, {})
        compiler = ort.ModelCompiler(options, model(MODEL), embed_compiled_data_into_model=True)
        content = compiler.compile_to_bytes()
    feeds = floats("abc", 2, 4)
    with alone():
        loaded = session(content, OWN, TRUST)
        np.testing.assert_allclose(loaded.run(None, feeds)[0], expected(feeds), rtol=1e-5)


def test_the_compiler_of_onnxruntime_with_a_library_beside(library: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.onnx"
    with registered(Writing(library)):
        options = ort.SessionOptions()
        options.log_severity_level = 3
        devices = [device for device in ort.get_ep_devices() if device.ep_name == OWN]
        options.add_provider_for_devices(devices, {})
        compiler = ort.ModelCompiler(options, model(MODEL), embed_compiled_data_into_model=False)
        compiler.compile_to_file(str(made))
    assert len(list(tmp_path.glob("made.*.so"))) == 1
    feeds = floats("abc", 2, 4)
    with alone():
        loaded = session(str(made), OWN)
        np.testing.assert_allclose(loaded.run(None, feeds)[0], expected(feeds), rtol=1e-5)


def test_functions_of_a_process_cannot_be_written(tmp_path: Path) -> None:
    config = {"ep.context_enable": "1", "ep.context_file_path": str(tmp_path / "x.onnx")}
    with (
        registered(TestProvider()),
        pytest.raises(Exception, match="is a function of this process"),
    ):
        session(model(TRIPLE), TestProvider.name, config=config)


def test_groups_of_subgraphs_cannot_be_written(library: Path, tmp_path: Path) -> None:
    """ONNX Runtime writes EPContext nodes into the main graph only."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (bool k, float[n, 4] a, float[n, 4] b) => (float[n, 4] y)
    { y = If(k) <then_branch = t () => (float[n, 4] t) { t = Add(a, b) },
                 else_branch = e () => (float[n, 4] e) { e = Sub(a, b) }> }"""
    before = native.library().ortkit_provider_recorded_count()
    made = write(library, tmp_path, text)
    (error,) = native.recorded_errors(before)
    assert "an EPContext model cannot hold groups of a subgraph" in error
    assert not made.exists() or not context_nodes(made)


# ---- compatibility


def verdict(text: str, runtime: str = ort.__version__) -> tuple[int, str]:
    answer = native.library().ortkit_provider_validate
    number = ctypes.c_int32(-1)
    with native.NativeError() as error:
        answer(text.encode(), runtime.encode(), ctypes.byref(number), error.handle)
        return number.value, error.text


def compatible(**changes: object) -> str:
    fields = {
        "manifest": MANIFEST_VERSION,
        "cpu": native_level(),
        "runtime": ".".join(ort.__version__.split(".")[:2]),
    }
    return "ortkit;" + ";".join(f"{key}={value}" for key, value in (fields | changes).items())


@pytest.mark.parametrize(
    ("text", "number", "says"),
    [
        (compatible(), 1, ""),
        (compatible(later="field"), 1, ""),
        (compatible(cpu="any"), 1, ""),
        (compatible(runtime="1.0"), 2, "it was compiled with ONNX Runtime 1.0, and this is "),
        (compatible(manifest=999), 3, "its kernels were made by another version of ortkit"),
        (compatible(cpu="z80"), 3, "its kernels need a processor of level z80, and this one is "),
        ("", 0, "it was not compiled by ortkit"),
        ("something else", 0, "it was not compiled by ortkit"),
        ("ortkit;", 0, "it was not compiled by ortkit"),
    ],
)
def test_compatibility(text: str, number: int, says: str) -> None:
    found, reason = verdict(text)
    assert found == number
    assert reason.startswith(says)


@pytest.mark.skipif(machine() != "x86-64", reason="levels of x86-64")
def test_compatibility_of_processors() -> None:
    other = compatible(cpu="aarch64")
    assert verdict(other)[0] == 3
    if native_level() != "x86-64":
        lower = verdict(compatible(cpu="x86-64"))
        assert lower == (2, "this processor has more than x86-64")


def test_onnxruntime_asks_about_compatibility(library: Path, tmp_path: Path) -> None:
    made = write(library, tmp_path)
    metadata = {entry.key: entry.value for entry in onnx.load(made).metadata_props}
    assert metadata[f"ep_compatibility_info.{OWN}"] == compatible()


def test_a_subgraph_is_told(library: Path) -> None:
    seen: list[bool] = []

    class Looking(Writing):
        def groups(self, graph: Graph) -> list[list[int]]:
            seen.append(graph.is_nested)
            return []

    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (bool k, float[n] a) => (float[n] y)
    { y = If(k) <then_branch = t () => (float[n] t) { t = Abs(a) },
                 else_branch = e () => (float[n] e) { e = Neg(a) }> }"""
    with registered(Looking(library)):
        session(model(text), OWN)
    assert seen == [True, True, False]
