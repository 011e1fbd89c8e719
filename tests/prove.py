"""Checks that a folded model computes what its original does: the second checker of docs/proof.md.

    python tests/prove.py ORIGINAL FUSED [--certificate FILE] [--dim NAME=SIZE] [--seed N] [--points N] [--json]

It is written from that page, and shares no code with unfold. Needs numpy and onnx.
Exit codes: 0 proved, 1 a file is unreadable, 2 usage, 3 disproved, 4 undecided.
"""
import argparse, hashlib, json, math, pathlib, sys
from collections import Counter
import ml_dtypes, numpy as np, onnx
from onnx import helper, inliner, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

P = 2**31 - 69
POWERS = np.array([pow(2, k if k < 2048 else k - 4096, P) for k in range(4096)], np.uint64)  # at -k that of -k
BOUND = 2**28  # elements of one value
class Disproved(Exception): pass
class Undecided(Exception): pass
class Unfit(Exception): pass  # the extents of a graph do not fit each other
class Uninterpreted(Exception): pass  # this use of an operator is not in the table

# The field: arrays of uint64 below P. Integer tensors are int64 or bool, opaque values are bytes.
def add(a, *rest): return add((a + rest[0]) % P, *rest[1:]) if rest else a
def sub(a, b): return (a + (P - b)) % P
def neg(a): return (P - a) % P
def mul(a, b): return a * b % P
def div(a, b): return mul(a, inverse(b))
def root(a): return power(a, (P + 1) // 4)
def total(a, axes): return np.sum(a, axis=tuple(axes), keepdims=True, dtype=np.uint64) % P
def mean(a, axes): return div(total(a, axes), const(math.prod(a.shape[i] for i in axes)))
def const(number): return image(np.float64(number))
def matmul(a, b): return products(np.matmul, a, b, a.shape[-1])

def image(numbers):
    if numbers.dtype.kind in "iub":
        return (numbers % P).astype(np.uint64)
    mantissa, exponent = np.frexp(numbers.astype(np.float64))
    return (np.ldexp(mantissa, 53).astype(np.int64) % P).astype(np.uint64) * POWERS[exponent - 53] % P

def power(a, exponent):
    result = np.ones_like(a)
    for bit in bin(exponent)[2:]:
        result = result * result % P
        result = result * a % P if bit == "1" else result
    return result

def inverse(a):
    if (a == 0).any():
        raise Undecided("a divisor is 0")
    return power(a, P - 2)

def products(f, a, b, terms):
    """f(a, b), each result a sum of so many products: exact in float64, for digits of b that are small enough."""
    width = 24 - max(terms - 1, 0).bit_length()
    a, b = (np.where(x > P // 2, x.astype(np.int64) - P, x.astype(np.int64)) for x in (a, b))
    result, shift, a, half = None, 0, a.astype(np.float64), 1 << (width - 1)
    while result is None or b.any():
        digit = ((b + half) & (2 * half - 1)) - half
        part = (f(a, digit.astype(np.float64)).astype(np.int64) % P).astype(np.uint64) * POWERS[shift] % P
        result = part if result is None else add(result, part)
        b, shift = (b - digit) >> width, shift + width
    return result

def windows(x, kernel, strides, dilations, before, output, transposed=False):
    """[..., spatial axes] to [..., taps, places]: what each tap of a convolution sees from each place of its output."""
    lead, rank = x.ndim - len(kernel), len(kernel)
    for i in range(rank):
        axis, tap, place = lead + 2 * i, np.arange(kernel[i])[:, None] * dilations[i], np.arange(output[i])
        at = place + before[i] - tap if transposed else place * strides[i] - before[i] + tap
        at = np.where(at % strides[i] == 0, at // strides[i], -1) if transposed else at
        x = with_zero(x, axis).take(np.where((at < 0) | (at >= x.shape[axis]), x.shape[axis], at), axis)
    x = x.transpose([*range(lead), *range(lead, lead + 2 * rank, 2), *range(lead + 1, lead + 2 * rank, 2)])
    return x.reshape(x.shape[:lead] + (math.prod(kernel), math.prod(output)))

def with_zero(x, axis):
    return np.concatenate([x, np.zeros(x.shape[:axis] + (1,) + x.shape[axis + 1:], x.dtype)], axis)

# Digests and random elements.
def hashed(*parts): return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()

def digest(x):
    return hashed(x.dtype.str, x.shape, hashlib.blake2b(np.ascontiguousarray(x)).digest()) if isinstance(x, np.ndarray) else x

def mix(x):
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x

def scramble(seed, *arrays):
    """Random bits, a function of the elements at each place."""
    state = np.frombuffer(seed, np.uint64)[:1]
    for x in arrays:
        state = mix(mix(state + np.uint64(0x9E3779B97F4A7C15)) ^ x.astype(np.uint64))
    return mix(state + np.uint64(1))

def elements(bits, kind):
    return bits % P if kind == "field" else bits % 2 == 1 if kind == "bool" else (bits % 100).astype(np.int64)

def random(seed, shape, kind):
    if math.prod(shape) > BOUND:
        raise Undecided("a value is too large")
    return elements(scramble(seed, np.arange(math.prod(shape), dtype=np.uint64)), kind).reshape(shape)

def kind_of(data_type):
    name = onnx.TensorProto.DataType.Name(data_type)
    return "bool" if name == "BOOL" else "field" if "FLOAT" in name or name == "DOUBLE" else "int" if "INT" in name else None

def stored(array):
    """The value of numbers."""
    if array.dtype.kind in "OSUc":
        return hashed(array.shape, array.tolist())
    if "float" not in array.dtype.name:
        return array if array.dtype == bool else array.astype(np.int64)
    array = np.ascontiguousarray(array, np.float64).reshape(array.shape)
    return np.asarray(image(array)) if np.isfinite(array).all() else scramble(hashed("not finite"), array.view(np.uint64)) % P

# The operators. MOVES are those that the reference evaluator computes on field tensors as well as on numbers.
MOVES = set("""Identity Dropout Shape Size Reshape Transpose Squeeze Unsqueeze Flatten Slice Split Concat Gather GatherND
    GatherElements Expand Tile Pad DepthToSpace SpaceToDepth Where ConstantOfShape CumSum Trilu""".split())
TRUTH = set("Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual And Or Xor Not".split())
ELEMENTWISE = TRUTH | set("""Abs Acos Acosh Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast
    CastLike Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log Max Min Mish Mod Pow PRelu Relu
    Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Swish Tan Tanh ThresholdedRelu BiasGelu FastGelu QuickGelu""".split())
RANDOM = set("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli Dropout".split())
MICROSOFT = set("""FusedMatMul SkipLayerNormalization SimplifiedLayerNormalization SkipSimplifiedLayerNormalization Gelu
    BiasGelu FastGelu QuickGelu""".split())
BILINEAR = set("Mul MatMul FusedMatMul Gemm Einsum Conv ConvTranspose".split())  # degrees add up
ANEW = set("Div Sqrt Pow Reciprocal ReduceL2 Softmax LogSoftmax Softsign".split())  # as random as an input
ROUNDED = MOVES | set("Add Sub Mul Div Sqrt Neg Reciprocal Cast CastLike".split())  # by one rounding, the same anywhere
ARITHMETIC = {}  # name: (function of an attributes dict and field tensors, the attributes it reads)

class Attributes(dict): pass  # also: op, opset, outputs (how many), number(i), function(name, x)

def operator(names, attributes=""):
    return lambda function: [ARITHMETIC.update({name: (function, attributes.split())}) for name in names.split()] and function

for names, f in {"Add Sum": add, "Sub": sub, "Mul": mul, "Div": div, "Neg": neg, "Reciprocal": inverse, "Sqrt": root,
                 "MatMul": matmul, "Mean": lambda *x: div(add(*x), const(len(x)))}.items():
    operator(names)(lambda a, *x, f=f: f(*x))
operator("GlobalAveragePool")(lambda a, x: mean(x, range(2, x.ndim)))
operator("Softsign")(lambda a, x: div(x, add(const(1), a.function("Abs", x))))

@operator("Cast CastLike", "to saturate round_mode")
def cast(a, x, like=None):
    if like is None and (isinstance(a["to"], bytes) or kind_of(a["to"]) != "field") or like is not None and like.dtype != np.uint64:
        raise Uninterpreted
    return x

@operator("Pow")
def pow_(a, x, y):
    exponents = set() if a.number(1) is None else set(a.number(1).ravel().tolist())
    e, x = exponents.pop() if len(exponents) == 1 else math.pi, np.broadcast_to(x, np.broadcast_shapes(x.shape, y.shape))
    if abs(e) != 0.5 and (abs(e) > 8 or e != int(e)):
        raise Uninterpreted
    x = root(x) if abs(e) == 0.5 else power(x, int(abs(e)))
    return x if e >= 0 else inverse(x)

@operator("Gemm FusedMatMul", "alpha beta transA transB")
def gemm(a, x, w, c=None):
    x, w = (v.swapaxes(-1, -2) if a.get(name) and v.ndim > 1 else v for v, name in ((x, "transA"), (w, "transB")))
    y = mul(matmul(x, w), const(a.get("alpha", 1.0)))
    return y if c is None else add(y, mul(c, const(a.get("beta", 1.0))))

@operator("Einsum", "equation")
def einsum(a, x, w=np.ones((), np.uint64), *more):
    equation, sizes = a["equation"].decode().replace(" ", ""), {}
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if more or any(len(set(t.replace(".", ""))) < len(t.replace(".", "")) for t in terms) or arrow and "..." in left and "..." not in right:
        raise Uninterpreted
    for term, v in zip(terms, (x, w)):
        head, _, tail = term.partition("...")
        sizes |= {c: n for part, shape in ((head, v.shape), (tail[::-1], v.shape[::-1])) for c, n in zip(part, shape)}
    summed = [n for c, n in sizes.items() if (c not in right if arrow else left.count(c) > 1)]
    return products(lambda p, q: np.einsum(equation, p, *[q] * (len(terms) - 1), optimize=True) * (q if len(terms) == 1 else 1),
                    x, w, math.prod(summed))

def window_attributes(a, x, kernel):
    """Strides, dilations, the padding before and after each axis, and the extents of the result."""
    rank, size = len(kernel), x.shape[2:]
    strides, dilations = (list(a.get(k, [1] * rank)) for k in ("strides", "dilations"))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    pads, auto = list(a.get("pads", [0] * 2 * rank)), a.get("auto_pad", b"NOTSET").decode()
    if auto.startswith("SAME"):
        need = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(size, strides, reach)]
        halves = [n // 2 for n in need], [n - n // 2 for n in need]
        pads = sum(halves if auto == "SAME_UPPER" else halves[::-1], [])
    before, after = pads[:rank], pads[rank:]
    output = [(n + b + e - r) // s + 1 for n, b, e, r, s in zip(size, before, after, reach, strides)]
    if a.get("ceil_mode"):  # one more, if it starts inside the value or the padding before it
        output = [o + ((n + b + e - r) % s > 0 and o * s < n + b) for o, n, b, e, r, s in zip(output, size, before, after, reach, strides)]
    return strides, dilations, before, after, output

@operator("Conv ConvTranspose", "auto_pad dilations group kernel_shape output_padding pads strides")
def conv(a, x, w, bias=None):
    kernel, group, inner, transposed = w.shape[2:], a.get("group", 1), w.shape[1], a.op == "ConvTranspose"
    strides, dilations, before, after, output = window_attributes(a, x, kernel)
    if transposed:
        if a.get("auto_pad", b"NOTSET") != b"NOTSET":
            raise Uninterpreted
        more, inner = a.get("output_padding", [0] * len(kernel)), w.shape[0] // group
        output = [(n - 1) * s + (k - 1) * d + 1 - b - e + o for n, s, k, d, b, e, o in zip(
            x.shape[2:], strides, kernel, dilations, before, after, more)]
        w = w.reshape(group, inner, *w.shape[1:]).swapaxes(1, 2)
    if x.size // max(math.prod(x.shape[2:]), 1) * math.prod(kernel) * math.prod(output) > BOUND:
        raise Undecided("a convolution is too large")
    seen = windows(x, kernel, strides, dilations, before, output, transposed)
    y = products(lambda v, u: np.matmul(u, v), seen.reshape(len(x), group, -1, seen.shape[-1]),
                 w.reshape(group, -1, inner * math.prod(kernel)), inner * math.prod(kernel)).reshape(len(x), -1, *output)
    return y if bias is None else add(y, channels(bias, x))

def channels(v, x): return v.reshape(-1, *[1] * (x.ndim - 2))

@operator("AveragePool", "auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides")
def average_pool(a, x):
    strides, dilations, before, after, output = window_attributes(a, x, a["kernel_shape"])
    inside, pad = np.ones((1, 1, *x.shape[2:]), np.uint64), bool(a.get("count_include_pad"))
    inside = np.pad(inside, [(0, 0), (0, 0), *zip(before, after)], constant_values=1) if pad else inside
    taps, counted = (windows(v, a["kernel_shape"], strides, dilations, b, output) for v, b in (
        (x, before), (inside, [0] * len(before) if pad else before)))
    return div(total(taps, [2]), total(counted, [2])).reshape(*x.shape[:2], *output)

@operator("ReduceSum ReduceMean ReduceSumSquare ReduceL2", "axes keepdims noop_with_empty_axes")
def reduce(a, x, axes=None):
    axes = [int(i) % x.ndim for i in a.get("axes", axes if axes is not None else [])]
    axes = axes or ([] if a.get("noop_with_empty_axes") else range(x.ndim))
    x = mul(x, x) if a.op in ("ReduceSumSquare", "ReduceL2") else x
    y = mean(x, axes) if a.op == "ReduceMean" else total(x, axes)
    y = root(y) if a.op == "ReduceL2" else y
    return y if a.get("keepdims", 1) else np.squeeze(y, tuple(axes))

def normalize(x, axes, epsilon, centred=True):
    """The normalized value, the mean, and one by the root of the variance."""
    middle = mean(x, axes) if centred else np.zeros((), np.uint64)
    rstd = inverse(root(add(mean(power(sub(x, middle), 2), axes), const(np.float32(epsilon)))))
    return mul(sub(x, middle), rstd), middle, rstd

@operator("BatchNormalization", "epsilon momentum training_mode spatial is_test")
def batch_normalization(a, x, *parameters):
    if a.get("training_mode") or a.outputs > 1 or not a.get("spatial", 1) or a.opset < 7 and not a.get("is_test"):
        raise Uninterpreted
    scale, bias, middle, variance = (channels(v, x) for v in parameters)
    return add(mul(div(sub(x, middle), root(add(variance, const(np.float32(a.get("epsilon", 1e-5)))))), scale), bias)

@operator("InstanceNormalization GroupNormalization", "epsilon num_groups stash_type")
def group_normalization(a, x, scale, bias):
    groups = x.reshape(len(x), a.get("num_groups", x.shape[1]), -1, *x.shape[2:])
    scale, bias = (v.reshape(1, groups.shape[1], -1, *[1] * (x.ndim - 2)) for v in (scale, bias))
    return add(mul(normalize(groups, range(2, groups.ndim), a.get("epsilon", 1e-5))[0], scale), bias).reshape(x.shape)

@operator("LayerNormalization RMSNormalization SimplifiedLayerNormalization", "axis epsilon stash_type")
def layer_normalization(a, x, scale, bias=None):
    axes, centred = range(a.get("axis", -1) % x.ndim, x.ndim), a.op == "LayerNormalization"
    y, middle, rstd = normalize(x, axes, a.get("epsilon", 1e-5), centred)
    y = mul(y, scale) if bias is None else add(mul(y, scale), bias)
    return [y, middle, rstd] if centred else [y, rstd]

@operator("SkipLayerNormalization SkipSimplifiedLayerNormalization", "epsilon")
def skip_layer_normalization(a, x, skip, scale, *rest):
    centred = a.op == "SkipLayerNormalization"
    shift, bias = (*(rest if centred else (None, *rest)), None, None)[:2]
    x = add(x, skip) if bias is None else add(x, skip, bias)
    y, middle, rstd = normalize(x, [x.ndim - 1], a.get("epsilon", 1e-12), centred)
    return [mul(y, scale) if shift is None else add(mul(y, scale), shift), middle, rstd, x]

@operator("Softmax LogSoftmax", "axis")
def softmax(a, x):
    axis = a.get("axis", -1 if a.opset >= 13 else 1)
    lanes = np.moveaxis(x, axis, -1) if a.opset >= 13 else x.reshape(math.prod(x.shape[:axis % x.ndim]), -1)
    place, seed = np.arange(lanes.shape[-1], dtype=np.uint64), hashed(a.point, a.op)
    whole = scramble(seed, sub(lanes, lanes[..., :1]), place).sum(-1, keepdims=True, dtype=np.uint64)
    y = scramble(seed, whole, place) % P
    return np.moveaxis(y, -1, axis) if a.opset >= 13 else y.reshape(x.shape)

# Graphs.
class Graph:
    """A model with its functions expanded, and its stored tensors apart from its nodes."""
    def __init__(self, model):
        model = inliner.inline_local_functions(model) if model.functions else model
        self.opsets, graph = {o.domain.replace("ai.onnx", "") if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}, model.graph
        self.tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        constants = [n for n in graph.node if n.op_type == "Constant" and n.attribute[0].name.startswith("value")]
        self.tensors.update((n.output[0], reference([n], {}, n.output, self.opsets)[0]) for n in constants)
        self.nodes, self.outputs = [n for n in graph.node if n.output[0] not in self.tensors], [o.name for o in graph.output]
        self.inputs = {i.name: i.type.tensor_type for i in graph.input if model.ir_version >= 4 or i.name not in self.tensors}
        self.producers = {name: (i, node) for i, node in enumerate(self.nodes) for name in node.output if name}

    def extents(self, sizes, default):
        return {name: [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, default) for d in type_.shape.dim]
                for name, type_ in self.inputs.items() if type_.HasField("shape")}

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
    def __init__(self, graph, point, extents, recipes={}, keep=(), record=False):
        self.graph, self.point, self.recipes, self.bound = graph, point, recipes, 0
        self.values, self.degrees, self.digests, self.captures = {}, {n: 1 for n in graph.inputs}, {}, {}
        for name, type_ in graph.inputs.items():
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
            if name not in self.recipes and name not in self.graph.tensors:
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
            elif name and node is None or node is not None and any(a.type in (5, 10) for a in node.attribute):
                return None
            elif name and index not in nodes:
                nodes[index], todo = node, todo + list(node.input)
        return [nodes[i] for i in sorted(nodes)], feeds

    def number(self, name):
        """What a value is in numbers, if no input reaches it."""
        part = self.closure(name)
        try:
            return part if part is None else part[1][name] if name in part[1] else reference(*part, [name], self.graph.opsets)[0]
        except Exception:
            return None

    def apply(self, node):
        captures, op, domain = {}, node.op_type, "" if node.domain == "ai.onnx" else node.domain
        said = attribute_text(node, captures)
        x = [self.read(n) if n else None for n in [*node.input, *captures]]
        a = Attributes((k.name, helper.get_attribute_value(k)) for k in node.attribute)
        a.op, a.opset, a.outputs, a.point = op, self.graph.opsets.get("", 1), len([n for n in node.output if n]), self.point
        a.number = lambda i: self.number(node.input[i])
        a.function = lambda name, v: scramble(hashed((self.point, "", name, "", [], False), [False]), v) % P
        degrees = [self.degrees.get(n, 0) for n in node.input]
        arrays = all(v is None or isinstance(v, np.ndarray) for v in x) and (domain == "" or domain == "com.microsoft" and op in MICROSOFT)
        y = self.interpret(node, a, x) if arrays and not captures else [x[0]] if op == "Identity" else None
        degree = sum(degrees) if op in BILINEAR else 1 if y is None or op in ANEW or "Norm" in op else max(degrees, default=0)
        if y is None or op in ("Softmax", "LogSoftmax", "Softsign"):
            self.bound += max(degrees, default=0) / P
        if y is None:
            seed = self.point, domain, op, node.overload, said, op in RANDOM and node.name
            y = self.elementwise(a, x, seed) if arrays and op in ELEMENTWISE else list(self.uninterpreted(node, x, seed))
        for name, value in zip(node.output, y if isinstance(y, list) else [y]):
            self.values[name] = value if isinstance(value, bytes) else np.asarray(value)
            self.degrees[name] = 2 * degree if op == "ReduceSumSquare" else degree

    def interpret(self, node, a, x):
        """The results of an operator of the table, or None."""
        op, whole, (function, attributes) = a.op, all(v is None or v.dtype != np.uint64 for v in x), ARITHMETIC.get(a.op, (None, []))
        if op in RANDOM and (op != "Dropout" or a.opset < 7 and not a.get("is_test") or len(x) > 2 and x[2].any()):
            return None
        try:
            if op in ("Gather", "GatherElements", "GatherND"):  # any index is one
                axes = x[0].shape[a.get("batch_dims", 0):][:x[1].shape[-1]] if op == "GatherND" else x[0].shape[a.get("axis", 0)]
                x[1] = x[1] % np.array(axes)
            if op == "CastLike" and x[0].dtype != np.uint64 and x[1].dtype == np.uint64:
                return image(x[0])
            if op in MOVES:
                y = reference([node], {n: v for n, v in zip(node.input, x) if n}, node.output, self.graph.opsets)
                return [stored(v) if whole or v.dtype != np.uint64 else v % P if op == "CumSum" else v for v in y]
            if function and set(a) <= set(attributes) and x and x[0] is not None and x[0].dtype == np.uint64:
                return function(a, *x)
        except Uninterpreted:
            pass
        except (Undecided, MemoryError):
            raise
        except Exception as error:
            raise Unfit(f"{op} {node.name or node.output[0]}: {error}") from None
        try:
            if op == "Range" or op == "Cast" and not whole:
                return [stored(self.number(node.output[0]))]
            feeds = {n: self.graph.tensors.get(n, v) for n, v in zip(node.input, x) if n}
            return [stored(v) for v in reference([node], feeds, node.output, self.graph.opsets)] if whole else None
        except Exception:
            return None

    def elementwise(self, a, x, seed):
        x = [add(*x)] if a.op in ("BiasGelu", "FastGelu") and len(x) > 1 else x[:1] if a.op == "CastLike" else x
        present = [v for v in x if v is not None]
        kind = "bool" if a.op in TRUTH else kind_of(a["to"]) if a.op == "Cast" else "field" if a.op != "CastLike" else "int"
        return elements(scramble(hashed(seed, [v is None for v in x]), *np.broadcast_arrays(*present)), kind)

    def uninterpreted(self, node, x, seed):
        seed, known, data, types = hashed(seed, [digest(v) for v in x]), {}, {}, {}
        try:
            for name, v in zip(node.input, x):
                if isinstance(v, np.ndarray):
                    known[name] = helper.make_tensor_type_proto(1 if v.dtype == np.uint64 else 9 if v.dtype == bool else 7, v.shape)
                    number = self.number(name) if v.size <= 64 else None
                    data |= {} if number is None else {name: numpy_helper.from_array(number, name)}
            domain = node.domain.replace("ai.onnx", "") if node.domain == "ai.onnx" else node.domain
            schema, imports = onnx.defs.get_schema(node.op_type, self.graph.opsets[domain], domain), [helper.make_opsetid(*o) for o in self.graph.opsets.items()]
            types = shape_inference.infer_node_outputs(schema, node, known, data, opset_imports=imports)
        except Exception:
            pass  # the results are opaque
        for i, type_ in enumerate(types[n].tensor_type if n in types else None for n in node.output):
            whole = type_ and type_.HasField("shape") and all(d.HasField("dim_value") for d in type_.shape.dim)
            kind = whole and kind_of(type_.elem_type)
            yield random(hashed(seed, i), [d.dim_value for d in type_.shape.dim], kind) if kind else hashed(seed, i)

# Recipes. A value is (an array of the field,), or (numbers, magnitudes): it is off by at most the unit times its magnitude.
def lift(f): return lambda step, *x: (f(*(v[0] for v in x)),)
def both(f): return lambda step, *x: tuple(f(step, *parts) for parts in zip(*x))

def convolved(step, w, x, product):
    names = "kernel", "strides", "dilations", "before", "output", "transposed"
    seen = windows(x.reshape(*x.shape[:2], *step["input"]), *(step[k] for k in names))
    return product(w.reshape(*w.shape[:2], -1), seen.reshape(len(x), -1, seen.shape[-1]))

SHAPED = {
    "reshape": both(lambda s, x: x.reshape(s["shape"])), "expand": both(lambda s, x: np.broadcast_to(x, s["shape"])),
    "transpose": both(lambda s, x: x.transpose(s["perm"])), "concat": both(lambda s, *x: np.concatenate(x, s["axis"])),
    "pick": both(lambda s, x: with_zero(x, s["axis"]).take([x.shape[s["axis"]] if i is None else i for i in s["places"]], s["axis"])),
}
IN_FIELD = SHAPED | {
    "neg": lift(neg), "sqrt": lift(root), "add": lift(add), "sub": lift(sub), "mul": lift(mul), "div": lift(div),
    "round": lift(lambda x: x), "sum": both(lambda s, x: total(x, [s["axis"]])), "product": lift(matmul),
    "conv": both(lambda s, w, x: convolved(s, w, x, matmul)),
}
IN_NUMBERS = SHAPED | {
    "neg": lambda s, a: (-a[0], a[1]),
    "sqrt": lambda s, a: (np.sqrt(a[0]), np.divide(a[1], np.sqrt(a[0]), out=np.zeros_like(a[0]), where=a[0] > 0)),
    "add": lambda s, a, b: (a[0] + b[0], a[1] + b[1]), "sub": lambda s, a, b: (a[0] - b[0], a[1] + b[1]),
    "mul": lambda s, a, b: (a[0] * b[0], a[1] * b[1]), "div": lambda s, a, b: (a[0] / b[0], a[1] * b[1] / b[0] ** 2),
    "sum": both(lambda s, x: x.sum(s["axis"], keepdims=True)), "product": both(lambda s, a, b: a @ b),
    "conv": both(lambda s, w, x: convolved(s, w, x, np.matmul)),
}

def evaluate(entry, operations, leaf):
    values = []
    for step in entry["steps"]:
        y = leaf(step) if step["op"] in ("constant", "literal") else operations[step["op"]](step, *(values[i] for i in step["inputs"]))
        if list(y[0].shape) != step["shape"]:
            raise Disproved(f"{entry['name']}: a step has the extents {list(y[0].shape)}, not {step['shape']}")
        values.append(y)
    return values[-1]

def literal(step):
    numbers = np.array(step["numbers"], np.float64)
    return np.full(step["shape"], numbers.ravel()[0]) if numbers.size == 1 else numbers.reshape(step["shape"])

def in_field(entry, original):
    return evaluate(entry, IN_FIELD, lambda s: (image(literal(s)) if s["op"] == "literal" else original.read(s["name"]),))[0]

def in_numbers(entry, original, real, unit):
    """The numbers of a recipe, and their magnitudes."""
    def leaf(step):
        v = literal(step) if step["op"] == "literal" else original.number(step["name"])
        return v.astype(real), np.abs(v.astype(real))
    def rounded(step, x):  # near a tie, it may be the other neighbour
        low, high, v = ((x[0] + e * unit * x[1]).astype(number_type(step["data_type"])).astype(real) for e in (-1, 1, 0))
        return v, np.maximum(np.abs(v), x[1]) + (high - low) / unit
    return evaluate(entry, IN_NUMBERS | {"round": rounded}, leaf)

def number_type(name): return np.dtype(getattr(ml_dtypes, name, name))

def check_rounding(entry, array, original):
    """Each element is the value of its recipe within half a unit in the last place, and what sums in float64 may be off."""
    steps = entry["steps"]
    inputs = [steps[s["inputs"][0]]["shape"] if s.get("inputs") else [1] for s in steps]
    terms = [n[s["axis"]] if s["op"] == "sum" else n[-1] if s["op"] == "product" else n[-1] * n[-2] if s["op"] == "conv" else 1 for s, n in zip(steps, inputs)]
    computed = [original.closure(s["name"]) for s in steps if s["op"] == "constant"]
    if None in computed:
        raise Disproved(f"{entry['name']} is made of what is no constant")
    rough = {n.op_type for part in computed for n in part[0]} - ROUNDED  # such as a Softmax of stored numbers
    real, unit, limits = np.longdouble if array.dtype == np.float64 else np.float64, 2.0**-52 * sum(terms), ml_dtypes.finfo(array.dtype)
    value, size = in_numbers(entry, original, real, unit)
    exponent = np.frexp(np.maximum(np.abs(value), np.abs(array.astype(real))))[1] - 1
    ulp = np.ldexp(real(1), np.maximum(exponent, limits.minexp) - limits.nmant)
    allowed = (ulp + 8 * float(limits.eps) * size if rough else ulp / 2) + unit * size
    if array.shape != value.shape or not (np.abs(array.astype(real) - value) <= allowed).all():
        raise Disproved(f"{entry['name']} is not its recipe, rounded")

# The verdict.
def check_tensors(fused, original, entries):
    def key(array): return array.dtype.name, array.shape, hashlib.sha256(np.ascontiguousarray(array)).digest()
    there = {key(a) for a in original.graph.tensors.values() if a.dtype != object}
    for name, array in fused.tensors.items():
        if name in entries:
            if array.dtype != number_type(entries[name]["data_type"]) or list(array.shape) != entries[name]["shape"]:
                raise Disproved(f"{name} has another type or other extents than its recipe")
            check_rounding(entries[name], array, original)
        elif "float" in array.dtype.name and key(array) not in there:
            raise Disproved(f"{name} has no recipe and is no tensor of the original")

def prove(original, fused, certificate, sizes, seed, points):
    """The bound on the probability of being wrong."""
    entries, bound, done, tried = {t["name"]: t for t in certificate.get("tensors", [])}, 1.0, 0, 0
    keep = [s["name"] for t in entries.values() for s in t["steps"] if s["op"] == "constant"]
    if list(original.inputs) != list(fused.inputs) or original.outputs != fused.outputs:
        raise Disproved("the inputs or outputs have other names")
    while done < points:
        point, tried = hashed(seed, tried), tried + 1
        try:
            first, extents = run_original(original, point, sizes, keep)
            if not done:
                check_tensors(fused, first, entries)
            recipes = {name: lambda entry=entry: in_field(entry, first) for name, entry in entries.items()}
            second = Run(fused, point, extents, recipes)
        except Undecided:
            if tried == 4 * points:
                raise
            continue
        except Unfit as error:
            raise Disproved(str(error)) from None
        for name in original.outputs:
            if digest(first.outputs[name]) != digest(second.outputs[name]):
                custom = [{n.op_type for n in g.nodes if n.domain not in ("", "ai.onnx", "com.microsoft")} for g in (original, fused)]
                if custom[0] - custom[1]:
                    raise Undecided(f"{min(custom[0] - custom[1])} of a custom domain is written out: this checker does not know it")
                first = Run(original, point, extents, keep=keep, record=True)
                raise Disproved(parting(first, Run(fused, point, extents, recipes, record=True), name, entries, certificate))
        bound, done = bound * min(1.0, second.bound), done + 1
    return bound

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
            name, sites = node.output[0] if same else name, [s for n in node.input for s in entries.get(n, {}).get("sites", [])] or sites
    return f"{output} differs, from {name} on" + "".join(f", by {certificate['sites'][s]['name']}" for s in sites)

def check_files(part, path):
    for file, wanted in {path: part["sha256"], **{path.parent / name: d for name, d in part["data"].items()}}.items():
        if hashlib.sha256(file.read_bytes()).hexdigest() != wanted:
            raise Disproved(f"{file.name} is not the file that the certificate is for")

def main():
    parser = argparse.ArgumentParser(description="Proves that FUSED computes what ORIGINAL does.")
    for name in "original", "fused", "--certificate":
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", type=int, default=1)
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
