"""Folds random graphs and compares them in onnxruntime: a fused model must compute the same as its original.

    python tests/graphs.py target/release/unfold --count 1000 [--seed 0] [--keep FOLDER] [-- --centre]

A graph is a chain of operators with any attributes, affines of all shapes between them, sums and products with earlier
values, and several outputs. Extents are small and often equal, so that axes may be confused. The script folds the graph
without verification, and onnxruntime computes both models without optimization. Unlike `tests/property`, graphs contain
operators that unfold does not know, and the engine is one that unfold does not use.

A difference above rounding may also mean that a model is sensitive to rounding. `unfold prove` decides.
"""

import argparse
import collections
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

LARGEST, STEPS, TOLERANCE = 4000, 14, 2e-3

OPERATORS = []


def operator(make):
    """Registers a function that appends an operator to a chain. It returns the value and its extents, or None if the
    operator does not fit."""
    OPERATORS.append(make)
    return make


class Graph:
    """A model under construction."""

    def __init__(self, seed):
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.opset = self.random.choice([13, 15, 17, 18, 20, 21])
        self.nodes, self.constants, self.values = [], [], []

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def floats(self, *dims, positive=False):
        signs = 1 if positive or self.random.random() < 0.5 else self.numbers.choice([-1, 1], dims)
        return self.constant((self.numbers.uniform(0.5, 1.5, dims) * signs).astype(np.float32))

    def add(self, op, inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n{name}", **attributes))
        return name

    def beside(self, dims):
        """The extents of a constant that broadcasts with a value, sometimes with one more axis."""
        axis = self.random.randrange(len(dims))
        kind = self.random.random()
        if kind < 0.4:
            kept = [dim if at == axis else 1 for at, dim in enumerate(dims)]
        else:
            kept = [dim if kind < 0.9 and self.random.random() < 0.5 else 1 for dim in dims]
        leading = next((at for at, dim in enumerate(kept) if dim != 1), len(kept))
        kept = kept[self.random.randint(0, leading) :]
        return [1] * (len(dims) - len(kept) + 1) + kept if self.random.random() < 0.05 else kept

    def affine(self, value, dims):
        op = self.random.choice(["Mul", "Add", "Sub", "Div"])
        given = self.beside(dims)
        inputs = [value, self.floats(*given)]
        if op != "Div" and self.random.random() < 0.25:
            inputs.reverse()
        return self.add(op, inputs), list(np.broadcast_shapes(tuple(dims), tuple(given)))

    def model(self):
        dims = [self.random.choice([1, 2, 3, 4]) for _ in range(self.random.choice([2, 3, 3, 4, 4]))]
        given, value = list(dims), "x"
        for _ in range(self.random.randint(3, STEPS)):
            make = Graph.affine if self.random.random() < 0.35 else self.random.choice(OPERATORS)
            nodes = len(self.nodes)
            made = make(self, value, dims)
            if made is None or not 0 < np.prod(made[1]) <= LARGEST or not 2 <= len(made[1]) <= 5:
                del self.nodes[nodes:]
                continue
            value, dims = made
            self.values.append(made)
        if value == "x":
            value, _ = self.affine(value, dims)
        outputs = {value, *(name for name, _ in self.values if self.random.random() < 0.05)} - {"x"}
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sorted(outputs)],
            self.constants,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


@operator
def product(graph, value, dims):
    columns = graph.random.choice([1, 3, dims[-1]])
    return graph.add("MatMul", [value, graph.floats(dims[-1], columns)]), [*dims[:-1], columns]


@operator
def product_from_left(graph, value, dims):
    rows = graph.random.choice([1, 2, 3])
    return graph.add("MatMul", [graph.floats(rows, dims[-2]), value]), [*dims[:-2], rows, dims[-1]]


@operator
def gemm(graph, value, dims):
    if len(dims) != 2:
        return None
    turned = graph.random.randint(0, 1)
    (outer, inner), columns = dims[::-1] if turned else dims, graph.random.choice([1, 3, dims[0]])
    bias = graph.random.choice([[], [columns], [1, columns], [outer, 1], [outer, columns]])
    inputs = [value, graph.floats(columns, inner), graph.floats(*bias)]
    factors = {"alpha": graph.random.choice([0.5, 1.0]), "beta": graph.random.choice([0.5, 1.0, 0.0])}
    return graph.add("Gemm", inputs, transA=turned, transB=1, **factors), [outer, columns]


@operator
def convolution(graph, value, dims):
    places = len(dims) - 2
    if places < 1:
        return None
    group = graph.random.choice([1, dims[1]])
    kernel = [graph.random.choice([1, 1, 2, 3]) for _ in range(places)]
    strides = [graph.random.choice([1, 1, 2]) for _ in range(places)]
    pads = [graph.random.choice([0, 0, 1]) for _ in range(2 * places)]
    sizes = [dim + pads[at] + pads[at + places] - kernel[at] for at, dim in enumerate(dims[2:])]
    if min(sizes) < 0:
        return None
    channels = group * graph.random.choice([1, 2])
    inputs = [value, graph.floats(channels, dims[1] // group, *kernel)]
    if graph.random.random() < 0.5:
        inputs.append(graph.floats(channels))
    made = graph.add("Conv", inputs, group=group, kernel_shape=kernel, strides=strides, pads=pads)
    return made, [dims[0], channels, *(size // stride + 1 for size, stride in zip(sizes, strides))]


@operator
def einsum(graph, value, dims):
    letters = "abcde"[: len(dims)]
    axis, columns = graph.random.randrange(len(dims)), graph.random.choice([1, 3])
    equation = f"{letters},{letters[axis]}z->{letters.replace(letters[axis], 'z')}"
    made = graph.add("Einsum", [value, graph.floats(dims[axis], columns)], equation=equation)
    return made, [columns if at == axis else dim for at, dim in enumerate(dims)]


@operator
def recurrent(graph, value, dims):
    if len(dims) != 3:
        return None
    op, gates = graph.random.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    shapes = [(1, 2 * gates, dims[2]), (1, 2 * gates, 2), (1, 4 * gates)]
    made = graph.add(op, [value, *(graph.floats(*shape) for shape in shapes)], hidden_size=2)
    return graph.add("Squeeze", [made, graph.ints(1)]), [*dims[:2], 2]


@operator
def transpose(graph, value, dims):
    perm = graph.random.sample(range(len(dims)), len(dims))
    return graph.add("Transpose", [value], perm=perm), [dims[axis] for axis in perm]


@operator
def reshape(graph, value, dims):
    axis = graph.random.randrange(len(dims) - 1)
    made = [*dims[:axis], dims[axis] * dims[axis + 1], *dims[axis + 2 :]]
    if graph.random.random() < 0.5:
        made = [*dims[:axis], 1, *dims[axis:]]
    return graph.add("Reshape", [value, graph.ints(*made)]), made


@operator
def gather(graph, value, dims):
    axis = graph.random.randrange(len(dims))
    places = [graph.random.randrange(-dims[axis], dims[axis]) for _ in range(graph.random.choice([1, 2, 3]))]
    made = graph.add("Gather", [value, graph.ints(*places)], axis=axis)
    return made, [*dims[:axis], len(places), *dims[axis + 1 :]]


@operator
def concat(graph, value, dims):
    axis = graph.random.randrange(len(dims))
    other, others = graph.affine(value, dims) if graph.random.random() < 0.5 else (graph.floats(*dims), dims)
    if others != dims:
        return None
    return graph.add("Concat", [value, other], axis=axis), [*dims[:axis], 2 * dims[axis], *dims[axis + 1 :]]


@operator
def pad(graph, value, dims):
    pads = [graph.random.choice([0, 0, 1]) for _ in range(2 * len(dims))]
    mode = graph.random.choice(["constant", "edge"])
    made = [dim + pads[at] + pads[at + len(dims)] for at, dim in enumerate(dims)]
    return graph.add("Pad", [value, graph.ints(*pads)], mode=mode), made


@operator
def mean_taken_off(graph, value, dims):
    axis = graph.random.randrange(len(dims))
    new = graph.opset >= 18
    inputs, attributes = ([value, graph.ints(axis)], {}) if new else ([value], {"axes": [axis]})
    return graph.add("Sub", [value, graph.add("ReduceMean", inputs, keepdims=1, **attributes)]), dims


@operator
def reduction(graph, value, dims):
    axis = graph.random.randrange(len(dims))
    made = graph.add("ReduceSum", [value, graph.ints(axis)], keepdims=1)
    return made, [1 if at == axis else dim for at, dim in enumerate(dims)]


@operator
def pooling(graph, value, dims):
    if len(dims) < 3:
        return None
    op = graph.random.choice(["GlobalAveragePool", "GlobalMaxPool"])
    return graph.add(op, [value]), [*dims[:2], *[1] * (len(dims) - 2)]


@operator
def function(graph, value, dims):
    op = graph.random.choice(["Relu", "Tanh", "Abs", "Sigmoid", "Neg", "Erf", "Softplus", "Identity", "Dropout"])
    return graph.add(op, [value]), dims


@operator
def softmax(graph, value, dims):
    return graph.add("Softmax", [value], axis=graph.random.randrange(len(dims))), dims


@operator
def batch_normalization(graph, value, dims):
    parameters = [graph.floats(dims[1], positive=name == "variance") for name in ("γ", "β", "mean", "variance")]
    return graph.add("BatchNormalization", [value, *parameters]), dims


@operator
def instance_normalization(graph, value, dims):
    if len(dims) < 3 or np.prod(dims[2:]) < 4:
        return None
    return graph.add("InstanceNormalization", [value, graph.floats(dims[1]), graph.floats(dims[1])]), dims


@operator
def layer_normalization(graph, value, dims):
    if graph.opset < 17 or dims[-1] < 3:
        return None
    return graph.add("LayerNormalization", [value, graph.floats(dims[-1]), graph.floats(dims[-1])]), dims


@operator
def selection(graph, value, dims):
    truths = graph.constant(graph.numbers.random(dims) < 0.5)
    return graph.add("Where", [truths, value, graph.floats(*graph.beside(dims)[-len(dims) :])]), dims


@operator
def with_another(graph, value, dims):
    fits = [name for name, others in graph.values if others == dims]
    if not fits:
        return None
    inputs = [value, graph.random.choice(fits)]
    graph.random.shuffle(inputs)
    return graph.add(graph.random.choice(["Add", "Add", "Mul", "Sub", "Max"]), inputs), dims


def session(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def difference(expected, results):
    """The largest difference of finite numbers, relative to the largest number of the output."""
    worst = 0.0
    for before, after in zip(expected, results, strict=True):
        if before.shape != after.shape:
            return np.inf
        finite = np.isfinite(before)
        if finite.any():
            off = np.abs(before[finite].astype(float) - after[finite]).max()
            worst = max(worst, off / (np.abs(before[finite]).max() + 1e-3))
    return np.inf if np.isnan(worst) else worst


def judge(unfold, seed, folder, options):
    """The outcome for a seed in one or two words, and the reason."""
    model, dims = Graph(seed).model()
    before, after = folder / "before.onnx", folder / "after.onnx"
    onnx.save(model, before)
    feed = {"x": np.random.default_rng(seed).standard_normal(dims).astype(np.float32)}
    try:
        expected = session(before).run(None, feed)
    except Exception as error:  # The engine raises many types, none of which means an invalid model.
        return "not run", str(error)
    command = [unfold, "fuse", before, "-o", after, "--verify", "off", "--quiet", *options]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    if done.returncode != 0:
        return "refused", done.stderr
    try:
        worst = difference(expected, session(after).run(None, feed))
    except Exception as error:
        return "broken", str(error)
    return ("equal", "") if worst <= TOLERANCE else ("different", f"{worst:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("unfold", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("options", nargs="*", help="for `unfold fuse`")
    given = parser.parse_args()
    outcomes = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for seed in range(given.seed, given.seed + given.count):
            outcome, why = judge(given.unfold.absolute(), seed, folder, given.options)
            outcomes[outcome] += 1
            if outcome not in ("equal", "not run"):
                print(f"{seed}: {outcome}: {why.strip()[-300:]}", flush=True)
                if given.keep:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    (folder / "before.onnx").replace(given.keep / f"{seed}.onnx")
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    sys.exit(any(outcomes[outcome] for outcome in ("refused", "broken", "different")))


if __name__ == "__main__":
    main()
