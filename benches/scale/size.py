"""Compares the cost of folding a large model with that of copying its weights: ratios of times, and peak memory.

    python benches/scale/size.py FOLDER [--unfold target/release/unfold] [--rounds 5] [--layers 12] [--width 2048] [--inline]

Writes a transformer with UN before every linear block to FOLDER, and folds it without verifying. FOLDER needs room for
three times its weights, which are 2.4 GB by default. Each round copies the weights with `cp` and then folds, so that
both run under the same load, with a warm page cache. Needs GNU time, numpy and onnx.
"""

import argparse
import os
import statistics
import subprocess

import numpy as np
from onnx import TensorProto, helper

ALIGNMENT = 4096


class Network:
    """A graph under construction, whose weights are written to a file one after another."""

    def __init__(self, path, inline):
        self.path, self.nodes, self.initializers = path, [], []
        self.numbers = np.random.default_rng(0)
        self.block = self.numbers.standard_normal(1 << 20).astype(np.float32)
        self.data = None if inline else open(path + ".data", "wb")

    def constant(self, name, array):
        tensor = TensorProto(
            name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype)
        )
        if self.data is None or array.nbytes < 1024:
            tensor.raw_data = array.tobytes()
        else:
            self.data.write(bytes(-self.data.tell() % ALIGNMENT))
            tensor.data_location = TensorProto.EXTERNAL
            place = {
                "location": os.path.basename(self.path) + ".data",
                "offset": self.data.tell(),
                "length": array.nbytes,
            }
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            self.data.write(array.tobytes())
        self.initializers.append(tensor)
        return name

    def op(self, kind, *inputs, **attributes):
        number = len(self.nodes)
        output = f"v{number}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=f"n{number}", **attributes))
        return output

    def integers(self, name, *numbers):
        return self.constant(name, np.array(numbers, np.int64))

    def vector(self, name, low, high, length):
        return self.constant(name, self.numbers.uniform(low, high, length).astype(np.float32))

    def unified_norm(self, x, name, width):
        x = self.op("Div", x, self.vector(name + ".sigma", 0.5, 2, width))
        x = self.op("Mul", x, self.vector(name + ".gamma", 0.5, 2, width))
        return self.op("Add", x, self.vector(name + ".beta", -0.5, 0.5, width))

    def linear(self, x, name, inner, outer):
        repeated = np.resize(self.block, (inner, outer)) * np.float32(inner**-0.5)
        # All weights differ.
        weight = self.constant(name + ".weight", repeated + np.float32(len(self.initializers) * 1e-4))
        bias = self.vector(name + ".bias", -0.5, 0.5, outer)
        return self.op("Add", self.op("MatMul", x, weight), bias)

    def block_of(self, x, name, width):
        heads = width // 64
        y = self.linear(self.unified_norm(x, name + ".norm1", width), name + ".qkv", width, 3 * width)
        y = self.op("Reshape", y, self.integers(name + ".heads", 0, 0, 3, heads, 64))
        y = self.op("Transpose", y, perm=[2, 0, 3, 1, 4])
        parts = [np.array(part, np.int64) for part in range(3)]
        q, k, v = (self.op("Gather", y, self.constant(f"{name}.{part}", part), axis=0) for part in parts)
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant(name + ".scale", np.array(0.125, np.float32)))
        y = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        y = self.op("Reshape", self.op("Transpose", y, perm=[0, 2, 1, 3]), self.integers(name + ".joined", 0, 0, width))
        x = self.op("Add", x, self.linear(y, name + ".proj", width, width))
        y = self.linear(self.unified_norm(x, name + ".norm2", width), name + ".fc1", width, 4 * width)
        y = self.op("Mul", y, self.op("Sigmoid", y))
        return self.op("Add", x, self.linear(y, name + ".fc2", 4 * width, width))


def make(path, layers, width, inline):
    network = Network(path, inline)
    x = "x"
    for layer in range(layers):
        x = network.block_of(x, f"layer{layer}", width)
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "tokens", width])
    graph = helper.make_graph(network.nodes, "large", [value("x")], [value(x)], network.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with open(path, "wb") as file:
        file.write(model.SerializeToString())
    if network.data:
        network.data.close()


def run(command):
    """Runs a command with GNU time. Returns the seconds and the peak of the resident set in MB.

    Without GNU time, the memory of this process, which is larger, would count.
    """
    done = subprocess.run(["/usr/bin/time", "-f", "%e %M", *command], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
    seconds, peak = done.stderr.split()[-2:]
    return float(seconds), int(peak) / 1000


def remove(*paths):
    for path in paths:
        if os.path.exists(path):
            os.remove(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--unfold", default="target/release/unfold")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--inline", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    model, fused, copy = (os.path.join(args.folder, name) for name in ("large.onnx", "fused.onnx", "copy"))
    make(model, args.layers, args.width, args.inline)
    weights = model if args.inline else model + ".data"
    ratios, peaks = [], []
    for number in range(args.rounds + 1):
        remove(copy, fused, fused + ".data")
        copied, _ = run(["cp", weights, copy])
        remove(copy)
        folded, peak = run([args.unfold, "fuse", model, "-o", fused, "--verify", "off", "--quiet"])
        # The first round only warms the page cache.
        if number:
            ratios.append(folded / copied)
            peaks.append(peak)
    size = os.path.getsize(weights) / 1e9
    kind = "inline" if args.inline else "external"
    print(
        f"| {size:.2f} GB, {kind} | {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}) | {max(peaks):.0f} MB |"
    )
    remove(copy, fused, fused + ".data")


if __name__ == "__main__":
    main()
