"""The faults that tests/faults.py plants. Each function breaks a fold in place, or returns False if it cannot."""

import copy

import numpy as np
import prove
from onnx import helper, numpy_helper


class Fold:
    """A folded model to break, its certificate and its original."""

    def __init__(self, original, model, certificate, shapes):
        self.original, self.model, self.certificate, self.shapes = original, model, certificate, shapes
        self.entries = {t["name"]: t for t in certificate["tensors"]}
        self.tensors = {t.name: t for t in model.graph.initializer}

    def copy(self):
        return Fold(self.original, copy.deepcopy(self.model), copy.deepcopy(self.certificate), self.shapes)

    def array(self, name): return numpy_helper.to_array(self.tensors[name])

    def put(self, name, array):
        """Stores other numbers. Returns False if they are the same."""
        old = self.array(name)
        if array.shape != old.shape or (array == old).all() or not np.isfinite(array.astype("d")).all():
            return False
        self.tensors[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array.astype(old.dtype)), name))
        return True

    def number(self, name): return self.original.number(name).own

    def new(self): return [n for n in self.entries if n in self.tensors]

    def floats(self): return [n for n, t in self.tensors.items() if t.data_type in (1, 10, 11, 16) and np.prod(t.dims) > 0]

    def nodes(self, *ops): return [n for n in self.model.graph.node if n.op_type in ops]

    def recompute(self, entry):
        """Stores the results of the changed recipe, so that only a comparison of the functions can show the fault."""
        values = []
        try:
            for step in entry["steps"]:
                inputs = [values[i] for i in step.get("inputs", [])]
                if step["op"] == "constant":
                    values.append(self.number(step["name"]).astype(np.float64))
                elif step["op"] == "literal":
                    values.append(prove.literal(step))
                elif step["op"] == "flush":
                    values.append(prove.flushed(inputs[0], step["below"]))
                elif step["op"] == "round":
                    values.append(inputs[0].astype(prove.number_type(step["data_type"])).astype(np.float64))
                else:
                    values.append(np.asarray(prove.STEPS[step["op"]](step, *inputs)))
                step["shape"] = list(values[-1].shape)
            return self.put(entry["name"], values[-1].astype(self.array(entry["name"]).dtype))
        except (ValueError, IndexError, KeyError, TypeError):
            return False


def pick(random, things): return things[random.integers(len(things))] if things else None


def one_ulp(fold, random, names):
    name = pick(random, names)
    if name is None:
        return False
    array = fold.array(name).copy()
    place = np.unravel_index(random.integers(array.size), array.shape)
    array[place] = np.nextafter(array[place], array.dtype.type(np.inf if random.random() < 0.5 else -np.inf))
    return fold.put(name, array)


def one_ulp_of_a_new_tensor(fold, random): return one_ulp(fold, random, fold.new())
def one_ulp_of_another_tensor(fold, random): return one_ulp(fold, random, [n for n in fold.floats() if n not in fold.entries])


def an_axis_permuted(fold, random):
    name = pick(random, [n for n in fold.new() if len(set(fold.array(n).shape)) < fold.array(n).ndim])
    if name is None:
        return False
    array = fold.array(name)
    i, j = random.choice(array.ndim, 2, replace=False)
    return fold.put(name, array.swapaxes(i, j))


def a_wrong_channel(fold, random):
    name = pick(random, fold.new())
    array = fold.array(name).copy()
    if array.ndim == 0:
        return False
    axis = random.integers(array.ndim)
    i, j = random.integers(array.shape[axis], size=2)
    array.swapaxes(0, axis)[[i, j]] = array.swapaxes(0, axis)[[j, i]].copy()
    return fold.put(name, array)


def a_stale_tensor(fold, random):
    name = pick(random, fold.new())
    same = [s["name"] for s in fold.entries[name]["steps"] if s["op"] == "constant" and s["shape"] == fold.entries[name]["shape"]]
    return bool(same) and fold.put(name, fold.number(same[0]))


def a_dropped_shift(fold, random):
    node = pick(random, [n for n in fold.nodes("Add") if any(i in fold.tensors and fold.tensors[i].data_type == 1 for i in n.input)])
    if node is not None and random.random() < 0.5:
        kept = [i for i in node.input if i not in fold.tensors]
        if len(kept) != 1 or fold.shapes.get(kept[0]) != fold.shapes.get(node.output[0]):
            return False
        if not fold.array(next(i for i in node.input if i != kept[0])).any():
            return False
        node.op_type = "Identity"
        del node.input[:]
        node.input.append(kept[0])
        return True
    name = pick(random, [n for n in fold.new() if fold.array(n).squeeze().ndim <= 1])
    return name is not None and fold.put(name, np.zeros_like(fold.array(name)))


def a_reader_forgotten(fold, random):
    names = [(n, i, s["name"]) for n in fold.model.graph.node for i, x in enumerate(n.input) if x in fold.entries
             for s in fold.entries[x]["steps"] if s["op"] == "constant" and s["shape"] == fold.entries[x]["shape"]]
    found = pick(random, names)
    if found is None:
        return False
    node, place, old = found
    if (fold.number(old) == fold.array(node.input[place])).all():
        return False
    if old not in fold.tensors:
        fold.model.graph.initializer.append(numpy_helper.from_array(np.asarray(fold.number(old)), old + "_stale"))
        old += "_stale"
    node.input[place] = old
    return True


def another_value_read(fold, random):
    node = pick(random, [n for n in fold.model.graph.node if n.input and n.op_type not in ("Shape", "CastLike")])
    place, order = random.integers(len(node.input)), list(fold.model.graph.node)
    shape, at = fold.shapes.get(node.input[place]), next(i for i, n in enumerate(order) if n.output[:] == node.output[:])
    before = [o for n in order[:at] for o in n.output if o != node.input[place] and shape and shape[0] == 1 and fold.shapes.get(o) == shape]
    weights = [n for n in fold.floats() if n != node.input[place] and node.input[place] in fold.tensors and fold.tensors[node.input[place]].data_type == 1
               and list(fold.array(n).shape) == list(fold.array(node.input[place]).shape) and (fold.array(n) != fold.array(node.input[place])).any()]
    name = pick(random, before + weights)
    if name is None:
        return False
    node.input[place] = name
    return True


def an_attribute(fold, random):
    node, attribute = pick(random, [(n, a) for n in fold.model.graph.node for a in n.attribute if a.name in (
        "perm", "axis", "alpha", "beta", "transA", "transB", "epsilon", "pads", "strides", "group", "axes", "keepdims", "dilations")]) or (None, None)
    if attribute is None:
        return False
    if attribute.type == 1:
        attribute.f = attribute.f * 2 + 1
    elif attribute.type == 2:
        old, rank = attribute.i, len(fold.shapes.get(node.input[0], [0, 0])) - 1
        attribute.i = 1 - old if attribute.name.startswith(("trans", "keep")) else old + (1 if old == 1 else random.choice([-1, 1]))
        return attribute.name != "axis" or (attribute.i - old) % max(rank, 1) != 0
    elif attribute.name == "perm":
        i, j = random.choice(len(attribute.ints), 2, replace=False)
        attribute.ints[i], attribute.ints[j] = attribute.ints[j], attribute.ints[i]
    else:
        i = random.integers(len(attribute.ints))
        if attribute.name == "pads":  # keeps the extents and shifts by one place
            j = (i + len(attribute.ints) // 2) % len(attribute.ints)
            attribute.ints[j] -= 1
        attribute.ints[i] += 1
    return True


def alpha_forgotten(fold, random):
    node = pick(random, fold.nodes("Gemm", "FusedMatMul", "LeakyRelu", "Elu", "Selu"))
    if node is None:
        return False
    kept = [a for a in node.attribute if a.name != "alpha"]
    if all(a.name != "alpha" or a.f == 1 for a in node.attribute):
        kept.append(helper.make_attribute("alpha", 0.5))
    del node.attribute[:]
    node.attribute.extend(kept)
    return True


def swapped_operands(fold, random):
    node = pick(random, fold.nodes("Sub", "Div", "MatMul", "Concat", "Pow", "Less", "Greater", "Gemm"))
    if node is None or len(node.input) < 2 or node.input[0] == node.input[1]:
        return False
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return True


def a_weight_transposed(fold, random):
    name = pick(random, [n for n in fold.floats() if len(fold.tensors[n].dims) >= 2 and fold.tensors[n].dims[-1] == fold.tensors[n].dims[-2]])
    return name is not None and fold.put(name, fold.array(name).swapaxes(-1, -2))


def other_integers(fold, random):
    """Swaps two extents of a Reshape, or changes a place or axis of a Slice, Gather, Squeeze or Unsqueeze."""
    found = [(n.op_type, name) for n in fold.model.graph.node for i, name in enumerate(n.input) if name in fold.tensors
             and fold.tensors[name].data_type == 7 and (n.op_type, i) in (("Reshape", 1), ("Slice", 1), ("Slice", 3), ("Gather", 1), ("Squeeze", 1), ("Unsqueeze", 1))]
    op, name = pick(random, found) or (None, None)
    if name is None:
        return False
    array = fold.array(name).astype(np.int64).ravel()
    if array.size == 0 or (array > 2**31).any():
        return False
    i, j = random.integers(array.size, size=2)
    if op == "Reshape":
        array[i], array[j] = array[j], array[i]
        return (array != 0).all() and fold.put(name, array.reshape(fold.array(name).shape))
    array[i] += 1
    return array[i] != 0 and fold.put(name, array.reshape(fold.array(name).shape))


def two_tensors_exchanged(fold, random):
    """Swaps the recipes and the numbers of two new tensors with equal extents."""
    name = pick(random, fold.new())
    other = pick(random, [n for n in fold.new() if n != name and fold.entries[n]["shape"] == fold.entries[name]["shape"]])
    if other is None:
        return False
    a, b = fold.array(name), fold.array(other)
    fold.entries[name]["steps"], fold.entries[other]["steps"] = fold.entries[other]["steps"], fold.entries[name]["steps"]
    return fold.put(name, b) and fold.put(other, a)


def one_of_two_tensors(fold, random):
    name = pick(random, fold.new())
    other = pick(random, [n for n in fold.new() if n != name and fold.entries[n]["shape"] == fold.entries[name]["shape"]])
    if other is None:
        return False
    fold.entries[name]["steps"] = copy.deepcopy(fold.entries[other]["steps"])
    return fold.put(name, fold.array(other))


def another_formula(fold, random):
    """Changes a step of a recipe, and the tensor accordingly."""
    entry = fold.entries[pick(random, fold.new())]
    steps = entry["steps"]
    step = steps[random.integers(len(steps))]
    op, constants = step["op"], [s for t in fold.certificate["tensors"] for s in t["steps"] if s["op"] == "constant"]
    if op == "constant":
        other = pick(random, [s["name"] for s in constants if s["name"] != step["name"] and s["shape"] == step["shape"]])
        if other is None:
            return False
        step["name"] = other
    elif op == "literal":
        step["numbers"] = [n + 1 for n in step["numbers"]]
    elif op in ("add", "sub", "mul", "div"):
        choice = random.integers(3)
        if choice == 0:
            step["op"] = {"add": "sub", "sub": "add", "mul": "div", "div": "mul"}[op]
        elif choice == 1:
            step["op"] = "expand"  # omits an operand
            step["inputs"] = [step["inputs"][random.integers(2)]]
        else:
            step["op"] = {"add": "mul", "sub": "mul", "mul": "add", "div": "sub"}[op]
    elif op in ("neg", "sqrt"):
        step["op"] = "neg" if op == "sqrt" else "reshape"
    elif op == "reshape":
        shape = step["shape"]
        i, j = random.integers(len(shape), size=2) if shape else (0, 0)
        if not shape or shape[i] == shape[j]:
            return False
        shape[i], shape[j] = shape[j], shape[i]
    elif op == "transpose":
        perm = step["perm"]
        i, j = random.choice(len(perm), 2, replace=False)
        perm[i], perm[j] = perm[j], perm[i]
    elif op == "pick":
        i, j = random.integers(len(step["places"]), size=2)
        step["places"][i], step["places"][j] = step["places"][j], step["places"][i]
    elif op in ("concat", "product"):
        step["inputs"].reverse()
    elif op in ("exp", "sigmoid"):
        step["op"] = "exp" if op == "sigmoid" else "sigmoid"
    elif op in ("sum", "max", "softmax"):
        step["axis"] = (step["axis"] + 1) % max(len(step["shape"]), 1)
    elif op == "conv":
        key = pick(random, ["before", "strides", "dilations"])
        step[key][random.integers(len(step[key]))] += 1
    else:
        return False
    return fold.recompute(entry)


def what_may_not_be_dropped(fold, random):
    """Ends a recipe in a rounding to fewer bits, or in zeros for small numbers. A comparison of the functions over the
    field does not see these steps."""
    entry = fold.entries[pick(random, fold.new())]
    more = {"op": "round", "data_type": "bfloat16"} if random.random() < 0.5 else {"op": "flush", "below": float(2.0 ** random.integers(-8, 8))}
    entry["steps"].append(more | {"inputs": [len(entry["steps"]) - 1], "shape": entry["shape"]})
    return fold.recompute(entry)


def nodes_that_read(fold, *places):
    """The nodes that read a stored integer tensor as one of these inputs, with its name."""
    return [(n, n.input[i]) for n in fold.model.graph.node for op, i in places
            if n.op_type == op and len(n.input) > i and n.input[i] in fold.tensors and fold.tensors[n.input[i]].data_type == 7]


def an_index_out_of_range(fold, random):
    node, name = pick(random, nodes_that_read(fold, ("Gather", 1), ("GatherND", 1), ("GatherElements", 1), ("ScatterND", 1))) or (None, None)
    if node is None:
        return False
    array = fold.array(name).copy()
    array[...] += random.choice([-1, 1]) * random.integers(1, 9)
    return fold.put(name, array)


def an_index_of_its_remainder(fold, random):
    """Shifts an index by twice the extent, so that it is out of range but has the same remainder."""
    node, name = pick(random, nodes_that_read(fold, ("Gather", 1))) or (None, None)
    extent = fold.shapes.get(node.input[0]) if node is not None else None
    if not extent or len(extent) < 2:
        return False
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return fold.put(name, fold.array(name) + random.choice([-2, 2]) * extent[1:][axis])


def a_border_said_twice(fold, random):
    node = pick(random, [n for n in fold.nodes("Conv", "MaxPool", "AveragePool") if any(a.name == "pads" for a in n.attribute)])
    if node is None:
        return False
    kept = [a for a in node.attribute if a.name != "auto_pad"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("auto_pad", str(random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])))])
    return True


def an_axis_out_of_range(fold, random):
    node, attribute = pick(random, [(n, a) for n in fold.model.graph.node for a in n.attribute if a.name in ("axis", "axes")]) or (None, None)
    if attribute is None:
        return False
    rank = len(fold.shapes.get(node.input[0], [0] * 5)) - 1
    if attribute.name == "axis":
        attribute.i = int(random.choice([rank + 1, -rank - 2, 7]))
    else:
        attribute.ints[random.integers(len(attribute.ints))] = int(random.choice([rank + 1, -rank - 2]))
    return True


def an_attribute_of_another_operator(fold, random):
    node = pick(random, fold.nodes("Split", "Softmax", "ReduceMean", "Transpose", "Gather", "Relu"))
    if node is None:
        return False
    name = str(random.choice(["num_outputs", "axes", "alpha", "keepdims", "allowzero"]))
    node.attribute.append(helper.make_attribute(name, [1] if name == "axes" else 2))
    return True


def a_value_of_another_type(fold, random):
    node = pick(random, [n for n in fold.model.graph.node if n.input])
    place = random.integers(len(node.input))
    own = fold.shapes.get(node.input[place])
    others = [n for n, shape in fold.shapes.items() if own and shape[0] != own[0] and n in {i.name for i in fold.model.graph.input}]
    others += [n for n, t in fold.tensors.items() if own and t.data_type != own[0]]
    name = pick(random, others)
    if name is None:
        return False
    node.input[place] = name
    return True


def a_sign(fold, random):
    """Negates the first operand of a node, such as the operand of a root."""
    roots = fold.nodes("Sqrt", "Pow", "Reciprocal", "Log", "ReduceL2")
    order = list(fold.model.graph.node)
    node = pick(random, roots if roots and random.random() < 0.5 else [n for n in order if n.input and fold.shapes.get(n.input[0], [0])[0] == 1])
    if node is None or not node.input or not node.input[0]:
        return False
    at = next(i for i, n in enumerate(order) if n.output[:] == node.output[:])
    fold.model.graph.node.insert(at, helper.make_node("Neg", [node.input[0]], [node.output[0] + "_negative"]))
    fold.model.graph.node[at + 1].input[0] = node.output[0] + "_negative"
    return True


LIKE = [["Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Abs", "Neg", "Sqrt", "Reciprocal", "Identity", "Softplus", "Floor"], ["Add", "Sub", "Mul", "Div"],
        ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"], ["MaxPool", "AveragePool"], ["Softmax", "LogSoftmax"], ["Less", "Greater", "Equal"]]


def another_operator(fold, random):
    found = [(n, ops) for n in fold.model.graph.node for ops in LIKE if n.op_type in ops]
    node, ops = pick(random, found) or (None, None)
    if node is None:
        return False
    node.op_type = pick(random, [op for op in ops if op != node.op_type])
    return True


def an_extent_of_another_axis(fold, random):
    """Changes the first axis of a Shape, or the axes or extents of a Squeeze, Reshape, Expand, Slice, Tile or Split."""
    node = pick(random, fold.nodes("Shape", "Squeeze"))
    if node is not None and node.op_type == "Shape":
        kept = [a for a in node.attribute if a.name != "start"]
        old = next((a.i for a in node.attribute if a.name == "start"), 0)
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("start", int(old + random.choice([-1, 1])))])
        return True
    if node is not None and len(node.input) > 1:
        del node.input[1]
        return True
    node, name = pick(random, nodes_that_read(fold, ("Expand", 1), ("Reshape", 1), ("Slice", 2), ("Tile", 1), ("Split", 1))) or (None, None)
    if node is None:
        return False
    array = fold.array(name).copy()
    place = np.unravel_index(random.integers(array.size), array.shape)
    array[place] = random.choice([-1, 0, 1, array[place] + 1, array[place] - 1, 2])
    return fold.put(name, array)


FAULTS = [one_ulp_of_a_new_tensor, one_ulp_of_another_tensor, an_axis_permuted, a_wrong_channel, a_stale_tensor, a_dropped_shift,
          a_reader_forgotten, another_value_read, an_attribute, alpha_forgotten, swapped_operands, a_weight_transposed, other_integers,
          two_tensors_exchanged, one_of_two_tensors, another_formula, what_may_not_be_dropped]
PLANTED = [*FAULTS, an_index_out_of_range, an_index_of_its_remainder, a_border_said_twice, an_axis_out_of_range,
           an_attribute_of_another_operator, a_value_of_another_type, a_sign, another_operator, an_extent_of_another_axis]
MANY = {another_formula: 4, another_value_read: 2}  # made more often, because they have many forms
