"""Writes a graph with about a given number of nodes, as exporters write them, and prints the exact number.

The number of sites is proportional to the number of nodes.

    python benches/scale/graphs.py transformer 100000 model.onnx
"""

import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto, OperatorSetIdProto, TensorProto, helper, numpy_helper

WIDTH = 8


class Graph:
    """A graph under construction, with random constants."""

    def __init__(self):
        self.model = ModelProto(ir_version=8, opset_import=[OperatorSetIdProto(version=18)])
        self.proto = self.model.graph
        self.proto.name = "graph"
        self.random = np.random.default_rng(0)
        self.scope = ""
        self.nodes = 0
        self.rank = 0

    def constant(self, name, array):
        self.proto.initializer.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, name, *shape, low=0.5, high=1.5):
        return self.constant(name, self.random.uniform(low, high, shape).astype(np.float32))

    def op(self, op, *inputs, outputs=1, domain="", **attributes):
        self.nodes += 1
        node = self.proto.node.add(op_type=op, name=f"{self.scope}/{op}_{self.nodes}", input=inputs, domain=domain)
        node.output.extend(f"{node.name}_output_{slot}" for slot in range(outputs))
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        return node.output[0] if outputs == 1 else list(node.output)

    def input(self, *shape):
        self.rank = 1 + len(shape)
        self.proto.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape]))
        return "x"

    def output(self, name):
        shape = ["batch"] + [None] * (self.rank - 1)
        self.proto.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def affine(self, x, prefix, width=WIDTH):
        return self.op("Add", self.op("Mul", x, self.floats(f"{prefix}.weight", width)), self.floats(f"{prefix}.bias", width))

    def linear(self, x, prefix, width=WIDTH):
        weight = self.floats(f"{prefix}.weight", WIDTH, width, low=-0.3, high=0.3)
        return self.op("Add", self.op("MatMul", x, weight), self.floats(f"{prefix}.bias", width, low=-0.1, high=0.1))

    def gelu(self, x):
        inner = self.op("Add", self.op("Erf", self.op("Div", x, "root2")), "one")
        return self.op("Mul", self.op("Mul", x, inner), "half")


def un(graph, x, prefix):
    """A UN, as the dynamo exporter writes it."""
    y = graph.op("Reshape", graph.op("Transpose", x, perm=[0, 2, 1]), "channels")
    y = graph.op("Unsqueeze", y, "last")
    for op, name in (("Div", "sqrt"), ("Mul", "weight"), ("Add", "bias")):
        y = graph.op(op, y, graph.floats(f"{prefix}.{name}", 1, WIDTH, 1, 1))
    return graph.op("Transpose", graph.op("Reshape", y, "channels"), perm=[0, 2, 1])


def un_computed(graph, x, prefix):
    """A UN, as the legacy exporter writes it: every shape is computed from that of the input."""
    y = graph.op("Transpose", x, perm=[0, 2, 1])

    def extent(value, axis):
        return graph.op("Unsqueeze", graph.op("Gather", graph.op("Shape", value), f"axis{axis}", axis=0), "first")

    extents = [extent(y, axis) for axis in range(3)]
    y = graph.op("Reshape", y, graph.op("Concat", *extents, "ones", axis=0))
    spread = graph.op("Concat", "ones", extent(y, 1), "ones", "ones", axis=0)

    def parameter(name):
        return graph.op("Reshape", graph.floats(f"{prefix}.{name}", WIDTH), spread)

    y = graph.op("Div", y, graph.op("Sqrt", graph.op("Add", parameter("running_var"), "epsilon")))
    y = graph.op("Add", graph.op("Mul", y, parameter("weight")), parameter("bias"))
    y = graph.op("Reshape", y, graph.op("Concat", *[extent(x, axis) for axis in (0, 2, 1)], axis=0))
    return graph.op("Transpose", y, perm=[0, 2, 1])


def layer_norm(graph, x, prefix):
    """A LayerNorm of several operators."""
    centred = graph.op("Sub", x, graph.op("ReduceMean", x, "last"))
    variance = graph.op("ReduceMean", graph.op("Pow", centred, "two"), "last")
    y = graph.op("Div", centred, graph.op("Sqrt", graph.op("Add", variance, "epsilon")))
    return graph.affine(y, prefix)


def layer_norm_function(graph, x, prefix):
    """A LayerNorm as a call of a function of the model."""
    parameters = graph.floats(f"{prefix}.weight", WIDTH), graph.floats(f"{prefix}.bias", WIDTH)
    return graph.op("LayerNorm", x, *parameters, domain="norms")


def transformer(graph, nodes, norm=un):
    """Blocks of attention and an MLP, each after a normalizer."""
    numbers = {"root2": 2**0.5, "one": 1, "half": 0.5, "two": 2, "epsilon": 1e-5, "scale": WIDTH**-0.5}
    for name, value in numbers.items():
        graph.constant(name, np.array(value, np.float32))
    lists = {"last": [-1], "channels": [0, WIDTH, -1], "first": [0], "ones": [1]}
    for name, value in (lists | {f"axis{axis}": axis for axis in range(3)}).items():
        graph.constant(name, np.array(value, np.int64))
    x = graph.input(5, WIDTH)
    block = 0
    while graph.nodes < nodes:
        path = f"blocks.{block}"
        graph.scope = f"/blocks/{path}/norm1"
        y = norm(graph, x, f"{path}.norm1")
        graph.scope = f"/blocks/{path}/attn"
        q, k, v = (graph.linear(y, f"{path}.attn.{part}") for part in "qkv")
        scores = graph.op("Mul", graph.op("MatMul", q, graph.op("Transpose", k, perm=[0, 2, 1])), "scale")
        y = graph.linear(graph.op("MatMul", graph.op("Softmax", scores, axis=-1), v), f"{path}.attn.proj")
        x = graph.op("Add", x, y)
        graph.scope = f"/blocks/{path}/norm2"
        y = norm(graph, x, f"{path}.norm2")
        graph.scope = f"/blocks/{path}/mlp"
        y = graph.linear(graph.gelu(graph.linear(y, f"{path}.fc1")), f"{path}.fc2")
        x = graph.op("Add", x, y)
        block += 1
    graph.output(x)


def computed_shapes(graph, nodes):
    """A transformer with computed shapes."""
    transformer(graph, nodes, un_computed)


def layer_norms(graph, nodes):
    """A transformer with LayerNorms of several operators."""
    transformer(graph, nodes, layer_norm)


def functions(graph, nodes):
    """A transformer with LayerNorms as calls of a function."""
    graph.model.opset_import.add(domain="norms", version=1)
    function = graph.model.functions.add(name="LayerNorm", domain="norms", input=["x", "w", "b"], output=["y"])
    function.opset_import.add(version=18)
    constants = (("last", {"value_ints": [-1]}), ("two", {"value_float": 2.0}), ("epsilon", {"value_float": 1e-5}))
    function.node.extend(helper.make_node("Constant", [], [name], **value) for name, value in constants)
    steps = "mean=ReduceMean(x,last) d=Sub(x,mean) p=Pow(d,two) v=ReduceMean(p,last) e=Add(v,epsilon) s=Sqrt(e) " \
        "q=Div(d,s) g=Mul(q,w) y=Add(g,b)"
    for step in steps.split():
        output, call = step.split("=")
        op, inputs = call.rstrip(")").split("(")
        function.node.append(helper.make_node(op, inputs.split(","), [output]))
    transformer(graph, nodes, layer_norm_function)


def convolutions(graph, nodes):
    """Residual blocks of two convolutions, each with a BatchNormalization."""
    x = graph.input(WIDTH, 4, 4)

    def convolved(x, prefix, size):
        weight = graph.floats(f"{prefix}.conv", WIDTH, WIDTH, size, size, low=-0.3, high=0.3)
        y = graph.op("Conv", x, weight, kernel_shape=[size] * 2, pads=[size // 2] * 4)
        return graph.op("BatchNormalization", y, *(graph.floats(f"{prefix}.bn{slot}", WIDTH) for slot in range(4)))

    while graph.nodes < nodes:
        y = graph.op("Relu", convolved(x, f"{graph.nodes}.a", 1))
        x = graph.op("Relu", graph.op("Add", x, convolved(y, f"{graph.nodes}.b", 3)))
    graph.output(x)


def chain(graph, nodes):
    """A chain of scales and shifts, all of which one layer absorbs."""
    x = graph.input(WIDTH)
    for place in range(nodes // 2):
        scaled = graph.op("Mul", x, graph.floats(f"{place}.weight", WIDTH, low=0.99, high=1.01))
        x = graph.op("Add", scaled, graph.floats(f"{place}.bias", WIDTH))
    graph.output(graph.linear(x, "head"))


def fan(graph, nodes):
    """One value that all sites read. Each site has its own product after it, and one Concat joins all products."""
    x = graph.input(WIDTH)
    made = []
    while graph.nodes < nodes:
        y = graph.affine(x, f"{graph.nodes}")
        made.append(graph.op("MatMul", y, graph.floats(f"{graph.nodes}.w", WIDTH, 2)))
    graph.output(graph.op("Concat", *made, axis=1))


def branches(graph, nodes):
    """Layers whose input is split into parts, which are scaled separately and concatenated in another order."""
    x = graph.input(5, WIDTH)
    graph.constant("parts", np.array([2, 2, 4], np.int64))
    while graph.nodes < nodes:
        name = f"{graph.nodes}"
        parts = graph.op("Split", graph.affine(x, name), "parts", outputs=3, axis=2)
        a, b, c = (graph.op("Mul", part, graph.floats(f"{name}.{part}", width)) for part, width in zip(parts, (2, 2, 4)))
        x = graph.op("Tanh", graph.linear(graph.op("Concat", c, a, b, axis=2), f"{name}.fc"))
    graph.output(x)


FORMS = [transformer, computed_shapes, layer_norms, functions, convolutions, chain, fan, branches]


def write(form, nodes, path):
    """Writes a graph, and returns the number of its nodes."""
    graph = Graph()
    form(graph, nodes)
    path.write_bytes(graph.model.SerializeToString())
    return graph.nodes


def main():
    form, nodes, path = sys.argv[1:]
    print(write({form.__name__: form for form in FORMS}[form], int(nodes), Path(path)))


if __name__ == "__main__":
    main()
