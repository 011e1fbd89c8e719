"""Folds the models that the exporter of Optimum wrote, in place.

    from optimum.exporters.onnx import main_export
    from unfold_onnx.optimum import post_process

    main_export("bert-base-uncased", "exported", task="fill-mask")
    for path, report in post_process("exported").items():
        print(path.name, report)

This module imports neither Optimum nor PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unfold_onnx._api import FuseOptions, fuse_in_place
from unfold_onnx._models import StrPath
from unfold_onnx._verdicts import FuseReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["post_process"]


def post_process(folder: StrPath, **options: Unpack[FuseOptions]) -> dict[Path, FuseReport]:
    """Folds each model of a folder in place.

    Args:
        folder: The folder that ``optimum.exporters.onnx.main_export`` wrote. Each ``.onnx`` file in it, or in a nested
            folder, is a model.
        options: The options of :func:`unfold_onnx.fuse`.

    Returns:
        The report of each model, by its path. A model in which nothing folds keeps its bytes.

    Raises:
        FileNotFoundError: there is no model in the folder.
        UnfoldError: the same errors as :func:`unfold_onnx.fuse`. The model with the error is then unchanged, and the
            models before it are already folded.
    """
    models = sorted(Path(folder).rglob("*.onnx"))
    if not models:
        raise FileNotFoundError(f"{folder}: no file below this folder ends with .onnx")
    return {path: fuse_in_place(path, options) for path in models}
