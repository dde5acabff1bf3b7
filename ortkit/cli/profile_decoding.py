"""`ortkit profile` of a decoder: the phases of generation one by one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.decoding import decodings_of
from ortkit.cli.decoding_flags import refuse_with
from ortkit.cli.flags import sweeps
from ortkit.text import kind_of_op

if TYPE_CHECKING:
    from ortkit.cli.decoding import Decoding
    from ortkit.measure.decoding import Phase
    from ortkit.runtime.profiling.advice import Advice
    from ortkit.runtime.profiling.result import Profile

SCHEMA = "ortkit.profile-decoding/1"
_UNSUPPORTED: Mapping[str, object] = {
    "inputs": None,
    "shape": [],
    "graph": None,
    "trace-file": None,
}


@dataclass(frozen=True)
class PhaseProfile:
    """One phase, and where its time goes."""

    phase: Phase
    cache_bytes: int
    profile: Profile
    advice: Sequence[Advice]

    @property
    def run_ms(self) -> float:
        """Median time of a run, in ms."""
        return self.profile.overall.run_us / 1e3

    @property
    def tokens_per_second(self) -> float:
        """New tokens by the time of a run."""
        return 1e3 * self.phase.new / self.run_ms

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON types."""
        advice = [asdict(each) for each in self.advice]
        return {
            "past": self.phase.past,
            "new": self.phase.new,
            "cache_bytes": self.cache_bytes,
            "run_ms": self.run_ms,
            "tokens_per_second": self.tokens_per_second,
            "profile": {**self.profile.to_json(), "advice": advice},
        }


def run_decoding(arguments: argparse.Namespace) -> int:
    """Profile each phase, print, and write what is asked for."""
    refuse_with(arguments, _UNSUPPORTED)
    (decoding,) = decodings_of(arguments, [arguments.model], sweeps(arguments.sweep))
    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        found = [_profiled(arguments, decoding, each, progress) for each in decoding.phases]
    written = [path for each in found for path in _write(arguments, each)]
    if arguments.json:
        show.document(
            {
                "schema": SCHEMA,
                "model": str(decoding.source),
                "threads": decoding.threads,
                "time_to_first_token_ms": found[0].run_ms,
                "phases": [each.to_json() for each in found],
            }
        )
        return 0
    _show(arguments, decoding, found)
    for path in written:
        show.line(f"wrote     {path}")
    return 0


def _profiled(
    arguments: argparse.Namespace, decoding: Decoding, phase: Phase, progress: show.Stages
) -> PhaseProfile:
    from ortkit.measure.peaks import peaks_of
    from ortkit.runtime.profiling.advice import advice_on
    from ortkit.runtime.profiling.model_runs import RunPlan, profile_model
    from ortkit.runtime.settings import SessionSettings

    decoder = decoding.decoder
    warmup = {} if arguments.warmup is None else {"warmup": arguments.warmup}
    progress(phase.name)
    feeds = list(decoder.feeds(phase))
    profile = profile_model(
        decoder.path,
        feeds,
        SessionSettings(target=arguments.target, threads=decoding.threads, trust=arguments.trust),
        RunPlan(arguments.runs, share=decoder.share, **warmup),
        peaks_of=lambda provider, threads: peaks_of(provider, threads, progress),
        progress=lambda stage: progress(f"{phase.name}: {stage}"),
    )
    size = decoder.cache_bytes(feeds[0], phase)
    return PhaseProfile(phase, size, profile, advice_on(profile))


def _write(arguments: argparse.Namespace, found: PhaseProfile) -> list[Path]:
    """Write trace and page of a phase, its name added to those of the files."""
    paths = []
    if arguments.trace is not None:
        from ortkit.runtime.profiling.perfetto import write_perfetto

        paths.append(_of_phase(arguments.trace, found.phase))
        write_perfetto(found.profile, paths[-1])
    if arguments.html is not None:
        from ortkit.runtime.profiling.page.data import page_of
        from ortkit.runtime.profiling.page.write import write_page

        paths.append(_of_phase(arguments.html, found.phase))
        write_page(page_of(found.profile, found.advice, ""), paths[-1])
    return paths


def _of_phase(path: Path, phase: Phase) -> Path:
    return path.with_stem(f"{path.stem}-{phase.slug}")


def _show(
    arguments: argparse.Namespace, decoding: Decoding, found: Sequence[PhaseProfile]
) -> None:
    from ortkit.cli.profile_tables import show_profile

    show.line(f"model     {decoding.source}")
    first = found[0]
    caches = "written in place" if decoding.decoder.share else "copied with each token"
    show.line(
        f"decoding  first token after {first.run_ms:,.3f} ms; caches are {caches}, "
        f"{show.bytes_text(first.cache_bytes / first.phase.total)} a token"
    )
    rows = [
        (
            each.phase.name,
            f"{each.run_ms:,.3f}",
            f"{each.tokens_per_second:,.1f}",
            show.bytes_text(each.cache_bytes),
            *_top_ops(each.profile),
        )
        for each in found
    ]
    columns = ("phase", "ms", "tokens/s", "caches", "most of the time", "then")
    show.table("phases", columns, rows)
    for each in found:
        show.line("")
        show.line(f"phase     {each.phase.name}")
        show_profile(each.profile, each.advice, top=arguments.top)


def _top_ops(profile: Profile) -> tuple[str | None, str | None]:
    shown = [f"{kind_of_op(row.op)} {row.share:.0%}" for row in profile.ops[:2]]
    return shown[0] if shown else None, shown[1] if len(shown) > 1 else None
