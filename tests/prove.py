"""Checks that a folded model computes what its original does: the second checker of docs/proof.md.

    python tests/prove.py ORIGINAL FUSED [--certificate FILE] [--dim NAME=SIZE] [--seed N]

It is written from that page, and shares no code with unfold. Operators are computed by the
reference evaluator of the onnx package, on arrays that add and multiply as the field does. Models
with bodies (If, Loop, Scan) it leaves undecided. Needs numpy and onnx.
Exit codes: 0 proved, 1 a file is unreadable, 2 usage, 3 disproved, 4 undecided.
"""
import argparse, hashlib, json, math, pathlib, sys
from collections import Counter, namedtuple
import ml_dtypes, numpy as np, onnx
from onnx import helper, inliner, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_conv import _conv_implementation as convolution

P = 2**31 - 819129
POWERS = np.array([pow(2, k if k < 2048 else k - 4096, P) for k in range(4096)], np.uint64)  # or -k
LARGEST = 2**28  # elements of one value
class Disproved(Exception): pass
class Undecided(Exception): pass
class Uninterpreted(Exception): pass  # this use of an operator is not in the table

# The field: arrays of uint64 below P.
def image(numbers):
    numbers = np.asarray(numbers)
    if numbers.dtype.kind in "iub":
        return (numbers.astype(np.int64) % P).astype(np.uint64)
    mantissa, exponent = np.frexp(numbers.astype(np.float64))
    mantissa = (np.ldexp(mantissa, 53).astype(np.int64) % P).astype(np.uint64)
    return mantissa * POWERS[exponent - 53] % P

def power(a, exponent):
    result = np.ones_like(a)
    for bit in bin(exponent)[2:]:
        result = result * result % P
        result = result * a % P if bit == "1" else result
    return result

def root(a): return power(a, (P + 1) // 4)
def inverse(a):
    if (a == 0).any():
        raise Undecided("a divisor is 0")
    return power(a, P - 2)

EXPONENTS = {int(image(n)): n for n in [*range(-8, 9), 0.5, -0.5]}
def raised(a, exponent):
    number = EXPONENTS.get(int(exponent.flat[0])) if (exponent == exponent.flat[:1]).all() else None
    if number is None:
        raise Uninterpreted
    y = root(a) if abs(number) == 0.5 else power(a, abs(number))
    return np.broadcast_to(inverse(y) if number < 0 else y, np.broadcast(a, exponent).shape)

def products(f, a, b, terms):
    """f(a, b), each result a sum of so many products: exact in float64, for small digits of b."""
    width = 24 - max(terms - 1, 0).bit_length()
    a, b = (np.where(x > P // 2, x.astype(np.int64) - P, x.astype(np.int64)) for x in (a, b))
    result, shift, a, half = 0, 0, a.astype(np.float64), 1 << (width - 1)
    while shift == 0 or b.any():
        digit = ((b + half) & (2 * half - 1)) - half
        part = (f(a, digit.astype(np.float64)).astype(np.int64) % P).astype(np.uint64)
        result = (result + part * POWERS[shift]) % P
        b, shift = (b - digit) >> width, shift + width
    return result

def einsum(equation, a, b=np.ones((), np.uint64), *more):
    if more:
        raise Uninterpreted
    def f(p, q): return np.einsum(equation, p, *[q][:equation.count(",")], optimize=True)
    return products(f, a, b, int(f(np.ones(a.shape), np.ones(b.shape)).max(initial=1)))

UFUNCS = {
    np.add: lambda a, b: (a + b) % P, np.subtract: lambda a, b: (a + (P - b)) % P,
    np.multiply: lambda a, b: a * b % P, np.divide: lambda a, b: a * inverse(b) % P,
    np.negative: lambda a: (P - a) % P, np.square: lambda a: a * a % P, np.reciprocal: inverse,
    np.sqrt: root, np.power: raised, np.matmul: lambda a, b: products(np.matmul, a, b, a.shape[-1])}

class Field(np.ndarray):
    """Elements of the field, held as float64. Plain numbers beside them stand for their images."""
    def __array_ufunc__(self, ufunc, method, *x, out=None, axis=0, keepdims=False, **_):
        x = [elements(v) for v in x]
        if method == "reduce" and ufunc is np.add:
            y = np.sum(x[0], axis, np.uint64, keepdims=keepdims) % P
        elif method == "accumulate" and ufunc is np.add:
            y = np.cumsum(x[0], axis, np.uint64) % P
        elif method == "__call__" and ufunc in UFUNCS:
            y = UFUNCS[ufunc](*x)
        else:
            raise Uninterpreted
        if out is None:
            return field(y)
        out[0].view(np.ndarray)[...] = y
        return out[0]

    def __array_function__(self, function, types, x, options):
        if function is np.dot:  # of at most two axes
            return np.matmul(*x)
        if function is np.einsum:
            return field(einsum(x[0], *map(elements, x[1:])))
        return super().__array_function__(function, types, x, options)

    def astype(self, dtype, *_, **__):
        if "float" not in np.dtype(dtype).name:
            raise Uninterpreted
        return self.copy()

def elements(x): return x.view(np.ndarray).astype(np.uint64) if isinstance(x, Field) else image(x)
def field(elements): return np.asarray(elements, np.float64).view(Field)

def of_elements(y):
    """What an operator made of elements, and of sums of them that were not reduced."""
    y = np.asarray(y, np.float64)
    if not (np.abs(y) < 2.0**53).all() or (y != np.floor(y)).any():
        raise Uninterpreted
    return field(y % P)

# Digests and random elements.
def hashed(*parts): return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()

def digest(x):
    if not isinstance(x, np.ndarray):
        return x
    numbers = np.ascontiguousarray(x.view(np.ndarray))
    return hashed(type(x), numbers.dtype.str, x.shape, hashlib.blake2b(numbers).digest())

def mix(x):
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x

def scramble(seed, *arrays):
    """Random bits, a function of the elements at each place."""
    state = np.frombuffer(seed, np.uint64)[:1]
    for x in arrays:
        bits = x.view(np.ndarray).astype(np.uint64)
        state = mix(mix(state + np.uint64(0x9E3779B97F4A7C15)) ^ bits)
    return mix(state + np.uint64(1))

def drawn(bits, kind):
    if kind == "field":
        return field(bits % P)
    return bits % 2 == 1 if kind == "bool" else (bits % 100).astype(np.int64)

def random(seed, shape, kind):
    if math.prod(shape) > LARGEST:
        raise Undecided("a value is too large")
    return drawn(scramble(seed, np.arange(math.prod(shape))), kind).reshape(shape)

def kind_of(data_type):
    name = onnx.TensorProto.DataType.Name(data_type)
    if name == "BOOL":
        return "bool"
    return "field" if "FLOAT" in name or name == "DOUBLE" else "int" if "INT" in name else None

def is_float(array): return "float" in array.dtype.name

def stored(array):
    """The value of numbers."""
    if array.dtype.kind in "OSUc":
        return hashed(array.shape, array.tolist())
    if not is_float(array):
        return array if array.dtype == bool else array.astype(np.int64)
    array = np.ascontiguousarray(array, np.float64).reshape(array.shape)
    if np.isfinite(array).all():
        return field(image(array))
    return drawn(scramble(hashed("not finite"), array.view(np.uint64)), "field")

# Operators. What moves elements, and arithmetic, the reference evaluator computes in the field.
MOVES = set("""Identity Shape Size Reshape Transpose Squeeze Unsqueeze Flatten Slice Split
    Concat Gather GatherND GatherElements Expand Tile DepthToSpace SpaceToDepth Where Pad
    ConstantOfShape CumSum Trilu""".split())
ARITHMETIC = set("""Add Sub Mul Div Neg Sum Mean Reciprocal Sqrt Pow MatMul Gemm Einsum Conv
    ConvTranspose ReduceSum ReduceMean ReduceSumSquare ReduceL2 GlobalAveragePool
    InstanceNormalization LayerNormalization RMSNormalization""".split())
LEFT = set("""Clip HardSigmoid HardSwish GroupNormalization Resize Upsample ScatterND
    ScatterElements LSTM GRU RNN""".split())  # the table has more of them than this checker
ELEMENTWISE = set("""Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual And Or Xor Not
    Abs Acos Acosh Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    Cast CastLike Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish
    LeakyRelu Log Max Min Mish Mod Pow PRelu Relu Round Selu Shrink Sigmoid Sign Sin Sinh
    Softplus Swish Tan Tanh ThresholdedRelu""".split())
RANDOM = set("""RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli
    Dropout""".split())
PASSES = set("""Abs GlobalMaxPool LeakyRelu MaxPool PRelu ReduceL1 ReduceMax ReduceMin Relu Max
    Min""".split())  # f(kx) = kf(x) for k > 0, of the first input or of all
BILINEAR = set("Mul MatMul Gemm Einsum Conv ConvTranspose".split())  # degrees add up
ANEW = set("Div Sqrt Pow Reciprocal ReduceL2 Softmax LogSoftmax Softsign".split())  # as if random
ROUNDED = MOVES | set("Add Sub Mul Div Sqrt Neg Reciprocal Cast CastLike".split())  # once, anywhere
DECIDED = {"exp": "Exp", "sigmoid": "Sigmoid", "softmax": "Softmax", "max": "ReduceMax"}
NOTHING = 2.0**-64  # what is decided by numbers, and smaller, counts as 0

def reference(node, feeds, opsets):
    inputs = [helper.make_tensor_value_info(n, 1, None) for n in feeds]
    outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
    imports = [helper.make_opsetid(*o) for o in opsets.items()]
    graph = helper.make_graph([node], "part", inputs, outputs)
    with np.errstate(all="ignore"):
        made = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports)).run(None, feeds)
    return [np.asanyarray(v) for v in made]

def cast(a, x, like=None):
    if kind_of(a["to"]) != "field" if like is None else not isinstance(like, Field):
        raise Uninterpreted
    return x if isinstance(x, Field) else field(image(x))

def average_pool(a, x):
    kernel, auto = a["kernel_shape"], a.get("auto_pad", b"NOTSET").decode()
    if a.get("ceil_mode") or set(a.get("dilations", [])) - {1}:
        raise Uninterpreted
    def sums(x):
        ones, sizes = field(np.ones((x.shape[1], 1, *kernel))), (a.get("pads"), a.get("strides"))
        return convolution(x, ones, None, auto, None, x.shape[1], kernel, *sizes)
    return sums(x) / (math.prod(kernel) if a.get("count_include_pad") else sums(field(x * 0 + 1)))

def batch_normalization(a, x, *parameters):
    if a.get("training_mode") or a["outputs"] > 1 or a["opset"] < 7:
        raise Uninterpreted
    scale, bias, mean, variance = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in parameters)
    return (x - mean) / np.sqrt(variance + np.float32(a.get("epsilon", 1e-5))) * scale + bias

def softmax(a, x):
    """A lane is a function of the differences to its first element."""
    axis, one = a.get("axis", -1 if a["opset"] >= 13 else 1), a["opset"] >= 13
    lanes = np.moveaxis(x, axis, -1) if one else x.reshape(math.prod(x.shape[:axis % x.ndim]), -1)
    seed, place = hashed(a["point"], a["op"]), np.arange(lanes.shape[-1])
    whole = scramble(seed, lanes - lanes[..., :1], place).sum(-1, keepdims=True, dtype=np.uint64)
    y = drawn(scramble(seed, whole, place), "field")
    return np.moveaxis(y, -1, axis) if one else y.reshape(x.shape)

SPECIAL = {
    "AveragePool": average_pool, "BatchNormalization": batch_normalization, "Softmax": softmax,
    "Softsign": lambda a, x: x / (a["function"]("Abs", x) + 1), "LogSoftmax": softmax,
    "Cast": cast, "CastLike": cast, "Dropout": lambda a, x, *_: [x, np.ones(x.shape, bool)]}

# What comes of numbers alone by these is decided by the numbers, in float64.
def flushed(x, below=NOTHING): return np.where(np.abs(x) < below, 0, x)

def shares(y, axis):
    """The value of a Softmax: where all of a lane are the same, each is one by how many."""
    even = (y == y.take([0], axis)).all(axis, keepdims=True)
    return field(np.where(even, inverse(image(y.shape[axis])), elements(stored(flushed(y)))))

def sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x > 0, 1, small) / (1 + small)

def softmax_of(x, axis):
    lanes = np.ascontiguousarray(np.moveaxis(x, axis, -1))  # the same sums, wherever the axis is
    powers = np.exp(lanes - lanes.max(-1, keepdims=True))
    return np.moveaxis(powers / powers.sum(-1, keepdims=True), -1, axis)

def decide(a, x, y):
    if a["op"] == "Softmax":
        return shares(softmax_of(x, a.get("axis", -1)), a.get("axis", -1))
    return stored(flushed({"Exp": np.exp, "Sigmoid": sigmoid}.get(a["op"], lambda x: y)(x)))

Number = namedtuple("Number", "own wide ops")  # rounded as it goes, in float64, made by what

class Graph:
    """A model with its functions expanded, and its stored tensors apart from its nodes."""
    def __init__(self, model):
        graph = inliner.inline_local_functions(model).graph
        self.opsets = {o.domain.replace("ai.onnx", ""): o.version for o in model.opset_import}
        self.tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                self.tensors[node.output[0]], = reference(node, {}, self.opsets)
        self.nodes = [n for n in graph.node if n.output[0] not in self.tensors]
        self.bodies = [n.op_type for n in graph.node for a in n.attribute if a.HasField("g")]
        self.outputs = [o.name for o in graph.output]
        self.inputs = {i.name: i.type.tensor_type for i in graph.input
                       if model.ir_version >= 4 or i.name not in self.tensors}

    def extents(self, sizes):
        def extent(d): return d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, 2)
        return {name: [extent(d) for d in type_.shape.dim]
                for name, type_ in self.inputs.items() if type_.HasField("shape")}

class Run:
    """A graph evaluated at a point."""
    def __init__(self, graph, point, extents, recipes={}, keep=(), scales=None):
        self.graph, self.point, self.recipes, self.scales = graph, point, recipes, scales
        self.values, self.numbers, self.digests, self.bound = {}, {}, {}, 0
        self.degrees = dict.fromkeys(graph.inputs, 1)
        for name, type_ in graph.inputs.items():
            seed, kind = hashed(point, "input", name), name in extents and kind_of(type_.elem_type)
            self.values[name] = random(seed, extents[name], kind) if kind else seed
        left = Counter([*graph.outputs, *keep, *(n for node in graph.nodes for n in node.input)])
        for node in graph.nodes:
            self.apply(node)
            for name in node.input:
                left[name] -= 1
                if not left[name]:
                    self.values.pop(name, None)
        self.outputs = {name: self.read(name) for name in graph.outputs}
        self.bound += sum(self.degrees.get(name, 0) for name in graph.outputs) / P

    def read(self, name):
        if name not in self.values and name in self.graph.tensors:
            tensor = self.graph.tensors[name]
            self.values[name] = self.recipes[name]() if name in self.recipes else stored(tensor)
        return self.values.get(name)

    def number(self, name):
        """What a value is in numbers, if no input reaches it."""
        if name in self.graph.tensors and name not in self.graph.inputs:
            own = self.graph.tensors[name]
            return Number(own, own.astype(np.float64) if is_float(own) else own, set())
        return self.numbers.get(name)

    def compute(self, node):
        """The results in numbers, if no input reaches them."""
        known = {n: self.number(n) for n in node.input if n}
        type_ = self.graph.inputs.get(node.input[1]) if node.op_type == "CastLike" else None
        if type_:  # nothing but its type counts
            like = np.zeros((), helper.tensor_dtype_to_np_dtype(type_.elem_type))
            known[node.input[1]] = Number(like, like, set())
        if None in known.values() or node.op_type in RANDOM:
            return None
        try:
            feeds = ({n: getattr(k, part) for n, k in known.items()} for part in ("own", "wide"))
            own, wide = (reference(node, feed, self.graph.opsets) for feed in feeds)
        except Exception:
            return None
        wide = [known[node.input[0]].wide] if node.op_type in ("Cast", "CastLike") else wide
        wide = [w.astype(np.float64) if is_float(o) else o for o, w in zip(own, wide)]
        ops = {node.op_type}.union(*(k.ops for k in known.values()))
        return [Number(o, w, ops) for o, w in zip(own, wide)]

    def apply(self, node):
        op, x = node.op_type, [self.read(n) if n else None for n in node.input]
        a = {k.name: helper.get_attribute_value(k) for k in node.attribute}
        a |= {"op": op, "opset": self.graph.opsets.get("", 1)}
        plain = node.domain in ("", "ai.onnx") and not any(isinstance(v, bytes) for v in x)
        numbers, y, guess = self.compute(node), None, False
        if numbers and plain and op in DECIDED.values() and is_float(numbers[0].own):
            y = [decide(a, self.number(node.input[0]).wide, numbers[0].wide)]
        elif plain and not (numbers and not any(is_float(n.own) for n in numbers)):
            y = self.interpret(node, a, x)
        if y is None and numbers:
            y = [stored(n.own) for n in numbers]
        if y is None:
            y, guess = self.function(node, x, plain), True
        if op in ("Shape", "Size") and not guess:
            numbers = [Number(v, v, set()) for v in y]
        degrees = [self.degrees.get(n, 0) for n in node.input]
        most, anew = max(degrees, default=0), op in ANEW or "Norm" in op
        self.bound += most / P if guess or op in ("Softmax", "LogSoftmax", "Softsign") else 0
        degree = 1 if guess or anew else sum(degrees) if op in BILINEAR else most
        named = [n for n in node.output if n] if len(y) < len(node.output) else node.output
        for i, (name, value) in enumerate(zip(named, y)):
            self.values[name], self.degrees[name] = value, degree * (1 + (op == "ReduceSumSquare"))
            self.digests[name] = digest(value)
            if numbers:
                self.numbers[name] = numbers[i]

    def interpret(self, node, a, x):
        """The results of an operator of the table, or None."""
        op, real = node.op_type, [isinstance(v, Field) for v in x]
        trains = op == "Dropout" and (a["opset"] < 7 or len(x) > 2 and x[2].any())
        known = op in MOVES or op in SPECIAL or op in ARITHMETIC and real[0]
        if not any(real) and not known and op not in RANDOM:  # of integers alone
            try:
                y = reference(node, {n: v for n, v in zip(node.input, x) if n}, self.graph.opsets)
                return None if any(map(is_float, y)) else [stored(v) for v in y]
            except Exception:
                return None
        if not known or trains or not {k.name for k in node.attribute} <= {
                *onnx.defs.get_schema(op, a["opset"]).attributes}:
            return None
        def function(op, x):
            return self.function(helper.make_node(op, ["an operand"], ["a result"]), [x], True)[0]
        more = {"outputs": len(node.output), "point": self.point, "function": function}
        try:
            if op in SPECIAL:
                made = SPECIAL[op](a | more, *x)
                return made if isinstance(made, list) else [made]
            if op in ("Gather", "GatherElements", "GatherND"):  # any integer is an index
                first, last = a.get("batch_dims", a.get("axis", 0)), np.shape(x[1])[-1:] or (0,)
                extents = x[0].shape[first:][:last[0]] if op == "GatherND" else x[0].shape[first]
                x[1] = x[1] % np.array(extents)
            y = reference(node, {n: v for n, v in zip(node.input, x) if n}, self.graph.opsets)
            return [of_elements(v) if any(real) and is_float(v) else stored(v) for v in y]
        except Uninterpreted:
            return None
        except Exception as error:
            raise Undecided(f"{op} {node.name or node.output[0]}: {error}") from None

    def function(self, node, x, plain):
        """The results of a function that nobody knows."""
        op, said = node.op_type, sorted(k.SerializeToString() for k in node.attribute)
        seed = self.point, node.domain, op, node.overload, said, op in RANDOM and node.name
        count = len(x) if op in ("Max", "Min") else 1
        factor = self.factor(seed, x, count) if self.scales and plain and op in PASSES else None
        x = [v * factor if i < count else v for i, v in enumerate(x)] if factor else x
        y = self.results(node, x, seed, plain and op in ELEMENTWISE)
        if factor:  # as the original has it, divided by what it is multiplied by there
            y = [v / factor if isinstance(v, Field) else v for v in y]
            self.bound += len(self.scales[0]) / P
        return y

    def factor(self, seed, x, count):
        """The positive factor by which what is read has to be multiplied to be what the original
        has there, or had before."""
        positive, original, is_original = self.scales
        whole = [v.view(np.ndarray).ravel() for v in x[:count] if isinstance(v, Field)]
        first = next((int(v) for v in np.concatenate([[], *whole]) if v), 0)
        if not first or len(whole) < count:
            return None
        key = hashed(seed, [digest(v / first if i < count else v) for i, v in enumerate(x)])
        before = original.setdefault(key, [])
        factors = (other * pow(first, -1, P) % P for other in before)
        factor = next((factor for factor in factors if factor in positive | {1}), None)
        if factor is None and is_original:
            before.append(first)
        return factor if factor != 1 else None

    def results(self, node, x, seed, elementwise):
        """Random ones of the extents that shape inference gives: by all that is read, or by what is
        read at the same place."""
        typed, known, types = [], [], {}
        for name, v in dict(zip(node.input, x)).items():
            if isinstance(v, np.ndarray):
                type_ = 1 if isinstance(v, Field) else 9 if v.dtype == bool else 7
                typed.append(helper.make_tensor_value_info(name, type_, v.shape))
                number = self.number(name) if v.size <= 64 else None
                known += [numpy_helper.from_array(number.own, name)] if number else []
        outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
        imports = [helper.make_opsetid(*o) for o in self.graph.opsets.items()]
        try:
            graph = helper.make_graph([node], "part", typed, outputs, known)
            model = helper.make_model(graph, opset_imports=imports)
            inferred = shape_inference.infer_shapes(model, data_prop=True).graph.output
            types = {} if bytes in map(type, x) else {v.name: v.type.tensor_type for v in inferred}
        except Exception:
            pass  # the results are opaque
        def result(i, name):
            type_ = types.get(name, onnx.TypeProto.Tensor())
            shape = [d.dim_value if d.HasField("dim_value") else None for d in type_.shape.dim]
            kind = type_.HasField("shape") and None not in shape and kind_of(type_.elem_type)
            if kind and elementwise:
                used = [v for v in x[:1 if node.op_type == "CastLike" else None] if v is not None]
                places = [np.broadcast_to(v.view(np.ndarray), shape) for v in used]
                return drawn(scramble(hashed(seed, [v is None for v in x]), *places), kind)
            whole = hashed(seed, i, [digest(v) for v in x])
            return random(whole, shape, kind) if kind else whole
        return [result(i, name) for i, name in enumerate(node.output)]

# Recipes. A number comes with a magnitude: it is off by at most the unit times that.
STEPS = {
    "neg": lambda s, x: -x, "sqrt": lambda s, x: np.sqrt(x), "add": lambda s, x, y: x + y,
    "sub": lambda s, x, y: x - y, "mul": lambda s, x, y: x * y, "div": lambda s, x, y: x / y,
    "product": lambda s, x, y: x @ y, "sum": lambda s, x: x.sum(s["axis"], keepdims=True),
    "reshape": lambda s, x: x.reshape(s["shape"]), "transpose": lambda s, x: x.transpose(s["perm"]),
    "expand": lambda s, x: np.broadcast_to(x, s["shape"]),
    "concat": lambda s, *x: np.concatenate(x, s["axis"]),
    "pick": lambda s, x: picked(x, s["axis"], places(s)),
    "conv": lambda s, w, x: convolved(s, w, x),
    "max": lambda s, x: x.max(s["axis"], keepdims=True), "exp": lambda s, x: np.exp(x),
    "sigmoid": lambda s, x: sigmoid(x), "softmax": lambda s, x: softmax_of(x, s["axis"]),
    "round": lambda s, x: x, "flush": lambda s, x: x}
MAGNITUDES = {  # of a result y, where they are not the step on the magnitudes
    "neg": lambda s, y, a: a[1], "sub": lambda s, y, a, b: a[1] + b[1],
    "sqrt": lambda s, y, a: np.divide(a[1], y, out=np.zeros_like(y), where=y > 0),
    "div": lambda s, y, a, b: a[1] * b[1] / b[0] ** 2,
    "exp": lambda s, y, a: y * (a[1] + 4), "sigmoid": lambda s, y, a: y * (a[1] + 8),
    "softmax": lambda s, y, a: y * (2 * a[1].max(s["axis"], keepdims=True, initial=0) + 8)}

def number_type(name): return np.dtype(getattr(ml_dtypes, name, name))

def picked(x, axis, at):
    """Places of an axis, and 0 where there is none."""
    with_zero = np.concatenate([x, x.take([0], axis) * 0], axis)
    there = (at >= 0) & (at < x.shape[axis])
    return with_zero.take(np.where(there, at, x.shape[axis]), axis)

def places(s): return np.array([-1 if place is None else place for place in s["places"]])

def convolved(s, w, x):
    x, rank = x.reshape(*x.shape[:2], *s["input"]), len(s["kernel"])
    for i in range(rank):  # each axis becomes two: the taps, and the places of the result
        place, tap = np.arange(s["output"][i]), np.arange(s["kernel"][i])[:, None]
        tap = tap * s["dilations"][i]
        stride, before = s["strides"][i], s["before"][i]
        at = place + before - tap if s["transposed"] else place * stride - before + tap
        at = np.where(at % stride, -1, at // stride) if s["transposed"] else at
        x = picked(x, 2 + 2 * i, at)
    x = x.transpose([0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2)])
    return w.reshape(*w.shape[:2], -1) @ x.reshape(len(x), -1, math.prod(s["output"]))

def literal(step):
    return np.broadcast_to(np.float64(step["numbers"]).reshape(
        step["shape"] if len(step["numbers"]) > 1 else ()), step["shape"])

def evaluate(entry, leaf, compute):
    """The values of the steps of a recipe."""
    values = []
    for step in entry["steps"]:
        if step["op"] not in ("constant", "literal", *STEPS):
            raise Undecided(f"this checker does not know the step {step['op']}")
        inputs = [values[i] for i in step.get("inputs", [])]
        values.append(compute(step, *inputs) if step["op"] in STEPS else leaf(step))
        value = values[-1][0] if isinstance(values[-1], tuple) else values[-1]
        if list(value.shape) != step["shape"]:
            raise Disproved(f"{entry['name']}: a step has other extents than {step['shape']}")
    return values

def in_numbers(entry, original, real=np.float64, wide=False, drops={}):
    """The numbers of the steps of a recipe, and their magnitudes."""
    def leaf(step):
        v = literal(step) if step["op"] == "literal" else original.number(step["name"])
        v = (v.wide if wide else v.own) if isinstance(v, Number) else v
        return v.astype(real), np.abs(v.astype(real))
    def compute(step, *x):
        op = step["op"]
        if op in drops:
            return drops[op](step, *x)
        y = np.asarray(STEPS[op](step, *(v for v, _ in x)))
        if op in MAGNITUDES:
            return y, MAGNITUDES[op](step, y, *x)
        return y, STEPS[op](step, *(size for _, size in x))
    with np.errstate(all="ignore"):
        return evaluate(entry, leaf, compute)

def in_field(entry, original):
    """The values of the steps of a recipe."""
    decided = any(s["op"] in DECIDED for s in entry["steps"])
    numbers = in_numbers(entry, original, wide=True) if decided else []
    numbers = {id(step): number for step, (number, _) in zip(entry["steps"], numbers)}
    def leaf(step):
        is_literal = step["op"] == "literal"
        return field(image(literal(step))) if is_literal else original.read(step["name"])
    def compute(step, *x):
        if step["op"] == "softmax":
            return shares(numbers[id(step)], step["axis"])
        if step["op"] in DECIDED:
            return stored(flushed(numbers[id(step)]))
        return of_elements(STEPS[step["op"]](step, *x))
    return evaluate(entry, leaf, compute)

def positive_factors(entries, original):
    """What recipes may have moved through operators that positive factors pass."""
    parts = {1}
    for entry in entries.values():
        steps = zip(in_numbers(entry, original), in_field(entry, original))
        parts |= {int(v.item()) for (n, _), v in steps if v.size == 1 and 0 < n.item() < np.inf}
        if len(parts) > 64:
            break
    parts |= {pow(part, -1, P) for part in parts if part}
    return {a * b % P for a in parts for b in parts}

def check_rounding(entry, array, original):
    """Each element is its recipe within half a unit in the last place, and what sums may be off."""
    steps, limits = entry["steps"], ml_dtypes.finfo(array.dtype)
    real = np.longdouble if array.dtype == np.float64 else np.float64
    used = [original.number(s["name"]) for s in steps if s["op"] == "constant"]
    if None in used:
        raise Undecided(f"{entry['name']} is made of what this checker knows as no constant")
    types = {array.dtype, *(n.own.dtype for n in used)}
    if any(s["op"] == "flush" and s["below"] > NOTHING
           or s["op"] == "round" and number_type(s["data_type"]) not in types for s in steps):
        raise Disproved(f"the recipe of {entry['name']} drops more than it may")
    rough = any(n.ops - ROUNDED and np.any(n.own != n.wide) for n in used)  # such as of a Softmax
    def terms(step):
        extents = steps[step["inputs"][0]]["shape"]
        return math.prod(extents[-2:]) if step["op"] == "conv" else extents[step.get("axis", -1)]
    summed = [terms(s) for s in steps if s["op"] in ("sum", "softmax", "product", "conv")]
    unit = 2.0**-52 * (len(steps) + sum(summed))
    def near(f):  # where it may be the other neighbour
        def bounded(step, x):
            y, low, high = (f(step, x[0] + e * unit * x[1]) for e in (0, -1, 1))
            return y, np.maximum(np.abs(y), x[1]) + (high - low) / unit
        return bounded
    value, size = in_numbers(entry, original, real, drops={
        "flush": near(lambda s, x: flushed(x, s["below"])),
        "round": near(lambda s, x: x.astype(number_type(s["data_type"])).astype(real))})[-1]
    held = array.astype(real)
    least = np.minimum(np.abs(value), np.abs(held))  # below a power of 2, units are smaller
    exponent = np.frexp(np.maximum(least, np.ldexp(real(1), limits.minexp)))[1]
    ulp = np.ldexp(real(1), exponent - 1 - limits.nmant)
    allowed = unit * size + ulp / 2
    if rough:
        allowed += ulp / 2 + 64 * float(limits.eps) * size.max(initial=0)
    with np.errstate(invalid="ignore"):
        same = np.isclose(held, value, 0, 0, True) | (np.abs(held - value) <= allowed)
    if array.shape != value.shape or not same.all():
        raise Disproved(f"{entry['name']} is not its recipe, rounded")

def check_tensors(fused, original, entries):
    def key(a): return a.dtype.name, a.shape, hashlib.sha256(np.ascontiguousarray(a)).digest()
    there = {key(a) for a in original.graph.tensors.values() if is_float(a)}
    for name, array in fused.tensors.items():
        if name in entries:
            type_, shape = number_type(entries[name]["data_type"]), entries[name]["shape"]
            if array.dtype != type_ or list(array.shape) != shape:
                raise Disproved(f"{name} has another type or other extents than its recipe")
            check_rounding(entries[name], array, original)
        elif is_float(array) and key(array) not in there:
            raise Disproved(f"{name} has no recipe and is no tensor of the original")

def parted(first, second):
    """The first output that differs."""
    differ = (n for n, v in first.outputs.items() if digest(v) != digest(second.outputs[n]))
    return next(differ, None)

def compare(original, fused, certificate, point, sizes):
    """The bound on the probability of being wrong at a point, where both agree there."""
    entries = {t["name"]: t for t in certificate.get("tensors", [])}
    keep = [s["name"] for t in entries.values() for s in t["steps"] if s["op"] == "constant"]
    extents, scales = original.extents(sizes), None
    for scaled in False, True:
        first = Run(original, point, extents, keep=keep, scales=scales and (*scales, True))
        recipes = {n: lambda e=e: in_field(e, first)[-1] for n, e in entries.items()}
        if not scaled:
            check_tensors(fused, first, entries)
        second = Run(fused, point, extents, recipes, scales=scales and (*scales, False))
        name = parted(first, second)
        if name is None:
            return second.bound
        scales = positive_factors(entries, first), {}  # one of them may have moved
    needed, unknown = {name}, isinstance(first.outputs[name], bytes)
    for node in reversed(fused.nodes):  # what may have been moved through what nobody knows
        if needed & set(node.output):
            needed |= set(node.input)
            differs = any(first.digests.get(n) != second.digests[n] for n in node.output if n)
            unknown |= differs and (node.domain not in ("", "ai.onnx") or node.op_type in LEFT)
    raise (Undecided if unknown else Disproved)(f"{name} differs")

def prove(original, fused, certificate, sizes, seed):
    """The bound on the probability of being wrong."""
    if list(original.inputs) != list(fused.inputs) or original.outputs != fused.outputs:
        raise Disproved("the inputs or outputs have other names")
    if any(original.opsets.get(*o) != o[1] for o in fused.opsets.items()):
        raise Undecided("the operator sets are of other versions")
    if original.bodies or fused.bodies:
        raise Undecided(f"this checker knows no bodies, such as those of {original.bodies[0]}")
    for attempt in range(4):  # where a divisor is 0, another point may decide
        try:
            return compare(original, fused, certificate, hashed(seed, attempt), sizes)
        except (Undecided, LookupError, TypeError, ValueError, AttributeError, MemoryError) as why:
            undecided = why
    raise Undecided(f"{type(undecided).__name__}: {undecided}")

def check_files(part, path):
    files = {path: part["sha256"]} | {path.parent / n: d for n, d in part["data"].items()}
    for file, wanted in files.items():
        if hashlib.sha256(file.read_bytes()).hexdigest() != wanted:
            raise Disproved(f"{file.name} is not the file that the certificate is for")

def main():
    parser = argparse.ArgumentParser(description="Proves that FUSED computes what ORIGINAL does.")
    for name in "original", "fused", "--certificate":
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sizes = {name: int(size) for name, _, size in (d.rpartition("=") for d in options.dim)}
    try:
        original, fused = (Graph(onnx.load(path)) for path in (options.original, options.fused))
        certificate = json.loads(options.certificate.read_text()) if options.certificate else {}
    except Exception as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        for part in ("original", "fused") if certificate else ():
            check_files(certificate[part], getattr(options, part))
        print("proved, wrong with p <", prove(original, fused, certificate, sizes, options.seed))
        return 0
    except Disproved as error:
        print("disproved:", error)
        return 3
    except (Undecided, LookupError, TypeError, OSError) as error:
        print("undecided:", error)
        return 4

if __name__ == "__main__":
    sys.exit(main())
