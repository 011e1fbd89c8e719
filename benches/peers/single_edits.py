"""Changes one thing in a model, again and again, and judges each changed model against its original.

    python benches/peers/single_edits.py --binary target/release/unfold --edits 2000 models/digits/*.onnx

An edit changes an attribute, one weight by 1 in 100 or 1 in 10,000, an edge, the type of a value, an axis, an operator,
or the order of two operands. onnxruntime, without graph optimizations, measures the change of the outputs, also for a
copy of the model with each weight moved by one rounding. An edit must not be accepted if an output changes by more than
1 in 1,000,000. It needs a witness if an output changes by 20 roundings. Each witness must show a difference of 5
roundings in onnxruntime. Prints each wrong verdict, and a table of all verdicts by kind of edit.
"""

import argparse
import collections
import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SCALES = (1.0, 0.0625, 16.0)
BATCH, LENGTH = 2, 16  # the sizes of the first and of another open dimension
TABLE = 100  # the number of rows that each table has at least
WHOLE = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
EXACT = 1e-6  # relative to the largest output: a difference that any verdict may have
ABOVE, SHOWN = 20, 5  # in roundings: a difference that needs a witness, and one that a witness must show
MOVED = 2  # the number of copies with moved weights
VERDICTS = {0: "same", 2: "invalid", 3: "different", 4: "undecided", 5: "rounded", 6: "casts"}
SWAPPED = {"Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "Relu": "Sigmoid", "Sigmoid": "Tanh", "Tanh": "Sigmoid", "Erf": "Tanh",
           "Sqrt": "Exp", "MaxPool": "AveragePool", "ReduceMean": "ReduceSum", "ReduceSum": "ReduceMean", "Softmax": "LogSoftmax"}
AXES = {"axis", "axes", "perm"}


class Edited:
    """A copy of a model, and the generator that draws its edit. Each method changes the copy, and names the place."""

    def __init__(self, model, shapes, draw):
        self.model, self.graph, self.shapes, self.draw = copy.deepcopy(model), None, shapes, draw
        self.graph = self.model.graph

    def one(self, things):
        things = list(things)
        return things[self.draw.integers(len(things))] if things else None

    def attribute(self, is_axis=False):
        pairs = [(n, a) for n in self.graph.node for a in n.attribute if (a.name in AXES) == is_axis and n.op_type != "Constant"]
        pair = self.one(pairs)
        return pair and self.changed(pair[1])

    def changed(self, attribute):
        if attribute.type == attribute.FLOAT:
            attribute.f = attribute.f * 1.5 + (attribute.f == 0)
        elif attribute.type == attribute.INT:
            attribute.i = int(attribute.i + self.one([-1, 1]))
        elif attribute.type == attribute.INTS and attribute.ints:
            place = int(self.draw.integers(len(attribute.ints)))
            if attribute.name == "perm":
                order = list(attribute.ints)
                other = (place + 1) % len(order)
                order[place], order[other] = order[other], order[place]
                attribute.ints[:] = order
            else:
                attribute.ints[place] += int(self.one([-1, 1]))
        else:
            return None
        return attribute.name

    def axis(self):
        """Changes an axis that is an attribute or an element of a constant of integers."""
        constants = [t for t in self.graph.initializer if t.data_type == TensorProto.INT64]
        constants += [a.t for n in self.graph.node if n.op_type == "Constant" for a in n.attribute if a.t.data_type == TensorProto.INT64]
        if self.draw.random() < 0.5 or not constants:
            return self.attribute(is_axis=True)
        constant = self.one(constants)
        numbers = np.array(numpy_helper.to_array(constant))
        if not numbers.size:
            return None
        numbers.reshape(-1)[self.draw.integers(numbers.size)] += self.one([-1, 1])
        constant.CopyFrom(numpy_helper.from_array(numbers, constant.name))
        return constant.name

    def weight(self, part):
        floats = [t for t in self.graph.initializer if t.data_type == TensorProto.FLOAT and np.prod(t.dims) > 0]
        tensor = self.one(floats)
        numbers = np.array(numpy_helper.to_array(tensor))
        place = self.draw.integers(numbers.size)
        numbers.reshape(-1)[place] *= np.float32(1 + part)
        if numbers.reshape(-1)[place] == numpy_helper.to_array(tensor).reshape(-1)[place]:
            return None
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
        return f"{tensor.name}[{place}]"

    def edge(self):
        """Replaces an input of a node by another earlier value of the same type and shape."""
        place = int(self.draw.integers(len(self.graph.node)))
        node = self.graph.node[place]
        slot = int(self.draw.integers(len(node.input))) if node.input else None
        known = {v for n in self.graph.node[:place] for v in n.output} | {t.name for t in self.graph.initializer} | {i.name for i in self.graph.input}
        wanted = slot is not None and self.shapes.get(node.input[slot])
        others = sorted(v for v in known if wanted and v != node.input[slot] and self.shapes.get(v) == wanted)
        other = self.one(others)
        if other is None:
            return None
        node.input[slot] = other
        return f"{node.output[0]}: {other}"

    def type(self):
        """Inserts a cast to float16 and back, or changes the type of a Cast."""
        floats = [(n, s) for n in self.graph.node for s, v in enumerate(n.input) if self.shapes.get(v, (0,))[0] == TensorProto.FLOAT]
        pair = self.one(floats)
        if pair is None:
            return None
        node, slot = pair
        name = node.input[slot]
        casts = [helper.make_node("Cast", [name], ["edit/half"], to=TensorProto.FLOAT16), helper.make_node("Cast", ["edit/half"], ["edit/back"], to=TensorProto.FLOAT)]
        place = list(self.graph.node).index(node)
        node.input[slot] = "edit/back"
        nodes = list(self.graph.node)
        nodes[place:place] = casts
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        return name

    def operator(self):
        node = self.one(n for n in self.graph.node if n.op_type in SWAPPED)
        if node is None:
            return None
        node.op_type = SWAPPED[node.op_type]
        return node.output[0]

    def operands(self):
        node = self.one(n for n in self.graph.node if len(n.input) > 1 and n.op_type in ("Sub", "Div", "MatMul", "Concat", "Where", "Pow"))
        if node is None:
            return None
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return node.output[0]


KINDS = {
    "attribute": Edited.attribute,
    "weight 1e-2": lambda edited: edited.weight(1e-2),
    "weight 1e-4": lambda edited: edited.weight(1e-4),
    "edge": Edited.edge,
    "type": Edited.type,
    "axis": Edited.axis,
    "operator": Edited.operator,
    "operands": Edited.operands,
}


def shapes_of(model):
    """The types and shapes of the values of a model, by name."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = [*graph.value_info, *graph.input, *graph.output]
    shapes = {v.name: (v.type.tensor_type.elem_type, *(d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim)) for v in values}
    return shapes | {t.name: (t.data_type, *t.dims) for t in graph.initializer}


def session(path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds(model):
    """Random inputs at each scale. A mask of integers is 1, and the other integers are small enough for each table."""
    draw = np.random.default_rng(0)
    for scale in SCALES:
        yield {i.name: drawn(i, scale, draw) for i in model.get_inputs()}


def drawn(value, scale, draw):
    shape = [d if isinstance(d, int) else LENGTH if at else BATCH for at, d in enumerate(value.shape)]
    if value.type == "tensor(float)":
        return scale * draw.standard_normal(shape).astype(np.float32)
    if "mask" in value.name:
        return np.ones(shape, WHOLE[value.type])
    return draw.integers(0, TABLE, shape).astype(WHOLE[value.type])


def difference(first, second, inputs):
    """The largest difference of an output, relative to its largest element. Infinite if shapes differ."""
    worst = 0.0
    for expected, other in zip(first.run(None, inputs), second.run(None, inputs)):
        if expected.shape != other.shape or expected.dtype != other.dtype:
            return np.inf
        finite = np.isfinite(expected)
        apart = np.abs(expected.astype("d") - other)[finite]
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0) / max(np.abs(expected[finite]).max(initial=0.0), 1e-30)))
    return worst


def moved(model, seed):
    """A copy of a model with each float weight moved by one rounding, up or down, apart from single whole numbers."""
    model, draw = copy.deepcopy(model), np.random.default_rng(seed)
    constants = [a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"]
    for tensor in [*model.graph.initializer, *constants]:
        numbers = numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or numbers.size == 1 and float(numbers.reshape(-1)[0]).is_integer():
            continue
        ends = np.where(draw.random(numbers.shape) < 0.5, np.float32(np.inf), np.float32(-np.inf))
        tensor.CopyFrom(numpy_helper.from_array(np.where(numbers == 0, numbers, np.nextafter(numbers, ends)), tensor.name))
    return model


def in_child(function, *arguments):
    """Runs a function in a child process, and returns its result. `None` if the process crashed on an invalid model."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            os.write(writing, json.dumps(function(*arguments)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def differences(original, target, copies):
    """The largest difference of the outputs of two files on the random inputs, and the largest one in roundings."""
    first, second, others = session(original), session(target), [session(path) for path in copies]
    pairs = [compared(first, second, others, inputs) for inputs in feeds(first)]
    return [max(apart for apart, _ in pairs), max(count for _, count in pairs)]


def shown_difference(original, target, copies, witness):
    """The difference of the outputs of two files on the inputs of a witness, and this difference in roundings."""
    others = [session(path) for path in copies]
    return compared(session(original), session(target), others, dict(np.load(witness)))


def compared(first, second, others, inputs):
    """The largest difference of the outputs of two sessions, and its multiple of the effect of one rounding."""
    apart = difference(first, second, inputs)
    rounding = max(difference(first, other, inputs) for other in others)
    return [apart, apart / max(rounding, 1e-30)]


def wrong(verdict, apart, count, shown):
    """The reason why a verdict is wrong, if it is."""
    if verdict in ("same", "rounded") and apart > EXACT:
        return f"accepted, although an output changes by {apart:.1e}"
    if verdict == "different" and (shown is None or shown[1] < SHOWN):
        return f"the witness shows {shown} in onnxruntime"
    if verdict == "undecided" and count > ABOVE and apart > EXACT:
        return f"no witness, although an output changes by {apart:.1e}, which is {count:.0f} roundings"
    return None


def judged(arguments, path, model, kind, draw, folder):
    """The verdict on one edit, and the reason why it is wrong; `None` if there is nothing to edit."""
    edited = Edited(model, arguments.shapes, draw)
    place = KINDS[kind](edited)
    target, witness = folder / "edited.onnx", folder / "witness.npz"
    if place is None or edited.model.SerializeToString() == model.SerializeToString():
        return None
    onnx.save(edited.model, target)
    found = in_child(differences, path, target, arguments.copies)
    if found is None:
        return "no model", None
    apart, count = found
    command = [arguments.binary, "prove", str(path), str(target), "-q", "--witness", str(witness)]
    code = subprocess.run(command, capture_output=True, timeout=600).returncode
    verdict = VERDICTS.get(code, f"code {code}")
    shown = in_child(shown_difference, path, target, arguments.copies, witness) if verdict == "different" else None
    reason = wrong(verdict, apart, count, shown)
    if arguments.keep and reason:
        onnx.save(edited.model, arguments.keep / f"{path.stem}.{kind}.{place.replace('/', '_')[:60]}.{apart:.0e}.onnx")
    if verdict in ("same", "rounded", "undecided") and (apart <= EXACT or count <= ABOVE):
        verdict += ", no change" if apart <= EXACT else ", few roundings"
    return verdict, reason and f"{path.name}: {kind} of {place}: {reason}"


def copies_of(model, folder):
    """Files with copies of a model with moved weights."""
    paths = [folder / f"moved{seed}.onnx" for seed in range(MOVED)]
    for seed, path in enumerate(paths):
        onnx.save(moved(model, seed), path)
    return paths


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--edits", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the edited models with a wrong verdict")
    arguments = parser.parse_args()
    counts, mistakes = collections.Counter(), []
    rounds = -(-arguments.edits // (len(arguments.models) * len(KINDS)))
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(arguments.models):
            model = onnx.load(path)
            arguments.shapes, arguments.copies = shapes_of(model), copies_of(model, Path(folder))
            for turn in range(rounds):
                for at, kind in enumerate(KINDS):
                    draw = np.random.default_rng([arguments.seed, number, turn, at])
                    found = judged(arguments, path, model, kind, draw, Path(folder))
                    if found is None:
                        continue
                    verdict, mistake = found
                    counts[kind, verdict] += 1
                    if mistake:
                        mistakes.append(mistake)
                        print(mistake, flush=True)
            print(path.name, sum(counts.values()), "edits", flush=True)
    for (kind, verdict), count in sorted(counts.items()):
        print(f"{kind:12} {verdict:24} {count}")
    print(f"{sum(counts.values())} edits, {len(mistakes)} wrong verdicts")
    sys.exit(bool(mistakes))


if __name__ == "__main__":
    main()
