"""Golden cases: a model as text, a pass, and the text that it must become.

A case is a file `<pass-name>/<case>.txt`:

    # Why the rewrite happens here, or why it must not.
    # pass: drop-identity
    # rewrites: 1
    # miss: a reason that is left for what is not rewritten
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[2] x) => (float[2] y) { ... }
    # ---- after ----
    ...

`# level: 3` runs the pass as that level does, `# target: cuda` as for that target; `# not run:
reason` says why ONNX Runtime cannot load the model. `scripts/update-golden` rewrites all but the
comment, the pass and the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ortkit.graph.check.model import check_model
from ortkit.graph.io.text import from_text, to_text
from ortkit.passes.select import select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from ortkit.targets.target import Target

FOLDER = Path(__file__).parent
AFTER = "# ---- after ----"
KEYS = ("pass", "level", "target", "not run", "rewrites", "miss")


@dataclass(frozen=True)
class Golden:
    """One case, as its file says."""

    why: tuple[str, ...]
    passes: str
    rewrites: int
    misses: tuple[str, ...]
    before: str
    after: str
    level: int = 2
    not_run: str = ""
    target: str = "cpu"

    @staticmethod
    def parse(text: str) -> Golden:
        """Read a case; what `update` fills in may be absent."""
        head, _, after = text.partition(f"{AFTER}\n")
        lines = head.splitlines(keepends=True)
        count = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        found: dict[str, list[str]] = {key: [] for key in KEYS}
        why: list[str] = []
        for line in lines[:count]:
            said = line.removeprefix("#").strip()
            key, colon, value = said.partition(": ")
            if colon and key in KEYS:
                found[key].append(value)
            else:
                why.append(said)
        return Golden(
            why=tuple(why),
            passes=found["pass"][0],
            rewrites=int((found["rewrites"] or ["0"])[0]),
            misses=tuple(found["miss"]),
            before="".join(lines[count:]),
            after=after,
            level=int((found["level"] or ["2"])[0]),
            not_run=(found["not run"] or [""])[0],
            target=(found["target"] or ["cpu"])[0],
        )

    @property
    def text(self) -> str:
        """The case as its file holds it."""
        head = [*self.why, f"pass: {self.passes}"]
        if self.level != 2:
            head.append(f"level: {self.level}")
        if self.target != "cpu":
            head.append(f"target: {self.target}")
        if self.not_run:
            head.append(f"not run: {self.not_run}")
        head.append(f"rewrites: {self.rewrites}")
        head.extend(f"miss: {reason}" for reason in self.misses)
        comment = "".join(f"# {line}\n" for line in head)
        return f"{comment}{self.before}{AFTER}\n{self.after}"

    def applied(self) -> tuple[Golden, ir.Model]:
        """Run the pass; return the case as it should be written, and the rewritten model."""
        model = from_text(self.before)
        passes = select_passes(self.passes, 0)
        target = Target("cpu", "x86-64-v3") if self.target == "cpu" else Target(self.target)
        result = Pipeline(passes).run(model, RewriteOptions(target, self.level))
        assert result.settled
        check_model(model)
        reasons = dict.fromkeys(miss.reason for miss in result.log.misses)
        made = replace(
            self,
            rewrites=len(result.log.hits),
            misses=tuple(reasons),
            after=to_text(model),
        )
        return made, model


def cases() -> Iterator[Path]:
    """Yield the files of all cases, in order."""
    yield from sorted(FOLDER.glob("*/*.txt"))


def update() -> list[Path]:
    """Write what the passes do now into every case; return the files that changed."""
    changed = []
    for path in cases():
        old = path.read_text(encoding="utf-8")
        made, _ = Golden.parse(old).applied()
        if made.text != old:
            path.write_text(made.text, encoding="utf-8")
            changed.append(path)
    return changed
