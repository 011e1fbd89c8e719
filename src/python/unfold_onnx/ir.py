"""Provides ``unfold_onnx.fuse`` as a pass for pipelines of onnx_ir and ONNX Script.

>>> import onnx_ir
>>> from onnx_ir.passes.common import CommonSubexpressionEliminationPass
>>> from unfold_onnx.ir import FusePass
>>> model = onnx_ir.load("models/digits/un-dynamo.onnx")
>>> pipeline = onnx_ir.passes.Sequential(CommonSubexpressionEliminationPass(), FusePass(target="portable"))
>>> pipeline(model).modified
True

Importing this module imports onnx_ir.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import onnx_ir

from unfold_onnx._api import FuseOptions, fuse_with_report
from unfold_onnx._verdicts import FuseReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["FusePass"]


class FusePass(onnx_ir.passes.InPlacePass):
    """Folds a model, and verifies that the result computes the same function.

    The model object stays the same, and keeps its inputs and outputs. Its graph and its functions become new objects.
    Nodes and values that the caller took from the model before the pass are not part of it afterwards.

    Args:
        options: The options of :func:`unfold_onnx.fuse`.

    Raises:
        UnfoldError: the same errors as :func:`unfold_onnx.fuse`, when the pass runs. The model is unchanged then.
    """

    def __init__(self, **options: Unpack[FuseOptions]) -> None:
        super().__init__()
        self.options = options
        self.report: Optional[FuseReport] = None
        """The report of the last run."""

    def call(self, model: onnx_ir.Model) -> onnx_ir.passes.PassResult:
        """Folds the model in place."""
        fused, self.report = fuse_with_report(model, **self.options)
        if self.report.changed:
            _replace(model, fused)
        return onnx_ir.passes.PassResult(model, modified=self.report.changed)


def _replace(model: onnx_ir.Model, other: onnx_ir.Model) -> None:
    """Replaces the contents of a model by those of another one."""
    model.graph = other.graph
    model.ir_version = other.ir_version
    model.functions.clear()
    model.functions.update(other.functions)
    model.metadata_props.clear()
    model.metadata_props.update(other.metadata_props)
