"""Models without padding in CUDA graphs: replays for numbers of tokens that change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import ortkit

LAYERS, WIDTH, HEADS, WORDS = 2, 64, 2, 100
LAYER = """
  q{n} = MatMul({x}, wq{n})  k{n} = MatMul({x}, wk{n})  v{n} = MatMul({x}, wv{n})
  a{n} = Attention<q_num_heads = {heads}, kv_num_heads = {heads}>(q{n}, k{n}, v{n}, bias)
  r{n} = Add(a{n}, {x})  l{n} = LayerNormalization<axis = -1>(r{n}, scale)
  f{n} = MatMul(l{n}, wf{n})  t{n} = Tanh(f{n})  h{n} = Add(t{n}, l{n})
"""


def encoder() -> onnx.ModelProto:
    """Return an encoder of all positions with a mask of padding, in float16."""
    layers = "".join(
        LAYER.format(n=n, x=x, heads=HEADS) for n, x in enumerate(("x", "h0")[:LAYERS])
    )
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 23]>
        g (int64[b, s] ids, int64[b, s] mask) => (float16[b, s, {WIDTH}] y)
        <int64[2] axes = {{1, 2}}, int64[1] one = {{1}}> {{
          x = Gather(table, ids)
          c = Cast<to = 9>(mask)  u = Unsqueeze(c, axes)
          z = Shape<start = 1, end = 2>(mask)  four = Concat<axis = 0>(one, one, z, z)
          bias = Expand(u, four)
          {layers}
          y = Identity(h{LAYERS - 1})
        }}"""
    )
    random = np.random.default_rng(0)
    shapes = {"table": (WORDS, WIDTH), "scale": (WIDTH,)}
    shapes |= {f"w{part}{n}": (WIDTH, WIDTH) for part in "qkvf" for n in range(LAYERS)}
    for name, shape in shapes.items():
        array = (random.standard_normal(shape) / 8).astype(np.float16)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the encoder without padding."""
    pytest.importorskip("triton")
    options = ortkit.OptimizeOptions(target="cuda", verify=False, skip_padding="mask")
    made = ortkit.optimize(encoder(), options)
    assert "packed_attention" in {
        region.kind for region in made.report.regions if region.emitted_as
    }
    path = tmp_path_factory.mktemp("padding") / "packed.onnx"
    made.save(str(path))
    return path


def feeds_of(samples: int, length: int, count: int, seed: int) -> dict[str, np.ndarray]:
    """Return tokens, and a mask that keeps `count` of them: some for each sample."""
    random = np.random.default_rng(seed)
    lengths = np.full(samples, count // samples)
    lengths[: count % samples] += 1
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return {"ids": random.integers(0, WORDS, (samples, length)), "mask": mask}


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """Compare in what float16 rounds to: products may sum in another order."""
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2e-2, atol=2e-2)


CASES = [
    (4, 40, 77, 0), (4, 40, 78, 1), (4, 40, 160, 2), (4, 40, 4, 3), (4, 40, 0, 4), (3, 17, 20, 5),
    (1, 1, 1, 6), (1, 130, 129, 7), (4, 40, 76, 8),
]  # fmt: skip


def test_runs_replay_for_the_tokens_that_are_there(packed: Path) -> None:
    with (
        ortkit.Session(packed, "cuda", kernels="require", cuda_graph=True) as graphs,
        ortkit.Session(packed, "cuda", kernels="require") as plain,
    ):
        assert [spec.name for spec in graphs.inputs] == ["ids", "mask"]
        for case in CASES * 2:
            feeds = feeds_of(*case)
            close(graphs.run(feeds)["y"], plain.run(feeds)["y"])


def test_a_binding_replays_for_the_tokens_that_are_there(packed: Path) -> None:
    torch = pytest.importorskip("torch")
    with (
        ortkit.Session(packed, "cuda", kernels="require", cuda_graph=True) as graphs,
        ortkit.Session(packed, "cuda", kernels="require") as plain,
    ):
        given = {
            name: torch.from_numpy(array).cuda() for name, array in feeds_of(4, 40, 1, 9).items()
        }
        bound = graphs.bind(given)
        for count in (160, 80, 7, 80, 0, 159, *range(1, 160, 7)):
            feeds = feeds_of(4, 40, count, count)
            for name, array in feeds.items():
                given[name].copy_(torch.from_numpy(array))
            close(bound.run()["y"].numpy(), plain.run(feeds)["y"])
        bound.close()
