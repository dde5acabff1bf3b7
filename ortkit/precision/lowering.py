"""Fewer bits on CPUs: products are chosen once, by measurement, and then lowered in every attempt.

Before:
    y = Add(MatMul(x, W), b)
After:
    q, s, z = DynamicQuantizeLinear(x)                   # int8; W8: W in 8 bits, by column
    y = MatMulIntegerToFloat(q, W8, s, scales, z, , b)
    y = MatMulNBits(x, W4, scales, , , b)                # int4; W4: W in 4 bits, by block
    y = DequantizeLinear(QuantizeLinear(Conv(...)))      # int8: convolutions, with calibration
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import CheckError
from ortkit.graph.opsets.raising import raise_opset
from ortkit.graph.shapes.infer import Shapes
from ortkit.precision.attention import find_attention
from ortkit.precision.budget import Choice, without_next
from ortkit.precision.building import Builder
from ortkit.precision.calibrate import Method
from ortkit.precision.candidates import Asked, Chosen, Measured
from ortkit.precision.choosing import Chooser
from ortkit.precision.conv1d import widen_lines
from ortkit.precision.data import Data, gather
from ortkit.precision.forms import Form, RoundedBf16
from ortkit.precision.insert import lower_products
from ortkit.precision.mixing import ROUNDED
from ortkit.precision.processor import bf16_refusal, weight_bits
from ortkit.precision.products import PASS, Product, find_products
from ortkit.precision.result import NodeOutcome, PrecisionReport
from ortkit.precision.running import Runner, accuracies
from ortkit.precision.smooth import smooth
from ortkit.precision.static import StaticInt8, lower_convolutions
from ortkit.precision.unfused import left_over
from ortkit.precision.whole_model import WholeTime, fastest, time_whole
from ortkit.rewrite.log import DENIED, RewriteLog
from ortkit.rewrite.site import describe
from ortkit.runtime.timing.variants import Variant
from ortkit.verify.accuracy import OutputAccuracy, largest_error
from ortkit.verify.exchange import read_values
from ortkit.verify.inputs.batch_rows import FewRows
from ortkit.verify.inputs.covering import Level
from ortkit.verify.inputs.feeds import Feeds, Value

#: What the error of an output may be where the user does not say; see `accuracy.py`. In 4 bits
#: weights without structure alone make it up to 0.34.
MAX_ERROR: Mapping[str, float] = {"bf16": 0.02, "fp8": 0.1, "int8": 0.05, "int4": 0.35}
#: Operators for which the default domain must be this new: scales by channel.
_OPSET = 13


@dataclass(frozen=True)
class CpuRequest:
    """What is asked for, and on what it is judged."""

    precision: str
    max_error: float | None
    method: Method
    calibrate: Path | None
    inputs: Path | None
    samples: int | Level
    shapes: Mapping[str, int]
    threads: int
    cpu: str
    has_kernels: bool = False
    """Whether kernels of ours compute what is lowered."""


@dataclass(frozen=True)
class State:
    """What is lowered at one time, and how far the result is off."""

    chosen: Chosen | None
    returned: Mapping[str, str]
    outputs: tuple[OutputAccuracy, ...]


class CpuLowering:
    """Lowers the products of every attempt at one model by one choice."""

    def __init__(
        self, original: Path, request: CpuRequest, folder: Path, progress: Callable[[str], None]
    ) -> None:
        self.original, self.request, self.folder = original, request, folder
        self.progress = progress
        self.max_error = request.max_error or MAX_ERROR[request.precision]
        self.data: Data | None = None
        self.chosen: Chosen | None = None
        self.outputs: tuple[OutputAccuracy, ...] = ()
        self.returned: dict[str, str] = {}
        self._runner: Runner | None = None
        self._original_file = original
        """What results are measured against."""
        self._expected: list[Mapping[str, Value]] = []
        self._notes: list[str] = []
        self._time: WholeTime | None = None
        self._gave_up = False
        self._refused = RewriteLog()
        """Why products are no candidates; the log of the model that was chosen on may be lost."""

    @property
    def has_lowered(self) -> bool:
        """Whether anything is to be lowered."""
        return bool(self._lowered())

    @property
    def given(self) -> tuple[Feeds, ...]:
        """The input sets that the result is judged on; none where they have a few rows."""
        return () if self.data is None or self.data.few is not None else self.data.given

    @property
    def few(self) -> FewRows | None:
        """The rows that the result is judged on, with input sets, if they are not all."""
        return None if self.data is None else self.data.few

    def lower(self, model: ir.Model, log: RewriteLog) -> None:
        """Lower what was chosen; the first model is the one that is chosen on.

        Raises:
            UserError: The user's data do not fit the model.
        """
        if self._widens and model.opset_imports.get("", 0) >= _OPSET:
            widen_lines(model)
        if self.chosen is None:
            self.chosen = self._choose(model)
        log.misses |= self._refused.misses
        if self.chosen.smoothing and self.has_lowered:
            products = find_products(model, Shapes.infer(model), RewriteLog())
            smooth(model, products, self.chosen.smoothing, log)
        forms = self._claimed(model, log)
        if not forms:
            return
        build = Builder(model)
        lower_products(model, build, [item for item in forms if not isinstance(item, StaticInt8)])
        keys = {form.product.key: form for form in forms if isinstance(form, StaticInt8)}
        if keys:
            again = find_products(model, Shapes.infer(model), RewriteLog())
            static = [
                replace(keys[product.key], product=product)
                for product in again
                if product.key in keys
            ]
            lower_convolutions(model, build, static, self.chosen.ranges)

    @property
    def _widens(self) -> bool:
        """Whether convolutions over one dimension may find kernels as ones over two."""
        is_wanted = self.request.precision == "bf16" and not bf16_refusal(self.request.cpu)
        return is_wanted and (self.chosen is None or self.has_lowered)

    def explain(self, log: RewriteLog) -> None:
        """Let the log of a model in which nothing is lowered say why that is."""
        log.misses |= self._refused.misses
        for measured in self._first_forms().values():
            product = measured.form.product
            log.miss(PASS, describe(product.node), self._reason(measured), (product.key,))

    def _first_forms(self) -> dict[str, Measured]:
        """Return what was measured of each product in its first form, by key."""
        found: dict[str, Measured] = {}
        for measured in () if self.chosen is None else self.chosen.measured:
            found.setdefault(measured.form.product.key, measured)
        return found

    def _choose(self, model: ir.Model) -> Chosen:
        request = self.request
        found = gather(
            self.original, self.folder / "data", inputs=request.inputs,
            calibrate=request.calibrate, samples=request.samples, shapes=request.shapes,
        )  # fmt: skip
        if isinstance(found, str):
            self._notes.append(f"nothing is lowered, as it cannot be measured: {found}")
            return Chosen()
        if model.opset_imports.get("", 0) < _OPSET and (why := raise_opset(model, _OPSET)):
            self._notes.append(f"nothing is lowered: opset {_OPSET} is needed, and {why}")
            return Chosen()
        self.data = found
        if request.precision == "bf16" and (why := bf16_refusal(request.cpu)):
            self._notes.append(f"nothing is lowered: {why}")
            return Chosen()
        bits = weight_bits(request.cpu) if request.precision == "int8" else 8
        if bits < 8:
            self._notes.append("weights have 7 bits: the processor would overflow with 8")
        mixes = request.precision == "int8" and request.has_kernels
        asked = Asked(
            request.precision, self.max_error, request.method, request.threads, bits, request.cpu,
            mixes and not bf16_refusal(request.cpu),
        )  # fmt: skip
        try:
            chooser = Chooser(asked, found, self.folder, self._refused, self.progress)
            return chooser.run(model)
        except CheckError as error:
            self._notes.append(f"nothing is lowered: {error}")
            return Chosen()

    def _claimed(self, model: ir.Model, log: RewriteLog) -> list[Form]:
        """Return the chosen forms for the products of this model that may be rewritten."""
        assert self.chosen is not None
        wanted = self._lowered()
        if wanted and model.opset_imports.get("", 0) < _OPSET and raise_opset(model, _OPSET):
            return []
        forms: list[Form] = []
        shapes = Shapes.infer(model)
        for product in self._products(model, shapes, log):
            form = wanted.get(product.key)
            if form is None:
                self._refuse(product, log)
            elif log.claim(PASS, self.request.precision, product.key, describe(product.node)):
                forms.append(replace(form, product=product))  # type: ignore[type-var]
        return forms

    def _products(self, model: ir.Model, shapes: Shapes, log: RewriteLog) -> tuple[Product, ...]:
        """Return what may take a form."""
        return (*find_products(model, shapes, log), *find_attention(model, shapes))

    def _refuse(self, product: Product, log: RewriteLog) -> None:
        if (measured := self._first_forms().get(product.key)) is not None:
            log.miss(PASS, describe(product.node), self._reason(measured), (product.key,))

    def _lowered(self) -> dict[str, Form]:
        """Return the forms that are taken, by the products' keys."""
        if self.chosen is None:
            return {}
        found, without = self.chosen.lowered(), self.chosen.without_rounded()
        for key in self.returned.keys() & found.keys():
            form = without.get(key)
            if form is None or isinstance(form, ROUNDED):
                del found[key]
            else:
                found[key] = form
        return found

    # ---- several choices -----------------------------------------------------------------

    @property
    def others(self) -> tuple[Choice, ...]:
        """Choices that may be faster as a whole than what is lowered."""
        return () if self.chosen is None else self.chosen.others

    @property
    def state(self) -> State:
        """What is lowered now."""
        return State(self.chosen, dict(self.returned), self.outputs)

    def restore(self, state: State) -> None:
        """Lower what was lowered at another time."""
        self.chosen, self.returned = state.chosen, dict(state.returned)
        self.outputs = state.outputs

    def take(self, choice: Choice) -> None:
        """Lower another choice."""
        assert self.chosen is not None
        self.chosen, self.returned = replace(self.chosen, choice=choice), {}

    def settle(self, variants: Sequence[Variant], states: Sequence[State]) -> int:
        """Lower what makes the fastest of several results.

        Args:
            variants: The results.
            states: What was lowered in each.

        Returns:
            Which one it is.
        """
        assert self.data is not None
        found = fastest(
            variants, self.data.tried[0], self.folder / "choices", self.request.threads
        )
        if isinstance(found, str):
            self._notes.append(f"other choices were not timed: {found}")
            return 0
        self.restore(states[found.index])
        if found.index and self.chosen is not None:
            why = f"the whole model takes {found.ratios[found.index]:.2f} of the time so"
            reasons = dict.fromkeys(self._lowered(), why)
            self.chosen = replace(self.chosen, reasons=reasons)
        return found.index

    # ---- the budget ----------------------------------------------------------------------

    def measure(self, candidate: Path, library: Path | None) -> float:
        """Return the error of a candidate's worst output, and keep the numbers for the report."""
        if self.data is None:
            return 0.0
        libraries = () if library is None else (library,)
        try:
            if self._runner is None:
                self._runner = Runner(self.folder / "accuracy", self.data.judged)
                self._expected = self._results(self._runner, self._original_file, ())
            found = self._results(self._runner, candidate, libraries)
        except CheckError as error:
            self.outputs = ()
            self._notes.append(f"accuracy was not measured: {error}")
            return math.inf
        self.outputs = accuracies(self._expected, found)
        return largest_error(self.outputs)

    def return_unfused(self, model: ir.Model) -> bool:
        """Return what is in bfloat16 to float32 where it became no kernel of ours.

        Returns:
            Whether there were any.
        """
        keys = {key for key, form in self._lowered().items() if isinstance(form, ROUNDED)}
        found = left_over(model, keys)
        self.returned |= dict.fromkeys(found, "no kernel of ours computes it where it stands")
        return bool(found)

    def return_some(self, error: float) -> bool:
        """Return the most harmful products to float32, as the result is off by more than allowed.

        Returns:
            Whether there were any.
        """
        if self.chosen is None or self.chosen.choice is None or not any(self.chosen.choice.flags):
            return False
        # The further off, the more at once: a step is a new model.
        share = 1.0 - (self.max_error / error) ** 2
        count = max(1, round(self.chosen.choice.taken * share / 2))
        choice = without_next(self.chosen.choice, count)
        self.chosen = replace(self.chosen, choice=choice)
        return True

    def pays(self, lowered: Variant, plain: Variant) -> bool:
        """Time a result against the same in float32; if it does not pay, nothing is lowered.

        Integers save memory too, so they stay where both take as long.
        """
        if self.data is None or self.request.precision == "int4":
            return True  # 4 bits are asked for to save memory
        found = time_whole(
            lowered, plain, self.data.tried[0], self.folder / "time", self.request.threads
        )
        if isinstance(found, str):
            self._notes.append(f"the whole model was not timed: {found}")
            return True
        self._time = found
        pays = found.is_faster or self.request.precision != "bf16"
        if pays and not found.is_slower:
            return True
        self._notes.append(
            f"nothing is lowered: {found.lowered_ms:.3g} ms instead of {found.float_ms:.3g} ms"
        )
        self._time = None
        self.return_all()
        return False

    def give_up(self, reason: str) -> None:
        """Lower nothing, as something raised."""
        self._notes.append(f"nothing is lowered: {reason}")
        self.chosen, self.outputs = Chosen(), ()

    def return_all(self) -> None:
        """Return every product to float32."""
        if self.chosen is not None and (choice := self.chosen.choice) is not None:
            none = without_next(choice, choice.taken)
            self.chosen = replace(self.chosen, choice=none)
            self._gave_up, self.outputs = True, ()

    def _results(
        self, runner: Runner, model: Path, libraries: tuple[Path, ...]
    ) -> list[Mapping[str, Value]]:
        is_original = model == self._original_file
        outputs = runner.run(model, runner.sets, optimize=not is_original, libraries=libraries)
        return [read_values(outputs / each.name) for each in runner.sets]

    # ---- the report ----------------------------------------------------------------------

    def report(self, log: RewriteLog) -> PrecisionReport:
        """Collect what there is to say of the result whose rewrites are in `log`."""
        chosen, data = self.chosen or Chosen(), self.data
        ids = {hit.id for hit in log.hits}
        nodes = [self._outcome(key, ids) for key in self._first_forms()]
        return PrecisionReport(
            precision=self.request.precision,
            max_error=self.max_error,
            nodes=tuple(nodes),
            curve=() if chosen.choice is None else chosen.choice.curve,
            taken=0 if chosen.choice is None else chosen.choice.taken,
            outputs=self.outputs,
            data="" if data is None else data.text,
            is_random=data is not None and data.is_random,
            samples=0 if data is None else len(data.judged),
            smoothed=sum(hit.rule == "smooth" and hit.pass_name == PASS for hit in log.hits),
            notes=(*self._notes, *chosen.notes),
            time=self._time,
        )

    def _outcome(self, key: str, ids: Collection[str]) -> NodeOutcome:
        """Say what became of a product, given the ids of the rewrites of the result."""
        assert self.chosen is not None
        first = self._first_forms()[key]
        form = self._lowered().get(key)
        if form is None or f"{PASS}:{self.request.precision}:{key}" not in ids:
            return _outcome_of(first, False, self._reason(first))
        if form is first.form and key not in self.chosen.reasons:
            return _outcome_of(first, True, "")
        measured = next(one for one in self.chosen.measured if one.form is form)
        return _outcome_of(measured, True, self._why_rounded(first, form))

    def _why_rounded(self, first: Measured, form: Form) -> str:
        """Return why a product is not in its first form, but in bfloat16."""
        assert self.chosen is not None
        if not isinstance(form, RoundedBf16):
            return ""
        if (why := self.chosen.reasons.get(form.product.key)) is not None:
            return f"in bfloat16: {why}"
        if first.saved_us is not None and first.saved_us <= 0:
            return f"in bfloat16: as {first.form.name} it is no faster, as measured"
        return (
            f"in bfloat16: as {first.form.name} outputs would be off by more than"
            f" {self.max_error:g}"
        )

    def _reason(self, measured: Measured) -> str:
        """Return why a candidate stays in float32."""
        if measured.saved_us is not None and measured.saved_us <= 0:
            return f"as {measured.form.name} it is no faster, as measured"
        if (why := self.returned.get(measured.form.product.key)) is not None:
            return why
        if self._lowered().get(measured.form.product.key):
            return DENIED
        if self._gave_up:
            return "the whole model would be slower"
        return f"returned to float32: outputs would be off by more than {self.max_error:g}"


def _outcome_of(measured: Measured, is_lowered: bool, reason: str) -> NodeOutcome:
    gain, product = measured.gain, measured.form.product
    return NodeOutcome(
        name=product.key,
        op=product.node.op_type,
        form=measured.form.name,
        own_error=measured.own_error,
        harm=measured.harm,
        float_us=None if gain is None else gain.float_us,
        lowered_us=None if gain is None else gain.lowered_us,
        lowered=is_lowered,
        reason=reason,
    )
