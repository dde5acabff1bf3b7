"""`python -m examples.npu_sim [MODEL] [--trace FILE]`: a model on the device and on the CPU."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort

import ortkit
from examples.npu_sim.net import NET, feeds_for, with_weights
from examples.npu_sim.provider import NpuProvider


def main(arguments: list[str] | None = None) -> int:
    """Run, compare, and say what it would cost; 1 if the results differ."""
    parser = argparse.ArgumentParser("python -m examples.npu_sim")
    parser.add_argument("model", nargs="?", type=Path, help="default: a small convolution net")
    parser.add_argument("--trace", type=Path, help="where to write what the device did")
    options = parser.parse_args(arguments)
    source = (
        options.model.read_bytes()
        if options.model
        else with_weights(onnx.parser.parse_model(NET)).SerializeToString()
    )
    provider = NpuProvider()
    ortkit.register_provider(provider)
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == provider.name]
    settings.add_provider_for_devices(devices, {})
    session = ort.InferenceSession(source, settings)
    feeds = feeds_for(session)
    found = session.run(None, feeds)
    wanted = ort.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, feeds)
    error = max(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True))
    for part in session.get_provider_graph_assignment_info():
        nodes = ", ".join(node.op_type for node in part.get_nodes())
        print(f"{part.ep_name:24} {nodes}")
    timeline, machine = provider.timeline, provider.timeline.machine
    print(f"largest difference from the CPU: {error:.2e}")
    print(f"{timeline.now} cycles, {timeline.now / machine.hertz * 1e6:.1f} us")
    for unit in dict.fromkeys(step.unit for step in timeline.steps):
        print(f"  {unit:10} busy {100 * timeline.busy(unit) / timeline.now:5.1f} %")
    print(f"{timeline.moved()} bytes moved, {provider.memory.peak} bytes of memory at most")
    if options.trace:
        provider.save_trace(options.trace)
    return 0 if error < 1e-3 else 1


if __name__ == "__main__":
    raise SystemExit(main())
