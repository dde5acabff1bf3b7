"""One case in this process: with the provider, and without it where that tells more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import onnx

from ortkit.operators import where
from ortkit.provider.conformance.cases import Case, Value, difference, run_session
from ortkit.provider.conformance.verdict import Verdict
from ortkit.runtime.ort import import_onnxruntime

_CPU = "CPUExecutionProvider"
#: Messages are cut here.
_LONGEST = 300
#: Random outputs agree with nothing but in type and shape.
_RANDOM = where(random=True)


def judge(case: Case, provider: str, options: Mapping[str, str]) -> Verdict:
    """Run a case with a provider that is registered, and say what came of it."""
    started = time.perf_counter()
    verdict = _judged(case, provider, options)
    seconds = round(time.perf_counter() - started, 3)
    return Verdict(verdict.case, verdict.status, verdict.claimed, verdict.detail, seconds)


def _judged(case: Case, provider: str, options: Mapping[str, str]) -> Verdict:
    claimed: tuple[str, ...] = ()
    try:
        session = _session(case.model, provider, options)
        claimed = _claimed(session, provider)
        if not claimed:
            return Verdict(case.name, "not claimed")
        got = run_session(session, case.feeds)
    except Exception as error:  # noqa: BLE001 - onnxruntime's own classes share no base
        alone = _alone(case)
        if isinstance(alone, str):
            return Verdict(case.name, "not run", claimed, alone)
        return Verdict(case.name, "error", claimed, _first(error))
    wrong = _wrong(case, got, case.expected)
    if not wrong:
        return Verdict(case.name, "right", claimed)
    # ONNX Runtime itself differs in some cases from what onnx expects.
    alone = _alone(case)
    if not isinstance(alone, str) and not _wrong(case, got, alone):
        return Verdict(case.name, "right", claimed, "as ONNX Runtime, not as onnx expects")
    return Verdict(case.name, "wrong", claimed, wrong)


def _alone(case: Case) -> list[Value] | str:
    """Return what ONNX Runtime's own CPU provider makes of a case, or why it makes nothing."""
    try:
        return run_session(_session(case.model, _CPU, {}), case.feeds)
    except Exception as error:  # noqa: BLE001 - onnxruntime's own classes share no base
        return _first(error)


def _session(model: onnx.ModelProto, provider: str, options: Mapping[str, str]) -> Any:
    ort: Any = import_onnxruntime()
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if provider == _CPU:
        return ort.InferenceSession(model.SerializeToString(), settings, providers=[_CPU])
    devices = [device for device in ort.get_ep_devices() if device.ep_name == provider]
    if devices:  # so that nothing falls back in silence
        settings.add_provider_for_devices(devices[:1], dict(options))
        return ort.InferenceSession(model.SerializeToString(), settings)
    return ort.InferenceSession(
        model.SerializeToString(), settings, providers=[(provider, dict(options)), _CPU]
    )


def _claimed(session: Any, provider: str) -> tuple[str, ...]:
    found = {
        f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == provider
        for node in part.get_nodes()
    }
    return tuple(sorted(found))


def _wrong(case: Case, got: list[Value], want: list[Value] | tuple[Value, ...]) -> str:
    """Say what is wrong with results; empty if nothing is."""
    if len(got) != len(want):
        return f"{len(got)} outputs, not {len(want)}"
    is_random = any(node.op_type in _RANDOM for node in case.model.graph.node)
    names = [value.name for value in case.model.graph.output]
    for name, one, other in zip(names, got, want, strict=False):
        text = difference(one, other, case.rtol, case.atol)
        if text and not (is_random and "differ, at" in text):
            return f"output {name!r}: {text}"
    return ""


def _first(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    half = _LONGEST // 2  # ONNX Runtime's words come first, the provider's own last
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"
