"""Finds the fastest exact form of a pointwise normalizer in tract and in onnxruntime.

    pip install -r benches/peers/requirements.txt
    python benches/pointwise.py

Each model has twelve matrix products of ViT-S's width over its 197 tokens. One pointwise function is before each
product. For each form of the function, prints the latency relative to a model with only the products. `unfold` is found
on the PATH. The table is in docs/pointwise.md.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engines import in_onnxruntime, in_tract

CHANNELS, TOKENS, LAYERS, ROUNDS = 384, 197, 12, 60

# The operators of each form. They are applied one after another to z, and a number is their constant operand.
FORMS = {
    "nothing": [],
    "Softsign": [("Softsign", "z")],
    "Abs, Add, Div": [("Abs", "z"), ("Add", "last", 1.0), ("Div", "z", "last")],
    "Abs, Add, Reciprocal, Mul": [("Abs", "z"), ("Add", "last", 1.0), ("Reciprocal", "last"), ("Mul", "z", "last")],
    "Tanh": [("Tanh", "z")],
    "Sigmoid": [("Sigmoid", "z")],
    "Tanh for Sigmoid": [("Mul", "z", 0.5), ("Tanh", "last"), ("Mul", "last", 0.5), ("Add", "last", 0.5)],
}


def model(form):
    """The products, each after the operators of a form."""
    generator = np.random.default_rng(0)
    nodes, initializers = [], []

    def constant(values):
        initializers.append(numpy_helper.from_array(np.asarray(values, np.float32), f"c{len(initializers)}"))
        return initializers[-1].name

    def node(op, *inputs):
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], name=f"n{len(nodes)}"))
        return nodes[-1].output[0]

    value = "x"
    for _ in range(LAYERS):
        names = {"z": value, "last": value}
        for op, *operands in FORMS[form]:
            inputs = [names[one] if isinstance(one, str) else constant(one) for one in operands]
            names["last"] = node(op, *inputs)
        weight = generator.standard_normal((CHANNELS, CHANNELS)) / np.sqrt(CHANNELS)
        value = node("MatMul", names["last"], constant(weight))
    nodes[-1].output[0] = "y"
    declare = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", TOKENS, CHANNELS])
    graph = helper.make_graph(nodes, "pointwise", [declare("x")], [declare("y")], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main():
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for form in FORMS:
            paths.append(str(Path(folder) / f"{form}.onnx"))
            onnx.save(model(form), paths[-1])
        columns = {}
        for batch in (1, 8):
            columns[f"tract, batch {batch}"] = in_tract(paths, batch, ROUNDS)
            columns[f"onnxruntime, batch {batch}"] = in_onnxruntime(paths, batch, ROUNDS)
    print("| form |" + "".join(f" {head} |" for head in columns))
    print("|---|" + "---:|" * len(columns))
    for row, form in enumerate(FORMS):
        print(f"| {form} |" + "".join(f" {column[row]} |" for column in columns.values()))


if __name__ == "__main__":
    main()
