"""`ortkit.optimize` of what `torch.onnx.export` returns, and of models of onnx-ir."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import ortkit
from ortkit.optimization.torch_program import is_onnx_program
from tests.integrations.needed import needs

NEEDS_TORCH = needs("torch", extra="export")


def program(**given: Any) -> tuple[Any, Any]:
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(32, 64)
            self.norm = torch.nn.LayerNorm(64)

        def forward(self, x: Any) -> Any:
            return self.norm(torch.nn.functional.silu(self.up(x)) * 2 + 1)

    torch.manual_seed(0)
    x = torch.randn(4, 32)
    sizes = ({0: torch.export.Dim("batch")},)
    return torch.onnx.export(Block().eval(), (x,), dynamo=True, dynamic_shapes=sizes, **given), x


def domains(model: ir.Model) -> set[str]:
    return {node.domain for node in model.graph}


# Loading torch and exporting take 5 to 10 s.
@pytest.mark.slow
@NEEDS_TORCH
def test_a_program_runs_on_our_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    original, x = program()
    expected = original(x)
    found = ortkit.optimize(original, timing=False)
    assert is_onnx_program(found) and found is not original
    assert "ortkit.fused" in domains(found.model)
    assert domains(original.model) == {""}
    assert found.optimized.report.verification is not None
    registered: list[str] = []
    register = onnxruntime.SessionOptions.register_custom_ops_library

    def counted(options: Any, library: str) -> None:
        registered.append(library)
        register(options, library)

    monkeypatch.setattr(
        onnxruntime.SessionOptions, "register_custom_ops_library", counted, raising=True
    )
    for batch in (x, torch.randn(7, 32)):
        torch.testing.assert_close(found(batch)[0], original(batch)[0], rtol=1e-4, atol=1e-5)
    assert registered == [str(found.optimized.library)]
    found.release()
    torch.testing.assert_close(found(x)[0], expected[0], rtol=1e-4, atol=1e-5)
    found.save(str(tmp_path / "model.onnx"))
    assert (tmp_path / "model.ops.so").is_file()
    session = ortkit.Session(tmp_path / "model.onnx", kernels="require", target="cpu")
    (output,) = session.run({"x": x.numpy()}).values()
    np.testing.assert_allclose(output, expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@NEEDS_TORCH
def test_what_is_no_program_to_optimize_is_one_line() -> None:
    original, x = program()
    with pytest.raises(ortkit.UserError, match="example inputs are for PyTorch modules"):
        ortkit.optimize(original, (x,))
    name, value = next(iter(original.model.graph.initializers.items()))
    value.const_value = None
    with pytest.raises(ortkit.UserError, match=f"the program has no value for '{name}'; call"):
        ortkit.optimize(original)


def test_a_model_of_onnx_ir_goes_in_and_out() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, 8] x) => (float[n, 8] y) { a = Identity(x)  y = Relu(a) }"""
    model = ir.from_onnx_text(text)
    found = ortkit.optimize(model, level=1, timing=False)
    assert isinstance(found.model, ir.Model)
    assert [node.op_type for node in found.model.graph] == ["Relu"]
    assert [node.op_type for node in model.graph] == ["Identity", "Relu"]


def test_a_path_as_second_argument_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ortkit.UserError, match=r"ortkit\.optimize\(model\)\.save\(path\)"):
        ortkit.optimize("model.onnx", tmp_path / "out.onnx")
