"""Finds the operators of a model that onnxruntime fuses."""

import tempfile
from pathlib import Path

import onnx
import onnxruntime

# Operators of ONNX that can replace several others in onnxruntime. All operators of its own domain count as fused.
FUSED = {"Gelu", "Gemm", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
# The fused operators that an operator may become.
BETTER = {
    "Gelu": {"BiasGelu"},
    "LayerNormalization": {"SkipLayerNormalization", "EmbedLayerNormalization"},
    "SimplifiedLayerNormalization": {"SkipSimplifiedLayerNormalization"},
    "SkipLayerNormalization": {"EmbedLayerNormalization"},
}


def optimised(path, batch=None):
    """The nodes of a model after onnxruntime's optimizations. The batch is open if it is `None`."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        # The next level writes layouts for one machine. It renames operators, but does not fuse them.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(target)
        options.log_severity_level = 3
        if batch:
            options.add_free_dimension_override_by_name("batch", batch)
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return list(onnx.load(target).graph.node)


def is_fused(node):
    """Whether a node replaces several operators.

    A FusedMatMul that only scales its product does not count. If the scale is folded into a weight, a MatMul suffices.
    """
    if node.op_type == "FusedMatMul":
        return any(attribute.name.startswith("trans") and attribute.i for attribute in node.attribute)
    return node.domain == "com.microsoft" or node.op_type in FUSED


def lost(before, after):
    """The kinds of fused operators that `after` has fewer of, unless better ones replace them."""

    def with_better(counts, kind):
        return sum(counts[one] for one in {kind} | BETTER.get(kind, set()))

    return [kind for kind in before if with_better(after, kind) < with_better(before, kind)]
