"""Einsum as products, sums and layout ops."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from ortkit.analysis.einsum import read_equation, roles
from ortkit.passes.lower_einsum import LowerEinsum
from tests.passes.graphs import Graph, assert_refused, assert_rewritten, kinds, rewritten, run
from tests.sampling import repeats

PASSES = (LowerEinsum(),)
SIZES = {letter: 2 + i for i, letter in enumerate("abcdhijkqsn")} | {"o": 1, "B": 3}


def graph(equation: str, *, opset: int = 17, dtype: type = np.float32, dots: str = "") -> Graph:
    """Return an Einsum of inputs; `dots`: letters for each ellipsis, between commas."""
    g = Graph(dtype, opset)
    spare = dots.split(",")
    names = []
    for index, term in enumerate(equation.replace(" ", "").partition("->")[0].split(",")):
        letters = term.replace("...", spare[index] if dots else "")
        names.append(g.input(*(SIZES[letter] for letter in letters), name=f"x{index}"))
    g.op("Einsum", *names, equation=equation)
    return g


@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("bqhd,bkhd->bhqk", ["Transpose", "Transpose", "MatMul"]),
        ("bhqd,bhkd->bhqk", ["Transpose", "MatMul"]),
        ("bhqk,bhkd->bhqd", ["MatMul"]),
        ("bhqk,bkhd->bqhd", ["Transpose", "MatMul", "Transpose"]),
        ("bqhd,hdk->bqk", ["Reshape", "Reshape", "MatMul"]),
        ("ij,jk", ["MatMul"]),
        ("ij,jk->ki", ["MatMul", "Transpose"]),
        ("ij,j->i", ["MatMul"]),
        ("j,ij->i", ["MatMul"]),
        ("ij,i->j", ["MatMul"]),
        ("i,i->", ["MatMul"]),
        ("bi,bi->b", ["Mul", "ReduceSum"]),
        ("bi,ib->b", ["Transpose", "Mul", "ReduceSum"]),
        ("i,j->ij", ["Reshape", "Mul"]),
        ("i,j->ji", ["Reshape", "Mul"]),
        ("bij,b->bij", ["Reshape", "Mul"]),
        ("bij,j->bij", ["Mul"]),
        ("ij,ij->ij", ["Mul"]),
        ("bhqd,bhd->bhq", ["Reshape", "MatMul", "Reshape"]),
        ("aij,bjk->abik", None),
        ("abij,bjk->abik", None),
        ("abij,jkc->abikc", ["Reshape", "MatMul", "Reshape"]),
        ("abid,cbjd->abicj", None),
        ("ij,k->k", ["ReduceSum", "Mul"]),
        ("ijk,jk->k", ["ReduceSum", "Transpose", "Transpose", "Mul", "ReduceSum"]),
        ("aoi,oib->ab", None),
        ("oi,oj->oij", None),
        ("ij->ji", ["Transpose"]),
        ("ijk->", ["ReduceSum"]),
        ("ijk->ki", ["ReduceSum", "Transpose"]),
        ("ba", ["Transpose"]),
    ],
)
def test_equations(equation: str, expected: list[str] | None, opset: int) -> None:
    g = graph(equation, opset=opset)
    if expected is not None:
        assert_rewritten(g.model("v0"), PASSES, expected)
        return
    made, _ = rewritten(g.model("v0"), PASSES)
    assert "Einsum" not in kinds(made)
    assert_rewritten(g.model("v0"), PASSES, kinds(made))


@pytest.mark.parametrize(
    ("equation", "dots"),
    [
        ("...ij,...jk->...ik", "ab,ab"),
        ("...ij,jk->...ik", "ab,"),
        ("i...j,...jk->...ki", "ab,ao"),
        ("...i,...i->...", "ab,ob"),
        ("...,i->...i", "ab,"),
        ("b...i->b...", "hk"),
    ],
)
def test_ellipses(equation: str, dots: str) -> None:
    made, _ = rewritten(graph(equation, dots=dots).model("v0"), PASSES)
    assert "Einsum" not in kinds(made)
    assert_rewritten(graph(equation, dots=dots).model("v0"), PASSES, kinds(made))


def test_symbolic_batch_and_length() -> None:
    g = Graph()
    q, k = g.input("b", "s", 4, 8, name="q"), g.input("b", "t", 4, 8, name="k")
    scores = g.op("Einsum", q, k, equation="bqhd,bkhd->bhqk")
    model = g.model(g.op("Einsum", scores, k, equation="bhqk,bkhd->bqhd"))
    end = ["Transpose", "Transpose", "MatMul", "Transpose", "MatMul", "Transpose"]
    assert_rewritten(model, PASSES, end)


def test_a_weight_takes_the_layout_ops() -> None:
    g = Graph()
    y = g.op("Einsum", g.constant(4, 8, 16), g.input("b", "s", 4, 8), equation="hdo,bshd->bso")
    made = assert_rewritten(g.model(y), PASSES, ["Reshape", "Reshape", "MatMul"])
    assert made.graph.node[-1].input[0] == made.graph.node[0].output[0]


def test_halves_are_multiplied_as_matrices() -> None:
    made, _ = rewritten(graph("bi,bi->b", dtype=np.float16).model("v0"), PASSES)
    assert kinds(made) == ["Reshape", "Reshape", "MatMul", "Reshape"]
    model = graph("bi,b->b", dtype=np.float16).model("v0")
    assert_refused(model, PASSES, "rounded to 16 bits")


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_integers(kind: type) -> None:
    g = Graph(kind)
    a, b = np.arange(6).reshape(2, 3), np.arange(12).reshape(3, 4)
    y = g.op("Einsum", g.input(2, 3, name="a"), g.input(3, 4, name="b"), equation="ij,jk->ki")
    made, _ = rewritten(g.model(y), PASSES)
    assert "MatMul" in kinds(made)
    feeds = {"a": a.astype(kind), "b": b.astype(kind)}
    np.testing.assert_array_equal(run(made, feeds)[0], (a @ b).T, strict=False)


@pytest.mark.parametrize(
    ("equation", "reason"),
    [
        ("ii->i", "diagonal"),
        ("bii,bi->b", "diagonal"),
        ("ij,jk,kn->in", "more than two"),
    ],
)
def test_what_stays(equation: str, reason: str) -> None:
    assert_refused(graph(equation).model("v0"), PASSES, reason)


def test_sizes_that_may_differ_stay() -> None:
    g = Graph()
    a, b = g.input("n", 3, name="a"), g.input("m", 4, name="b")
    assert_refused(g.model(g.op("Einsum", a, b, equation="ij,ik->jk")), PASSES, "different sizes")
    g = Graph()
    a, b = g.input("n", 3, name="a"), g.input(1, 4, name="b")
    assert_refused(g.model(g.op("Einsum", a, b, equation="ij,ik->jk")), PASSES, "different sizes")


def test_rows_that_cannot_be_parted_again_stay() -> None:
    g = Graph()
    a, b = g.input("a", "b", "c", 4, name="a"), g.input("a", 4, 5, name="b")
    y = g.op("Einsum", a, b, equation="abcd,ade->cabe")
    assert_refused(g.model(y), PASSES, "several symbolic sizes")


def test_unknown_ranks_stay() -> None:
    g = Graph()
    x = g.op("Reshape", g.input(2, 3), g.op("Shape", g.input("n", "m", name="z")))
    model = g.model(g.op("Einsum", x, g.input(3, 4, name="b"), equation="ij,jk->ik"))
    kept = [node.op_type for node in rewritten(model, PASSES)[0].graph.node]
    assert kept.count("Einsum") + kept.count("MatMul") == 1


def test_read_equation() -> None:
    read = read_equation("b...i, i...j", (3, 2))
    assert read is not None
    assert read.terms == (("b", "1", "i"), ("i", "j"))
    assert read.out == ("1", "b", "j")
    implicit = read_equation("bB", (2,))
    assert implicit is not None and implicit.out == ("B", "b")
    assert read_equation("ij,jk->ik", (2, 3)) is None
    assert read_equation("ij,jk->ik", (2,)) is None
    assert read_equation("ij->ik", (2,)) is None
    assert roles("bij", "bjk", "bik") == type(roles("", "", ""))(("b",), ("i",), ("k",), ("j",))


def test_random_equations() -> None:
    random = np.random.default_rng(3)
    lowered = 0
    count = repeats(150, 50)
    for _ in range(count):
        letters = list(random.permutation(list("abijko"))[: random.integers(2, 6)])
        terms = ["".join(x for x in letters if random.random() < 0.7) for _ in range(2)]
        terms = ["".join(random.permutation(list(term))) for term in terms]
        known = sorted(set("".join(terms)))
        out = "".join(random.permutation([x for x in known if random.random() < 0.6]))
        if not all(terms):
            continue
        model = graph(f"{','.join(terms)}->{out}").model("v0")
        made, result = rewritten(model, PASSES)
        assert result.modified and "Einsum" not in kinds(made)
        feeds = {
            f"x{i}": random.standard_normal([SIZES[x] for x in term]).astype(np.float32)
            for i, term in enumerate(terms)
        }
        want = np.einsum(f"{','.join(terms)}->{out}", *feeds.values())
        got = run(made, feeds)[0]
        assert got.shape == want.shape
        bound = 1e-6 * prod(SIZES[x] for x in letters)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=bound)
        lowered += 1
    assert lowered > count // 2
