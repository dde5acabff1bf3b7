"""Products of few rows on a GPU, with norms around them, against the CPU's float32."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortkit

WIDTH, INNER, LAYERS = 520, 1352, 2


def layers(rng: np.random.Generator) -> onnx.ModelProto:
    """Norm, gated products, and one back with the sum, twice."""
    nodes, held, x = [], [], "x"

    def constant(name: str, shape: tuple[int, ...], scale: float) -> str:
        array = (rng.standard_normal(shape) * scale).astype(np.float16)
        held.append(numpy_helper.from_array(array, name))
        return name

    def op(op_type: str, *inputs: str, **attributes: float) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    for layer in range(LAYERS):
        scale = constant(f"g{layer}", (WIDTH,), 1.0)
        normed = op("RMSNormalization", x, scale, axis=-1, epsilon=1e-5)
        gate = op("MatMul", normed, constant(f"a{layer}", (WIDTH, INNER), WIDTH**-0.5))
        up = op("MatMul", normed, constant(f"b{layer}", (WIDTH, INNER), WIDTH**-0.5))
        made = op("Mul", op("Mul", gate, op("Sigmoid", gate)), up)
        down = op("MatMul", made, constant(f"c{layer}", (INNER, WIDTH), INNER**-0.5))
        x = op("Add", x, down)
    nodes.append(helper.make_node("Identity", [x], ["y"]))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, (1, 1, WIDTH)) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "layers", infos[:1], infos[1:], held)
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("graph", [False, True], ids=["", "cuda graph"])
def test_layers_of_one_row(graph: bool) -> None:
    pytest.importorskip("triton")
    rng = np.random.default_rng(3)
    proto = layers(rng)
    made = ortkit.optimize(proto, ortkit.OptimizeOptions(target="cuda", verify=False))
    regions = [region for region in made.report.regions if region.emitted_as is not None]
    assert [item.kind for item in regions] == ["product"] * 2 * LAYERS
    x = rng.standard_normal((1, 1, WIDTH)).astype(np.float16)
    with ortkit.Session(proto, "cpu") as session:
        expected = session.run({"x": x})["y"]
    with ortkit.Session(made, "cuda", kernels="require", cuda_graph=graph) as session:
        for _ in range(3):
            found = session.run({"x": x})["y"]
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=0, atol=0.01 * scale)


def layer_end(rows: int) -> onnx.ModelProto:
    """A deep product with bias, residual and norm, whose sum is read too."""
    rng = np.random.default_rng(8)
    shapes: dict[str, tuple[int, ...]] = {"w": (3072, 768), **dict.fromkeys("bgh", (768,))}
    held = [
        numpy_helper.from_array((rng.standard_normal(shape) / 32).astype(np.float16), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["u"]),
        helper.make_node("Add", ["u", "b"], ["t"]),
        helper.make_node("Add", ["t", "r"], ["s"]),
        helper.make_node("LayerNormalization", ["s", "g", "h"], ["n"], axis=-1, epsilon=1e-5),
        helper.make_node("Add", ["n", "s"], ["y"]),
    ]
    sizes = {"x": (1, rows, 3072), "r": (1, rows, 768), "y": (1, rows, 768)}
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)
        for name, shape in sizes.items()
    ]
    graph = helper.make_graph(nodes, "end", infos[:2], infos[2:], held)
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("rows", [7, 50, 128])
def test_a_product_with_its_norm_behind(rows: int) -> None:
    pytest.importorskip("triton")
    proto = layer_end(rows)
    made = ortkit.optimize(proto, ortkit.OptimizeOptions(target="cuda", verify=False))
    kinds = [region.kind for region in made.report.regions if region.emitted_as is not None]
    assert "product_norm" in kinds
    rng = np.random.default_rng(rows)
    x, r = (rng.standard_normal((1, rows, size)).astype(np.float16) for size in (3072, 768))
    with ortkit.Session(proto, "cpu") as session:
        expected = session.run({"x": x, "r": r})["y"]
    with ortkit.Session(made, "cuda", kernels="require") as session:
        found = session.run({"x": x, "r": r})["y"]
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=0, atol=0.01 * scale)


def inner_layers(rows: tuple[int | str, ...], *, is_gated: bool) -> onnx.ModelProto:
    """What is inside of a transformer's layer: up with an activation, and down."""
    rng = np.random.default_rng(9)
    shapes: dict[str, tuple[int, ...]] = {
        "a": (512, 2048), "g": (512, 2048), "b": (2048,), "c": (2048, 512)
    }  # fmt: skip
    held = [
        numpy_helper.from_array((rng.standard_normal(shape) / 24).astype(np.float16), name)
        for name, shape in shapes.items()
    ]
    nodes = [helper.make_node("MatMul", ["x", "a"], ["u"])]
    if is_gated:
        nodes += [
            helper.make_node("MatMul", ["x", "g"], ["v"]),
            helper.make_node("Sigmoid", ["u"], ["s"]),
            helper.make_node("Mul", ["u", "s"], ["t"]),
            helper.make_node("Mul", ["t", "v"], ["m"]),
        ]
    else:
        nodes += [
            helper.make_node("Add", ["u", "b"], ["t"]), helper.make_node("Gelu", ["t"], ["m"])
        ]  # fmt: skip
    nodes.append(helper.make_node("MatMul", ["m", "c"], ["y"]))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, (*rows, 512)) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "inner", infos[:1], infos[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("is_gated", [False, True], ids=["gelu", "gated"])
@pytest.mark.parametrize("rows", [(1, 197), (512,), (4100,), ("n",)], ids=str)
def test_many_rows_with_what_follows(rows: tuple[int | str, ...], is_gated: bool) -> None:
    pytest.importorskip("triton")
    proto = inner_layers(rows, is_gated=is_gated)
    options = ortkit.OptimizeOptions(target="cuda", verify=False, level=3)
    made = ortkit.optimize(proto, options)
    kinds = [region.kind for region in made.report.regions if region.emitted_as is not None]
    assert kinds == ["product"]
    rng = np.random.default_rng(3)
    for count in (0, 1, 130, 5000) if "n" in rows else (0,):
        sizes = [count if size == "n" else size for size in rows]
        x = rng.standard_normal((*sizes, 512)).astype(np.float16)
        with ortkit.Session(proto, "cpu") as session:
            expected = session.run({"x": x})["y"]
        with ortkit.Session(made, "cuda", kernels="require") as session:
            found = session.run({"x": x})["y"]
        scale = float(np.abs(expected).max(initial=0))
        np.testing.assert_allclose(
            np.asarray(found, np.float64), expected, rtol=0, atol=0.01 * scale
        )


ACTED = [("MatMul", "x", "w", "u"), ("Add", "u", "b", "v"), ("Gelu", "v", "y")]
#: Nodes, the shapes of inputs, those of constants, and the nodes of each region.
MANY: dict[str, tuple[list[tuple[str, ...]], dict[str, tuple[int | str, ...]],
                      dict[str, tuple[int, ...]], list[int]]] = {
    "experts": (ACTED, {"x": (4, 300, 512)}, {"w": (4, 512, 1536), "b": (4, 1, 1536)}, [3]),
    "experts of the same rows": (
        ACTED, {"x": (1, 300, 512)}, {"w": (4, 512, 1536), "b": (4, 1, 1536)}, [3]
    ),
    "gated experts": (
        [("MatMul", "x", "w", "u"), ("MatMul", "x", "z", "v"), ("Sigmoid", "u", "s"),
         ("Mul", "u", "s", "t"), ("Mul", "t", "v", "y")],
        {"x": (4, 300, 512)}, {"w": (4, 512, 1536), "z": (4, 512, 1536)}, [4],
    ),
    "masks of unknown numbers": (
        [("MatMul", "x", "m", "u"), ("Sigmoid", "u", "y")],
        {"x": ("n", 104, 256), "m": ("n", 256, 2056)}, {}, [2],
    ),
    "similarities": (
        [("Transpose", "m", "k"), ("MatMul", "x", "k", "u"), ("Relu", "u", "v"),
         ("Mul", "v", "v", "y")],
        {"x": (2, 12, 512, 64), "m": (2, 12, 512, 64)}, {}, [4],
    ),
    "of columns": (
        [("Transpose", "m", "k"), ("MatMul", "k", "x", "u"), ("Tanh", "u", "y")],
        {"x": (2, 16, 256, 1024), "m": (2, 16, 256, 520)}, {}, [3],
    ),
    "halves that meet": (
        [("MatMul", "x", "w", "u"), ("Split", "u", "p", "q"), ("Sigmoid", "p", "s"),
         ("Mul", "p", "s", "t"), ("Mul", "t", "q", "y")],
        {"x": (1, 300, 512)}, {"w": (512, 2816)}, [4],
    ),
    "a deep one alone": (
        [("MatMul", "x", "w", "y")], {"x": (500, 2048)}, {"w": (2048, 3072)}, [1]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MANY)
def test_many_products_halves_and_deep_ones(name: str) -> None:
    pytest.importorskip("triton")
    ops, inputs, shapes, sizes = MANY[name]
    rng = np.random.default_rng(6)
    held = [
        numpy_helper.from_array(
            (rng.standard_normal(shape) * 512**-0.5).astype(np.float16), constant
        )
        for constant, shape in shapes.items()
    ]
    nodes = []
    for kind, *names in ops:
        is_split = kind == "Split"
        rank = len(inputs["x"])
        attributes: dict[str, object] = {"axis": -1, "num_outputs": 2} if is_split else {}
        if kind == "Transpose":
            attributes = {"perm": [*range(rank - 2), rank - 1, rank - 2]}
        cut = 1 if is_split else len(names) - 1
        nodes.append(helper.make_node(kind, names[:cut], names[cut:], **attributes))
    infos = [
        helper.make_tensor_value_info(item, TensorProto.FLOAT16, shape)
        for item, shape in inputs.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)
    graph = helper.make_graph(nodes, "many", infos, [result], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    made = ortkit.optimize(proto, ortkit.OptimizeOptions(target="cuda", verify=False))
    regions = [region for region in made.report.regions if region.emitted_as is not None]
    assert [(one.kind, one.nodes) for one in regions] == [("product", size) for size in sizes]
    for count in (0, 1, 3) if "unknown" in name else (0,):
        feeds = {
            one: rng.standard_normal([count if isinstance(size, str) else size for size in shape])
            for one, shape in inputs.items()
        }
        feeds = {one: (array / 4).astype(np.float16) for one, array in feeds.items()}
        with ortkit.Session(proto, "cpu") as session:
            expected = session.run(feeds)["y"]
        with ortkit.Session(made, "cuda", kernels="require") as session:
            found = session.run(feeds)["y"]
        scale = float(np.abs(expected).max(initial=0))
        np.testing.assert_allclose(
            np.asarray(found, np.float64), expected, rtol=0, atol=0.01 * scale
        )


def four_bits(
    rng: np.random.Generator,
    block: int,
    rows: tuple[int | str, ...],
    width: int,
    *,
    has_zeros: bool,
) -> onnx.ModelProto:
    """The gated products of a language model with weights in 4 bits."""
    nodes, held = [], []

    def product(x: str, name: str, depth: int, columns: int) -> str:
        blocks = depth // block
        shapes = {"q": (columns, blocks, block // 2), "z": (columns * -(-blocks // 2),)}
        inputs = [x]
        for part in ("q", "s", *(["z"] if has_zeros else [])):
            array = rng.uniform(0.5, 1.5, columns * blocks) * depth**-0.5 / 4
            if part in shapes:
                array = rng.integers(0, 256, shapes[part])
            array = array.astype(np.uint8 if part in shapes else np.float16)
            held.append(numpy_helper.from_array(array, f"{name}/{part}"))
            inputs.append(f"{name}/{part}")
        nodes.append(
            helper.make_node(
                "MatMulNBits", inputs, [name], domain="com.microsoft", K=depth, N=columns, bits=4,
                block_size=block,
            )
        )  # fmt: skip
        return name

    gate, up = product("x", "gate", 768, width), product("x", "up", 768, width)
    nodes.append(helper.make_node("Sigmoid", [gate], ["sigmoid"]))
    nodes.append(helper.make_node("Mul", [gate, "sigmoid"], ["silu"]))
    nodes.append(helper.make_node("Mul", ["silu", up], ["act"]))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, (*rows, size))
        for name, size in (("x", 768), ("act", width))
    ]
    graph = helper.make_graph(nodes, "mlp", infos[:1], infos[1:], held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("block", "width", "has_zeros"),
    [(32, 2064, False), (64, 1040, True), (128, 8208, False), (32, 4100, False)],
)
def test_weights_in_four_bits(block: int, width: int, has_zeros: bool) -> None:
    pytest.importorskip("triton")
    rng = np.random.default_rng(block)
    sizes: tuple[int | str, ...] = (1, 29) if has_zeros else ("batch", "sequence")
    proto = four_bits(rng, block, sizes, width, has_zeros=has_zeros)
    made = ortkit.optimize(proto, ortkit.OptimizeOptions(target="cuda", verify=False))
    kinds = [region.kind for region in made.report.regions if region.emitted_as is not None]
    # Both products are of the same rows and meet.
    assert kinds == ["product_nbits"]
    with (
        ortkit.Session(proto, "cuda") as theirs,
        ortkit.Session(made, "cuda", kernels="require") as ours,
    ):
        # From 129 rows on the matrix is written in half precision first.
        for rows in (29,) if has_zeros else (1, 5, 16, 33, 64, 70, 128, 129, 300, 1100, 9000):
            x = rng.standard_normal((1, rows, 768)).astype(np.float16)
            expected = np.asarray(theirs.run({"x": x})["act"], np.float64)
            found = np.asarray(ours.run({"x": x})["act"], np.float64)
            scale = float(np.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=0, atol=0.01 * scale)


def test_zeros_of_many_rows_in_four_bits() -> None:
    """The matrix is written with its zeros, and both products share the memory for it."""
    pytest.importorskip("triton")
    rng = np.random.default_rng(3)
    proto = four_bits(rng, 64, (1, 515), 1040, has_zeros=True)
    made = ortkit.optimize(proto, ortkit.OptimizeOptions(target="cuda", verify=False))
    with (
        ortkit.Session(proto, "cuda") as theirs,
        ortkit.Session(made, "cuda", kernels="require", cuda_graph=True) as ours,
    ):
        for _ in range(3):
            x = rng.standard_normal((1, 515, 768)).astype(np.float16)
            expected = np.asarray(theirs.run({"x": x})["act"], np.float64)
            found = np.asarray(ours.run({"x": x})["act"], np.float64)
            scale = float(np.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=0, atol=0.01 * scale)
