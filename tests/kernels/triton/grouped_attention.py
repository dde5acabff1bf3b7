"""GroupQueryAttention over caches in half precision: regions, inputs, and what they compute."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ortkit.kernels.signature import RegionSignature, TensorSpec

POSITIONS = 2200


@dataclass(frozen=True)
class Form:
    """An attention of `heads` that share `groups` heads of keys.

    Args:
        half: Of the columns that are rotated; 0 for none.
        is_packed: Whether Q, K and V are columns of one tensor.
    """

    heads: int = 4
    groups: int = 2
    width: int = 32
    half: int = 16
    is_interleaved: bool = False
    window: int = 0
    softcap: float = 0.0
    has_sink: bool = False
    has_norms: bool = False
    is_packed: bool = True
    dtype: str = "float16"
    scale: float = 0.0
    cache_width: str | int = "w"
    total: tuple[int, ...] = ()

    def signature(self) -> RegionSignature:
        kv, columns = self.groups * self.width, self.heads * self.width
        inputs = [("q", ("b", "s", columns + (2 * kv if self.is_packed else 0)))]
        if not self.is_packed:
            inputs += [("k", ("b", "s", kv)), ("v", ("b", "s", kv))]
        inputs += [(name, ("b", self.groups, "p", self.cache_width)) for name in ("pk", "pv")]
        inputs += [("lengths", ("b",)), ("total", self.total)]
        if self.half:
            inputs += [(name, (POSITIONS, self.half)) for name in ("cos", "sin")]
        if self.has_sink:
            inputs.append(("sink", (self.heads,)))
        if self.has_norms:
            inputs += [(name, (self.width,)) for name in ("qn", "kn")]
        names = {name for name, _ in inputs}
        given = ["q", "k", "v", "pk", "pv", "lengths", "total", "cos", "sin", "", "", "sink", "",
                 "", "qn", "kn"]  # fmt: skip
        given = [name if name in names else '""' for name in given]
        if not self.has_norms:
            given = given[:12] if self.has_sink else given[:9] if self.half else given[:7]
        text = (
            f'<opset_import: ["" : 20, "com.microsoft" : 1]> '
            f"f ({', '.join(name for name, _ in inputs)}) => (y, k2, v2) {{ "
            f"y, k2, v2 = com.microsoft.GroupQueryAttention <num_heads = {self.heads}, "
            f"kv_num_heads = {self.groups}, do_rotary = {int(self.half > 0)}, "
            f"rotary_interleaved = {int(self.is_interleaved)}, "
            f"local_window_size = {self.window or -1}, softcap = {self.softcap}, "
            f"scale = {self.scale}> ({', '.join(given)}) }}"
        )
        whole = ("lengths", "total")
        specs = tuple(
            TensorSpec(name, "int32" if name in whole else self.dtype, shape)
            for name, shape in inputs
        )
        outputs = (
            TensorSpec("y", self.dtype, ("b", "s", columns)),
            *(TensorSpec(name, self.dtype, ("b", self.groups, size, self.width))
              for name, size in (("k2", "?1"), ("v2", "?2"))),
        )  # fmt: skip
        return RegionSignature("attention", text, specs, outputs)

    def feeds(self, run: Run, seed: int = 7) -> list[np.ndarray]:
        random = np.random.default_rng(seed)
        sizes = {"b": len(run.past), "s": run.rows, "p": run.cache, "w": self.width}
        found = []
        for spec in self.signature().inputs:
            shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
            value = random.standard_normal(shape)
            if spec.name in ("cos", "sin"):
                angles = np.arange(POSITIONS)[:, None] * 0.7 ** np.arange(self.half)
                value = np.cos(angles) if spec.name == "cos" else np.sin(angles)
            elif spec.name == "lengths":
                value = np.array([past + run.rows - 1 for past in run.past])
                value -= np.array(run.missing or [0] * len(value))
            elif spec.name == "total":
                value = np.full(self.total, max(run.past) + run.rows)
            dtype = ml_dtypes.bfloat16 if spec.dtype == "bfloat16" else spec.dtype
            found.append(np.asarray(value).astype(dtype))
        return found

    def expected(self, feeds: list[np.ndarray]) -> list[np.ndarray]:
        """Results in float64: y and the caches; rows of y behind a short prompt's end are NaN."""
        names = [spec.name for spec in self.signature().inputs]
        at = {name: np.asarray(feed, np.float64) for name, feed in zip(names, feeds, strict=True)}
        kv, columns = self.groups * self.width, self.heads * self.width
        parts = (
            np.split(at["q"], [columns, columns + kv], -1)
            if self.is_packed
            else [at["q"], at["k"], at["v"]]
        )
        batch, rows = parts[0].shape[:2]
        q, k, v = (
            part.reshape(batch, rows, -1, self.width).transpose(0, 2, 1, 3) for part in parts
        )
        if self.has_norms:
            q, k = (
                x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * at[name]
                for x, name in ((q, "qn"), (k, "kn"))
            )
        most = max(at["pk"].shape[2], int(at["total"].item()))
        caches = [np.zeros((batch, self.groups, most, self.width)) for _ in range(2)]
        y = np.full((batch, rows, self.heads, self.width), np.nan)
        for b in range(batch):
            total = int(at["lengths"][b]) + 1
            past = max(total - rows, 0)
            place = np.arange(past, past + rows)
            q_b, k_b = (self._rotated(x[b], place, at) for x in (q, k))
            for cache, name, new in zip(caches, ("pk", "pv"), (k_b, v[b]), strict=True):
                cache[b, :, :past] = at[name][b, :, :past]
                cache[b, :, past : past + rows] = new
            for row in range(min(rows, total)):
                last = past + row + 1
                first = max(last - self.window, 0) if self.window else 0
                for head in range(self.heads):
                    group = head * self.groups // self.heads
                    scores = caches[0][b, group, first:last] @ q_b[head, row]
                    scores *= self.scale or self.width**-0.5
                    if self.softcap:
                        scores = np.tanh(scores / self.softcap) * self.softcap
                    if self.has_sink:
                        scores = np.append(scores, at["sink"][head])
                    weights = np.exp(scores - scores.max())
                    weights = (weights / weights.sum())[: last - first]
                    y[b, row, head] = weights @ caches[1][b, group, first:last]
        return [y.reshape(batch, rows, columns), *caches]

    def _rotated(self, x: np.ndarray, place: np.ndarray, at: dict[str, np.ndarray]) -> np.ndarray:
        if not self.half:
            return x
        cos, sin, made = at["cos"][place], at["sin"][place], x.copy()
        step = 2 if self.is_interleaved else 1
        low = slice(0, 2 * self.half if self.is_interleaved else self.half, step)
        high = slice(1 if self.is_interleaved else self.half, 2 * self.half, step)
        made[..., low] = x[..., low] * cos - x[..., high] * sin
        made[..., high] = x[..., high] * cos + x[..., low] * sin
        return made


@dataclass(frozen=True)
class Run:
    """New rows over caches: rows that each sample has before, and that there is room for.

    Args:
        missing: New rows at the end of each sample that do not count, of a short prompt.
    """

    rows: int
    past: tuple[int, ...]
    cache: int
    missing: tuple[int, ...] = ()


FORMS = {
    "packed": Form(),
    "one head": Form(heads=1, groups=1, is_packed=False, half=8, total=(1,)),
    "apart, not rotated": Form(heads=3, groups=3, half=0, is_packed=False),
    "eight share": Form(heads=8, groups=1, width=64, half=32),
    "three share, width of no power": Form(heads=6, groups=2, width=96, half=48),
    "some columns rotated": Form(heads=2, groups=1, width=80, half=16),
    "neighbours rotated": Form(width=48, half=24, is_interleaved=True),
    "window": Form(heads=7, groups=1, window=37),
    "window of one": Form(window=1),
    "capped": Form(heads=5, groups=1, softcap=1.5, scale=1.0),
    "sink": Form(has_sink=True, window=50),
    "norms": Form(heads=4, groups=2, width=64, half=32, has_norms=True, is_packed=False),
    "norms, neighbours": Form(half=8, is_interleaved=True, has_norms=True, has_sink=True),
    "bfloat16": Form(dtype="bfloat16", heads=6, groups=2),
    "wide": Form(heads=2, groups=1, width=256, half=128),
}
TOKENS = (
    Run(1, (0,), 1), Run(1, (1,), 2), Run(1, (62,), 63), Run(1, (63,), 64), Run(1, (64,), 65),
    Run(1, (129,), 200), Run(1, (0, 131, 64), 300), Run(1, (301,), 640),
)  # fmt: skip
PROMPTS = (
    Run(2, (0,), 2), Run(5, (33,), 64), Run(65, (0,), 100), Run(70, (0, 0, 0), 70, (0, 9, 69)),
    Run(40, (150,), 200), Run(130, (3, 64), 200),
)  # fmt: skip
