"""An output that lies where an input lies: what each run writes, the next one reads."""

from __future__ import annotations

import numpy as np
import pytest

import ortkit
from ortkit.errors import UserError
from tests.runtime import session_models as models

HEAD = '<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1{}]>\n'
CACHE = "float[n, 4] past, float[1, 4] new, int64[1, 1] at"
#: What writes a row into a cache, and sums all of it.
APPENDS = {
    "ScatterND": "p = ScatterND(past, at, new)",
    "ScatterElements": "e = Expand(at, s)  p = ScatterElements<axis = 0>(past, e, new)",
    "behind an Identity": "q = ScatterND(past, at, new)  p = Identity(q)",
    "turned": "t = Transpose(past)  u = Transpose(t)  q = ScatterND(u, at, new)  p = Identity(q)",
}
SUM = "s = Shape(new)  {}  y = ReduceSum<keepdims = 0>(p, z)"
TENSOR_SCATTER = "float[2, n, 4] past, float[2, 1, 4] new, int64[2] at"
GROUPED = """g (float[1, 1, 16] q, float[1, 1, 8] k, float[1, 1, 8] v,
    float[1, 1, n, 8] pk, float[1, 1, n, 8] pv, int32[1] last, int32 total)
=> (float[1, 1, 16] y, float[1, 1, n, 8] ok, float[1, 1, n, 8] ov)
{ y, ok, ov = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>
    (q, k, v, pk, pv, last, total) }"""
#: May read what was written already, or something else than the rows it keeps.
REFUSED = {
    "its past is read twice": ("p = ScatterND(past, at, new)  y = Add(past, past)", "Add"),
    "it is computed": ("p = MatMul(past, w)  y = Tanh(p)", "read by MatMul"),
    "something else is made of it": (
        "q = ScatterND(past, at, new)  p = Tanh(q)  y = Tanh(p)", "something else",
    ),
    "another operand": ("p = ScatterND(w, at, past)  y = Tanh(p)", "read by ScatterND"),
}  # fmt: skip


def session(body: str, inputs: str = CACHE, more: str = "") -> ortkit.Session:
    shape = "float[2, n, 4]" if "2, n" in inputs else "float[n, 4]"
    text = HEAD.format(', "own" : 1' if more else "")
    held = "<int64[1] z = {0}>" if " z)" in body else ""
    text += f"g ({inputs}) => ({shape} p, float[m] y) {held} {{ {body} }} {more}"
    return ortkit.Session(models.model(text), "cpu", threads=1)


@pytest.mark.parametrize("name", APPENDS)
def test_runs_append_to_what_the_last_one_left(name: str) -> None:
    with session(SUM.format(APPENDS[name])) as one:
        cache = np.zeros((6, 4), np.float32)
        bound = one.bind(
            {"past": cache, "new": (1, 4), "at": (1, 1)}, ["p", "y"], share={"past": "p"}
        )
        assert bound.outputs["p"] is cache
        for row in range(6):
            bound.update(new=np.full((1, 4), row + 1.0, np.float32), at=[[row]])
            assert bound.run()["y"][0] == sum(range(row + 2))
        np.testing.assert_array_equal(cache, np.repeat(np.arange(1.0, 7)[:, None], 4, 1))


def test_memory_is_reserved_once() -> None:
    with session(SUM.format(APPENDS["ScatterND"])) as one:
        bound = one.bind({"past": (3, 4), "new": (1, 4), "at": (1, 1)}, share={"past": "p"})
        assert bound.inputs["past"] is bound.outputs["p"]


def test_rows_of_samples() -> None:
    body = "p = TensorScatter<axis = 1>(past, new, at)  y = ReduceSum<keepdims = 0>(p, z)"
    with session(body, TENSOR_SCATTER) as one:
        cache = np.zeros((2, 3, 4), np.float32)
        new = np.ones((2, 1, 4), np.float32)
        bound = one.bind({"past": cache, "new": new, "at": np.array([2, 0])}, share={"past": "p"})
        bound.run()
        assert cache[:, :, 0].tolist() == [[0, 0, 1], [1, 0, 0]]


def test_a_function_that_writes_rows() -> None:
    more = """
        <domain: "own", opset_import: ["" : 24]>
        put (a, b, c) => (d) { d = ScatterND(a, c, b) }"""
    body = "p = own.put(past, new, at)  y = Tanh(p)"
    with session(body, more=more) as one:
        cache = np.zeros((3, 4), np.float32)
        bound = one.bind({"past": cache, "new": np.ones((1, 4), np.float32), "at": [[1]]},
                         share={"past": "p"})  # fmt: skip
        bound.run()
        assert cache[:, 0].tolist() == [0, 1, 0]


def test_grouped_queries_decode_as_they_do_apart() -> None:
    """Five tokens of a cache of eight, in place and with a cache of its own for each run."""
    rng = np.random.default_rng(0)
    with ortkit.Session(models.model(HEAD.format("") + GROUPED), "cpu", threads=1) as one:
        caches = {name: np.zeros((1, 1, 8, 8), np.float32) for name in ("pk", "pv")}
        apart = {name: cache[:, :, :0] for name, cache in caches.items()}
        for step in range(5):
            rows = {
                name: rng.standard_normal((1, 1, width)).astype(np.float32)
                for name, width in (("q", 16), ("k", 8), ("v", 8))
            }
            sizes = {"last": np.array([step], np.int32), "total": np.array(step + 1, np.int32)}
            bound = one.bind({**rows, **caches, **sizes}, share={"pk": "ok", "pv": "ov"})
            found = bound.run()["y"]
            wanted = one.onnxruntime.run(None, {**rows, **apart, **sizes})
            np.testing.assert_allclose(found, wanted[0], rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(caches["pk"][:, :, : step + 1], wanted[1])
            apart = {"pk": wanted[1], "pv": wanted[2]}


@pytest.mark.parametrize("name", REFUSED)
def test_an_input_that_something_else_reads(name: str) -> None:
    body, reason = REFUSED[name]
    inputs = f"{CACHE}, float[n, 4] w"
    feeds = {"past": (4, 4), "new": (1, 4), "at": (1, 1), "w": (4, 4)}
    with (
        session(body, inputs) as one,
        pytest.raises(UserError, match=f"cannot lie in input 'past': .*{reason}"),
    ):
        one.bind(feeds, share={"past": "p"})


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ({"nothing": "p"}, "no input 'nothing'"),
        ({"past": "nothing"}, "no output 'nothing'"),
        ({"past": "p", "new": "p"}, "one output cannot lie in two"),
        ({"new": "p"}, "cannot lie in input 'new'"),
    ],
)
def test_names_that_do_not_fit(share: dict[str, str], message: str) -> None:
    feeds = {"past": (4, 4), "new": (1, 4), "at": (1, 1)}
    with (
        session(SUM.format(APPENDS["ScatterND"])) as one,
        pytest.raises(UserError, match=message),
    ):
        one.bind(feeds, share=share)


def test_memory_that_was_given_twice() -> None:
    feeds = {"past": (4, 4), "new": (1, 4), "at": (1, 1)}
    with (
        session(SUM.format(APPENDS["ScatterND"])) as one,
        pytest.raises(UserError, match="output 'p' has memory of its own"),
    ):
        one.bind(feeds, {"p": np.zeros((4, 4), np.float32)}, share={"past": "p"})
