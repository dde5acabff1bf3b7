"""Decoders with caches, and other sizes that follow from the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from genai_model import HEAD, genai_model
from small_models import model, random_weights, save

from models.catalog import build
from ortkit.graph.io.open import open_model
from ortkit.graph.symbolic.dims import Dim, Size
from ortkit.measure.inputs import usual_feeds
from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.usual_sizes import how_to_give
from ortkit.verify.pair import verify_models
from ortkit.verify.reference import Reference
from ortkit.verify.undefined_rows import zero_undefined
from ortkit.verify.verifier import Verifier


def renamed(proto: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """Rename sizes of inputs and outputs; to "" they get no name."""
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]
    del proto.graph.value_info[:]
    return proto


def used(path: Path, *, all_sets: bool = True) -> tuple[str, ...]:
    with Verifier(path) as verifier:
        assert isinstance(verifier._state, Reference), verifier.refusal
        found = verifier.check(path)
        assert found.verdict == "yes", found.reason
        assert not all_sets or verifier._state.dropped == ()
        return verifier._state.about


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("total", ["total_sequence_length", "s12"])
def test_a_decoder_of_genai_is_verified(tmp_path: Path, packed: bool, total: str) -> None:
    path = save(tmp_path, "m", genai_model(packed=packed, total=total))
    sizes = [dict(part.split(" ") for part in text.partition(";")[0].split(", "))
             for text in used(path)]  # fmt: skip
    assert len(sizes) == 5
    assert sizes[-1]["past_sequence_length"] == "247"  # a table of 256 positions, 7 new ones
    for each in sizes:
        past, new = int(each["past_sequence_length"]), int(each["sequence_length"])
        assert int(each[total]) == past + new
        assert int(each["kv_cache_dim"]) == HEAD
        assert past == 0 or new == 1 or each["batch_size"] == "1"
    kinds = {
        (each["past_sequence_length"] == "0", each["sequence_length"] == "1") for each in sizes
    }
    assert kinds == {(True, False), (False, True), (False, False)}


def test_a_fault_in_a_decoder_of_genai_is_found(tmp_path: Path) -> None:
    path, wrong = save(tmp_path, "m", genai_model()), genai_model()
    (scales,) = (each for each in wrong.graph.initializer if each.name == "qkv1.s")
    array = onnx.numpy_helper.to_array(scales).copy()
    array[3, 0] *= 1.01
    scales.CopyFrom(onnx.numpy_helper.from_array(array, "qkv1.s"))
    assert verify_models(path, save(tmp_path, "w", wrong)).verdict == "no"


def test_rows_that_no_operator_writes_are_not_compared(tmp_path: Path) -> None:
    """A sliding cache of 24 rows holds 24 tokens at most, and fewer after a short prompt."""
    path = save(tmp_path, "m", genai_model(window=24))
    sizes = used(path, all_sets=False)  # ONNX Runtime takes no padding there
    assert all("past_sliding_length 24" in each for each in sizes)
    totals = [int(each.split("total_sequence_length ")[1].split(",")[0].split(";")[0])
              for each in sizes]  # fmt: skip
    assert min(totals) < 24  # some rows are not written
    wrong = genai_model(window=24)
    (table,) = (each for each in wrong.graph.initializer if each.name == "qkv0.s")
    array = onnx.numpy_helper.to_array(table).copy()
    array[-1, 0] *= 1.01  # of values, and so of the cache
    table.CopyFrom(onnx.numpy_helper.from_array(array, "qkv0.s"))
    assert verify_models(path, save(tmp_path, "w", wrong)).verdict == "no"


def test_rows_of_caches_are_zero_behind_the_last_token() -> None:
    model = ir.serde.deserialize_model(genai_model(window=24))
    assert zero_undefined(model, "original")
    session = ort.InferenceSession(ir.serde.serialize_model(model).SerializeToString())
    caches = {
        f"past_key_values.{i}.{part}": np.ones((1, 1, 24 if i == 0 else 0, HEAD), np.float32)
        for i in range(2)
        for part in ("key", "value")
    }
    ids, mask = np.ones((1, 5), np.int64), np.ones((1, 5), np.int64)
    feeds = {"input_ids": ids, "attention_mask": mask, **caches}
    (present,) = session.run(["present.0.key"], feeds)
    rows = np.abs(present[0]).sum((0, 2)) > 0
    assert rows.tolist() == [True] * 5 + [False] * 19


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spelling", ["dynamo", "ts"])
@pytest.mark.parametrize(
    "names",
    [
        {"past + sequence": "total_sequence_length"},
        {"batch": "s0", "past": "s37", "sequence": "s9", "past + sequence": "s53"},
        {"past": "past_sequence_length", "past + sequence": "past_sequence_length + sequence"},
        {"past + sequence": ""},
    ],
)
def test_the_length_of_a_mask_follows_from_the_graph(
    tmp_path: Path, spelling: str, names: dict[str, str]
) -> None:
    path = save(tmp_path, "m", renamed(build("decoder_kv", "tiny", spelling), names))
    assert len(used(path)) >= 4  # and one near the end of a table of positions, if there is one


def sizes(built: ir.Model) -> tuple[tuple[Size, ...], ...]:
    return FeedMaker.of(built, {}).shapes


def test_equal_and_constant_sizes_are_found() -> None:
    built = model(
        """g (float[a, b] x, float[c, d] y, float[e] z, float[f, g] t) => (float[] o, float[] p) {
            s = Add(x, y) q = MatMul(s, w) r = Add(q, z) o = Relu(r) p = Concat <axis = 0> (t, w)
        }""",
        {"w": random_weights(12, 9)},
    )
    a = Dim.named("a")
    x, y, z, t = sizes(built)
    assert {x[0], y[0]} <= {a, Dim.named("c")}
    assert x == y
    assert x[1] == 12
    assert z == (9,)
    assert t == (Dim.named("f"), 9)


def test_a_size_is_at_most_the_table_that_is_cut_to_it() -> None:
    text = """g (int64[batch, seq] ids) => (float[] y) {
        shape = Shape(ids) length = Slice(shape, one, two)
        cut = Slice(table, zero, length, one) rows = Gather(words, ids) y = Add(rows, cut)
    }"""
    weights = {
        "table": random_weights(1, 40, 8), "words": random_weights(9, 8), "zero": np.array([0]),
        "one": np.array([1]), "two": np.array([2]),
    }  # fmt: skip
    maker = FeedMaker.of(model(text, weights), {})
    assert maker.limits == {"seq": 40}
    found = {np.shape(maker.make(plan)["ids"])[1] for plan in maker.covering("quick", 0)}
    assert found == {7, 33, 40, 1}


def test_sizes_of_the_user_stay_and_others_follow_from_them() -> None:
    built = model(
        """g (float[b, h, past, 4] k, float[b, h, seq, 4] new, float[b, 1, seq, total] mask)
        => (float[b, h, total, 4] present, float[] y) {
            present = Concat <axis = 2> (k, new)
            turned = Transpose <perm = [0, 1, 3, 2]> (present)
            scores = MatMul(new, turned) y = Add(scores, mask)
        }"""
    )
    for given in ({"total": 20}, {"past": 9}, {"total": 20, "seq": 3}):
        maker = FeedMaker.of(built, given)
        for plan in maker.plans(2, 0):
            made = maker.make(plan)
            lengths = (np.shape(made["k"])[2], np.shape(made["new"])[2], np.shape(made["mask"])[3])
            assert lengths[0] + lengths[1] == lengths[2], given
            assert lengths[2] == given.get("total", lengths[2])
            assert lengths[0] == given.get("past", lengths[0])


def own_axes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Name each size after its input and axis, as TorchScript does where nobody names them."""
    for value in (*proto.graph.input, *proto.graph.output):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                dim.dim_param = f"{value.name}_dynamic_axes_{axis + 1}"
    del proto.graph.value_info[:]
    return proto


@pytest.mark.parametrize("naming", ["own", "axes", "symbols", "none"])
@pytest.mark.parametrize("exporter", ["ts", "dynamo", "genai"])
def test_usual_inputs_of_a_decoder_are_the_first_tried(exporter: str, naming: str) -> None:
    proto = genai_model() if exporter == "genai" else build("decoder_kv", "tiny", exporter)
    if naming == "axes":
        proto = own_axes(proto)
    if naming == "none":
        for value in (*proto.graph.input, *proto.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.Clear()
        del proto.graph.value_info[:]
    if naming == "symbols":
        values = (*proto.graph.input, *proto.graph.output)
        dims = (dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim)
        proto = renamed(
            proto, {name: f"s{i}" for i, name in enumerate(filter(None, dict.fromkeys(dims)))}
        )
    feeds = next(usual_feeds(open_model(proto), {}))
    shapes = {name: np.shape(value) for name, value in feeds.items()}
    assert shapes["input_ids"] == (1, 128)
    assert shapes["attention_mask"] == (1, 256)
    assert {shape[2:] for name, shape in shapes.items() if "past" in name} == {(128, HEAD)}
    assert {shape[0] for shape in shapes.values()} == {1}


def test_what_to_give_names_the_models_own_sizes() -> None:
    unnamed = genai_model()
    for value in unnamed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    given = "give --inputs FILE.npz with input_ids, attention_mask, past_key_values.0.key, "
    assert how_to_give(open_model(unnamed)).startswith(given)
    assert how_to_give(open_model(genai_model())) == (
        "give --inputs FILE.npz, or sizes such as --shape batch_size=1 --shape sequence_length=16 "
        "--shape past_sequence_length=16"
    )
