"""Removes the normalizers of transformers from ONNX models if this can be done exactly.

>>> import unfold_onnx as unfold
>>> data = unfold.fuse("models/digits/un-dynamo.onnx")

:func:`fuse` takes an ``onnx.ModelProto``, an ``onnx_ir.Model``, ``bytes`` or a path, and returns the folded model in the
same form. :func:`plan` reports what would be folded. :func:`verify` and :func:`prove` compare two models. :func:`bench`
measures the speed-up. :func:`tune` measures the results of several options, and returns the best one. A normalizer that
cannot be folded stays, and the plan has the reason; this is not an error.
"""

from unfold_onnx._api import bench, fuse, fuse_with_report, inspect, plan, prove, verify
from unfold_onnx._bench import BenchReport, Latency, Measured, Setting
from unfold_onnx._models import AnyModel, Resolver
from unfold_onnx._native import (
    CertificateError,
    DiffersError,
    ExternalDataError,
    InternalError,
    InvalidModelError,
    TooLargeError,
    UnfoldError,
    UnverifiedError,
    __version__,
)
from unfold_onnx._plan import Inspection, Outcome, Plan, Provenance, Refusal, Site, Tensor
from unfold_onnx._tune import TunedCandidate, TuneReport, tune
from unfold_onnx._verdicts import FuseReport, OutputError, Proof, UnfoldWarning, Verification

__all__ = [
    "AnyModel",
    "BenchReport",
    "CertificateError",
    "DiffersError",
    "ExternalDataError",
    "FuseReport",
    "Inspection",
    "InternalError",
    "InvalidModelError",
    "Latency",
    "Measured",
    "Outcome",
    "OutputError",
    "Plan",
    "Proof",
    "Provenance",
    "Refusal",
    "Resolver",
    "Setting",
    "Site",
    "Tensor",
    "TooLargeError",
    "TuneReport",
    "TunedCandidate",
    "UnfoldError",
    "UnfoldWarning",
    "UnverifiedError",
    "Verification",
    "__version__",
    "bench",
    "fuse",
    "fuse_with_report",
    "inspect",
    "plan",
    "prove",
    "tune",
    "verify",
]
