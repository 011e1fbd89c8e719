"""The notebook in docs runs."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import ROOT

nbclient: Any = pytest.importorskip("nbclient")
nbformat: Any = pytest.importorskip("nbformat")


def test_notebook_runs_and_shows_tables_and_charts() -> None:
    notebook = nbformat.read(ROOT / "docs" / "python.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(ROOT)}}, timeout=120).execute()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert sum("<table>" in page for page in pages) >= 4
    assert "srcdoc=" in pages[-1] and "svg" in pages[-1]
