"""The page of the package."""

from __future__ import annotations

from pathlib import Path
from shutil import copy

import onnx
import pytest

from conftest import ROOT


def test_the_example_of_the_page_runs(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy(digits / "un-dynamo.onnx", tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    example = (ROOT / "src" / "python" / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {"model": onnx.load("model.onnx")}
    exec(example, names)
    fused = names["fused"]
    assert isinstance(fused, onnx.ModelProto)
    assert len(fused.graph.node) == len(onnx.load("fused.onnx").graph.node) < len(onnx.load("model.onnx").graph.node)
