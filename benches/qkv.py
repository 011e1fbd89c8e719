"""Checks whether one product for Q, K and V is faster than three, in tract and in onnxruntime.

    pip install -r benches/peers/requirements.txt
    python benches/qkv.py

The layers have ViT-S's width. A layer has three products of one value, each with its bias, or one product of three
times the width and a Split. The three results are added. Prints the latency of the form with one product relative to
that with three. `unfold` is found on the PATH. The table is in docs/branches.md.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engines import in_onnxruntime, in_tract

CHANNELS, LAYERS, ROUNDS = 384, 12, 30


def model(together, tokens):
    """All layers, each with one product or with three."""
    generator = np.random.default_rng(0)
    nodes, initializers = [], []

    def constant(values):
        initializers.append(numpy_helper.from_array(values, f"c{len(initializers)}"))
        return initializers[-1].name

    def node(op, inputs, outputs=1):
        made = [f"v{len(nodes)}_{output}" for output in range(outputs)]
        nodes.append(helper.make_node(op, inputs, made, name=f"n{len(nodes)}", **{"axis": -1} if op == "Split" else {}))
        return made

    value = "x"
    for _ in range(LAYERS):
        weight = generator.standard_normal((3, CHANNELS, CHANNELS), np.float32) / np.float32(3 * CHANNELS) ** 0.5
        bias = generator.standard_normal((3, CHANNELS), np.float32)

        def product(weight, bias):
            return node("Add", [*node("MatMul", [value, constant(weight)]), constant(bias)])

        if together:
            [all_three] = product(np.concatenate(weight, axis=1), bias.reshape(-1))
            parts = node("Split", [all_three, constant(np.full(3, CHANNELS))], 3)
        else:
            parts = [product(*pair)[0] for pair in zip(weight, bias)]
        [value] = node("Add", [*node("Add", parts[:2]), parts[2]])
    nodes[-1].output[0] = "y"
    declare = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", tokens, CHANNELS])
    graph = helper.make_graph(nodes, "qkv", [declare("x")], [declare("y")], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main():
    print("| tokens | batch | tract | onnxruntime |")
    print("|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for tokens, batch in ((197, 1), (197, 4), (16, 1)):
            paths = [str(Path(folder) / f"{name}.onnx") for name in ("three", "one")]
            for path, together in zip(paths, (False, True)):
                onnx.save(model(together, tokens), path)
            ratios = [engine(paths, batch, ROUNDS)[1] for engine in (in_tract, in_onnxruntime)]
            print(f"| {tokens} | {batch} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
