"""Checks that a folded model computes what its original does: the second checker of docs/proof.md.

    python tests/prove.py ORIGINAL FUSED [--certificate FILE] [--dim NAME=SIZE] [--seed N] [--points N] [--json]

It is written from that page, and shares no code with unfold. The operators are in field.py. Needs numpy and onnx.
Exit codes: 0 proved, 1 a file is unreadable, 2 usage, 3 disproved, 4 undecided.
"""
import argparse, hashlib, json, math, pathlib, sys
from collections import Counter
import ml_dtypes, numpy as np, onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from field import *

class Graph:
    """A model with its functions expanded, and its stored tensors apart from its nodes."""
    def __init__(self, model):
        functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.opsets = {o.domain.replace("ai.onnx", "") if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
        self.fill(model.graph, list(expanded(model.graph.node, functions)))
        self.inputs = {i.name: i.type.tensor_type for i in model.graph.input if model.ir_version >= 4 or i.name not in self.tensors}
        self.tensors = dict(self.everything()) | self.tensors
        self.lay_out(self, "", lambda name: name)

    def fill(self, graph, nodes):
        self.tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        constants = [n for n in nodes if n.op_type == "Constant" and n.attribute[0].name.startswith("value")]
        self.tensors.update((n.output[0], reference([n], {}, n.output, self.opsets)[0]) for n in constants)
        self.nodes, self.outputs = [n for n in nodes if n.output[0] not in self.tensors], [o.name for o in graph.output]
        self.producers = {name: (i, node) for i, node in enumerate(self.nodes) for name in node.output if name}
        self.bodies = {(node.output[0], a.name): self.body(a.g) for node in self.nodes for a in node.attribute if a.type == 5}

    def body(self, graph):
        body = object.__new__(Graph)
        body.opsets, body.inputs = self.opsets, {i.name: i.type.tensor_type for i in graph.input}
        body.fill(graph, list(graph.node))
        return body

    def has(self, ops): return any(n.op_type in ops for n in self.nodes) or any(body.has(ops) for body in self.bodies.values())

    def lay_out(self, graph, way, outer):
        """Recipes call the constants of bodies by the way to them: what bodies store, and compute from constants alone, is there by that name."""
        for of, attribute in [(node, a.name) for node in graph.nodes for a in node.attribute if a.type == 5]:
            body = graph.bodies[of.output[0], attribute]
            inner, own = f"{way}{next(filter(None, of.output))}.{attribute}/", {*body.inputs, *body.tensors, *body.producers}
            def name(n, inner=inner, own=own): return inner + n if n in own else outer(n)
            self.tensors.update((inner + n, tensor) for n, tensor in body.tensors.items())
            for node in body.nodes:
                inputs = [name(n) for n in node.input if n]
                if inputs and node.op_type not in RANDOM and all(a.type not in (5, 10) for a in node.attribute) and all(map(self.is_constant, inputs)):
                    copy = onnx.NodeProto()
                    copy.CopyFrom(node)
                    copy.input[:], copy.output[:] = [n and name(n) for n in node.input], [n and inner + n for n in node.output]
                    self.producers.update((n, (len(self.nodes), copy)) for n in copy.output if n)
                    self.nodes.append(copy)
            self.lay_out(body, inner, name)

    def is_constant(self, name):
        """Whether no input reaches a value."""
        open_, seen = [name], set()
        while open_:
            if (n := open_.pop()) in self.tensors or n in seen:
                continue
            node = self.producers.get(n, (0, None))[1]
            if node is None or node.op_type in RANDOM or any(a.type in (5, 10) for a in node.attribute):
                return False
            seen.add(n)
            open_ += [i for i in node.input if i]
        return True

    def everything(self):
        """The stored tensors, with those of bodies."""
        return [*self.tensors.items(), *(pair for body in self.bodies.values() for pair in body.everything())]

    def extents(self, sizes, default):
        return {name: [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, default) for d in type_.shape.dim]
                for name, type_ in self.inputs.items() if type_.HasField("shape")}

def expanded(nodes, functions):
    """Nodes with the bodies of functions in the place of their calls."""
    for node in nodes:
        function, call = functions.get((node.domain, node.op_type, node.overload)), node.name or (node.output or [""])[0]
        if function is None:
            yield node
            continue
        names = {n: f"{call}/{n}" for inner in function.node for n in inner.output if n}
        names.update((a, b) for a, b in zip(function.output, node.output) if b)
        names.update((a, node.input[i] if i < len(node.input) else "") for i, a in enumerate(function.input))
        given = {a.name: a for a in [*function.attribute_proto, *node.attribute]}
        yield from expanded([instance(inner, names, given, call) for inner in function.node], functions)

def instance(node, names, given, call):
    """A node of a function's body, with the names and attributes of a call."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    result.name = node.name and f"{call}/{node.name}"
    result.input[:], result.output[:] = [names.get(n, n) for n in node.input], [names.get(n, n) for n in node.output]
    del result.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.ref_attr_name not in given:
            continue
        new = result.attribute.add()
        new.CopyFrom(given[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        new.name = attribute.name
        if new.HasField("g"):
            own = {v.name for v in [*new.g.input, *new.g.initializer]} | {o for n in new.g.node for o in n.output}
            outer = {a: b for a, b in names.items() if a not in own}
            for inner in new.g.node:
                inner.CopyFrom(instance(inner, outer, given, call))
            for output in new.g.output:
                output.name = outer.get(output.name, output.name)
    return result

def reference(nodes, feeds, outputs, opsets):
    inputs, results = [helper.make_tensor_value_info(n, 1, None) for n in feeds], [helper.make_empty_tensor_value_info(n) for n in outputs if n]
    model = helper.make_model(helper.make_graph(nodes, "part", inputs, results), opset_imports=[helper.make_opsetid(*o) for o in opsets.items()])
    with np.errstate(all="ignore"):
        return [np.asarray(v) if not isinstance(v, list) else v for v in ReferenceEvaluator(model).run(None, feeds)]

def attribute_text(node, captures, scope=None):
    """What the attributes of a node say, bodies without their names; captures gets the names that they capture."""
    text, scope = [], scope or {}
    for attribute in sorted(node.attribute, key=lambda a: a.name):
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.GraphProto):
            graph, inner, value = value, dict(scope), []
            inner.update((name, f"v{len(inner) + i}") for i, name in enumerate([v.name for v in [*graph.input, *graph.initializer]]))
            def read(n): return inner[n] if n in inner else n and f"c{captures.setdefault(n, len(captures))}"
            for t in graph.initializer:
                value.append((read(t.name), digest(stored(numpy_helper.to_array(t)))))
            for n in graph.node:
                value.append((n.domain, n.op_type, [read(i) for i in n.input], attribute_text(n, captures, inner)))
                inner.update((o, f"v{len(inner)}.{i}") for i, o in enumerate(n.output) if o)
            value.append((len(graph.input), [read(o.name) for o in graph.output]))
        elif isinstance(value, onnx.TensorProto):
            value = value.data_type, digest(stored(numpy_helper.to_array(value)))
        elif attribute.type not in (1, 2, 3):
            value = list(value) if attribute.type in (6, 7, 8) else attribute.SerializeToString(deterministic=True)
        text.append((attribute.name, value))
    return text

class Run:
    """A graph evaluated at a point."""
    def __init__(self, graph, point, extents, recipes={}, keep=(), record=False, scales=None, outer=None, given=()):
        self.graph, self.point, self.recipes, self.scales, self.outer, self.bound = graph, point, recipes, scales, outer, 0
        self.values, self.degrees, self.digests, self.uncertain = dict(zip(graph.inputs, given)), {n: 1 for n in graph.inputs}, {}, set()
        self.depth = outer.depth + 1 if outer else 0
        for name, type_ in () if outer else graph.inputs.items():
            seed, kind = hashed(point, "input", name), name in extents and kind_of(type_.elem_type)
            self.values[name] = random(seed, extents[name], kind) if kind else seed
        left = Counter(n for node in graph.nodes for n in self.reads(node)) + Counter([*graph.outputs, *keep])
        for node in graph.nodes:
            self.apply(node)
            self.digests.update((n, digest(self.values[n])) for n in node.output if n and record)
            for name in self.reads(node):
                left[name] -= 1
                if not left[name] and getattr(self.values.get(name), "dtype", None) == np.uint64:
                    del self.values[name]
        self.outputs = {name: self.read(name) for name in graph.outputs}
        self.bound += sum(self.degrees.get(name, 0) for name in graph.outputs) / P

    def reads(self, node):
        captures = {}
        if any(a.type in (5, 10) for a in node.attribute):
            attribute_text(node, captures)
        return [n for n in node.input if n] + list(captures)

    def read(self, name):
        if name not in self.values:
            if self.outer and name not in self.graph.tensors:
                return self.outer.read(name)
            if name not in self.graph.tensors:
                raise Unfit(f"{name} is read before it is there")
            self.values[name] = self.recipes[name]() if name in self.recipes else stored(self.graph.tensors[name])
        return self.values[name]

    def closure(self, name):
        """The nodes that compute a value from known numbers alone, and these; None where an input reaches it."""
        nodes, feeds, todo = {}, {}, [name]
        while todo:
            name = todo.pop()
            index, node = self.graph.producers.get(name, (None, None))
            if name in self.graph.tensors and name not in self.graph.inputs:
                feeds[name] = self.graph.tensors[name]
            elif isinstance(self.values.get(name), np.ndarray) and self.values[name].dtype != np.uint64:
                feeds[name] = self.values[name]
            elif self.outer and node is None and name not in ("", *self.values) and self.outer.number(name) is not None:
                feeds[name] = self.outer.number(name)
            elif name and node is None or node is not None and any(a.type in (5, 10) for a in node.attribute):
                return None
            elif name and index not in nodes:
                type_ = self.graph.inputs.get(node.input[1]) if node.op_type == "CastLike" else None  # of it, only the type counts
                if type_:
                    feeds.setdefault(node.input[1], np.zeros((), helper.tensor_dtype_to_np_dtype(type_.elem_type)))
                nodes[index], todo = node, todo + list(node.input[:1] if type_ else node.input)
        return [nodes[i] for i in sorted(nodes)], feeds

    def number(self, name, wide=False):
        """What a value is in numbers, if no input reaches it: each rounded to its type, or in float64 all the way."""
        part = self.closure(name)
        try:
            if part and wide:
                part = [widened(n) for n in part[0]], {n: v.astype(np.float64) if "float" in v.dtype.name else v for n, v in part[1].items()}
            return part if part is None else part[1][name] if name in part[1] else reference(*part, [name], self.graph.opsets)[0]
        except Exception:
            return None

    def decided(self, node, a):
        """The result of an Exp, Sigmoid, Softmax or ReduceMax that no input reaches."""
        x = self.number(node.input[0], wide=True)
        if x is None or "float" not in x.dtype.name:
            return None
        y = self.number(node.output[0], wide=True) if a.op == "ReduceMax" else decide(a, x)
        if y is not None and a.op == "Softmax":
            axis = a.get("axis", -1 if a.opset >= 13 else 1) % x.ndim
            return [shares(y, axis, axis + 1 if a.opset >= 13 else x.ndim)]
        return None if y is None else [stored(flushed(y))]

    def evaluated(self, node, domain, x):
        """The bodies of a node, evaluated at random elements if they are those of a loop; None where they cannot be."""
        a = {k.name: helper.get_attribute_value(k) for k in node.attribute if k.type != 5}
        apart = len(x) - a.get("num_scan_inputs", 0)
        given = {"If": [], "Loop": [np.zeros((), np.int64), np.zeros((), bool), *x[2:]], "Scan": x[:apart]}.get("" if domain else node.op_type)
        try:
            if given is None or node.op_type == "Scan" and self.graph.opsets[""] < 9:
                raise Uninterpreted
            shapes = [np.shape(v) for v in given]
            if node.op_type == "Scan":
                axes = a.get("scan_input_axes", [0] * len(x[apart:]))
                given, shapes = given + x[apart:], shapes + [np.delete(v.shape, axis) for v, axis in zip(x[apart:], axes)]
            seeds = [hashed(self.point, "formal", self.depth, i) for i in range(len(given))]
            kinds = [None if isinstance(v, bytes) else {"u": "field", "b": "bool"}.get(v.dtype.kind, "int") for v in given]
            formals = [random(*of) if of[2] else of[0] for of in zip(seeds, shapes, kinds)]
            graphs = [self.graph.bodies[node.output[0], name] for name in sorted(k.name for k in node.attribute if k.type in (5, 10))]
            if any(len(g.inputs) != len(formals) for g in graphs):
                raise Uninterpreted
            return [Run(g, self.point, {}, self.recipes, scales=self.scales, outer=self, given=formals) for g in graphs]
        except (Uninterpreted, Unfit, LookupError, AttributeError, RecursionError):
            return None

    def degree(self, name): return self.outer.degree(name) if self.outer and name not in self.degrees else self.degrees.get(name, 0)

    def factor(self, op, x, seed):
        """The positive factor by which what an operator reads has to be multiplied to be what the original applies it to."""
        positive, original, is_original = self.scales
        count = PASSES[op] or len(x)
        whole = np.concatenate([v.ravel() for v in x[:count]]) if all(v is not None and v.dtype == np.uint64 for v in x[:count]) else np.zeros(0)
        first = next((v for v in whole if v), None)
        if first is None:
            return None
        key = hashed(seed, [digest(mul(v, inverse(first)) if i < count else v) for i, v in enumerate(x)])
        if is_original:
            original[key] = first
        factor = int(mul(original.get(key, first), inverse(first)))
        return factor if factor != 1 and factor in positive else None

    def apply(self, node):
        captures, op, domain = {}, node.op_type, "" if node.domain == "ai.onnx" else node.domain
        said = attribute_text(node, captures)
        x = [self.read(n) if n else None for n in [*node.input, *captures]]
        bodies = [k.name for k in node.attribute if k.type in (5, 10)]
        runs, count, shapes = self.evaluated(node, domain, x[:len(node.input)]) if bodies else None, len(x), {}
        if runs:
            made = [list(run.outputs.values()) for run in runs]
            said, count = ([s for s in said if s[0] not in bodies], sorted(bodies), [[digest(v) for v in values] for values in made]), len(node.input)
            self.bound += sum(run.bound for run in runs)
            like = made[1] if op == "If" else [None, *x[2:]] if op == "Loop" else x
            pairs = list(zip(made[0], like))[op == "Loop":]
            shapes = {n: v for n, (v, w) in zip(node.output, pairs) if isinstance(v, np.ndarray) and np.shape(w) == v.shape}
        if bodies and (not runs or any(run.uncertain or bytes in map(type, run.outputs.values()) for run in runs)):
            self.uncertain.update(node.output)
        a = Attributes((k.name, helper.get_attribute_value(k)) for k in node.attribute)
        a.op, a.opset, a.outputs, a.point = op, self.graph.opsets.get("", 1), len([n for n in node.output if n]), self.point
        a.number = lambda i: self.number(node.input[i])
        a.function = lambda name, v: scramble(hashed((self.point, "", name, "", [], False), [False]), v) % P
        degrees = [self.degree(n) for n in node.input]
        arrays = all(v is None or isinstance(v, np.ndarray) for v in x) and (domain == "" or domain == "com.microsoft" and op in MICROSOFT)
        y = self.decided(node, a) if domain == "" and op in DECIDED.values() else None
        y = self.interpret(node, a, x) if y is None and arrays and not captures else [x[0]] if op == "Identity" else y
        degree = sum(degrees) if op in BILINEAR else 1 if y is None or op in ANEW or "Norm" in op else max(degrees, default=0)
        if y is None or op in ("Softmax", "LogSoftmax", "Softsign", "Clip", "HardSigmoid", "HardSwish"):
            self.bound += max(degrees, default=0) / P
        if y is None and op not in RANDOM:  # constants
            y = [self.number(n) for n in node.output if n]
            y = None if any(not isinstance(v, np.ndarray) for v in y) else [stored(v) for v in y]
        if y is None:
            seed = self.point, domain, op, node.overload, said, op in RANDOM and node.name
            factor = self.factor(op, x, seed) if self.scales and arrays and not domain and op in PASSES else None
            x = [mul(v, np.uint64(factor)) if i < (PASSES[op] or count) else v for i, v in enumerate(x)] if factor else x
            y = self.elementwise(a, x, seed) if arrays and op in ELEMENTWISE else None
            y = list(self.uninterpreted(node, [*node.input, *captures], x, hashed(seed, [digest(v) for v in x[:count]]), shapes)) if y is None else y
            if factor:  # as the original has it, divided by what it is multiplied by there
                y = [mul(v, inverse(np.uint64(factor))) if getattr(v, "dtype", None) == np.uint64 else v for v in (y if isinstance(y, list) else [y])]
                self.bound += len(self.scales[0]) / P
        y, named = y if isinstance(y, list) else [y], [n for n in node.output if n]
        for name, value in zip(named if len(y) == len(named) else node.output, y):
            self.values[name] = value if isinstance(value, bytes) else np.asarray(value)
            self.degrees[name] = 2 * degree if op == "ReduceSumSquare" else degree
        self.values.pop("", None)

    def interpret(self, node, a, x):
        """The results of an operator of the table, or None."""
        op, whole, (function, attributes) = a.op, all(v is None or v.dtype != np.uint64 for v in x), ARITHMETIC.get(a.op, (None, []))
        if op in RANDOM and (op != "Dropout" or a.opset < 7 and not a.get("is_test") or len(x) > 2 and x[2].any()):
            return None
        try:
            if op in MOVES - {"Concat", "Dropout", "Where"} and any(v is not None and v.dtype == np.uint64 for v in x[1:]):
                raise ValueError("floats are no indices, extents or axes")
            if op in ("Gather", "GatherElements", "GatherND"):  # any integer is an index
                axes = x[0].shape[a.get("batch_dims", 0):][:x[1].shape[-1]] if op == "GatherND" else x[0].shape[a.get("axis", 0)]
                x[1] = x[1] % np.array(axes)
            if op == "CastLike" and x[0].dtype != np.uint64 and x[1].dtype == np.uint64:
                return image(x[0])
            if op in MOVES:
                y = reference([node], {n: v for n, v in zip(node.input, x) if n}, node.output, self.graph.opsets)
                sizes = a.get("split", x[1] if len(x) > 1 else None) if op == "Split" else None
                if sizes is not None and sum(sizes) != x[0].shape[a.get("axis", 0)]:
                    raise ValueError("the parts are not the whole")
                return [stored(v) if whole or v.dtype != np.uint64 else v % P if op == "CumSum" else v for v in y]
            if function and set(a) <= set(attributes) and x and x[0] is not None and x[0].dtype == np.uint64:
                return function(a, *x)
        except Uninterpreted:
            pass
        except (Undecided, MemoryError) as error:
            raise Undecided(str(error)) from None
        except Exception as error:
            raise Unfit(f"{op} {node.name or node.output[0]}: {error}") from None
        try:
            if op == "Range" or op == "Cast" and not whole:
                return [stored(self.number(node.output[0]))]
            feeds = {n: self.graph.tensors.get(n, v) for n, v in zip(node.input, x) if n}
            plain = whole and not any(k.type in (5, 10) for k in node.attribute)
            return [stored(v) for v in reference([node], feeds, node.output, self.graph.opsets)] if plain else None
        except Exception:
            return None

    def elementwise(self, a, x, seed):
        x = [add(*x)] if a.op in ("BiasGelu", "FastGelu") and len(x) > 1 else x[:1] if a.op == "CastLike" else x
        try:
            present = np.broadcast_arrays(*(v for v in x if v is not None))
        except ValueError:
            return None  # broadcast as in old operator sets
        kind = "bool" if a.op in TRUTH else kind_of(a["to"]) if a.op == "Cast" else "field" if a.op != "CastLike" else "int"
        return elements(scramble(hashed(seed, [v is None for v in x]), *present), kind)

    def uninterpreted(self, node, names, x, seed, shapes):
        typed, known, types = [], [], {}
        for name, v in dict(zip(names, x)).items():
            if isinstance(v, np.ndarray):
                typed.append(helper.make_tensor_value_info(name, 1 if v.dtype == np.uint64 else 9 if v.dtype == bool else 7, v.shape))
                number = self.number(name) if v.size <= 64 else None
                known += [] if number is None else [numpy_helper.from_array(number, name)]
        results, imports = [helper.make_empty_tensor_value_info(n) for n in node.output if n], [helper.make_opsetid(*o) for o in self.graph.opsets.items()]
        try:
            if bytes in map(type, x) and not any(k.type == 5 for k in node.attribute):
                raise TypeError("inference may read types that are not there")
            model = helper.make_model(helper.make_graph([node], "part", typed, results, known), opset_imports=imports)
            types = {v.name: v.type for v in shape_inference.infer_shapes(model, data_prop=True).graph.output}
        except Exception:
            pass  # the results are opaque
        for i, name in enumerate(node.output):
            type_ = types[name].tensor_type if name in types else None
            whole = type_ and type_.HasField("shape") and all(d.HasField("dim_value") for d in type_.shape.dim)
            kind = whole and kind_of(type_.elem_type)
            shape = [d.dim_value for d in type_.shape.dim] if kind else None
            if not kind and name in shapes:  # as bodies make it
                kind, shape = {"u": "field", "b": "bool"}.get(shapes[name].dtype.kind, "int"), shapes[name].shape
            yield random(hashed(seed, i), shape, kind) if kind else hashed(seed, i)

# Recipes.
def in_field(entry, original):
    """The values of the steps of a recipe."""
    def leaf(step, i):
        if step["op"] == "softmax":
            return shares(numbers[i][0], step["axis"], step["axis"] + 1),
        if step["op"] in DECIDED:
            return stored(flushed(numbers[i][0])),
        return original.read(step["name"]) if step["op"] == "constant" else image(literal(step)),
    with reading(f"the recipe of {entry['name']}"):
        if any(s["op"] in DECIDED for s in entry["steps"]):
            numbers = in_numbers(entry, original, np.float64, WHOLE, wide=True)
        return [value for value, in evaluate(entry, IN_FIELD, leaf)]

def positive_factors(entries, original):
    """What recipes may have moved through operators that positive factors pass: their numbers, or two of them multiplied or divided."""
    parts = {1}
    for entry in entries.values():
        with reading(f"the recipe of {entry['name']}"), np.errstate(all="ignore"):
            steps = zip(in_numbers(entry, original, np.float64, WHOLE), in_field(entry, original))
            parts |= {int(image.ravel()[0]) for (number, _), image in steps if image.size == 1 and 0 < number.ravel()[0] < np.inf}
        if len(parts) > 64:
            break
    parts |= {pow(part, -1, P) for part in parts if part}
    return {a * b % P for a in parts for b in parts}

def in_numbers(entry, original, real, others, wide=False):
    """The numbers of the steps of a recipe, and their magnitudes."""
    def leaf(step, i):
        if step["op"] not in ("constant", "literal"):
            raise Undecided(f"the recipe of {entry['name']} has a step {step['op']} that this checker does not know")
        v = literal(step) if step["op"] == "literal" else np.asarray(original.number(step["name"], wide))
        return v.astype(real), np.abs(v.astype(real))
    return evaluate(entry, IN_NUMBERS | others, leaf)

def check_rounding(entry, array, original):
    """Each element is the value of its recipe within half a unit in the last place, and what sums in float64 may be off."""
    steps, real = entry["steps"], np.longdouble if array.dtype == np.float64 else np.float64
    inputs = [steps[s["inputs"][0]]["shape"] if s.get("inputs") else [1] for s in steps]
    terms = [n[s["axis"]] if s["op"] in ("sum", "softmax") else n[-1] if s["op"] == "product" else n[-1] * n[-2] if s["op"] == "conv" else 1 for s, n in zip(steps, inputs)]
    computed = {s["name"]: original.closure(s["name"]) for s in steps if s["op"] == "constant"}
    if None in computed.values():
        raise Undecided(f"{entry['name']} is made of what this checker knows as no constant")
    types = {array.dtype, *(v.dtype for part in computed.values() for v in part[1].values() if "float" in v.dtype.name)}
    if any(s["op"] == "flush" and s["below"] > NOTHING or s["op"] == "round" and number_type(s["data_type"]) not in types for s in steps):
        raise Disproved(f"the recipe of {entry['name']} drops more than it may")
    rough = any({n.op_type for n in part[0]} - ROUNDED and np.any(original.number(name) != original.number(name, wide=True))
                for name, part in computed.items())  # such as a Softmax of stored numbers
    unit, limits = 2.0**-52 * sum(terms), ml_dtypes.finfo(array.dtype)
    def near(f):  # where it may be the other neighbour
        def bounded(v, low, high, size): return v, np.maximum(np.abs(v), size) + (high - low) / unit
        return lambda step, x: bounded(*(f(step, x[0] + e * unit * x[1]) for e in (0, -1, 1)), x[1])
    value, size = in_numbers(entry, original, real, {"flush": near(lambda s, x: flushed(x, s["below"])),
                                                     "round": near(lambda s, x: x.astype(number_type(s["data_type"])).astype(real))})[-1]
    least = np.maximum(np.minimum(np.abs(value), np.abs(array.astype(real))), np.ldexp(real(1), limits.minexp))  # below a power of 2, units are smaller
    ulp = np.ldexp(real(1), np.frexp(least)[1] - 1 - limits.nmant)
    allowed = (ulp + 8 * float(limits.eps) * size if rough else ulp / 2) + unit * size
    with np.errstate(invalid="ignore"):
        is_near = np.where(np.isfinite(value), np.abs(array.astype(real) - value) <= allowed, np.isclose(array.astype(real), value, 0, 0, True)) if array.shape == value.shape else np.False_
    if not is_near.all():
        raise Disproved(f"{entry['name']} is not its recipe, rounded")

def check_tensors(fused, original, entries):
    def key(array): return array.dtype.name, array.shape, hashlib.sha256(np.ascontiguousarray(array)).digest()
    there = {key(a) for _, a in original.graph.everything() if a.dtype != object}
    for name, array in fused.everything():
        if name in entries:
            if array.dtype != number_type(entries[name]["data_type"]) or list(array.shape) != entries[name]["shape"]:
                raise Disproved(f"{name} has another type or other extents than its recipe")
            with reading(f"the recipe of {name}"):
                check_rounding(entries[name], array, original)
        elif "float" in array.dtype.name and key(array) not in there:
            raise Disproved(f"{name} has no recipe and is no tensor of the original")

def prove(original, fused, certificate, sizes, seed, points):
    """The bound on the probability of being wrong."""
    bound, done, tried = 1.0, 0, 0
    with reading("the certificate"):
        entries = {t["name"]: t for t in certificate.get("tensors", [])}
        keep = [s["name"] for t in entries.values() for s in t["steps"] if s["op"] == "constant"]
    if list(original.inputs) != list(fused.inputs) or original.outputs != fused.outputs:
        raise Disproved("the inputs or outputs have other names")
    if any(original.opsets.get(*o) != o[1] for o in fused.opsets.items()):
        raise Undecided("the operator sets are of other versions")
    while done < points:
        point, tried = hashed(seed, tried), tried + 1
        try:
            first, extents = run_original(original, point, sizes, keep)
            if not done:
                check_tensors(fused, first, entries)
            recipes = {name: lambda entry=entry: in_field(entry, first)[-1] for name, entry in entries.items()}
            second = Run(fused, point, extents, recipes)
            scales = parted(first, second) and original.has(PASSES) and positive_factors(entries, first)
            if scales:  # a positive factor may have moved
                met = {}
                first, second = Run(original, point, extents, keep=keep, scales=(scales, met, True)), Run(fused, point, extents, recipes, scales=(scales, met, False))
        except Undecided:
            if tried == 4 * points:
                raise
            continue
        except Unfit as error:
            raise Undecided(f"the extents of the folded model do not fit: {error}") from None
        if name := parted(first, second):
            custom = [{n.op_type for n in g.nodes if n.domain not in ("", "ai.onnx", "com.microsoft")} for g in (original, fused)]
            if custom[0] - custom[1]:
                raise Undecided(f"{min(custom[0] - custom[1])} of a custom domain is written out: this checker does not know it")
            if isinstance(first.outputs[name], bytes):
                raise Undecided(f"{name} comes from a value whose extents are not known")
            first = Run(original, point, extents, keep=keep, record=True, scales=first.scales)
            second = Run(fused, point, extents, recipes, record=True, scales=second.scales)
            _, why = parting(first, second, name, entries, certificate)
            unknown = upstream(fused, name) & (first.uncertain | second.uncertain)
            raise Undecided(f"what the bodies of {min(unknown)} compute is not known") if unknown else Disproved(why)
        bound, done = bound * min(1.0, second.bound), done + 1
    return bound

def upstream(graph, name):
    """What a value is made of, and itself."""
    open_, seen = [name], set()
    while open_:
        if (n := open_.pop()) not in seen and n in graph.producers:
            node, captures = graph.producers[n][1], {}
            if any(a.type in (5, 10) for a in node.attribute):
                attribute_text(node, captures)
            open_ += [*node.input, *captures]
        seen.add(n)
    return seen

def parted(first, second):
    """The first output that differs."""
    return next((name for name, value in first.outputs.items() if digest(value) != digest(second.outputs[name])), None)

def run_original(original, point, sizes, keep):
    for default in (2, 3, 1, 4, 8, 16):
        try:
            extents = original.extents(sizes, default)
            return Run(original, point, extents, keep=keep), extents
        except Unfit as error:
            failed = error
    raise Undecided(f"the extents do not fit, sizes can be given by --dim: {failed}")

def parting(first, second, output, entries, certificate):
    """The first value from which on the two never meet again, and the sites for whose sake it was changed."""
    needed, sites, name = {output}, [], output
    for node in reversed(second.graph.nodes):
        if needed & set(node.output):
            needed |= set(second.reads(node))
            same = [first.digests[n] == second.digests[n] for n in node.output if n in first.digests]
            if same and all(same):
                break
            name, sites = node.output[0] if same else name, [s for n in second.reads(node) for s in entries.get(n, {}).get("sites", [])] or sites
    return name, f"{output} differs, from {name} on" + "".join(f", by {certificate['sites'][s]['name']}" for s in sites)

def check_files(part, path):
    for file, wanted in {path: part["sha256"], **{path.parent / name: d for name, d in part["data"].items()}}.items():
        if hashlib.sha256(file.read_bytes()).hexdigest() != wanted:
            raise Disproved(f"{file.name} is not the file that the certificate is for")

def main():
    parser = argparse.ArgumentParser(description="Proves that FUSED computes what ORIGINAL does.")
    for name in "original", "fused", "--certificate": parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE")
    for name, default in ("--seed", 0), ("--points", 1): parser.add_argument(name, type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = {name: int(size) for name, _, size in (d.rpartition("=") for d in options.dim)}
    try:
        original, fused = Graph(onnx.load(options.original)), Graph(onnx.load(options.fused))
        certificate = json.loads(options.certificate.read_text()) if options.certificate else {}
    except Exception as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        with reading("the certificate"):
            for part in ("original", "fused") if certificate else ():
                check_files(certificate[part], getattr(options, part))
        code, answer = 0, {"verdict": "proved", "bound": prove(original, fused, certificate, sizes, options.seed, options.points)}
    except Disproved as error:
        code, answer = 3, {"verdict": "disproved", "reason": str(error)}
    except Undecided as error:
        code, answer = 4, {"verdict": "undecided", "reason": str(error)}
    print(json.dumps(answer) if options.json else ": ".join(map(str, answer.values())))
    return code
if __name__ == "__main__":
    sys.exit(main())
