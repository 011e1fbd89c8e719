"""From torch to onnxruntime, as in docs/python.md, if both are installed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import unfold_onnx as unfold
from conftest import ROOT

for package in ("torch", "timm", "onnxruntime"):
    pytest.importorskip(package)


def test_docs_example_runs_and_agrees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    examples = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    [example] = [text for text in examples if "pretrained=True" in text]
    monkeypatch.chdir(tmp_path)
    # The trained weights are not part of the packages. The network has random weights instead.
    names: dict[str, Any] = {}
    exec(example.replace("pretrained=True", "pretrained=False"), names)
    report = names["report"]
    assert isinstance(report, unfold.FuseReport) and report.verified
    # In an untrained network, γ is 1 and β is 0. The scales of attention still fold.
    assert sum(site.kind == "attention scale" for site in report.plan.folded) == 24
    torch, onnxruntime = import_module("torch"), import_module("onnxruntime")
    image = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    expected = names["net"](image).detach().numpy()
    session = onnxruntime.InferenceSession("vit.onnx")
    [output] = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    assert abs(output - expected).max() < 1e-4 * abs(expected).max()
