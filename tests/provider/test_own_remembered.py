"""A session of a graph that is known is not planned again; and groups with weights in sessions."""

from __future__ import annotations

import gc
import hashlib
import json
import random
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import models
import ortkit
from models.feeds import feeds
from ortkit.fusion.regions.packed import Panels
from ortkit.fusion.regions.search import PACKED
from ortkit.kernels.build.library import missing_toolchain
from ortkit.kernels.cache_files import write_cached, write_private
from ortkit.kernels.layouts.fp32_panels import gated_layout, layout
from ortkit.kernels.prepack import Prepack
from ortkit.provider.kernel_table import KERNELS
from ortkit.provider.own import building, claims, plan_cache, planning
from ortkit.provider.own import weights as own_weights
from ortkit.provider.own.ahead import compile_model
from ortkit.provider.own.options import FOLDER, NAME, OwnOptions
from ortkit.provider.own.plan_cache import Kept, key_of, recall, remember
from ortkit.provider.own.weights import Origin, Piece, aligned, sources_of, weights_from
from ortkit.provider.registration import registered_providers

pytestmark = pytest.mark.skipif(missing_toolchain() is not None, reason="no kernel toolchain")

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x) => (float[n, 64] y) <float half = {0.5}>
{ m = Mul (x, half)  e = Elu <alpha = 0.7> (m)  s = Add (e, w)  y = Softmax <axis = -1> (s) }
"""
WEIGHT = np.linspace(-1, 1, 64, dtype=np.float32)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Any:
    if NAME not in registered_providers():
        ortkit.register_provider()
    yield
    gc.collect()  # sessions of the tests
    ortkit.unregister_provider(NAME)


def model(text: str = TEXT, weight: np.ndarray = WEIGHT) -> onnx.ModelProto:
    made = onnx.parser.parse_model(text)
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return made


def session(proto: onnx.ModelProto, cache: Path, **options: str) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == NAME]
    given = {"cache_dir": str(cache), "level": "3", "strict": "1", **options}
    settings.add_provider_for_devices(devices, given)
    return ort.InferenceSession(proto.SerializeToString(), settings)


def check(made: ort.InferenceSession, proto: onnx.ModelProto, given: dict[str, Any]) -> None:
    plain = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(made.run(None, given), plain.run(None, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def claimed(made: ort.InferenceSession, kinds: Collection[str] = ()) -> int:
    """Return how many nodes the provider has, of all kinds or of some."""
    parts = made.get_provider_graph_assignment_info()
    nodes = [node for part in parts if part.ep_name == NAME for node in part.get_nodes()]
    return sum(not kinds or node.op_type in kinds for node in nodes)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time that a graph was planned."""
    calls: list[int] = []
    plan = planning.plan

    def counting(*given: Any, **more: Any) -> Any:
        calls.append(len(calls))
        return plan(*given, **more)

    monkeypatch.setattr(planning, "plan", counting)
    return calls


def rows(count: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(count).standard_normal((count, 64), np.float32)}


def test_a_known_graph_is_not_planned_again(tmp_path: Path, planned: list[int]) -> None:
    nodes = {claimed(session(model(), tmp_path)) for _ in range(2)}
    again = session(model(), tmp_path)
    assert len(planned) == 1
    assert nodes == {claimed(again)} != {0}
    for count in (1, 9):
        check(again, model(), rows(count))


@pytest.mark.parametrize(
    ("packing", "is_kept"), [(layout(64, 96), True), (gated_layout(64, 96), False)]
)
def test_only_panels_of_one_matrix_are_packed_again(packing: Prepack, is_kept: bool) -> None:
    source = ir.val("w", const_value=ir.tensor(np.zeros((64, 96), np.float32), name="w"))
    weight = ir.val("panels")
    weight.meta[PACKED] = Panels(source, False, 1.0, packing)
    assert (claims._origin_of(weight) is not None) == is_kept


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "other",
    [
        model(TEXT.replace("0.7", "0.8")),
        model(TEXT.replace("0.5", "0.25")),
        model(weight=np.nextafter(WEIGHT, 2)),
        model(TEXT.replace("float[n, 64] y", "float[n, 64] z").replace("y =", "z =")),
        model(TEXT.replace("float[n, 64] x", "float[7, 64] x")),
    ],
)
def test_another_graph_is_planned(
    other: onnx.ModelProto, tmp_path: Path, planned: list[int]
) -> None:
    session(model(), tmp_path)
    made = session(other, tmp_path)
    assert len(planned) == 2
    check(made, other, rows(7))


def test_what_reports_are_about_is_planned(tmp_path: Path, planned: list[int]) -> None:
    session(model(), tmp_path)
    session(model(), tmp_path, verbosity="1")
    assert len(planned) == 1
    session(model(), tmp_path, verbosity="2")
    session(model(), tmp_path, level="2")
    assert len(planned) == 3


def test_a_damaged_library_is_made_again(tmp_path: Path, planned: list[int]) -> None:
    session(model(), tmp_path)
    (library,) = (tmp_path / FOLDER).glob("*.so")
    content = library.read_bytes()
    library.write_bytes(content[:-1])
    check(session(model(), tmp_path), model(), rows(3))
    assert len(planned) == 2
    assert library.read_bytes() == content


def test_records_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    claim = Kept("y", "gelu", "ortkit_gelu", (0, 2), ("x",), ("y",))
    library = tmp_path / "a.so"
    library.write_bytes(b"code")
    remember(tmp_path, "key", [claim], library)
    found = recall(tmp_path, "key")
    assert found is not None
    assert (found.claims, found.library) == ((claim,), library)
    (path,) = (tmp_path / "plans").glob("*.json")
    record = json.loads(path.read_text("utf-8"))
    for broken in ({}, {**record, "claims": 3}, {**record, "claims": [{}]},
                   {**record, "library": None}, {**record, "library": "b.so"},
                   {**record, "claims": [{**record["claims"][0], "nodes": "01"}]}):  # fmt: skip
        write_cached(path, "plan key", json.dumps(broken))
        assert recall(tmp_path, "key") is None, broken
    write_cached(path, "plan key", json.dumps(record))
    assert recall(tmp_path, "key") is not None
    path.write_text("{", "utf-8")
    assert recall(tmp_path, "key") is None
    remember(tmp_path, "nothing", [], None)
    none = recall(tmp_path, "nothing")
    assert none is not None
    assert (none.claims, none.library) == ((), None)


def kept_plan(folder: Path) -> list[Path]:
    """Keep a plan with a library and weights; returns its files."""
    claim = Kept("y", "gelu", "ortkit_gelu", (0,), ("x",), ("y",), (Piece(0, "int8", (500,)),))
    library = folder / "a.so"
    write_private(library, random.Random(2).randbytes(500))
    remember(folder, "key", [claim], library, random.Random(1).randbytes(500))
    assert recall(folder, "key") is not None
    return [*(folder / "plans").iterdir(), library]


def test_no_flipped_bit_of_a_plan_is_accepted(tmp_path: Path) -> None:
    files, chance = kept_plan(tmp_path), random.Random(3)
    assert len(files) == 3
    for path in files:
        content = path.read_bytes()
        for bit in chance.sample(range(8 * len(content)), 140):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            assert recall(tmp_path, "key") is None, (path.name, bit)
        for other in (content[:-1], content + b"\n", b""):
            path.write_bytes(other)
            assert recall(tmp_path, "key") is None, path.name
        path.write_bytes(content)
        assert recall(tmp_path, "key") is not None


def test_the_plan_of_another_graph_is_not_accepted(tmp_path: Path) -> None:
    for path in kept_plan(tmp_path)[:2]:
        path.with_stem("other").write_bytes(path.read_bytes())
    assert recall(tmp_path, "other") is None


def test_no_flipped_bit_of_a_library_is_accepted(tmp_path: Path) -> None:
    path, refused = tmp_path / "made.so", {"key": "reason"}
    write_private(path, b"code" * 50)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    record = json.dumps({"sha256": digest, "refused": refused})
    write_cached(path.with_suffix(".json"), "library made", record)
    assert building._known(path) == refused
    for each in (path, path.with_suffix(".json")):
        content = each.read_bytes()
        for bit in random.Random(4).sample(range(8 * len(content)), 140):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            each.write_bytes(changed)
            assert building._known(path) is None, (each.name, bit)
        each.write_bytes(content)
    for suffix in (".so", ".json"):
        copy = path.with_stem("other").with_suffix(suffix)
        copy.write_bytes(path.with_suffix(suffix).read_bytes())
    assert building._known(tmp_path / "other.so") is None


def test_a_cache_that_others_can_write_to_is_not_used(
    tmp_path: Path, planned: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    whole = claimed(session(model(), cache))
    kept = sorted(path for path in cache.rglob("*") if path.is_file())
    cache.chmod(0o777)
    for count in (2, 3):
        made = session(model(), cache)
        check(made, model(), rows(5))
        assert (claimed(made), len(planned)) == (whole, count)
    assert sorted(path for path in cache.rglob("*") if path.is_file()) == kept
    said = [
        record.getMessage() for record in caplog.records if "chmod go-w" in record.getMessage()
    ]
    assert len(said) == 1


def test_records_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "KEPT", 3)
    for number in range(5):
        remember(tmp_path, f"key{number}", [], None)
    assert len(list((tmp_path / "plans").glob("*.json"))) == 3


class Graph:
    """What `key_of` reads of a graph."""

    def __init__(self, made: ir.Model) -> None:
        self.graph = made.graph
        self.inputs, self.outputs = made.graph.inputs, made.graph.outputs
        self.initializers, self.opset_imports = made.graph.initializers, made.opset_imports
        self.outer_values: tuple[ir.Value, ...] = ()

    def __iter__(self) -> Iterator[ir.Node]:
        return iter(self.graph)


def key(proto: onnx.ModelProto, **options: Any) -> str | None:
    return key_of(Graph(ir.from_proto(proto)), OwnOptions(**options))  # type: ignore[arg-type]


def test_keys_name_graphs_and_options() -> None:
    assert key(model()) == key(model())
    others = [key(model(), level=1), key(model(), cpu="x86-64-v3"), key(model(), kernels="tvm")]
    others.append(key(model(TEXT.replace('"" : 20', '"" : 21'))))
    assert len({key(model()), *others}) == 5


BRANCHES = """<ir_version: 10, opset_import: ["" : 20]>
g (bool c, float[n, 64] x) => (float[n, 64] y) {
  m = Mul (x, x)  e = Exp (m)
  y = If (c) <
    then_branch = a () => (float[n, 64] t) <float k = {0.5}> { f = Add (e, k)  t = Tanh (f) },
    else_branch = b () => (float[n, 64] u) { u = Tanh (e) }
  >
}"""


def test_keys_name_what_is_in_bodies() -> None:
    texts = [
        BRANCHES, BRANCHES.replace("0.5", "0.25"), BRANCHES.replace("u = Tanh", "u = Sin"),
        BRANCHES.replace("Add (e, k)", "Add (m, k)"),
        BRANCHES.replace("else_branch", "no").replace("then_branch", "else_branch").replace(
            "no =", "then_branch ="),
    ]  # fmt: skip
    keys = [key(onnx.parser.parse_model(text)) for text in texts]
    assert None not in keys
    assert len(set(keys)) == len(texts)
    assert key(onnx.parser.parse_model(BRANCHES)) == keys[0]


def test_a_graph_with_bodies_is_not_planned_again(tmp_path: Path, planned: list[int]) -> None:
    proto = onnx.parser.parse_model(BRANCHES)
    first = session(proto, tmp_path)
    times = len(planned)
    again = session(proto, tmp_path)
    assert len(planned) == times
    assert claimed(again) == claimed(first) > 0
    for condition in (True, False):
        check(again, proto, {**rows(3), "c": np.array(condition)})


# ---- weights that the session holds

WITH_WEIGHTS = ("Conv", "Gemm")


def layers() -> onnx.ModelProto:
    """Return a model of products, in processors with AVX-512 claimed with their weights."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[64, 128] x) => (float[64, 128] y)
    { a = Gemm (x, w, b)  c = Gelu (a)  y = Gemm <transB = 1> (c, w, d) }"""
    made = onnx.parser.parse_model(text)
    random = np.random.default_rng(5)
    for name, shape in (("w", (128, 256)), ("b", (256,)), ("d", (128,))):
        array = random.standard_normal(shape, np.float32) / 8
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


def held() -> int:
    gc.collect()
    return len(KERNELS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["layers", "mobilenet_v2", "efficientnet_b0"])
def test_weights_are_held_as_long_as_the_session(name: str, tmp_path: Path) -> None:
    proto = layers() if name == "layers" else models.build(name)
    given = {"x": np.ones((64, 128), np.float32)} if name == "layers" else feeds(proto)
    before = held()
    first, second = (session(proto, tmp_path, level="2") for _ in range(2))
    if not claimed(first, WITH_WEIGHTS):
        pytest.skip("no kernel with weights pays on this processor")
    assert held() > before
    del first
    check(second, proto, given)
    del second
    assert held() == before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["layers", "mobilenet_v2"])
def test_weights_are_had_again_without_planning(
    name: str, tmp_path: Path, planned: list[int]
) -> None:
    proto = layers() if name == "layers" else models.build(name)
    given = {"x": np.ones((64, 128), np.float32)} if name == "layers" else feeds(proto)
    first = session(proto, tmp_path, level="2")
    if not claimed(first, WITH_WEIGHTS):
        pytest.skip("no kernel with weights pays on this processor")
    again = session(proto, tmp_path, level="2")
    assert len(planned) == 1
    for got, want in zip(again.run(None, given), first.run(None, given), strict=True):
        assert np.array_equal(got, want)
    check(again, proto, given)
    (kept,) = (tmp_path / FOLDER / "plans").glob("*.weights")
    content = kept.read_bytes()
    # Of products only biases are kept: the matrices are the model's.
    assert (len(content) < 4096) is (name == "layers")
    kept.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    check(session(proto, tmp_path, level="2"), proto, given)
    assert len(planned) == 2
    assert kept.read_bytes() == content


def test_a_constant_that_a_rewrite_made_is_kept() -> None:
    array = aligned(np.arange(12, dtype=np.float32).reshape(1, 3, 4))
    value, tensor = ir.Value(name="w"), ir.tensor(array)
    value.const_value = tensor
    weights = [([array, array[:, :1]], [Origin("w", False, 16, tensor), None])]
    found = sources_of(weights, {"w": value})
    assert found is not None
    assert found[0] == ((Origin("w", False, 16, tensor), Piece(0, "float32", (1, 1, 4))),)
    other = [([array], [Origin("w", False, 16, ir.tensor(array))])]
    made = sources_of(other, {"w": value})
    assert made is not None
    assert made[0] == ((Piece(0, "float32", (1, 3, 4)),),)
    ((again,),) = weights_from(made[0], made[1], {})
    np.testing.assert_array_equal(again, array)


def test_weights_that_are_too_large_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [([aligned(np.ones(1000, np.float32))], [None])]
    assert sources_of(weights, {}) is not None
    monkeypatch.setattr(own_weights, "MOST_KEPT_BYTES", 1000)
    assert sources_of(weights, {}) is None


def test_files_of_weights_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "LIMIT_BYTES", 25_000)
    claim = Kept("y", "gelu", "ortkit_gelu", (0,), ("x",), ("y",), (Piece(0, "int8", (10_000,)),))
    library = tmp_path / "a.so"
    library.write_bytes(b"code")
    for number in range(4):
        remember(tmp_path, f"key{number}", [claim], library, bytes(10_000))
    assert len(list((tmp_path / "plans").iterdir())) == 4  # two records with their files
    found = recall(tmp_path, "key3")
    assert found is not None
    assert (found.claims, found.content) == ((claim,), bytes(10_000))


def test_a_chain_of_convolutions_is_compiled_ahead_of_time(tmp_path: Path) -> None:
    onnx.save(models.build("mobilenet_v2"), tmp_path / "net.onnx")
    options = {"cache_dir": str(tmp_path / "cache")}
    made = compile_model(tmp_path / "net.onnx", tmp_path / "made.onnx", options)
    assert made.groups == 1
    assert made.is_equal
