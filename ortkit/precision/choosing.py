"""Which form each product may take, and which products take it: by measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.precision.attention import RoundedAttention, attention_refusal, find_attention
from ortkit.precision.bias_correction import find_means
from ortkit.precision.budget import Trial, choose
from ortkit.precision.calibrate import TRIED, find_ranges
from ortkit.precision.candidates import Asked, Chosen, Measured
from ortkit.precision.convolutions import convolution_refusal
from ortkit.precision.data import Data
from ortkit.precision.forms import BlockInt4, DynamicInt8, Form, RoundedBf16
from ortkit.precision.gains import Gain, measure_gains
from ortkit.precision.products import PASS, Product, find_products
from ortkit.precision.ranges import fitted
from ortkit.precision.running import Runner, error_of
from ortkit.precision.smooth import smooth
from ortkit.precision.smoothing import find_smoothing
from ortkit.precision.static import Range, StaticInt8, has_ranges
from ortkit.precision.trials import switched_model
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.site import describe
from ortkit.verify.inputs.feeds import Value

#: Block sizes of 4-bit weights. The larger, the fewer scales: the largest is taken of those whose
#: error is at most `_BLOCK_SLACK` times the smallest one's.
BLOCKS = (32, 64, 128)
_BLOCK_SLACK = 1.1
#: Weights of fewer elements are not worth 4 bits: scales and one more operator outweigh them.
_LARGE = 1 << 16
#: A form that is further off than this is of no use in any model.
_WORST_OWN_ERROR = 0.5
#: Samples that ranges are fitted and means taken on; all count for the whole ranges.
FITTED = 8
#: Seconds that the harm of single products may take; then products are tried several at once.
_HARM_SECONDS = 120.0
#: Lowerings whose attention is computed in bfloat16, on processors with AMX.
ATTENTION_PRECISIONS = frozenset({"bf16", "int8"})


class Chooser:
    """Tries the forms of one model's products."""

    def __init__(
        self,
        asked: Asked,
        data: Data,
        folder: Path,
        log: RewriteLog,
        progress: Callable[[str], None],
    ) -> None:
        self.asked, self.data, self.folder, self.log = asked, data, folder, log
        self.progress = progress
        self.runner = Runner(folder / "trials", data.tried)
        self.ranges: dict[str, Range] = {}
        self._means: dict[str, np.ndarray] = {}
        self._switched = folder
        self._floats: list[dict[str, Value]] = []
        self._run_seconds = 0.0
        self.notes: list[str] = []

    def run(self, model: ir.Model) -> Chosen:
        """Choose on a model in float32, which is not changed.

        Raises:
            UserError: The calibration failed.
            CheckError: The model does not run on the data.
        """
        products = find_products(model, Shapes.infer(model), self.log)
        self.progress("calibrate")
        smoothing = find_smoothing(self.runner, model, products) if self._smooths else {}
        if smoothing:
            model = model.clone()
            smooth(model, find_products(model, Shapes.infer(model), RewriteLog()), smoothing)
            products = find_products(model, Shapes.infer(model), RewriteLog())
        forms = self._forms(model, products)
        if not forms:
            return Chosen(notes=tuple(self.notes))
        self.progress("try fewer bits")
        measured = self._measure(model, forms)
        trials = [Trial(item.harm, item.saved_us) for item in measured]
        choice = choose(trials, self.asked.max_error, self._errors)
        return Chosen(tuple(measured), choice, self.ranges, smoothing, tuple(self.notes))

    @property
    def _smooths(self) -> bool:
        """Whether activations are rounded with one scale, which outliers make coarse."""
        return self.asked.precision == "int8"

    def _forms(self, model: ir.Model, products: Sequence[Product]) -> list[tuple[Form, float]]:
        """Return the best form of each product, with its own error."""
        shapes = Shapes.infer(model)
        wanted = [item for item in products if self._fits(item, shapes)]
        if self.asked.precision != "bf16" and not self.data.is_random:
            sets = (self.data.calibrating or self.data.tried)[:FITTED]
            self._means = find_means(Runner(self.folder / "means", sets), model, wanted)
        variants: list[Form] = []
        for product in wanted:
            if product.kind == "product":
                variants += self._of_product(product)
        variants += self._of_convolutions(
            model, [one for one in wanted if one.kind == "convolution"]
        )
        variants += self._of_attention(model, shapes)
        errors = self.runner.errors(model, variants)
        by_product: dict[str, list[tuple[Form, float]]] = {}
        for form, error in zip(variants, errors, strict=True):
            by_product.setdefault(form.product.key, []).append((form, error))
        found = []
        for pairs in by_product.values():
            form, error = _best(pairs)
            if not error <= _WORST_OWN_ERROR:
                self._miss(form.product, f"as {form.name} it is off by {error:.2g} itself")
                continue
            found.append((form, error))
        return found

    def _fits(self, product: Product, shapes: Shapes) -> bool:
        reason = ""
        if self.asked.precision == "int4":
            if product.kind == "convolution":
                reason = "ONNX Runtime has no convolution with 4-bit weights"
            elif product.array().size < _LARGE:
                reason = f"its weight has {product.array().size} elements, too few for 4 bits"
        elif self.asked.precision == "bf16" and product.kind == "convolution":
            reason = convolution_refusal(product, shapes, self.asked.level)
        elif self._lacks_ranges(product):
            reason = "convolutions on 8-bit integers need --calibrate or --inputs"
        if reason:
            self._miss(product, reason)
        return not reason

    def _of_attention(self, model: ir.Model, shapes: Shapes) -> list[Form]:
        found: list[Form] = []
        if self.asked.precision not in ATTENTION_PRECISIONS:
            return found
        for product in find_attention(model, shapes):
            if reason := attention_refusal(product, shapes, self.asked.level):
                self._miss(product, reason)
            else:
                found.append(RoundedAttention(product))
        return found

    def _lacks_ranges(self, product: Product) -> bool:
        needs = self.asked.precision == "int8" and product.kind == "convolution"
        return needs and not self.data.calibrating

    def _of_product(self, product: Product) -> list[Form]:
        means = self._means.get(product.key)
        match self.asked.precision:
            case "int8":
                return [DynamicInt8(product, self.asked.bits, means)]
            case "int4":
                rows = product.array().shape[0]
                blocks = [block for block in BLOCKS if block <= max(rows, BLOCKS[0])]
                return [BlockInt4(product, block, means=means) for block in blocks]
        return [RoundedBf16(product)]

    def _of_convolutions(self, model: ir.Model, products: Sequence[Product]) -> list[Form]:
        if not products:
            return []
        if self.asked.precision == "bf16":
            return [RoundedBf16(product) for product in products]
        is_auto = self.asked.method == "auto"
        methods = TRIED if is_auto else (self.asked.method,)
        operators = sorted({node.op_type for node in model.graph if node.domain == ""})
        by_method = find_ranges(
            self.runner.save(model, "float"), self.data.calibrating, methods, operators,
            self.folder / "calibration",
        )  # fmt: skip
        if is_auto:
            runner = Runner(self.folder / "ranges", self.data.calibrating[:FITTED])
            self.ranges = fitted(runner, model, products, [by_method[name] for name in TRIED])
        else:
            self.ranges = by_method[self.asked.method]
        found: list[Form] = []
        for product in products:
            if has_ranges(product, self.ranges):
                method = "fitted" if is_auto else self.asked.method
                means = self._means.get(product.key)
                form = StaticInt8(product, self.ranges, method, self.asked.bits, means)
                found.append(form)
            else:
                self._miss(product, "calibration gave no range for its ends")
        return found

    def _measure(self, model: ir.Model, forms: Sequence[tuple[Form, float]]) -> list[Measured]:
        """Measure what each form costs the outputs, and what it saves."""
        count = len(forms)
        self._switched = self.runner.save(
            switched_model(model, [form for form, _ in forms]), "switched"
        )
        started = time.perf_counter()
        (self._floats,) = self.runner.with_flags(
            self._switched, [[False] * count], self.data.tried
        )
        self._run_seconds = (time.perf_counter() - started) / len(self.data.tried)
        gains = self._gains([isinstance(form, StaticInt8) for form, _ in forms])
        harms = self._harms(count)
        measured = []
        for index, (form, error) in enumerate(forms):
            # Trials compute attention in float32: its kernel is not timed.
            is_timed = gains is not None and not isinstance(form, RoundedAttention)
            gain = gains[index] if gains is not None and is_timed else None
            measured.append(Measured(form, error, harms[index], gain))
        return measured

    def _gains(self, chained: Sequence[bool]) -> list[Gain] | None:
        if self.asked.precision == "bf16":
            return None  # trials round in float32: what the kernels take is measured as a whole
        found = measure_gains(
            self._switched, chained, self.data.tried[0], self.folder / "gains",
            self.asked.threads,
        )  # fmt: skip
        if isinstance(found, str):
            self.notes.append(found)
            return None
        return found

    def _harms(self, count: int) -> list[float]:
        """Return the error of the outputs with each form alone, on the first input set.

        Where that would take too long, neighbours are tried together, and share what they cost.
        """
        size = max(1, math.ceil(count * self._run_seconds / _HARM_SECONDS))
        if size > 1:
            self.notes.append(f"harm was measured for {size} neighbours at a time")
        groups = [range(at, min(at + size, count)) for at in range(0, count, size)]
        choices = [[index in group for index in range(count)] for group in groups]
        errors = self._errors_on(choices, 1)
        return [
            error / math.sqrt(len(group))
            for group, error in zip(groups, errors, strict=True)
            for _ in group
        ]

    def _errors(self, choices: Sequence[Sequence[bool]]) -> list[float]:
        return self._errors_on(choices, len(self.data.tried))

    def _errors_on(self, choices: Sequence[Sequence[bool]], samples: int) -> list[float]:
        found = self.runner.with_flags(self._switched, choices, self.data.tried[:samples])
        return [_number(error_of(self._floats[:samples], item)) for item in found]

    def _miss(self, product: Product, reason: str) -> None:
        self.log.miss(PASS, describe(product.node), reason, (product.key,))


def _best(pairs: Sequence[tuple[Form, float]]) -> tuple[Form, float]:
    """Return the form to take: of blocks the largest that is hardly worse, else the most exact."""
    least = min(error for _, error in pairs)
    blocks = [
        (form, error)
        for form, error in pairs
        if isinstance(form, BlockInt4) and error <= least * _BLOCK_SLACK
    ]
    if blocks:
        return max(blocks, key=lambda one: one[0].block)
    return min(pairs, key=lambda one: one[1])


def _number(error: float) -> float:
    return error if math.isfinite(error) else math.inf
