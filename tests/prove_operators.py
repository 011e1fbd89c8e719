"""Compares the operators of tests/prove.py with the backend tests of the ONNX project.

    python tests/prove_operators.py

Operators that move values must give the expected outputs of each test of one node. For all other interpreted
operators, the floats of a test are replaced by small integers, and the test runs in the reference evaluator in float64
and in the field. An element of the field equals many fractions of small numbers, one of which must be the number of the
evaluator. A root is determined only up to its sign, so a normalization is compared in two parts, with an epsilon of 0:
the result for a scale of 0, and the square of the rest. The operators of com.microsoft are compared with onnxruntime,
and the steps of recipes that numbers decide with the evaluator. The exit code is 0 if all agree and each interpreted
operator was compared at least once.
"""
import collections, copy, sys, warnings
import numpy as np, onnx
from onnx import helper, numpy_helper
from onnx.backend.test import loader
from onnx.reference import ReferenceEvaluator
import prove

SCALE = {"BatchNormalization": 1, "InstanceNormalization": 1, "GroupNormalization": 1, "LayerNormalization": 1, "RMSNormalization": 1,
         "SimplifiedLayerNormalization": 1, "GroupNorm": 1, "SkipLayerNormalization": 2, "SkipSimplifiedLayerNormalization": 2}
FUNCTIONS = set("Softmax LogSoftmax Softsign Clip HardSigmoid HardSwish Resize Upsample".split())  # use uninterpreted functions
INTERPRETED = prove.MOVES | prove.ARITHMETIC | set(prove.SPECIAL)


class Skip(Exception): pass


class Interpreted(prove.Run):
    def function(self, *rest): raise Skip
    def compute(self, node): return None


def is_fraction(element, number, tolerance):
    """True if the element equals a fraction with a small denominator that is the number."""
    r, s, t, u = prove.P, int(element), 0, 1
    while abs(u) < 40000:
        if abs(s - number * u) <= tolerance * abs(u) * max(1.0, abs(number)):
            return True
        if s == 0:
            return False
        r, s, t, u = s, r % s, u, t - r // s * u
    return False


def agree(field, numbers, tolerance, signed=True):
    if field.shape != numbers.shape:
        return False
    if not isinstance(field, prove.Field) or same(field, prove.stored(numbers)):
        return same(field, prove.stored(numbers))
    return all(is_fraction(f, float(n), tolerance) or not signed and is_fraction(f, -float(n), tolerance)
               for f, n in zip(np.asarray(field).ravel(), numbers.astype(np.float64).ravel()))


def same(a, b): return prove.digest(a) == prove.digest(b)


def in_field(model, inputs):
    graph = prove.Graph(model)
    graph.tensors |= {n: v for n, v in inputs.items()}
    graph.inputs = {}
    return list(Interpreted(graph, b"", {}).outputs.values())


def in_numbers(model, inputs):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(model).run(None, inputs)


def in_onnxruntime(model, inputs):
    import onnxruntime
    model = copy.deepcopy(model)
    if model.graph.node[0].op_type == "LayerNormalization":  # onnxruntime has it in one of the two domains
        model.graph.node[0].domain = ""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {n: v.astype(np.float32) if v.dtype.kind == "f" else v for n, v in inputs.items()})


def as_group_normalization(model, inputs):
    """The results of a GroupNorm by ONNX's GroupNormalization, because onnxruntime has no CPU kernel of GroupNorm."""
    a = {k.name: helper.get_attribute_value(k) for k in model.graph.node[0].attribute}
    node, last = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=a["groups"], epsilon=a["epsilon"]), a.get("channels_last", 1)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info(n, 1, None) for n in "xsb"], [helper.make_tensor_value_info("y", 1, None)])
    x, scale, bias = inputs.values()
    y, = in_numbers(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), {"x": np.moveaxis(x, -1, 1) if last else x, "s": scale, "b": bias})
    return [np.moveaxis(y, 1, -1) if last else y]


def hold(model, inputs, engine, tolerance):
    """True if the field and the engine agree for the given inputs."""
    node = model.graph.node[0]
    if node.op_type == "ReduceL2":
        field, numbers = in_field(model, inputs)[0], engine(model, inputs)[0]
        return agree(field * field, numbers**2, tolerance, signed=False)
    if node.op_type not in SCALE:
        field, numbers = in_field(model, inputs), engine(model, inputs)
        return all(agree(f, np.asarray(n), tolerance) for f, n in zip(field, numbers))
    zeroed = inputs | {node.input[SCALE[node.op_type]]: np.zeros_like(inputs[node.input[SCALE[node.op_type]]])}
    field, shift = in_field(model, inputs), in_field(model, zeroed)
    numbers, shift_numbers = engine(model, inputs), engine(model, zeroed)
    difference = field[0] - shift[0]
    return (agree(shift[0], shift_numbers[0], tolerance)
            and agree(difference * difference, (numbers[0].astype("d") - shift_numbers[0]) ** 2, tolerance, signed=False))


def small(random, value, op, place):
    value = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    if value.dtype.kind in "iubOSU" or value.dtype.name in ("int4", "uint4", "int2", "uint2") or op == "Pow" and place == 1:
        return value
    low, high = (1, 3) if op in ("Cast", "CastLike", "Div", "Reciprocal", "BatchNormalization") or place == SCALE.get(op) else (-1, 2) if op in SCALE else (-2, 3)
    numbers = random.integers(low, high, value.shape).astype(np.float64)
    return numbers**4 if op == "Sqrt" else numbers


def microsoft():
    """Domain, operator, input shapes and attributes of cases for operators that the tests of ONNX lack."""
    for attributes in ({}, {"alpha": 0.5}, {"transA": 1}, {"transB": 1, "alpha": -2.0}, {"transA": 1, "transB": 1}):
        shapes = [(2, 4, 3) if attributes.get("transA") else (2, 3, 4), (2, 5, 4) if attributes.get("transB") else (2, 4, 5)]
        yield "com.microsoft", "FusedMatMul", shapes, attributes
    yield "", "SimplifiedLayerNormalization", [(2, 3, 4), (4,)], {"axis": -1, "epsilon": 0.0, "stash_type": 1}
    for axis in 1, 2:
        yield "com.microsoft", "LayerNormalization", [(2, 3, 4), *[(3, 4)[axis - 1:]] * 2], {"axis": axis, "epsilon": 0.0}
    for attributes in {"groups": 2}, {"groups": 2, "channels_last": 0}:
        yield "com.microsoft", "GroupNorm", [(2, 3, 3, 4) if attributes.get("channels_last", 1) else (2, 4, 3, 3), (4,), (4,)], attributes | {"epsilon": 0.0, "activation": 0}
    for inputs in (3, 4, 5):
        yield "com.microsoft", "SkipLayerNormalization", [(2, 3, 4), (2, 3, 4), (4,), (4,), (4,)][:inputs], {"epsilon": 0.0}
    for inputs in (3, 4):
        yield "com.microsoft", "SkipSimplifiedLayerNormalization", [(2, 3, 4), (2, 3, 4), (4,), (4,)][:inputs], {"epsilon": 0.0}


def of_codes(random):
    """Inputs and attributes of the operators of com.microsoft on quantized weights."""
    def whole(low, high, *shape): return random.integers(low, high, shape).astype(np.float64)
    def packed(*shape): return random.integers(0, 256, shape).astype(np.uint8)
    for bits, given in (4, ""), (4, "z"), (4, "zb"), (8, ""), (8, "z"):
        inputs = {"x": whole(-2, 3, 2, 40), "w": packed(5, 3, 2 * bits), "s": whole(-2, 3, 5, 3)}
        inputs |= {"z": packed(5, 2 if bits == 4 else 3)} if "z" in given else {}
        inputs |= {"": None, "b": whole(-2, 3, 5)} if "b" in given else {}
        yield "MatMulNBits", inputs, {"K": 40, "N": 5, "bits": bits, "block_size": 16}
    for bits, given in (4, ""), (4, "z"), (8, ""), (8, "z"):
        inputs = {"w": packed(6, 6 * bits), "i": random.integers(0, 6, (2, 3)), "s": whole(-2, 3, 6, 3)}
        inputs |= {"z": packed(6, 2 if bits == 4 else 3)} if given else {}
        yield "GatherBlockQuantized", inputs, {"bits": bits, "block_size": 16, "quantize_axis": 1}


def tests():
    """The name, model, inputs, engine and tolerance of each test."""
    random = np.random.default_rng(0)
    for case in loader.load_model_tests(kind="node"):
        nodes = case.model.graph.node
        op = nodes[0].op_type if nodes else None
        if len(nodes) != 1 or nodes[0].domain not in ("", "ai.onnx") or op not in INTERPRETED or op in FUNCTIONS:
            continue
        model = copy.deepcopy(case.model)
        for attribute in model.graph.node[0].attribute:
            attribute.f = {"epsilon": 0.0, "alpha": 0.5, "beta": 0.75}.get(attribute.name, attribute.f)
        if op in SCALE and not any(a.name == "epsilon" for a in model.graph.node[0].attribute):
            model.graph.node[0].attribute.append(helper.make_attribute("epsilon", 0.0))
        if any(i.type.WhichOneof("value") != "tensor_type" for i in model.graph.input):
            continue
        names = [i.name for i in model.graph.input]
        if op in prove.MOVES:  # takes the numbers of the test
            inputs = {n: numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v) for n, v in zip(names, case.data_sets[0][0])}
            yield case.name, model, inputs, lambda model, inputs, case=case: case.data_sets[0][1], 1e-6
            continue
        inputs = {n: small(random, v, op, list(nodes[0].input).index(n) if n in nodes[0].input else None) for n, v in zip(names, case.data_sets[0][0])}
        if op == "BatchNormalization":
            inputs[nodes[0].input[4]] = inputs[nodes[0].input[4]] ** 4
        yield case.name, model, inputs, in_numbers, 2e-6 if op in SCALE else 1e-9
    for domain, op, shapes, attributes in microsoft():
        names = [f"x{i}" for i in range(len(shapes))]
        node = helper.make_node(op, names, ["y"], domain=domain, **attributes)
        graph = helper.make_graph([node], "g", [helper.make_tensor_value_info(n, 1, s) for n, s in zip(names, shapes)], [helper.make_tensor_value_info("y", 1, None)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)], ir_version=9)
        yield op, model, {n: random.choice([-2.0, -1.0, 1.0, 2.0], s) for n, s in zip(names, shapes)}, as_group_normalization if op == "GroupNorm" else in_onnxruntime, 1e-5
    for op, inputs, attributes in of_codes(random):
        node = helper.make_node(op, [*inputs], ["y"], domain="com.microsoft", **attributes)
        inputs = {n: v for n, v in inputs.items() if n}
        types = {n: 1 if v.dtype.kind == "f" else helper.np_dtype_to_tensor_dtype(v.dtype) for n, v in inputs.items()}
        graph = helper.make_graph([node], "g", [helper.make_tensor_value_info(n, types[n], v.shape) for n, v in inputs.items()], [helper.make_tensor_value_info("y", 1, None)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)], ir_version=9)
        yield op, model, inputs, in_onnxruntime, 1e-5


def decided():
    """The errors in steps that numbers decide. Each must be proved in place of its operator, with no other numbers."""
    wrong, stored = [], (np.random.default_rng(0).standard_normal((3, 5)) * 40).astype(np.float32)
    for op, name in prove.DECIDED.items():
        attributes = {"softmax": {"axis": 0}, "max": {"axes": [0]}}.get(op, {})
        def model(nodes, tensors):
            values = [helper.make_tensor_value_info(n, 1, [3, 5]) for n in "xy"]
            graph = helper.make_graph([*nodes, helper.make_node("Mul", ["x", "k"], ["y"])], "g", values[:1], values[1:], [numpy_helper.from_array(a, n) for n, a in tensors.items()])
            return prove.Graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
        original = model([helper.make_node(name, ["c"], ["k"], **attributes)], {"c": stored})
        numbers, = in_numbers(helper.make_model(helper.make_graph(original.nodes[:1], "g", [helper.make_tensor_value_info("c", 1, None)], [
            helper.make_tensor_value_info("k", 1, None)]), opset_imports=[helper.make_opsetid("", 17)]), {"c": stored.astype(np.float64)})
        steps = [{"op": "constant", "name": "c", "shape": [3, 5]}, {"op": op, "axis": 0, "inputs": [0], "shape": list(numbers.shape)}]
        other = [steps[0], {"op": "neg", "inputs": [0], "shape": [3, 5]}, steps[1] | {"inputs": [1]}]
        of_others = prove.STEPS[op](steps[1], -stored.astype(np.float64))
        nudged = numbers.astype(np.float32)
        nudged[0, 0] = np.nextafter(nudged[0, 0], np.float32(np.inf))
        for array, recipe, proved in (numbers, steps, True), (nudged, steps, False), (of_others, other, False):
            entry = {"name": "k", "data_type": "float32", "shape": list(numbers.shape), "sites": [], "steps": recipe}
            try:
                prove.prove(original, model([], {"k": array.astype(np.float32)}), {"tensors": [entry]}, {}, 0)
                wrong += [] if proved else [f"{op} is proved of other numbers"]
            except prove.Disproved as reason:
                wrong += [f"{op} is disproved: {reason}"] if proved else []
    return wrong


def main():
    held, skipped, wrong = collections.Counter(), [], decided()
    for name, model, inputs, engine, tolerance in tests():
        op = model.graph.node[0].op_type
        try:
            good = hold(model, inputs, engine, tolerance)
        except (Skip, prove.Undecided) as reason:
            skipped.append(f"{name} {reason}".strip())
            continue
        except Exception as error:
            good, name = False, f"{name} ({type(error).__name__}: {error})"
        held[op] += good
        wrong += [] if good else [name]
    missing = sorted((INTERPRETED | set(prove.MICROSOFT)) - FUNCTIONS - {op for op, n in held.items() if n})
    print(f"{sum(held.values())} tests of {len(held)} operators agree; not interpreted there: {', '.join(skipped)}")
    print(f"disagree: {', '.join(wrong) or 'none'}\nnever held against anything: {', '.join(missing) or 'none'}")
    return bool(wrong or missing)


if __name__ == "__main__":
    sys.exit(main())
