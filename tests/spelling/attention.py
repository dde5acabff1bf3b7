"""Attention, as architectures and exporters write it."""

from __future__ import annotations

from tests.spelling import masks
from tests.spelling.attention_parts import (
    Style,
    sequence_first,
    three_dimensional,
    three_dimensional_masked,
)
from tests.spelling.case import ATTENTION, Formula, Write


def _form(
    op: str, name: str, write: Write, *gone: str, since: int = 13, n: int = 2, fixed: bool = False
) -> Formula:
    return Formula(op, name, write, ATTENTION, frozenset({"Softmax", *gone}), since, n, fixed)


#: What torch.export makes of scaled_dot_product_attention, and torch's older exporter.
SDPA = {"scale": "both", "key": "flat", "guard": True, "join": "read"}
TRACED = {"scale": "both", "key": "early", "join": "read"}


def _sdpa(**choices: object) -> Style:
    return Style(**{**SDPA, **choices})  # type: ignore[arg-type]


def _traced(**choices: object) -> Style:
    return Style(**{**TRACED, **choices})  # type: ignore[arg-type]


FORMULAS: tuple[Formula, ...] = (
    # Plain: where the scale is, how keys are turned, how projections are packed.
    _form("attention plain", "scores div", Style(), n=3),
    _form("attention plain", "scores mul", Style(scale="scores mul", key="early")),
    _form("attention plain", "query", Style(scale="query", key="early")),
    _form("attention plain", "query div", Style(scale="query div")),
    _form("attention plain", "key", Style(scale="key", join="read")),
    _form("attention plain", "root read", Style(scale="read", key="early"), "Sqrt"),
    _form("attention plain", "both quotients", Style(scale="both div")),
    _form("attention plain", "not scaled", Style(scale="none", bias=False)),
    _form("attention plain", "traced", _traced(), n=3),
    _form("attention plain", "sdpa", _sdpa(), "IsNaN", n=3),
    _form("attention plain", "given heads", Style(project="given", scale="both")),
    _form("attention plain", "softmax written out", Style(softmax="written out"), "Exp"),
    _form("attention plain", "softmax in float32", Style(softmax="float32", key="early")),
    _form("attention 3-D", "batch first", three_dimensional),
    _form("attention 3-D", "sequence first", sequence_first),
    _form("attention 3-D", "masked", three_dimensional_masked),
    _form("attention packed", "split", Style(project="split", key="early")),
    _form("attention packed", "slice", Style(project="slice")),
    _form("attention packed", "gather", Style(project="gather")),
    _form("attention packed", "gather, traced", _traced(project="gather")),
    _form("attention packed", "rows", _sdpa(project="gemm", join="rows")),
    _form("attention packed", "by head", Style(project="by head")),
    _form("attention einsum", "heads", Style(einsum=True), "Einsum"),
    # Padding.
    _form("attention mask", "float input", Style(mask=masks.additive)),
    _form("attention mask", "bias input", Style(mask=masks.bias_input, key="early")),
    _form("attention mask", "old BERT", Style(mask=masks.bert), n=3),
    _form("attention mask", "BERT", Style(mask=masks.bert_lowest)),
    _form("attention mask", "masked fill", Style(mask=masks.masked_fill, scale="query div")),
    _form("attention mask", "infinite", Style(mask=masks.masked_fill_infinite)),
    _form("attention mask", "sdpa", _sdpa(mask=masks.bool_where), n=3),
    _form("attention mask", "traced", _traced(mask=masks.bool_where)),
    _form("attention mask", "keras", Style(mask=masks.keras, scale="query")),
    # Causal.
    _form("attention causal", "GPT-2", Style(mask=masks.causal_constant, project="gemm")),
    _form("attention causal", "CLIP", Style(mask=masks.causal_added, scale="query")),
    _form("attention causal", "range", _sdpa(mask=masks.causal_range), n=3),
    _form("attention causal", "JAX", Style(mask=masks.causal_greater, scale="query")),
    _form("attention causal", "triu", Style(mask=masks.causal_trilu), since=14),
    _form("attention causal", "tril", Style(mask=masks.causal_tril_bool, scale="both"), since=14),
    _form("attention causal", "constant", _traced(mask=masks.causal_static), fixed=True),
    _form("attention causal", "padded", _sdpa(mask=masks.causal_padded)),
    _form("attention causal", "padded, two steps", Style(mask=masks.causal_padded_sum)),
    _form("attention causal", "window", _sdpa(mask=masks.window)),
    # Biases.
    _form(
        "attention bias", "Swin", Style(mask=masks.relative_constant, scale="query"), fixed=True
    ),
    _form("attention bias", "of heads", Style(mask=masks.head_bias), fixed=True),
    _form("attention bias", "T5", Style(mask=masks.relative_gathered, scale="none", bias=False)),
    _form("attention bias", "T5 padded", Style(mask=masks.relative_padded, scale="none")),
    _form("attention bias", "BLOOM", Style(mask=masks.alibi, project="by head")),
    _form("attention soft cap", "Gemma-2", Style(cap=5.0, mask=masks.causal_range), "Tanh"),
    _form("attention soft cap", "plain", Style(cap=20.0, key="early", scale="query"), "Tanh"),
    _form("attention QK norm", "Qwen-3", _sdpa(norm=True, mask=masks.causal_range)),
    _form("attention QK norm", "plain", Style(norm=True, bias=False)),
    # Other keys.
    _form("attention cross", "traced", _traced(cross=True)),
    _form("attention cross", "sdpa", _sdpa(cross=True)),
    _form("attention cross", "whisper", Style(cross=True, scale="query", key="early")),
    _form("attention GQA", "expand", _sdpa(kv_heads=2, bias=False), "Expand"),
    _form("attention GQA", "tile", Style(kv_heads=2, repeat="tile"), "Tile"),
    _form("attention GQA", "concat", Style(kv_heads=2, repeat="concat", key="early")),
    _form("attention GQA", "one head", Style(kv_heads=1, project="split"), "Expand"),
    _form("attention GQA", "Llama", _sdpa(kv_heads=2, rotary=True, mask=masks.causal_range), n=3),
    _form("attention past", "causal", Style(past=True, mask=masks.causal_past)),
    _form("attention past", "sdpa", _sdpa(past=True, mask=masks.causal_past)),
    _form("attention past", "GQA", _sdpa(past=True, kv_heads=2, rotary=True)),
    _form("attention past", "plain", Style(past=True, key="early", scale="scores mul")),
)
