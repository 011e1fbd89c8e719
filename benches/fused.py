"""Which operators of a model onnxruntime fuses."""

import tempfile
from pathlib import Path

import onnx
import onnxruntime

# Operators of ONNX that onnxruntime makes of others; all of its own are fused.
FUSED = {"Gelu", "Gemm", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
# The fused operators that an operator may become.
BETTER = {
    "Gelu": {"BiasGelu"},
    "LayerNormalization": {"SkipLayerNormalization", "EmbedLayerNormalization"},
    "SimplifiedLayerNormalization": {"SkipSimplifiedLayerNormalization"},
    "SkipLayerNormalization": {"EmbedLayerNormalization"},
}


def optimised(path, batch=None):
    """The nodes of a model as onnxruntime runs it; the batch is open where no number is given."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        # Beyond this come layouts of one machine, for which operators are not fused but renamed.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(target)
        options.log_severity_level = 3
        if batch:
            options.add_free_dimension_override_by_name("batch", batch)
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return list(onnx.load(target).graph.node)


def is_fused(node):
    """Whether a node does what several operators did.

    A FusedMatMul that only scales its product does not count: once the scale is in a weight, nothing is left to fuse.
    """
    if node.op_type == "FusedMatMul":
        return any(attribute.name.startswith("trans") and attribute.i for attribute in node.attribute)
    return node.domain == "com.microsoft" or node.op_type in FUSED


def lost(before, after):
    """The kinds of which there are fewer, where they have not become better ones."""

    def with_better(counts, kind):
        return sum(counts[one] for one in {kind} | BETTER.get(kind, set()))

    return [kind for kind in before if with_better(after, kind) < with_better(before, kind)]
