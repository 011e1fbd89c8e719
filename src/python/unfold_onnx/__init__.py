"""Folds the normalizers of transformers in ONNX models into the layers around them, and proves the result.

fuse(model, output=None, **options)
    folds a model, verifies the result, and returns it in the type of the model
fuse_with_report(model, output=None, **options)
    like ``fuse``, with a report of the changes
plan(model, **options)
    lists the changes that ``fuse`` would make
tune(model, output=None, engine="tract", ...)
    measures the result of each option on this machine, and returns the fastest
inspect(model, html=None)
    lists the normalizers of a model, and writes a page about it
verify(original, fused)
    runs two models on the same inputs, and compares their outputs
prove(original, fused)
    proves that a folded model is the same function as its original, without an engine
judge(first, second)
    judges whether two models from any tools are the same function
assert_same(first, second, accept=())
    for tests: fails unless both models are the same function
bench(model)
    measures the gain, in tract

A model is a path, bytes, an ``onnx.ModelProto``, an ``onnx_ir.Model``, a ``torch.onnx.ONNXProgram`` or an
``onnxscript.OnnxFunction``:

>>> import unfold_onnx as unfold
>>> fused, report = unfold.fuse_with_report("models/digits/un-dynamo.onnx")
>>> report
<FuseReport: 13 of 13 sites, 167 to 81 operators, verified>

A site that cannot fold exactly stays. This is not an error, and the plan names the reason. ``unfold_onnx.ir`` provides
``fuse`` as a pass of onnx_ir, and ``unfold_onnx.optimum`` provides it as a step after the exporter of Optimum.
"""

from unfold_onnx._api import bench, fuse, fuse_with_report, inspect, plan, prove, verify
from unfold_onnx._bench import BenchReport, Latency, Measured, Setting
from unfold_onnx._judge import Judgement, NarrowingCast, RoundedTensor, assert_same, judge
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
    "Judgement",
    "Latency",
    "Measured",
    "NarrowingCast",
    "Outcome",
    "OutputError",
    "Plan",
    "Proof",
    "Provenance",
    "Refusal",
    "Resolver",
    "RoundedTensor",
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
    "assert_same",
    "bench",
    "fuse",
    "fuse_with_report",
    "inspect",
    "judge",
    "plan",
    "prove",
    "tune",
    "verify",
]
