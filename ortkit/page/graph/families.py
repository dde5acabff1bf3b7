"""Which family an operator belongs to: what decides the colour of its box."""

from __future__ import annotations

import re

from ortkit.page.graph.document import Family

_WORDS: tuple[tuple[Family, str], ...] = (
    ("attention", "attention"),
    ("conv", "conv"),
    ("matmul", "matmul|gemm|product|einsum|linear|lstm|gru|rnn"),
    ("norm", "norm|softmax|lrn"),
    ("reduction", "^reduce|pool|^arg|topk|cumsum|nonmaxsuppression"),
    ("constant", "^constant|^range$|^eyelike$|^shape$|^size$"),
    ("control", "^if$|^loop$|^scan$|^sequence"),
    (
        "movement",
        "reshape|transpose|^concat|^split|slice|gather|scatter|squeeze|^expand|^flatten|^pad$|^tile$"
        "|^identity$|^cast|depthtospace|spacetodepth|quantizelinear|resize|^reorder|compress",
    ),
    ("other", "nonzero|unique|random|optional|string|regex|tfidf"),
)
_PATTERNS = tuple((family, re.compile(words)) for family, words in _WORDS)


def family_of(op_type: str) -> Family:
    """Return the family of an operator or of a fused region's kind, by the words in its name."""
    name = op_type.lower()
    return next((family for family, pattern in _PATTERNS if pattern.search(name)), "elementwise")
