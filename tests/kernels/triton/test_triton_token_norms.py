"""Norms within products of a token's row, and before those of a prompt's, against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from interpreter import Interpreter, numpy_dtype
from ortkit.custom_ops.triton.gemm import token
from test_triton_compile import assert_fits

from ortkit.kernels.cuda import SHARED_BYTES
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused
from ortkit.targets.cuda import ARCHITECTURES

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

EPSILON = 0.5
NORMS = {
    "rms": "n = RMSNormalization<axis = -1, epsilon = 0.5> (t, g)",
    "layer": "n = LayerNormalization<axis = -1, epsilon = 0.5> (t, g, h)",
    # As opsets before 23 have it in half precision.
    "written": """f = Cast<to = 1> (t)  two = Constant<value = float {2}> ()  q = Pow (f, two)
        a = Constant<value = int64[1] {-1}> ()  m = ReduceMean<keepdims = 1> (q, a)
        e = Constant<value = float {0.5}> ()  l = Add (m, e)  d = Sqrt (l)  o = Div (f, d)
        c = Cast<to = 10> (o)  n = Mul (c, g)""",
}


@dataclass(frozen=True)
class Case:
    """A region of a norm and products of it.

    Args:
        norm: Of `NORMS`.
        terms: What is normed: "x", and maybe "k" of the same shape and "v", a row.
        has_total: Whether the sum is a result, too.
        is_pair: Whether there are two matrices, of which the first one's product is curved.
        bits: Of a weight.
        zero: Whether there are zeros, with 4 bits.
        tail: "r" for a residual sum behind, "b" for a bias.
        dtype: Of all tensors.
    """

    norm: str = "rms"
    terms: str = "x"
    has_total: bool = False
    is_pair: bool = False
    bits: int = 16
    zero: bool = False
    tail: str = ""
    depth: int = 96
    columns: int = 40
    dtype: str = "float16"
    rows: tuple[int | str, ...] = ("b", "s")

    def signature(self) -> RegionSignature:
        """Return the region."""
        row, whole = (self.depth,), (*self.rows, self.columns)
        sizes: dict[str, tuple[int | str, ...]] = {
            **dict.fromkeys("xk", (*self.rows, self.depth)), "v": row, "g": row, "h": row,
            **dict.fromkeys("wz", (self.columns, self.depth)), "r": whole, "b": (self.columns,),
        }  # fmt: skip
        names = [*self.terms, "g", *("h" if self.norm == "layer" else "")]
        specs = {name: TensorSpec(name, self.dtype, sizes[name]) for name in names}
        body, term = "", "x"
        for number, other in enumerate(self.terms[1:]):
            body += f"t{number} = Add ({term}, {other})  "
            term = f"t{number}"
        body += NORMS[self.norm].replace("(t", f"({term}") + "  "
        for name in "wz"[: 1 + self.is_pair]:
            body += self._product(name, specs, sizes)
        last = "pw"
        if self.is_pair:
            body += "iw = Sigmoid (pw)  cw = Mul (pw, iw)  gw = Mul (cw, pz)  "
            last = "gw"
        if self.tail:
            specs[self.tail] = TensorSpec(self.tail, self.dtype, sizes[self.tail])
            body += f"aw = Add ({last}, {self.tail})  "
            last = "aw"
        results = [*([term] if self.has_total else []), last]
        kind = "product" if self.bits == 16 else "product_nbits"
        text = (
            f'<opset_import: ["" : 23, "com.microsoft" : 1]> {kind} ({", ".join(specs)}) => '
            f"({', '.join(results)}) {{ {body} }}"
        )
        outputs = [TensorSpec(results[-1], self.dtype, whole)]
        if self.has_total:
            outputs.insert(0, TensorSpec(term, self.dtype, sizes["x"]))
        return RegionSignature(kind, text, tuple(specs.values()), tuple(outputs))

    def _product(
        self, name: str, specs: dict[str, TensorSpec], sizes: dict[str, tuple[int | str, ...]]
    ) -> str:
        """Return a product's text, and add what it reads."""
        if self.bits == 16:
            specs[name] = TensorSpec(name, self.dtype, sizes[name])
            return f"T{name} = Transpose<perm = [1, 0]> ({name})  p{name} = MatMul (n, T{name})  "
        blocks = self.depth // 32
        specs[name] = TensorSpec(name, "uint8", (self.columns, blocks, 16))
        specs[f"s{name}"] = TensorSpec(f"s{name}", self.dtype, (self.columns * blocks,))
        operands = f"n, {name}, s{name}"
        if self.zero:
            count = self.columns * -(-blocks // 2)
            specs[f"z{name}"] = TensorSpec(f"z{name}", "uint8", (count,))
            operands += f", z{name}"
        return (
            f"p{name} = com.microsoft.MatMulNBits<K: int = {self.depth}, N: int = {self.columns}, "
            f"bits: int = 4, block_size: int = 32> ({operands})  "
        )

    def feeds(self, rows: int, largest: float = 1.0) -> list[np.ndarray]:
        """Return numbers for each input; those of `terms` are up to a few times `largest`."""
        rng = np.random.default_rng(5)
        found = []
        for spec in self.signature().inputs:
            shape = [{"b": 1, "s": rows}.get(item, item) for item in spec.shape]
            if spec.dtype == "uint8":
                found.append(rng.integers(0, 256, shape, np.uint8))
                continue
            values = rng.standard_normal(shape)
            if spec.name in ("sw", "sz"):
                values = (0.5 + np.abs(values)) / 16
            elif spec.name in self.terms:
                values = values * largest + 0.25
            found.append(values.astype(numpy_dtype(spec.dtype)))
        return found

    def expected(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        """Return the results in float64; sums are rounded."""
        names = [spec.name for spec in self.signature().inputs]
        given = dict(zip(names, feeds, strict=True))
        wide = {
            name: np.asarray(value, np.float64)
            for name, value in given.items()
            if value.dtype != np.uint8
        }
        total, half = wide["x"], numpy_dtype(self.dtype)
        for other in self.terms[1:]:
            total = (total + wide[other]).astype(half).astype(np.float64)
        n = total - total.mean(-1, keepdims=True) if self.norm == "layer" else total
        n = n / np.sqrt((n * n).mean(-1, keepdims=True) + EPSILON) * wide["g"]
        n = n + wide["h"] if self.norm == "layer" else n
        p = n @ self._matrix("w", given).T
        if self.is_pair:
            with np.errstate(over="ignore"):
                p = p / (1 + np.exp(-p)) * (n @ self._matrix("z", given).T)
        p = p + wide[self.tail] if self.tail else p
        return [*([total] if self.has_total else []), p]

    def _matrix(self, name: str, given: dict[str, np.ndarray]) -> np.ndarray:
        if self.bits == 16:
            return np.asarray(given[name], np.float64)
        blocks = self.depth // 32
        numbers = np.stack([given[name] & 15, given[name] >> 4], -1).astype(np.float64)
        zero = 8.0
        if self.zero:
            packed = given[f"z{name}"].reshape(self.columns, -1)
            both = np.stack([packed & 15, packed >> 4], -1).reshape(self.columns, -1)
            zero = both[:, :blocks, None].astype(np.float64)
        scale = given[f"s{name}"].astype(np.float64).reshape(self.columns, blocks, 1)
        values = (numbers.reshape(self.columns, blocks, 32) - zero) * scale
        return values.reshape(self.columns, self.depth)


CASES = {
    "norm": Case(),
    "layer's norm": Case("layer", tail="b"),
    "norm written out": Case("written", "xk", has_total=True),
    "sum": Case(terms="xk", has_total=True, tail="b"),
    "sum with a bias": Case("layer", "xvk", has_total=True, columns=48),
    "sum that nothing reads": Case(terms="xk"),
    "pair": Case(terms="xk", has_total=True, is_pair=True),
    "pair after a layer's norm": Case("layer", "xk", has_total=True, is_pair=True),
    "several steps": Case(terms="xk", has_total=True, depth=4104, columns=8),
    "pair in several steps": Case(terms="xk", has_total=True, is_pair=True, depth=2056),
    "residual behind": Case(terms="xk", has_total=True, tail="r"),
    "4 bits": Case(bits=4, tail="b"),
    "4 bits, sum": Case(terms="xk", has_total=True, bits=4, zero=True),
    "4 bits, sum, norm written out": Case("written", "xk", has_total=True, bits=4),
    "4 bits, layer's norm": Case("layer", "xvk", has_total=True, bits=4, zero=True, tail="r"),
    "4 bits, pair": Case(terms="xk", has_total=True, bits=4, is_pair=True, zero=True),
    "4 bits, a deep pair": Case("rms", "xk", True, True, 4, depth=4096 + 96, columns=6),
    "4 bits, several steps": Case("layer", "xk", True, bits=4, depth=8192 + 32, columns=5),
    "4 bits, one row": Case(terms="xk", has_total=True, bits=4, rows=(1, 1)),
}


@pytest.fixture(autouse=True, params=[True, False], ids=["within", "before"])
def is_within(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether one row has its norm within float16 products, or in a launch before them."""
    monkeypatch.setattr(token, "_MOST_WITHIN", 2**31 if request.param else 0)
    return bool(request.param)


def off(case: Case, got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The largest difference, as a part of what is allowed: a sum of two is exact."""
    if case.has_total:
        near = 0.0 if len(case.terms) < 3 else 2.0**-10 * np.abs(want[0]).max(initial=0.0)
        np.testing.assert_allclose(np.asarray(got[0], np.float64), want[0], rtol=0, atol=near)
    near = 2.0**-6 if case.dtype == "bfloat16" else 2.0**-9
    error = np.abs(np.asarray(got[-1], np.float64) - want[-1])
    return float(error.max(initial=0.0) / (near * np.abs(want[-1]).max(initial=1.0)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_norms(name: str, interpreter: Interpreter) -> None:
    """One row by the first variant; prompts by those without boxes; and any address."""
    case = CASES[name]
    signature = case.signature()
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    for number, source in enumerate(sources):
        if any(step.maps for step in source.steps):
            continue
        feeds = case.feeds(1 if number == 0 or case.rows == (1, 1) else 5)
        shift = 0 if source.is_aligned else 2
        got = interpreter.run(signature, feeds, number, shift)
        assert off(case, got, case.expected(feeds)) <= 1, f"variant {number}"


@pytest.mark.parametrize("name", ["sum", "pair", "4 bits, sum"])
def test_no_row(name: str, interpreter: Interpreter) -> None:
    case = CASES[name]
    got = interpreter.run(case.signature(), case.feeds(0), 0)
    assert [item.size for item in got] == [0, 0]


@pytest.mark.parametrize("name", ["sum", "pair"])
def test_bfloat16(name: str, interpreter: Interpreter) -> None:
    case = replace(CASES[name], dtype="bfloat16")
    for rows, variant in ((1, 0), (3, -1)):
        feeds, shift = case.feeds(rows), 0 if variant == 0 else 2
        sources = sources_of(case.signature())
        assert not isinstance(sources, Refused)
        number = variant % len(sources)
        got = interpreter.run(case.signature(), feeds, number, shift)
        assert off(case, got, case.expected(feeds)) <= 1


@pytest.mark.parametrize("name", ["sum", "4 bits, sum", "4 bits, layer's norm"])
@pytest.mark.parametrize("largest", [2.0**-20, 12_000.0])
def test_rows_at_the_ends_of_half_precision(
    name: str, largest: float, is_within: bool, interpreter: Interpreter
) -> None:
    """Within a product the norm is not rounded, and may exceed half precision."""
    case = CASES[name]
    top = 2.0**15 if is_within and case.bits == 16 else 2.0**12
    feeds = case.feeds(1)
    for feed, spec in zip(feeds, case.signature().inputs, strict=True):
        if spec.name in case.terms:
            feed -= np.float16(0.25)
            feed *= np.float16(largest)
        elif spec.name == "g":
            feed[...] = top if largest > 1 else 1.0
        elif spec.name == ("w" if case.bits == 16 else "sw") and largest > 1:
            feed *= np.float16(2.0**-12)
    want = case.expected(feeds)
    assert np.isfinite(want[0]).all() and np.abs(want[-1]).max() < 60_000
    assert off(case, interpreter.run(case.signature(), feeds, 0), want) <= 1


def test_launches(is_within: bool) -> None:
    """A norm that is a launch has scratch memory as its result."""
    counts = {}
    for name in ("sum", "pair", "4 bits, pair"):
        sources = sources_of(CASES[name].signature())
        assert not isinstance(sources, Refused)
        variants = [each.variant([0] * len(each.steps)) for each in sources]
        counts[name] = [len(variant.steps) for variant in variants]
        rows = Extent(2 * 96, ("s0", "s1"))
        is_one = is_within and CASES[name].bits == 16
        assert variants[0].scratch == (() if is_one else (rows,))
        for variant in variants[1:]:
            place = -1 - variant.scratch.index(rows)
            for step in variant.steps:
                assert step.product is None or step.product.x == place
                assert not step.maps or step.maps[0].tensor == place
    one = 1 if is_within else 2
    assert counts["sum"] == [one, 3, 2]
    assert counts["pair"][0] == one and {*counts["pair"][1:]} == {2}
    # Two are the pair in one kernel behind the norm and both matrices.
    assert counts["4 bits, pair"] == [2, 3, 3, 4, 4, 6, 3]


REFUSED = {
    "rows of a known number": Case(rows=(1, 7)),
    "4 bits, rows of a known number": Case(rows=(1, 7), bits=4),
    "one row with a sum": Case(rows=(1, 1), terms="xk", has_total=True),
    "4 bits in bfloat16": Case(bits=4, dtype="bfloat16", columns=4096),
    "three rows": Case(terms="xkk"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    assert isinstance(template_for(REFUSED[name].signature()), Refused)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", ["sum", "pair", "4 bits, sum", "4 bits, pair"])
def test_kernels_fit_every_architecture(name: str, architecture: int, tmp_path: Path) -> None:
    sources = sources_of(replace(CASES[name], depth=4096, columns=4096).signature())
    assert not isinstance(sources, Refused)
    for step in (sources[0].steps[0], sources[1].steps[0]):
        made = compile_step(step, architecture, tmp_path)
        assert_fits(made, tmp_path, f"sm_{architecture}", SHARED_BYTES[architecture])
