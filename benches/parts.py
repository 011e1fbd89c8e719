"""Measures the gain of splitting queries, keys and values before their axes are permuted.

    pip install -r benches/peers/requirements.txt
    python benches/parts.py

In each attention, one product computes queries, keys and values. In the first form, one Transpose permutes the axes,
and then a Split or Gathers split the result. In the second form, the split comes first. Prints the latency of the
second form relative to that of the first. `unfold` is found on the PATH. The table is in docs/engines.md.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engines import in_onnxruntime, in_tract

LAYERS, ROUNDS = 4, 30
FIVE = {"tokens before channels": [2, 0, 3, 1, 4], "channels before tokens": [2, 0, 3, 4, 1]}
ORDERS = {"tokens before channels": [0, 2, 1, 3], "channels before tokens": [0, 2, 3, 1]}


def model(order, by, first, tokens, heads, channels):
    """All layers, either split first or permuted first."""
    generator, width = np.random.default_rng(0), heads * channels
    nodes, initializers = [], []

    def constant(values):
        initializers.append(numpy_helper.from_array(np.array(values), f"c{len(initializers)}"))
        return initializers[-1].name

    def node(op, inputs, outputs=1, **attributes):
        made = [f"v{len(nodes)}_{output}" for output in range(outputs)]
        nodes.append(helper.make_node(op, inputs, made, name=f"n{len(nodes)}", **attributes))
        return made

    def apart(value, axis):
        if by == "Gather":
            return [node("Gather", [value, constant(place)], axis=axis)[0] for place in range(3)]
        parts = node("Split", [value, constant([1, 1, 1])], 3, axis=axis)
        return [node("Squeeze", [part, constant([axis])])[0] for part in parts]

    value = "x"
    for _ in range(LAYERS):
        weights = [generator.standard_normal((width, n * width), np.float32) / np.float32(50) for n in (3, 1)]
        three = node("MatMul", [value, constant(weights[0])])[0]
        shaped = node("Reshape", [three, constant([0, tokens, 3, heads, channels])])[0]
        if first:
            q, k, v = (node("Transpose", [part], perm=ORDERS[order])[0] for part in apart(shaped, 2))
        else:
            q, k, v = apart(node("Transpose", [shaped], perm=FIVE[order])[0], 0)
        turned = node("Transpose", [k], perm=[0, 1, 3, 2])[0]
        shares = node("Softmax", node("MatMul", [q, turned]), axis=-1)[0]
        back = node("Transpose", node("MatMul", [shares, v]), perm=list(np.argsort(ORDERS[order])))
        joined = node("Reshape", [*back, constant([0, tokens, width])])
        value = node("Add", [value, *node("MatMul", [*joined, constant(weights[1])])])[0]
    nodes[-1].output[0] = "y"
    declare = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", tokens, width])
    graph = helper.make_graph(nodes, "parts", [declare("x")], [declare("y")], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main():
    print("| order | apart by | tokens | heads | batch | tract | onnxruntime |")
    print("|---|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for order in ORDERS:
            for by in ("Split", "Gather"):
                for tokens, heads, channels, batch in ((196, 6, 64, 1), (49, 4, 32, 8), (1024, 2, 32, 1)):
                    paths = [str(Path(folder) / f"{name}.onnx") for name in ("after", "before")]
                    for path, first in zip(paths, (False, True)):
                        onnx.save(model(order, by, first, tokens, heads, channels), path)
                    ratios = [engine(paths, batch, ROUNDS)[1] for engine in (in_tract, in_onnxruntime)]
                    cells = [order, by, tokens, f"{heads} × {channels}", batch, *ratios]
                    print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
