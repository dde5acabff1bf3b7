"""Matrix products with weights in 4 or 8 bits: what the kernels compute, and where they refuse."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx.numpy_helper
import pytest
from fused_model import fused_model, session, tensor
from ortkit.custom_ops.tvm.gemm.nbits import NBitsProduct, match
from ortkit.custom_ops.tvm.gemm.nbits_writer import SMALL_M

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tvm.build import assembly
from ortkit.refusal import Refused
from ortkit.targets import cpu
from ortkit.targets.target import Target

LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx")
HERE = [level for level in LEVELS if cpu.runs_here(level)]
TILES, VNNI = "x86-64-v4-amx", "x86-64-v4-bf16"
TAILS = {
    "": "y = Identity (p)",
    "silu": "g = Sigmoid (p)  y = Mul (p, g)",
    "add": "y = Add (p, r)",
}

runs = pytest.mark.skipif(not HERE, reason="this machine has no AVX2")
x86_64 = pytest.mark.skipif(cpu.machine() != "x86-64", reason="x86-64 has levels")


@dataclass(frozen=True)
class Form:
    """A product of `rows` rows; see MatMulNBits."""

    depth: int = 128
    columns: int = 32
    block: int = 32
    zero: bool = False
    bias: bool = False
    tail: str = ""
    rows: tuple[int | str, ...] = ("rows",)
    level: int = 4
    bits: int = 4

    @property
    def blocks(self) -> int:
        return self.depth // self.block

    def signature(self) -> RegionSignature:
        names = ["x", "w", "s", "z" if self.zero else "", "", "b" if self.bias else ""]
        inputs = [
            tensor("x", *self.rows, self.depth),
            tensor("w", self.columns, self.blocks, self.block * self.bits // 8, dtype="uint8"),
            tensor("s", self.columns * self.blocks),
        ]
        if self.zero:
            inputs.append(
                tensor("z", self.columns * -(-self.blocks * self.bits // 8), dtype="uint8")
            )
        if self.bias:
            inputs.append(tensor("b", self.columns))
        if self.tail == "add":
            inputs.append(tensor("r", *self.rows, self.columns))
        given = ", ".join(spec.name for spec in inputs)
        text = (
            f'<opset_import: ["" : 20, "com.microsoft" : 1]> f ({given}) => (y) {{ '
            f"p = com.microsoft.MatMulNBits <K = {self.depth}, N = {self.columns}, "
            f"bits = {self.bits}, block_size = {self.block}, accuracy_level = {self.level}> "
            f"({', '.join(names).rstrip(', ')})  {TAILS[self.tail]} }}"
        )
        result = tensor("y", *self.rows, self.columns)
        return RegionSignature("matmul_nbits", text, tuple(inputs), (result,))

    def feeds(self, rows: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(rows)
        found = {}
        for spec in self.signature().inputs:
            shape = [rows if isinstance(size, str) else size for size in spec.shape]
            if spec.dtype == "uint8":
                found[spec.name] = random.integers(0, 256, shape, dtype=np.uint8)
            else:
                found[spec.name] = random.standard_normal(shape).astype(np.float32)
        return found

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """Blocks in int8, with a scale each, as float64."""
        blocks = x.reshape(*x.shape[:-1], -1, self.block).astype(np.float64)
        scale = np.maximum(np.abs(blocks).max(-1, keepdims=True), 1e-30) / 127
        return (np.round(blocks / scale) * scale).reshape(x.shape)

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """In float64."""
        split = _halves if self.bits == 4 else np.float64
        numbers = split(feeds["w"]).reshape(self.columns, self.blocks, self.block)
        zero = 2.0 ** (self.bits - 1)
        if self.zero:
            zero = split(feeds["z"]).reshape(self.columns, -1)[:, : self.blocks, None]
        scale = feeds["s"].reshape(self.columns, self.blocks, 1).astype(np.float64)
        matrix = ((numbers - zero) * scale).reshape(self.columns, self.depth)
        value = feeds["x"].astype(np.float64) @ matrix.T
        if self.bias:
            value = value + feeds["b"]
        if self.tail == "silu":
            value = value / (1 + np.exp(-value))
        return value + feeds["r"] if self.tail == "add" else value


def _halves(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], -1).astype(np.float64)


# More than one part of the depth, of groups of panels, and of blocks of rows; ragged ends.
FORMS = {
    "plain": Form(),
    "16 columns": Form(columns=16),
    "ragged columns": Form(depth=256, columns=48, tail="add"),
    "a chunk and a quarter": Form(depth=160, tail="silu"),
    "zeros": Form(depth=160, zero=True, bias=True),
    "many zeros": Form(depth=32 * 19, zero=True),
    "blocks of 16": Form(depth=256, block=16, zero=True),
    "odd blocks of 16": Form(depth=144, block=16),
    "blocks of 64": Form(depth=192, block=64, zero=True),
    "blocks of 128": Form(depth=384, block=128, zero=True),
    "blocks of 256": Form(depth=768, block=256),
    "parts": Form(depth=1056, columns=64),
    "groups": Form(columns=560, bias=True, tail="silu"),
    "two axes": Form(rows=(3, "rows"), tail="add"),
    "static": Form(rows=(5,), columns=48),
    "bytes": Form(depth=96, bits=8),
    "bytes in blocks of 16": Form(depth=80, bits=8, block=16),
    "bytes in blocks of 128": Form(depth=640, bits=8, block=128, bias=True),
    "bytes with zeros": Form(depth=1056, columns=48, bits=8, zero=True, tail="add"),
    "bytes with zeros in blocks of 16": Form(depth=80, bits=8, block=16, zero=True),
    "bytes with zeros in blocks of 256": Form(depth=768, bits=8, block=256, zero=True),
}
ROWS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 32, 33, 70)


def kernel(form: Form, level: str, folder: Path, cache: KernelCache, threads: int = 1):
    signature = form.signature()
    made = build_library([signature], Target("cpu", level), folder / "k.so", cache=cache)
    assert made.library is not None, made.refused
    return session(fused_model(signature), made.library.path, threads)


def needs(form: Form, level: str) -> None:
    """Skip what a level has no kernel for; see `test_refused_on_a_level`."""
    found = match(form.signature())
    assert isinstance(found, NBitsProduct)
    if refused := found.refuses(level):
        pytest.skip(refused.reason)


@runs
@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("form", FORMS)
def test_results(form: str, level: str, tmp_path: Path, cache: KernelCache) -> None:
    """Sums of bytes are exact: what differs from rows in int8 are roundings of float32."""
    of = FORMS[form]
    needs(of, level)
    one = kernel(of, level, tmp_path, cache)
    for rows in ROWS:
        feeds = of.feeds(rows)
        (got,) = one.run(None, feeds)
        in_tiles = level == TILES and of.block % 32 == 0
        is_bf16 = in_tiles and np.prod(got.shape[:-1]) > SMALL_M
        want = of.expected(feeds if is_bf16 else {**feeds, "x": of.rounded(feeds["x"])})
        step = 2.0**-7 if is_bf16 else 2e-6
        # A number halfway between two of int8 may become either.
        assert np.quantile(np.abs(got - want), 0.99) <= step * np.abs(want).max(), rows
        assert np.abs(got - want).max() <= 2.0**-7 * np.abs(want).max(), rows


# Rows of the second are too long to be kept for all panels.
LARGE = {"rows kept": Form(depth=640, columns=336), "parts": Form(depth=4128, columns=528)}


@runs
@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("form", LARGE)
def test_large_m(form: str, level: str, tmp_path: Path, cache: KernelCache) -> None:
    """Several blocks of rows, of which the last is short; threads change nothing."""
    of = LARGE[form]
    feeds = of.feeds(600)
    (one,), (three,) = (
        kernel(of, level, tmp_path, cache, threads).run(None, feeds) for threads in (1, 3)
    )
    np.testing.assert_array_equal(one, three)
    want = of.expected(feeds)
    assert np.abs(one - want).max() < 2.0**-6 * np.abs(want).max()


def resident(file: Path) -> int:
    """Bytes of a file that this process has mapped and in memory."""
    maps = Path("/proc/self/smaps").read_text().split("VmFlags")
    found = [map_ for map_ in maps if str(file) in map_]
    return sum(1024 * int(line.split()[1]) for item in found for line in item.splitlines()
               if line.startswith("Rss"))  # fmt: skip


@runs
def test_weights_of_a_file_are_read_from_copies(tmp_path: Path, cache: KernelCache) -> None:
    """Where the system gives huge pages; the pages of the file leave the process."""
    of = Form(depth=2048, columns=1024)
    feeds = of.feeds(1)
    want = kernel(of, HERE[-1], tmp_path, cache).run(None, feeds)
    model = onnx.load_from_string(fused_model(of.signature()))
    for name in ("w", "s"):
        index = [value.name for value in model.graph.input].index(name)
        del model.graph.input[index]
        model.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop(name), name))
    path, data = tmp_path / "model.onnx", tmp_path / "weights.data"
    onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
    one = session(str(path), tmp_path / "k.so")
    np.testing.assert_array_equal(one.run(None, feeds), want)
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if enabled.is_file() and "[never]" not in enabled.read_text():
        assert resident(data) < of.columns * of.depth // 16
    del one
    again = session(str(path), tmp_path / "k.so", 2)
    np.testing.assert_array_equal(again.run(None, feeds), want)


@runs
@pytest.mark.parametrize("rows", [1, 48])
def test_rows_are_rounded_no_further_than_by_onnx_runtime(
    rows: int, tmp_path: Path, cache: KernelCache
) -> None:
    """A session whose weights are constants rounds to int8 at this accuracy level."""
    of = Form(depth=512, columns=64)
    feeds = of.feeds(rows)
    (got,) = kernel(of, HERE[-1], tmp_path, cache).run(None, feeds)
    model = onnx.load_from_string(fused_model(of.signature()))
    del model.graph.input[1:]
    for name in ("w", "s"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(feeds[name], name))
    (theirs,) = session(onnx.inliner.inline_local_functions(model).SerializeToString()).run(
        None, {"x": feeds["x"]}
    )
    want = of.expected(feeds)
    assert np.abs(got - want).mean() <= 1.01 * np.abs(theirs - want).mean()


@pytest.mark.sampled(1)
@runs
@pytest.mark.parametrize("magnitude", [0.0, 1e-38, 1e-20, 1e30])
def test_small_and_large_rows(magnitude: float, tmp_path: Path, cache: KernelCache) -> None:
    of = Form(depth=256)
    for rows in (1, 9):
        feeds = of.feeds(rows)
        feeds["x"][:, :32] *= np.float32(magnitude)
        (got,) = kernel(of, HERE[-1], tmp_path, cache).run(None, feeds)
        want = of.expected(feeds)
        assert np.abs(got - want).max() < 2.0**-5 * np.abs(want).max()


@runs
@pytest.mark.parametrize("rows", [3, 40])
def test_a_row_leaves_others_alone(rows: int, tmp_path: Path, cache: KernelCache) -> None:
    of = FORMS["a chunk and a quarter"]
    feeds = of.feeds(rows)
    feeds["x"][1] = np.nan
    feeds["x"][2, 5] = np.inf
    (got,) = kernel(of, HERE[-1], tmp_path, cache).run(None, feeds)
    finite = np.isfinite(got).all(axis=1)
    assert [int(row) for row in np.flatnonzero(~finite)] == [1, 2]


@runs
def test_no_rows(tmp_path: Path, cache: KernelCache) -> None:
    (got,) = kernel(Form(), HERE[-1], tmp_path, cache).run(None, Form().feeds(0))
    assert got.shape == (0, 32)


@functools.cache
def assembly_for(level: str) -> str:
    template = match(Form(depth=1024, columns=256).signature())
    assert isinstance(template, NBitsProduct)
    assert template.refuses(level) is None
    return assembly(template.lower("kernel", level), level)


@x86_64
@pytest.mark.parametrize(
    ("level", "instruction"),
    [
        (TILES, "tdpbf16ps"),
        (VNNI, "vpdpbusd"),
        ("x86-64-v4-vnni", "vpdpbusd"),
    ],
)
def test_vectors_stay_whole(level: str, instruction: str) -> None:
    """LLVM made each row of a transpose out of 16 vectors, with 240 shuffles."""
    text = assembly_for(level)
    assert instruction in text
    assert text.count("vpermt2") < 200
    assert ("bf16" in text) == (level == TILES)


# ---- what is refused
@x86_64
@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Form(level=1), "accuracy level"),
        (Form(level=0), "accuracy level"),
        (Form(block=8), "blocks"),
        (Form(block=512, depth=1024), "blocks"),
        (Form(columns=24), "columns"),
        (Form(bits=2), "4 or 8 bits"),
        (Form(depth=96), "a depth of less than 128"),
    ],
)
def test_refused(form: Form, reason: str) -> None:
    found = match(form.signature())
    assert isinstance(found, Refused)
    assert reason in found.reason


@x86_64
@pytest.mark.parametrize(
    ("name", "shape"), [("w", (31, 4, 16)), ("s", (127,)), ("z", (63,)), ("x", ("rows", 32))]
)
def test_operands_of_other_sizes_are_refused(name: str, shape: tuple[int | str, ...]) -> None:
    signature = Form(zero=True).signature()
    inputs = [
        replace(spec, shape=shape) if spec.name == name else spec for spec in signature.inputs
    ]
    assert isinstance(match(signature), NBitsProduct)
    assert isinstance(match(replace(signature, inputs=tuple(inputs))), Refused)


@x86_64
@pytest.mark.parametrize(
    ("form", "level", "reason"),
    [
        (Form(), "x86-64-v2", "int8 dot products"),
        (Form(level=3), VNNI, "no tiles"),
        (Form(block=16, level=3), TILES, "no tiles for blocks of 16"),
        (Form(bits=8), "x86-64-v4", "no VNNI"),
    ],
)
def test_refused_on_a_level(form: Form, level: str, reason: str) -> None:
    found = refusal(form.signature(), Target("cpu", level))
    assert found is not None
    assert reason in found.reason


@x86_64
@pytest.mark.parametrize("level", [level for level in LEVELS if level not in HERE])
def test_a_kernel_for_each_level_compiles_everywhere(level: str) -> None:
    """`test_results` compiles for those that run here."""
    assert "kernel" in assembly_for(level)
