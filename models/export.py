"""Writes a PyTorch model as one ONNX file, by either of PyTorch's exporters, and checks what was written."""

import warnings

import numpy as np
import onnx
import onnxruntime
import torch

EXPORTERS = ("dynamo", "legacy")
TOLERANCE = 1e-4  # of the largest output, in float32


def export(model, inputs, path, exporter):
    """Exports `model` in inference mode to `path`, the first axis of every input and output being dynamic.

    `inputs` maps the names of the arguments of `forward` to example tensors [B, ...] with B > 1. Returns the worst
    relative difference between onnxruntime and PyTorch over the outputs, or raises ValueError if it is too large.
    """
    model.eval()
    batch = {name: {0: "batch"} for name in inputs}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            shapes = {name: {0: torch.export.Dim("batch")} for name in inputs}
            program = torch.onnx.export(model, kwargs=inputs, dynamo=True, dynamic_shapes=shapes, verbose=False)
            program.save(path, external_data=False)
            forget_sources(path)
        else:
            torch.onnx.export(
                model,
                tuple(inputs.values()),
                path,
                dynamo=False,
                input_names=list(inputs),
                output_names=["output"],
                dynamic_axes=batch | {"output": {0: "batch"}},
            )
    return verify(model, inputs, path)


def forget_sources(path):
    """Drops the stack traces that the dynamo exporter attaches to every node: paths of the exporting machine."""
    proto = onnx.load(path)
    graphs = [proto.graph, *proto.functions]
    for node in (node for graph in graphs for node in graph.node):
        kept = [entry for entry in node.metadata_props if entry.key != "pkg.torch.onnx.stack_trace"]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(proto, path)


def run(path, inputs):
    """The first output of the model at `path` for numpy inputs, by onnxruntime without graph optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def relative_error(actual, expected):
    """The largest difference between two arrays, as a part of the largest number expected."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def verify(model, inputs, path):
    """Checks the file and compares it with PyTorch, at the batch it was exported with and at batch 1."""
    onnx.checker.check_model(path, full_check=True)
    worst = 0.0
    for inputs in (inputs, {name: value[:1] for name, value in inputs.items()}):
        with torch.no_grad():
            expected = model(**inputs).numpy()
        actual = run(path, {name: value.numpy() for name, value in inputs.items()})
        if not np.isfinite(expected).all() or actual.shape != expected.shape:
            raise ValueError(f"{path}: {expected.shape} against {actual.shape}, or not finite")
        worst = max(worst, relative_error(actual, expected))
    if worst > TOLERANCE:
        raise ValueError(f"{path}: onnxruntime and PyTorch differ by {worst:.1e}")
    return worst
