"""The README of the package."""

from __future__ import annotations

from pathlib import Path
from shutil import copy

import onnx
import pytest

from conftest import ROOT


def test_readme_example_runs(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy(digits / "un-dynamo.onnx", tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    example = (ROOT / "src" / "python" / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    model = onnx.ModelProto.FromString(Path("model.onnx").read_bytes())
    names: dict[str, object] = {"model": model}
    exec(example, names)
    fused = names["fused"]
    assert isinstance(fused, onnx.ModelProto)
    written = onnx.ModelProto.FromString(Path("fused.onnx").read_bytes())
    assert len(fused.graph.node) == len(written.graph.node) < len(model.graph.node)
