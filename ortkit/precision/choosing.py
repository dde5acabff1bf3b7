"""Which form each product may take, and which products take it: by measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from ortkit.precision.harms import groups_of, shared
from ortkit.precision.mixing import (
    all_rounded,
    mixed_order,
    rounded_forms,
    slower_in_int8,
    widened_choice,
)
from ortkit.precision.products import PASS, Product, find_products
from ortkit.precision.ranges import fitted
from ortkit.precision.running import Runner, error_of
from ortkit.precision.smooth import smooth
from ortkit.precision.smoothing import find_smoothing
from ortkit.precision.static import Range, StaticInt8, has_ranges
from ortkit.precision.trials import switched_model
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.site import describe
from ortkit.runtime.cpu_limits import cpu_limits
from ortkit.targets.cpu import has_tiles, native_level
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
        rounded = self._rounded(model, products) if self.asked.mixes else []
        if not forms and not rounded:
            return Chosen(notes=tuple(self.notes))
        self.progress("try fewer bits")
        measured = self._measure(model, forms) if forms else []
        choice = choose(_trials(measured), self.asked.max_error, self._errors)
        found = Chosen(tuple(measured), choice, self.ranges, smoothing, tuple(self.notes))
        return self._mixed(model, found, rounded) if rounded else found

    def _rounded(
        self, model: ir.Model, products: Sequence[Product]
    ) -> list[tuple[RoundedBf16, float]]:
        """Return the products that may be in bfloat16 instead, with their own errors."""
        forms = rounded_forms(products, Shapes.infer(model), self.asked.level)
        errors = self.runner.errors(model, forms)
        pairs = zip(forms, errors, strict=True)
        return [(form, error) for form, error in pairs if error <= _WORST_OWN_ERROR]

    def _mixed(
        self, model: ir.Model, plain: Chosen, rounded: Sequence[tuple[RoundedBf16, float]]
    ) -> Chosen:
        """Return what is chosen with products in bfloat16 beside those in 8 bits.

        Args:
            model: In float32.
            plain: What is chosen without them.
            rounded: Products in bfloat16, with their own errors.
        """
        assert plain.choice is not None
        known = {one.form.product.key: one for one in plain.measured}
        both = [form.product for form, _ in rounded if form.product.key in known]
        threads = self.asked.threads or cpu_limits().whole
        slower = slower_in_int8(both, Shapes.infer(model), threads)
        measured = (*plain.measured, *(_beside(known, form, error) for form, error in rounded))
        without = widened_choice(plain.choice, len(rounded))
        others = []
        choice, lowered = without, plain.lowered()
        if slower or any(form.product.key not in lowered for form, _ in rounded):
            forms = [one.form for one in measured]
            self._switched = self.runner.save(switched_model(model, forms), "mixed")
            self._floats = self._floats or self._in_float(len(forms))
            choice = choose(
                _trials(measured), self.asked.max_error, self._errors,
                *mixed_order(measured, slower),
            )  # fmt: skip
            if slower or not self._has_tiles:
                others.append(without)
        others.insert(0, all_rounded(choice, measured))
        reasons = dict.fromkeys(slower, "8 bits are predicted to be no faster")
        alone = frozenset(form.product.key for form, _ in rounded) - known.keys()
        reasons |= self._unrefused(alone)
        return replace(
            plain, measured=measured, choice=choice, plain=without, reasons=reasons,
            others=tuple(one for one in others if one.flags != choice.flags),
        )  # fmt: skip

    @property
    def _has_tiles(self) -> bool:
        level = self.asked.level
        return has_tiles(native_level() if level == "native" else level)

    def _unrefused(self, keys: frozenset[str]) -> dict[str, str]:
        """Forget why products take no form in 8 bits, and return that by key."""
        refused = [miss for miss in self.log.misses if keys & {*miss.outputs}]
        for miss in refused:
            del self.log.misses[miss]
        return {key: miss.reason for miss in refused for key in miss.outputs}

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
        self._floats = self._in_float(count)
        self._run_seconds = self.runner.run_seconds
        gains = self._gains([isinstance(form, StaticInt8) for form, _ in forms])
        harms = self._harms(forms)
        measured = []
        for index, (form, error) in enumerate(forms):
            # Trials compute attention in float32: its kernel is not timed.
            is_timed = gains is not None and not isinstance(form, RoundedAttention)
            gain = gains[index] if gains is not None and is_timed else None
            measured.append(Measured(form, error, harms[index], gain, self.asked.mixes))
        return measured

    def _in_float(self, count: int) -> list[dict[str, Value]]:
        """Return what the switched model gives with none of `count` flags."""
        (found,) = self.runner.with_flags(self._switched, [[False] * count], self.data.tried)
        return found

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

    def _harms(self, forms: Sequence[tuple[Form, float]]) -> list[float]:
        """Return the error of the outputs with each form alone, on the first input set.

        Where that would take too long, products alike are tried together, and share what they
        cost by their own errors.
        """
        size = max(1, math.ceil(len(forms) * self._run_seconds / _HARM_SECONDS))
        if size > 1:
            self.notes.append(f"harm was measured for {size} products at a time")
        groups = groups_of([form for form, _ in forms], size)
        choices = [[index in group for index in range(len(forms))] for group in groups]
        return shared(groups, self._errors_on(choices, 1), [error for _, error in forms])

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


def _trials(measured: Sequence[Measured]) -> list[Trial]:
    return [Trial(one.harm, one.saved_us) for one in measured]


def _beside(known: Mapping[str, Measured], form: RoundedBf16, error: float) -> Measured:
    """Return a product in bfloat16 as measured: its harm is by that in 8 bits, if it has such.

    Trials round in float32, so that its time is not measured.
    """
    other = known.get(form.product.key)
    if other is None or not other.own_error:
        return Measured(form, error, error, None)
    return Measured(form, error, other.harm * error / other.own_error, None)


def _number(error: float) -> float:
    return error if math.isfinite(error) else math.inf
