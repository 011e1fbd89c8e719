"""Fixtures of the tests: models of the repository and the command line of the wheel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def digits() -> Path:
    """The folder of the trained transformers."""
    return ROOT / "models" / "digits"


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs the command line."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "unfold_onnx", *map(str, arguments)]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    return run
