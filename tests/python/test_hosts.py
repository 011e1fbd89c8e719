"""Use of unfold in other tools, if they are installed: onnx_ir, ONNX Script, PyTorch's exporter, Optimum."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import unfold_onnx as unfold


def test_pass_of_onnx_ir_folds_in_place(digits: Path) -> None:
    ir: Any = pytest.importorskip("onnx_ir")
    common: Any = pytest.importorskip("onnx_ir.passes.common")
    from unfold_onnx.ir import FusePass

    model: Any = ir.load(digits / "un-dynamo.onnx")
    expected = unfold.fuse(model)
    step = FusePass()
    result: Any = ir.passes.Sequential(step, common.RemoveUnusedNodesPass())(model)
    assert result.model is model and result.modified
    assert ir.to_proto(model) == ir.to_proto(expected)
    assert step.report is not None and step.report.verified


def test_pass_of_onnx_ir_leaves_a_folded_model(digits: Path) -> None:
    ir: Any = pytest.importorskip("onnx_ir")
    from unfold_onnx.ir import FusePass

    model: Any = ir.load(digits / "un-dynamo.onnx")
    step: Any = FusePass()
    assert step(model).modified
    graph = model.graph
    assert not step(model).modified
    assert model.graph is graph


def test_function_of_onnx_script_becomes_a_message() -> None:
    onnx: Any = pytest.importorskip("onnx")
    onnxscript: Any = pytest.importorskip("onnxscript")
    function: Any = pytest.importorskip("onnxscript.values")
    op: Any = onnxscript.opset18

    def twice(x: Any) -> Any:
        return op.Identity(op.Identity(x))

    twice.__annotations__ = {"x": onnxscript.FLOAT[3, 4], "return": onnxscript.FLOAT[3, 4]}
    script: Any = onnxscript.script()(twice)
    assert isinstance(script, function.OnnxFunction)
    fused: Any = unfold.fuse(script)
    assert isinstance(fused, onnx.ModelProto)


def test_program_of_pytorch_stays_one() -> None:
    torch: Any = pytest.importorskip("torch")
    layers = [torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4)]
    net: Any = torch.nn.Sequential(*layers).eval()
    torch.nn.init.uniform_(net[0].weight, 0.5, 2)
    net[2].running_mean.uniform_(-1, 1)
    net[2].running_var.uniform_(0.5, 2)
    x = torch.rand(3, 8)
    program: Any = torch.onnx.export(net, (x,), dynamo=True)
    fused: Any
    fused, report = unfold.fuse_with_report(program)
    assert type(fused) is type(program) and fused is not program
    assert report.verified and len(report.plan.folded) == 2
    [expected], [found] = program(x), fused(x)
    assert torch.allclose(expected, found, atol=1e-6)
    assert not any(node.op_type == "BatchNormalization" for node in fused.model.graph)


def test_step_after_optimum_folds_each_model_in_place(digits: Path, tmp_path: Path) -> None:
    from unfold_onnx.optimum import post_process

    folder = tmp_path / "exported"
    (folder / "decoder").mkdir(parents=True)
    paths = [folder / "decoder" / "model.onnx", folder / "model.onnx"]
    for path in paths:
        shutil.copy(digits / "un-dynamo.onnx", path)
    reports = post_process(folder, target="portable")
    assert list(reports) == paths
    for path, report in reports.items():
        assert report.verified
        assert path.read_bytes() == unfold.fuse(digits / "un-dynamo.onnx", target="portable")
    assert sorted(folder.rglob("*.*")) == paths


def test_step_after_optimum_needs_a_model(tmp_path: Path) -> None:
    from unfold_onnx.optimum import post_process

    with pytest.raises(FileNotFoundError, match=r"ends with \.onnx"):
        post_process(tmp_path)


def test_step_after_optimum_folds_what_it_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch: Any = pytest.importorskip("torch")
    exporter: Any = pytest.importorskip("optimum.exporters.onnx")
    transformers: Any = pytest.importorskip("transformers")
    from unfold_onnx.optimum import post_process

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    net: Any = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **sizes)).eval()
    for layer in net.modules():
        if isinstance(layer, torch.nn.LayerNorm):
            torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
    exporter.onnx_export_from_model(net, tmp_path / "bert", task="text-classification")
    [(path, report)] = post_process(tmp_path / "bert").items()
    assert path.name == "model.onnx" and report.changed and report.verified
