"""The field of docs/proof.md, and the operators of ONNX and the steps of recipes in it: the half of tests/prove.py that
knows no graphs.

Values are arrays: of uint64 below P for an element of the field at each place, of int64 or bool for exact integers and
truth values. A value without extents is opaque, and is its digest, as bytes.
"""
import contextlib, hashlib, math
import ml_dtypes, numpy as np, onnx
from onnx import numpy_helper

P = 2**31 - 819129
POWERS = np.array([pow(2, k if k < 2048 else k - 4096, P) for k in range(4096)], np.uint64)  # at -k that of -k
BOUND = 2**28  # elements of one value
class Disproved(Exception): pass
class Undecided(Exception): pass
class Unfit(Exception): pass  # the extents of a graph do not fit each other
class Uninterpreted(Exception): pass  # this use of an operator is not in the table

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
    GatherElements Expand Tile DepthToSpace SpaceToDepth Where ConstantOfShape CumSum Trilu""".split())
TRUTH = set("Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual And Or Xor Not".split())
ELEMENTWISE = TRUTH | set("""Abs Acos Acosh Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast
    CastLike Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log Max Min Mish Mod Pow PRelu Relu
    Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Swish Tan Tanh ThresholdedRelu BiasGelu FastGelu QuickGelu""".split())
RANDOM = set("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli Dropout".split())
MICROSOFT = set("""FusedMatMul GroupNorm LayerNormalization SkipLayerNormalization SimplifiedLayerNormalization SkipSimplifiedLayerNormalization Gelu
    BiasGelu FastGelu QuickGelu""".split())
PASSES = dict.fromkeys("Abs GlobalMaxPool LeakyRelu MaxPool PRelu ReduceL1 ReduceMax ReduceMin Relu".split(), 1) | {"Max": None, "Min": None}  # f(kx) = kf(x) for k > 0, of so many inputs
BILINEAR = set("Mul MatMul FusedMatMul Gemm Einsum Conv ConvTranspose".split())  # degrees add up
ANEW = set("Div Sqrt Pow Reciprocal ReduceL2 Softmax LogSoftmax Softsign Clip HardSigmoid HardSwish".split())  # as random as an input
ROUNDED = MOVES | set("Pad Add Sub Mul Div Sqrt Neg Reciprocal Cast CastLike".split())  # by one rounding, the same anywhere
ARITHMETIC = {}  # name: (function of an attributes dict and field tensors, the attributes it reads)

class Attributes(dict): pass  # also: op, opset, outputs (how many), number(i), function(name, x)

def operator(names, attributes=""):
    return lambda function: [ARITHMETIC.update({name: (function, attributes.split())}) for name in names.split()] and function

for names, f in {"Add Sum": add, "Sub": sub, "Mul": mul, "Div": div, "Neg": neg, "Reciprocal": inverse, "Sqrt": root,
                 "MatMul": matmul, "Mean": lambda *x: div(add(*x), const(len(x)))}.items():
    operator(names)(lambda a, *x, f=f: f(*x))
operator("GlobalAveragePool")(lambda a, x: mean(x, range(2, x.ndim)))
operator("Softsign")(lambda a, x: div(x, add(const(1), a.function("Abs", x))))

@operator("Clip", "min max")
def clip(a, x, low=None, high=None):
    if a.opset < 11 and {"min", "max"} <= set(a):
        low, high = const(a["min"]), const(a["max"])
    if np.size(low) != 1 or np.size(high) != 1 or low is None or high is None or low.item() != 0 or high.item() not in range(1, 65):
        raise Uninterpreted
    height = high.reshape(())
    return mul(height, a.function("HardSigmoid", mul(x, inverse(height))))

def slope(number):
    """The image of a slope: of 1/n where it is that, rounded once."""
    return next((inverse(const(n)) for n in range(1, 65) if np.float32(1 / n) == np.float32(number)), const(np.float32(number)))

@operator("HardSigmoid", "alpha beta")
def hard_sigmoid(a, x): return a.function("HardSigmoid", add(mul(x, slope(a.get("alpha", 0.2))), const(np.float32(a.get("beta", 0.5)))))
operator("HardSwish")(lambda a, x: mul(x, a.function("HardSigmoid", add(mul(x, slope(1 / 6)), const(0.5)))))

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

@operator("Gemm FusedMatMul", "alpha beta transA transB transBatchA transBatchB")
def gemm(a, x, w, c=None):
    if a.get("transBatchA") or a.get("transBatchB"):
        raise Uninterpreted
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

@operator("Pad", "mode pads paddings value")
def pad(a, x, pads=None, value=None, axes=None):
    pads = [int(n) for n in (a.get("pads", a.get("paddings")) if pads is None else pads)]
    axes = range(x.ndim) if axes is None else [int(i) % x.ndim for i in axes]
    mode, width = a.get("mode", b"constant").decode(), [(0, 0)] * x.ndim
    for axis, before, after in zip(axes, pads[:len(axes)], pads[len(axes):]):
        x = x.take(range(max(-before, 0), x.shape[axis] - max(-after, 0)), axis)
        width[axis] = max(before, 0), max(after, 0)
    value = const(a.get("value", 0.0)) if value is None else value.ravel()[0]
    return np.pad(x, width, mode, **({"constant_values": value} if mode == "constant" else {}))

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
    if list(a.get("kernel_shape", kernel)) != list(kernel):
        raise ValueError("the weight has other extents than the kernel")
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

@operator("GroupNorm", "activation channels_last epsilon groups")
def group_norm(a, x, scale, bias):
    if a.get("activation"):
        raise Uninterpreted
    last = a.get("channels_last", 1)
    attributes = Attributes(num_groups=a["groups"], epsilon=a.get("epsilon", 1e-5))
    y = group_normalization(attributes, np.moveaxis(x, -1, 1) if last else x, scale, bias)
    return np.moveaxis(y, 1, -1) if last else y

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

# What comes of numbers alone by these is decided by the numbers, in float64.
DECIDED = {"exp": "Exp", "sigmoid": "Sigmoid", "softmax": "Softmax", "max": "ReduceMax"}  # steps of recipes: operators
NOTHING = 2.0**-64  # what is below counts as 0

def flushed(x, below=NOTHING): return np.where(np.abs(x) < below, 0, x)

def shares(y, first, last):
    """The value of what a Softmax makes along these axes: where all of a lane are the same, each is one by how many."""
    lanes = y.reshape(*y.shape[:first], -1, *y.shape[last:])
    even = (lanes == lanes[(slice(None),) * first + (slice(1),)]).all(first, keepdims=True)
    return np.where(even, inverse(const(max(lanes.shape[first], 1))), stored(flushed(lanes))).reshape(y.shape)

def sigmoid_of(x):
    small = np.exp(-np.abs(x))
    return np.where(x > 0, 1, small) / (1 + small)

def softmax_of(x, axis):
    lanes = np.ascontiguousarray(np.moveaxis(x, axis, -1))  # the same sums, wherever the axis is
    powers = np.exp(lanes - lanes.max(-1, keepdims=True))
    return np.moveaxis(powers / powers.sum(-1, keepdims=True), -1, axis)

def decide(a, x):
    """What an operator makes of numbers."""
    if a.op == "Softmax" and a.opset < 13:
        return softmax_of(x.reshape(math.prod(x.shape[:a.get("axis", 1) % x.ndim]), -1), 1).reshape(x.shape)
    return np.exp(x) if a.op == "Exp" else sigmoid_of(x) if a.op == "Sigmoid" else softmax_of(x, a.get("axis", -1))

def widened(node):
    """A node as it is in float64."""
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    for a in wide.attribute:
        if a.type == 4 and kind_of(a.t.data_type) == "field":
            a.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(a.t).astype(np.float64), a.t.name))
        a.i = 11 if (node.op_type, a.name) == ("Cast", "to") and kind_of(a.i) == "field" else a.i
    return wide

# The steps of recipes. A value is (an array of the field,), or (numbers, magnitudes): it is off by at most the unit times its magnitude.
def number_type(name): return np.dtype(getattr(ml_dtypes, name, name))
def lift(f): return lambda step, *x: (f(*(v[0] for v in x)),)
def both(f): return lambda step, *x: tuple(f(step, *parts) for parts in zip(*x))

def literal(step):
    numbers = np.array(step["numbers"], np.float64)
    return np.full(step["shape"], numbers.ravel()[0]) if numbers.size == 1 else numbers.reshape(step["shape"])

def convolved(step, w, x, product):
    names = "kernel", "strides", "dilations", "before", "output", "transposed"
    seen = windows(x.reshape(*x.shape[:2], *step["input"]), *(step[k] for k in names))
    return product(w.reshape(*w.shape[:2], -1), seen.reshape(len(x), -1, seen.shape[-1]))

def exp_step(step, a): return np.exp(a[0]), np.exp(a[0]) * (a[1] + 4)
def sigmoid_step(step, a):
    y = sigmoid_of(a[0])
    return y, y * (sigmoid_of(-a[0]) * a[1] + 8)
def softmax_step(step, a):
    y = softmax_of(a[0], step["axis"])
    return y, y * (2 * a[1].max(step["axis"], keepdims=True, initial=0) + 8)

SHAPED = {
    "reshape": both(lambda s, x: x.reshape(s["shape"])), "expand": both(lambda s, x: np.broadcast_to(x, s["shape"])),
    "transpose": both(lambda s, x: x.transpose(s["perm"])), "concat": both(lambda s, *x: np.concatenate(x, s["axis"])),
    "pick": both(lambda s, x: with_zero(x, s["axis"]).take([x.shape[s["axis"]] if i is None else i for i in s["places"]], s["axis"]))}
IN_FIELD = SHAPED | {
    "neg": lift(neg), "sqrt": lift(root), "add": lift(add), "sub": lift(sub), "mul": lift(mul), "div": lift(div),
    "round": lift(lambda x: x), "flush": lift(lambda x: x), "sum": both(lambda s, x: total(x, [s["axis"]])), "product": lift(matmul),
    "conv": both(lambda s, w, x: convolved(s, w, x, matmul))}
IN_NUMBERS = SHAPED | {
    "neg": lambda s, a: (-a[0], a[1]),
    "sqrt": lambda s, a: (np.sqrt(a[0]), np.divide(a[1], np.sqrt(a[0]), out=np.zeros_like(a[0]), where=a[0] > 0)),
    "add": lambda s, a, b: (a[0] + b[0], a[1] + b[1]), "sub": lambda s, a, b: (a[0] - b[0], a[1] + b[1]),
    "mul": lambda s, a, b: (a[0] * b[0], a[1] * b[1]), "div": lambda s, a, b: (a[0] / b[0], a[1] * b[1] / b[0] ** 2),
    "sum": both(lambda s, x: x.sum(s["axis"], keepdims=True)), "product": both(lambda s, a, b: a @ b),
    "max": both(lambda s, x: x.max(s["axis"], keepdims=True)), "exp": exp_step, "sigmoid": sigmoid_step, "softmax": softmax_step,
    "conv": both(lambda s, w, x: convolved(s, w, x, np.matmul))}

WHOLE = dict.fromkeys(["round", "flush"], lambda step, x: x)  # in numbers: nothing is dropped

@contextlib.contextmanager
def reading(what):
    """What cannot be read is undecided: nothing in a certificate is to be relied on."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OSError, MemoryError) as error:
        raise Undecided(f"{what} cannot be read: {type(error).__name__} {error}") from None

def evaluate(entry, operations, leaf):
    """The values of the steps; a leaf is one that is not computed from the values of others."""
    values = []
    for i, step in enumerate(entry["steps"]):
        y = operations[step["op"]](step, *(values[k] for k in step["inputs"])) if step["op"] in operations else leaf(step, i)
        y = tuple(map(np.asarray, y))  # arithmetic makes scalars of arrays without axes
        if list(y[0].shape) != step["shape"]:
            raise Disproved(f"{entry['name']}: a step has the extents {list(y[0].shape)}, not {step['shape']}")
        values.append(y)
    return values
