"""Runs unfold on hostile models. Each must stay within limits of time and memory and give a result or a one-line error.

    python tests/hostile.py target/release/unfold models/digits --count 1000

Each class below makes `--count` models from seeds. `inspect` and `fuse --verify off` run on each model. With
`--verify`, the fused model is verified too. A model is kept in the folder `--keep` under its seed if a run takes more
than 5 s of CPU time or 500 MB, dies by a signal, or reports a fault of unfold.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

SECONDS, MEGABYTES, ADDRESSES = 5, 500, 8 << 30

HUGE = [2**15, 2**20, 2**24, 2**31 - 1, 2**31, 2**32, 2**34, 2**40, 2**62, 2**63 - 1]
INTS = [-(2**63), -(2**40), -(2**31), -1000, -9, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 9, 64, 1000] + HUGE

AXIS = """ArgMax ArgMin Compress Concat CumSum DequantizeLinear Flatten Gather GatherElements GatherND Hardmax
LayerNormalization LogSoftmax LpNormalization MeanVarianceNormalization OneHot QuantizeLinear RMSNormalization ReduceL1
ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Resize
ScatterElements ScatterND Slice Softmax Split Squeeze TopK Transpose Trilu Unique Unsqueeze DFT
SimplifiedLayerNormalization SkipLayerNormalization""".split()


def ints(*values):
    return np.array(values, np.int64)


def floats(*dims):
    return np.arange(np.prod(dims), dtype=np.float32).reshape(dims) / 7 + 1


class Graph:
    """A model under construction."""

    def __init__(self, opset):
        self.opset, self.nodes, self.constants = opset, [], []

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, operator, inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        domain = "com.microsoft" if operator.startswith(("Simplified", "Skip")) else ""
        self.nodes.append(helper.make_node(operator, inputs, names, domain=domain, **attributes))
        return names[0]

    def model(self, output, shape=("n", 4), functions=(), **options):
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_value_info(output, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        y.type.tensor_type.ClearField("shape")
        graph = helper.make_graph(self.nodes, "g", [x], [y], self.constants, **options)
        sets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        sets += [helper.make_opsetid(domain, 1) for domain in {f.domain for f in functions}]
        return helper.make_model(graph, opset_imports=sets, functions=list(functions), ir_version=10)


def folded(graph, weight):
    """x * s @ weight, where the site needs the numbers of the weight."""
    return graph.add("MatMul", [graph.add("Mul", ["x", graph.constant(floats(4))]), weight])


def axes(rng, digits):
    """Axes out of range, for every operator with axes, on values and on constants."""
    graph = Graph(rng.choice([7, 9, 11, 13, 17, 18, 21, 23]))
    operator = rng.choice(AXIS)
    rank = rng.randrange(5)
    value = graph.constant(floats(*[2] * rank)) if rng.random() < 0.4 else "x"
    some = [rng.choice(INTS) for _ in range(rng.randrange(1, 5))]
    extra = {
        "Compress": [np.array([True, False])],
        "Concat": [value],
        "CumSum": [np.array(some[0])],
        "DFT": [np.array(4), np.array(some[0])],
        "DequantizeLinear": [floats(2)],
        "Gather": [ints(0, 1)],
        "GatherElements": [ints(0, 1)],
        "GatherND": [ints(*some).reshape([-1] if rng.random() < 0.5 else [])] if len(some) == 1 else [ints(*some)],
        "LayerNormalization": [floats(4), floats(4)],
        "OneHot": [np.array(rng.choice(INTS)), floats(2)],
        "QuantizeLinear": [floats(2)],
        "RMSNormalization": [floats(4)],
        "Resize": ["", "", ints(*some)],
        "ScatterElements": [ints(0, 1), floats(2)],
        "ScatterND": [ints(*some), floats(2)],
        "SimplifiedLayerNormalization": [floats(4)],
        "SkipLayerNormalization": [value, floats(4)],
        "Slice": [ints(*some), ints(*rng.choices(INTS, k=len(some))), ints(*some)],
        "TopK": [ints(rng.choice(INTS))],
        "Trilu": [np.array(some[0])],
    }.get(operator, [ints(*some)] if rng.random() < 0.4 else [])
    inputs = [value] + [e if isinstance(e, str) else graph.constant(e) for e in extra]
    attributes = {}
    if rng.random() < 0.9:
        name = rng.choice(["axis", "axes"]) if operator not in ("Transpose", "GatherND") else "perm"
        name = "batch_dims" if operator == "GatherND" else name
        name = "axis" if name == "axes" and not operator.startswith(("Reduce", "S", "U", "M", "R")) else name
        attributes[name] = some[0] if name in ("axis", "batch_dims") else some
    outputs = rng.choice([1, 2, 3]) if operator in ("Split", "TopK", "LayerNormalization", "Unique") else 1
    made = graph.add(operator, inputs, outputs, **attributes)
    return graph.model(made if rng.random() < 0.5 else folded(graph, made), rng.choice([("n", 4), (2, 4), (2, 3, 4), ()]))


def sizes(rng, digits):
    """Constants of unlimited size, by every operator that makes large results from small operands."""
    graph = Graph(rng.choice([11, 13, 17, 18, 21]))
    big = lambda: rng.choice(HUGE + [1, 4, 1000, -1])
    seed = graph.constant(floats(1, 1))
    value = rng.choice(
        [
            lambda: graph.add("ConstantOfShape", [graph.constant(ints(4, big()))]),
            lambda: graph.add("Expand", [seed, graph.constant(ints(big(), big()))]),
            lambda: graph.add("Tile", [seed, graph.constant(ints(big(), big()))]),
            lambda: graph.add("Pad", [seed, graph.constant(ints(*rng.choices(INTS, k=4)))], mode=rng.choice(["constant", "edge", "reflect"])),
            lambda: graph.add("Range", [graph.constant(np.array(v)) for v in (rng.choice(INTS), rng.choice(INTS), rng.choice([-1, 1, 0, 2]))]),
            lambda: graph.add("Range", [graph.constant(np.array(v, np.float32)) for v in (0, 10.0 ** rng.randrange(20), 10.0 ** -rng.randrange(9))]),
            lambda: graph.add("OneHot", [graph.constant(ints(0, 1)), graph.constant(np.array(big())), graph.constant(floats(2))]),
            lambda: graph.add("EyeLike", [graph.add("ConstantOfShape", [graph.constant(ints(big(), big()))])]),
            lambda: graph.add("Resize", [graph.constant(floats(1, 1, 2, 2)), "", "", graph.constant(ints(1, 1, big(), big()))], mode=rng.choice(["nearest", "linear", "cubic"])),
            lambda: graph.add("Resize", [graph.constant(floats(1, 1, 2, 2)), "", graph.constant(np.array([1, 1, 10.0 ** rng.randrange(9), 2], np.float32))]),
            lambda: graph.add("Reshape", [graph.constant(floats(4, 4)), graph.constant(ints(*rng.choices(INTS, k=3)))]),
            lambda: graph.add("MatMul", [graph.add("ConstantOfShape", [graph.constant(ints(2**rng.randrange(14), 2**rng.randrange(14)))]) for _ in range(2)]),
            lambda: graph.add("Add", [graph.add("ConstantOfShape", [graph.constant(ints(*d))]) for d in ((2**rng.randrange(20), 1), (1, 2**rng.randrange(20)))]),
            lambda: graph.add("HannWindow", [graph.constant(np.array(big()))]),
            lambda: graph.add("MelWeightMatrix", [graph.constant(np.array(v)) for v in (big(), big(), 16000)] + [graph.constant(np.array(v, np.float32)) for v in (0, 8000)]),
            lambda: graph.add("NonZero", [graph.add("ConstantOfShape", [graph.constant(ints(big()))], value=numpy_helper.from_array(ints(1)))]),
            lambda: graph.add("TopK", [graph.constant(floats(4)), graph.constant(ints(big()))], 2),
            lambda: graph.add("Split", [graph.constant(floats(4, 4))], 2, num_outputs=big()),
            lambda: graph.add("DepthToSpace", [graph.constant(floats(1, 4, 2, 2))], blocksize=big()),
            lambda: graph.add("Einsum", [graph.constant(floats(64, 64)), graph.constant(floats(64, 64)), graph.constant(floats(64, 64))], equation="ab,cd,ef->abcdef"),
        ]
    )()
    for _ in range(rng.randrange(3)):
        value = graph.add(rng.choice(["Relu", "Neg", "Transpose", "Abs"]), [value])
    weight = graph.add("Reshape", [value, graph.constant(ints(4, -1))]) if rng.random() < 0.5 else value
    return graph.model(folded(graph, weight), rng.choice([("n", 4), (2, 4)]))


def many(rng, digits):
    """Many small constants, in chains and side by side."""
    graph = Graph(17)
    rows = 2 ** rng.randrange(4, 22)
    value = graph.add("ConstantOfShape", [graph.constant(ints(4, rows))])
    outputs = []
    for i in range(rng.choice([10, 100, 1000])):
        operator = rng.choice(["Relu", "Neg", "Add", "Concat", "Tile", "Transpose"])
        if operator == "Tile":
            value = graph.add("Tile", [value, graph.constant(ints(1, 2))]) if rng.random() < 0.1 else value
        elif operator == "Concat":
            value = graph.add("Concat", [value, value], axis=rng.choice([0, 1])) if rng.random() < 0.1 else value
        else:
            value = graph.add(operator, [value, value] if operator == "Add" else [value])
        if rng.random() < 0.1:
            outputs.append(folded(graph, value))
    return graph.model(outputs[-1] if outputs else folded(graph, value))


def doubled(rng, digits):
    """Constants that are computed from others, each read twice or in a long chain, at each place of a pattern."""
    graph = Graph(17)
    count = rng.choice([30, 60, 1000, 20_000])
    value = before = graph.constant(floats(4))
    for _ in range(count):
        operator = rng.choice(["Add", "Sub", "Mul"] + ["Neg", "Sqrt", "Sigmoid", "Identity"] * (count > 100))
        operands = [value, rng.choice([value, before])] if operator in ("Add", "Sub", "Mul") else [value]
        before, value = value, graph.add(operator, operands)
    mean = lambda of: graph.add("ReduceMean", [of], axes=[-1])
    deviation = lambda of: graph.add("Sqrt", [mean(graph.add("Mul", [of, of]))])
    result = rng.choice(
        [
            lambda: graph.add("Div", [graph.add("Add", ["x", value]), deviation("x")]),
            lambda: graph.add("Div", [graph.add("Sub", ["x", mean("x")]), graph.add("Add", [deviation("x"), value])]),
            lambda: graph.add("Mul", [graph.add("Div", ["x", deviation("x")]), value]),
            lambda: graph.add("Tanh", [graph.add("Mul", ["x", value])]),
            lambda: graph.add("Softmax", [graph.add("Add", ["x", value])]),
            lambda: graph.add("Mul", ["x", graph.add("Tanh", [graph.add("Add", [mean("x"), value])])]),
            lambda: graph.add("Where", [graph.add("Less", [value, "x"]), "x", value]),
            lambda: graph.add("Div", [graph.add("MatMul", ["x", graph.add("Reshape", [value, graph.constant(ints(4, 1))])]), deviation("x")]),
        ]
    )()
    return graph.model(folded(graph, graph.constant(floats(4, 4))) if rng.random() < 0.2 else result)


def windows(rng, digits):
    """Kernels, strides and pads of unlimited size."""
    graph = Graph(rng.choice([7, 11, 13, 17, 21]))
    operator = rng.choice(["Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "LRN", "GlobalAveragePool"])
    image = "x" if rng.random() < 0.6 else graph.constant(floats(1, 4, 8, 8))
    inputs = [image] + ([graph.constant(floats(4, 4, 3, 3))] if "Conv" in operator else [])
    attributes = {}
    if operator == "LRN":
        attributes = {"size": rng.choice(INTS)}
    elif operator != "GlobalAveragePool":
        if "Pool" in operator:
            attributes["kernel_shape"] = [rng.choice([1, 2, 3] + INTS) for _ in range(2)]
        for name, length in (("strides", 2), ("dilations", 2), ("pads", 4), ("output_padding", 2)):
            if rng.random() < 0.5:
                attributes[name] = [rng.choice([1, 2] + INTS) for _ in range(length)]
        if "Conv" in operator and rng.random() < 0.4:
            attributes["group"] = rng.choice(INTS)
        if rng.random() < 0.3:
            attributes["auto_pad"] = rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        if "Pool" in operator and rng.random() < 0.3:
            attributes["ceil_mode"] = 1
    before = graph.add("Mul", [image, graph.constant(floats(4, 1, 1))])
    made = graph.add(operator, [before] + inputs[1:], **attributes)
    after = graph.add("Mul", [made, graph.constant(floats(4, 1, 1))])
    shape = rng.choice([("n", 4, 8, 8), ("n", 4, "h", "w"), (1, 4, 2**31, 2**31), (1, 4, 8, 8)])
    return graph.model(graph.add("Relu", [after]), shape)


def functions(rng, digits):
    """Functions that call each other: many calls, deep calls, cycles."""
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    depth, width = rng.randrange(1, 40), rng.randrange(1, 12)
    if rng.random() < 0.1:
        depth, width = rng.choice([(3000, 1), (2, 3000), (4, 30)])
    name = lambda i: f"Norm{i}"
    made = []
    for i in range(depth):
        nodes, value = [], "a"
        for j in range(width):
            callee = name(i + 1) if i + 1 < depth else ("Relu" if rng.random() < 0.9 else name(rng.randrange(depth)))
            domain = "f" if callee.startswith("Norm") else ""
            nodes.append(helper.make_node(callee, [value], [f"b{j}"], domain=domain))
            value = f"b{j}"
        made.append(helper.make_function("f", name(i), ["a"], [value], nodes, sets))
    rng.shuffle(made)
    graph = Graph(17)
    value = "x"
    for i in range(rng.choice([1, 1, 2, 50])):
        graph.nodes.append(helper.make_node(name(rng.randrange(min(depth, 3))), [value], [f"call{i}"], name=rng.choice(["", "same"]), domain="f"))
        value = f"call{i}"
    return graph.model(folded(graph, graph.constant(floats(4, 4))) if rng.random() < 0.3 else value, functions=made)


def symbols(rng, digits):
    """Arithmetic on open extents."""
    graph = Graph(17)
    rank = rng.randrange(1, 7)
    names = ["a", "b", "c", "d", "(a+1)/2", "floor(a/2)+floor(b/3)", "a*b*c", "a+b+c+d", "-a", "(" * 60 + "a" + ")" * 60, "(" * 9999 + "a" + ")" * 9999]
    shape = tuple(rng.choice([rng.choice(names), rng.choice(names[:4]), rng.choice(HUGE), 4]) for _ in range(rank - 1)) + (4,)
    dims = [graph.add("Gather", [graph.add("Shape", ["x"]), graph.constant(ints(i))]) for i in range(rank)]
    for _ in range(rng.choice([3, 10, 30, 100, 300])):
        operator = rng.choice(["Add", "Mul", "Div", "Sub", "Mod", "Min", "Max", "Concat"])
        one = rng.choice(dims[-4:])
        other = graph.constant(ints(rng.choice([2, 3, 5, 7, 2**20, 2**40, -1]))) if rng.random() < 0.4 else rng.choice(dims[-8:])
        if operator == "Concat":
            dims.append(graph.add("ReduceProd", [graph.add("Concat", [one, other], axis=0)], keepdims=1))
        else:
            dims.append(graph.add(operator, [one, other]))
    value = graph.add("Mul", ["x", graph.constant(floats(4))])
    for _ in range(rng.randrange(1, 6)):
        target = graph.add("Concat", [rng.choice(dims[-6:]) for _ in range(rng.randrange(1, 5))] + [graph.constant(ints(-1))], axis=0)
        value = graph.add(rng.choice(["Reshape", "Expand"]), [value, target])
    return graph.model(graph.add("MatMul", [value, graph.constant(floats(4, 4))]), shape)


def nested(rng, digits):
    """Nested bodies with hostile operators in them."""
    depth = rng.choice([1, 2, 5, 20, 40])
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    inner = axes(rng, digits) if rng.random() < 0.5 else sizes(rng, digits)
    body = [n for n in inner.graph.node]
    result = inner.graph.output[0].name
    initializers = list(inner.graph.initializer)
    for i in range(depth):
        result, below = f"r{i}", result
        branch = lambda: helper.make_graph(list(body), f"b{i}", [], [info(below)], initializers)
        other = helper.make_graph([helper.make_node("Identity", ["x"], [f"o{i}"])], f"e{i}", [], [info(f"o{i}")])
        both = rng.random() < 0.2 and i < 6
        body = [helper.make_node("If", ["t"], [result], then_branch=branch(), else_branch=branch() if both else other)]
        initializers = []
    graph = Graph(17)
    graph.nodes = body
    if rng.random() < 0.5:
        graph.constants = [numpy_helper.from_array(np.array(rng.random() < 0.5), "t")]
    else:
        graph.nodes = [
            helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
            helper.make_node("Cast", ["s"], ["t"], to=TensorProto.BOOL),
        ] + body
    return graph.model(folded(graph, result) if rng.random() < 0.5 else result)


def wide(rng, digits):
    """Many inputs, axes or outputs."""
    graph = Graph(17)
    count = rng.choice([10, 100, 1000, 5000])
    kind = rng.randrange(4)
    if kind == 0:
        made = graph.add("Concat", ["x"] * count, axis=rng.choice([0, 1]))
    elif kind == 1:
        made = graph.add("Unsqueeze", ["x", graph.constant(np.arange(count))])
    elif kind == 2:
        made = graph.add("Reshape", ["x", graph.constant(ints(*[1] * count, -1, 4))])
    else:
        made = graph.add("Split", ["x"], count, axis=rng.choice([0, 1]))
    return graph.model(graph.add("Mul", [made, graph.constant(floats(4))]), rng.choice([("n", 4), ("n",) + (1,) * count + (4,)]))


def mutated(rng, digits):
    """Models of real networks with some numbers changed."""
    model = onnx.load(rng.choice(digits))
    graph = model.graph
    for _ in range(rng.choice([1, 1, 2, 5])):
        kind = rng.randrange(5)
        if kind <= 1:
            node = rng.choice([n for n in graph.node if n.attribute])
            attribute = rng.choice(node.attribute)
            if attribute.type == onnx.AttributeProto.INT:
                attribute.i = rng.choice(INTS)
            elif attribute.type == onnx.AttributeProto.INTS and attribute.ints:
                attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(INTS)
            elif attribute.type == onnx.AttributeProto.FLOAT:
                attribute.f = rng.choice([0.0, -1.0, 1e38, float("nan"), float("inf")])
            elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.INT64:
                old = numpy_helper.to_array(attribute.t).copy()
                if old.size:
                    old.reshape(-1)[rng.randrange(old.size)] = rng.choice(INTS)
                    attribute.t.CopyFrom(numpy_helper.from_array(old, attribute.t.name))
        elif kind == 2:
            whole = [t for t in graph.initializer if t.data_type == TensorProto.INT64 and t.dims and 0 not in t.dims]
            if whole:
                tensor = rng.choice(whole)
                old = numpy_helper.to_array(tensor).copy()
                old.reshape(-1)[rng.randrange(old.size)] = rng.choice(INTS)
                tensor.CopyFrom(numpy_helper.from_array(old, tensor.name))
        elif kind == 3:
            value = rng.choice(list(graph.input) + list(graph.value_info) + list(graph.output))
            dims = value.type.tensor_type.shape.dim
            if dims:
                rng.choice(dims).dim_value = rng.choice(HUGE)
        else:
            rng.choice(graph.node).op_type = rng.choice(AXIS + ["Add", "MatMul", "Reshape", "Pad", "Expand", "Tile", "Range"])
    return model


CLASSES = [axes, sizes, many, doubled, windows, functions, symbols, nested, wide, mutated]


def limits():
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CPU, (4 * SECONDS, 4 * SECONDS))


def run(command):
    """The faults of a run, or None, and its CPU time in seconds and peak memory in MB."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, preexec_fn=limits)
        killer = threading.Timer(120, process.kill)
        killer.start()
        _, status, used = os.wait4(process.pid, 0)
        killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        text = errors.read().decode(errors="replace").strip()
    seconds, megabytes = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    faults = []
    if process.returncode not in (0, 1):
        faults.append(f"exit {process.returncode}")
    if "fault of unfold itself" in text or "panicked" in text and process.returncode == 1:
        faults.append("panic")
    if seconds > SECONDS:
        faults.append(f"{seconds:.1f} s")
    if megabytes > MEGABYTES:
        faults.append(f"{megabytes:.0f} MB")
    if process.returncode == 1 and len([line for line in text.splitlines() if line.startswith("error")]) != 1:
        faults.append("not one error")
    return (", ".join(faults) + ": " + text[:200].replace("\n", " | ")) if faults else None, seconds, megabytes


def case(unfold, make, seed, digits, folder, verify):
    rng = random.Random(f"{make.__name__} {seed}")
    try:
        model = make(rng, digits)
        data = model.SerializeToString()
    except (DecodeError, ValueError, OverflowError, TypeError, IndexError):
        return None
    path = folder / f"{make.__name__}-{seed}.onnx"
    path.write_bytes(data)
    out = folder / f"{make.__name__}-{seed}-out.onnx"
    fuse = [unfold, "fuse", path, "-o", out, "-q"] + ([] if verify else ["--verify", "off"])
    worst, seconds, megabytes = None, 0, 0
    for command in ([unfold, "inspect", path, "-q"], fuse):
        fault, s, m = run([str(part) for part in command])
        seconds, megabytes = max(seconds, s), max(megabytes, m)
        worst = worst or (fault and f"{command[1]}: {fault}")
    out.unlink(missing_ok=True)
    if not worst:
        path.unlink()
    return worst, seconds, megabytes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("unfold", nargs="?", default="unfold")
    parser.add_argument("digits", nargs="?", default="models/digits", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--verify", action="store_true")
    arguments = parser.parse_args()
    digits = sorted(arguments.digits.glob("*.onnx"))
    keep = arguments.keep or pathlib.Path(tempfile.mkdtemp())
    keep.mkdir(parents=True, exist_ok=True)
    failed = 0
    for make in CLASSES:
        if arguments.only and make.__name__ not in arguments.only:
            continue
        ran, seed, slowest, largest, began = 0, 0, 0.0, 0.0, time.time()
        kinds = collections.Counter()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            work = lambda seed: (seed, case(arguments.unfold, make, seed, digits, keep, arguments.verify))
            # Some seeds make models that protobuf cannot write. Further seeds replace them.
            while ran < arguments.count:
                seeds = range(seed, seed + arguments.count - ran)
                seed = seeds.stop
                for number, outcome in pool.map(work, seeds):
                    if outcome is None:
                        continue
                    fault, seconds, megabytes = outcome
                    ran, slowest, largest = ran + 1, max(slowest, seconds), max(largest, megabytes)
                    if fault:
                        failed += 1
                        kinds[fault.split(":")[1].split(",")[0]] += 1
                        print(f"  {make.__name__} {number}: {fault}", flush=True)
        line = f"{make.__name__}: {ran} models, slowest {slowest:.2f} s, largest {largest:.0f} MB"
        print(f"{line}, {sum(kinds.values())} wrong, {time.time() - began:.0f} s", flush=True)
    if failed:
        print(f"{failed} wrong, kept in {keep}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
