"""From torch to onnxruntime as docs/python.md shows it, where both are installed."""

from __future__ import annotations

from typing import Any

import pytest

import unfold_onnx as unfold
from conftest import ROOT

for package in ("torch", "timm", "onnxruntime"):
    pytest.importorskip(package)


def test_docs_example_runs_and_agrees() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    examples = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    [example] = [text for text in examples if "pretrained=True" in text]
    # Trained weights are elsewhere than the packages, and the same network has the others.
    names: dict[str, Any] = {}
    exec(example.replace("pretrained=True", "pretrained=False"), names)
    assert isinstance(names["report"], unfold.FuseReport) and names["report"].verified
    # γ and β of a network that was not trained are 1 and 0; the scales of attention fold all the same.
    assert sum(site.kind == "attention scale" for site in names["report"].plan.folded) == 24
    expected = names["net"](names["image"]).detach().numpy()
    assert abs(names["output"] - expected).max() < 1e-4
