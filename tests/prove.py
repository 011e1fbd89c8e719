"""Checks that a folded model computes the same as its original: the second checker of docs/proof.md.

    python tests/prove.py ORIGINAL FUSED [--certificate FILE | --verdict FILE] [--dim NAME=SIZE] [--seed N]

A verdict is the output of `unfold prove --json` on two files of any tool, with the formulas of docs/judge.md as text.

The script is written from these pages and shares no code with unfold. The reference evaluator of the onnx package
computes the operators on arrays whose arithmetic is that of the field. Needs numpy and onnx.
Exit codes: 0 proved, 1 a file is unreadable, 2 usage, 3 disproved, 4 undecided.
"""
import argparse, hashlib, itertools, json, math, pathlib, re, sys
from collections import Counter, namedtuple
from graphlib import TopologicalSorter
import ml_dtypes, numpy as np, onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_conv import _conv_implementation as convolution

P = 2**31 - 819129
POWERS = np.array([pow(2, k if k < 2048 else k - 4096, P) for k in range(4096)], np.uint64)  # exponents wrap at 2048
LARGEST = 2**28  # the maximum number of elements of a value
class Disproved(Exception): pass
class Undecided(Exception): pass
class Unfit(Undecided): pass  # the extents do not fit together, or a divisor is 0
class Uninterpreted(Exception): pass  # this use of an operator is not in the table

# The field: its elements are arrays of uint64 below P.
def image(numbers):
    numbers = np.asarray(numbers)
    if numbers.dtype.kind in "iub":
        return (numbers.astype(np.int64) % P).astype(np.uint64)
    mantissa, exponent = np.frexp(numbers.astype(np.float64))
    return (np.ldexp(mantissa, 53).astype(np.int64) % P).astype(np.uint64) * POWERS[exponent - 53] % P

def power(a, exponent):
    result = np.ones_like(a)
    for bit in bin(exponent)[2:]:
        result = result * result % P
        result = result * a % P if bit == "1" else result
    return result

ROOTS = (P + 1) // 4, (3 * P - 1) // 4  # exponents that take a root: of −1, the first gives 1, and the second −1
turn = 0  # the index of the root in use
def root(a): return power(a, ROOTS[turn])
def inverse(a):
    if (a == 0).any():
        raise Unfit("a divisor is 0")
    return power(a, P - 2)

EXPONENTS = {int(image(n)): n for n in [*range(-8, 9), 0.5, -0.5]}
def raised(a, exponent):
    number = EXPONENTS.get(int(exponent.flat[0])) if (exponent == exponent.flat[:1]).all() else None
    if number is None:
        raise Uninterpreted
    y = root(a) if abs(number) == 0.5 else power(a, abs(number))
    return np.broadcast_to(inverse(y) if number < 0 else y, np.broadcast(a, exponent).shape)

def products(f, a, b, terms):
    """The elements of f(a, b), where each result sums `terms` products. Exact, because b is split into small digits."""
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
    if more:  # contracts two operands at a time
        if "->" not in equation:
            raise Uninterpreted
        (one, other, *rest), result = equation.split("->")[0].split(","), equation.split("->")[1]
        kept = "..." * ("." in one + other) + "".join(
            sorted({label for label in one + other if label.isalpha() and label in "".join(rest) + result}))
        a = einsum(f"{one},{other}->{kept}", a, b)
        return einsum(",".join([kept, *rest]) + "->" + result, a, *more)
    def f(p, q): return np.einsum(equation, p, *[q][:equation.count(",")], optimize=True)
    return products(f, a, b, int(f(np.ones(a.shape), np.ones(b.shape)).max(initial=1)))

UFUNCS = {
    np.add: lambda a, b: (a + b) % P, np.subtract: lambda a, b: (a + (P - b)) % P, np.negative: lambda a: (P - a) % P,
    np.multiply: lambda a, b: a * b % P, np.square: lambda a: a * a % P, np.sqrt: root, np.power: raised,
    np.divide: lambda a, b: a * inverse(b) % P, np.reciprocal: inverse,
    np.matmul: lambda a, b: products(np.matmul, a, b, a.shape[-1])}

HIDDEN = 2.0**32  # is added to an element that a softmax counts as −∞

class Field(np.ndarray):
    """Elements of the field, stored as float64. In arithmetic with them, plain numbers are replaced by their images."""
    def __array_ufunc__(self, ufunc, method, *x, out=None, axis=0, keepdims=False, **_):
        masks, x = [hidden(v) for v in x], [elements(v) for v in x]
        if method == "reduce" and ufunc is np.add:
            y = np.sum(x[0], axis, np.uint64, keepdims=keepdims) % P
        elif method == "accumulate" and ufunc is np.add:
            y = np.cumsum(x[0], axis, np.uint64) % P
        elif method == "__call__" and ufunc in UFUNCS:
            y = UFUNCS[ufunc](*x)
            if any(map(np.any, masks)) and ufunc in CARRIES:
                y = y + HIDDEN * CARRIES[ufunc](*masks, *x)
        else:
            raise Uninterpreted
        if out is None:
            return field(y)
        out[0].view(np.ndarray)[...] = y
        return out[0]

    def __array_function__(self, function, types, x, options):
        if function is np.dot:  # only for at most two axes
            return np.matmul(*x)
        if function is np.einsum:
            return field(einsum(x[0], *map(elements, x[1:])))
        y = super().__array_function__(function, types, x, options)
        return y.view(Field) if function is np.pad else y

    def astype(self, dtype, *_, **__):
        if "float" not in np.dtype(dtype).name:
            raise Uninterpreted
        return self.copy()

# The places where a sum or a product is hidden: where one operand is and, in a product, the other is 1.
CARRIES = {np.add: lambda h, k, a, b: h | k, np.multiply: lambda h, k, a, b: h & (b == 1) & ~k | k & (a == 1) & ~h}

def elements(x): return x.view(np.ndarray).astype(np.uint64) % 2**32 if isinstance(x, Field) else image(x)
def hidden(x): return x.view(np.ndarray) >= HIDDEN if isinstance(x, Field) else np.zeros(np.shape(x), bool)
def field(elements): return np.asarray(elements, np.float64).view(Field)

def of_elements(y):
    """The field elements of an operator's result, which may contain sums that are not reduced modulo P."""
    y = np.asarray(y, np.float64)
    if not (np.abs(y) < 2.0**53).all() or (y != np.floor(y)).any():
        raise Uninterpreted
    return field(y % P if ((y < 0) | (y >= P)).any() else y)

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
    """Random bits at each place that depend only on the seed and on the elements at this place."""
    state = np.frombuffer(seed, np.uint64)[:1]
    for x in arrays:
        state = mix(mix(state + np.uint64(0x9E3779B97F4A7C15)) ^ x.view(np.ndarray).astype(np.uint64))
    return mix(state + np.uint64(1))

def drawn(bits, sort):
    return field(bits % P) if sort == "field" else bits % 2 == 1 if sort == "bool" else np.where(bits // 128 % 2, bits % 100, bits % 4).astype(np.int64)

def random(seed, shape, sort):
    if math.prod(shape) > LARGEST:
        raise Undecided("a value is too large")
    return drawn(scramble(seed, np.arange(math.prod(shape))), sort).reshape(shape)

def kind_of(data_type):
    name = onnx.TensorProto.DataType.Name(data_type)
    return "bool" if name == "BOOL" else "field" if "FLOAT" in name or name == "DOUBLE" else "int" if "INT" in name else None

def sort_of(value):
    """The sort of a value: "field", "bool" or "int", or None if it has no extents."""
    is_array = isinstance(value, np.ndarray)
    return "field" if isinstance(value, Field) else is_array and ("bool" if value.dtype == bool else "int") or None

def is_float(array): return "float" in array.dtype.name

def stored(array):
    """The value of a stored tensor."""
    if array.dtype.kind in "OSUc":
        return hashed(array.shape, array.tolist())
    if not is_float(array):
        return array if array.dtype == bool else array.astype(np.int64)
    lowest = float(ml_dtypes.finfo(array.dtype).min)
    array = np.ascontiguousarray(array, np.float64).reshape(array.shape)
    bits = (scramble(hashed("not finite"), array.view(np.uint64)) % P).reshape(array.shape)
    if (np.isnan(array) | (array == np.inf)).any():
        return field(bits)
    finite = np.isfinite(array)
    return field(np.where(finite, image(np.where(finite, array, 0)), bits) + HIDDEN * (~finite | (array == lowest)))

# Operators. The reference evaluator computes moves and arithmetic in the field.
MOVES = set("""Identity Shape Size Reshape Transpose Squeeze Unsqueeze Flatten Slice Split Concat Gather GatherND
    GatherElements ScatterND ScatterElements Expand Tile DepthToSpace SpaceToDepth Where Pad ConstantOfShape CumSum
    Trilu""".split())
CARRIED = MOVES - {"CumSum", "Pad"} | {"Add", "Mul"}  # keep hidden elements hidden
ARITHMETIC = set("""Add Sub Mul Div Neg Sum Mean Reciprocal Sqrt Pow MatMul Gemm Einsum Conv ConvTranspose ReduceSum
    ReduceMean ReduceSumSquare ReduceL2 GlobalAveragePool InstanceNormalization LayerNormalization RMSNormalization""".split())
TRUTH = set("Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual And Or Xor Not".split())
ELEMENTWISE = TRUTH | set("""Abs Acos Acosh Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast
    CastLike Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log Max Min Mish Mod Pow PRelu
    Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Swish Tan Tanh ThresholdedRelu BiasGelu FastGelu QuickGelu
    FusedConv FusedGemm QuantizeLinear""".split())
RANDOM = set("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli Dropout".split())
PASSES = set("""Abs DynamicQuantizeLinear GlobalMaxPool LeakyRelu MaxPool PRelu ReduceL1 ReduceMax ReduceMin Relu Max
    Min""".split())  # f(kx) = kf(x) for k > 0, where x is the first input or all inputs
LANES = set("GlobalMaxPool GridSample MaxPool ReduceMax ReduceMin RotaryEmbedding".split())  # are functions of lanes
RECURRENT = set("LSTM GRU RNN".split())
ADDS = MOVES | set("Add Sub Neg Sum Mean Where Concat ReduceSum ReduceMean ReduceSumSquare GlobalAveragePool Cast".split())
GUESSES = set("Softmax LogSoftmax Softsign Clip HardSigmoid HardSwish Resize Upsample".split())  # use uninterpreted functions
ANEW = GUESSES | set("Div Sqrt Pow Reciprocal ReduceL2".split())  # the results count as random
ROUNDED = MOVES | set("Add Sub Mul Div Sqrt Neg Reciprocal Cast CastLike".split())  # are rounded once in every engine
DECIDED = {"exp": "Exp", "sigmoid": "Sigmoid", "softmax": "Softmax", "max": "ReduceMax"}
NOTHING = 2.0**-64  # smaller results of DECIDED count as 0

def cast(a, x, like=None):
    if like is None and a["to"] == onnx.TensorProto.INT64 and sort_of(x) == "int":  # int64 holds every integer
        return x
    if kind_of(a["to"]) != "field" if like is None else not isinstance(like, Field):
        raise Uninterpreted
    return x if isinstance(x, Field) else field(image(x))

def average_pool(a, x):
    kernel, rank, auto = a["kernel_shape"], x.ndim - 2, a.get("auto_pad", b"NOTSET").decode()
    pads, steps, gaps = (a.get(n, [k] * m * rank) for n, k, m in (("pads", 0, 2), ("strides", 1, 1), ("dilations", 1, 1)))
    inside, more, counts = np.ones((1, 1, *x.shape[2:])), list(pads), a.get("count_include_pad")
    if auto != "NOTSET" and (counts or a.get("ceil_mode")):
        raise Uninterpreted
    if counts:
        inside = np.pad(inside, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])], constant_values=1)
    for i, n in enumerate(x.shape[2:]) if a.get("ceil_mode") else ():  # one more, if it starts before the end padding
        last = (n + pads[i] + pads[rank + i] - (kernel[i] - 1) * gaps[i] - 1) / steps[i]
        if last > int(last) and (int(last) + 1) * steps[i] < n + pads[i]:
            more[rank + i] += math.ceil(last) * steps[i] - int(last * steps[i])
    def sums(x, pads):
        ones = field(np.ones((x.shape[1], 1, *kernel)))
        return convolution(x, ones, None, auto, gaps, x.shape[1], kernel, pads, steps)
    return sums(x, more) / sums(field(inside), [m - p for m, p in zip(more, pads)] if counts else more)

def batch_normalization(a, x, *parameters):
    if a.get("training_mode") or a["outputs"] > 1 or a["opset"] < 7:
        raise Uninterpreted
    scale, bias, mean, variance = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in parameters)
    return (x - mean) / np.sqrt(variance + np.float32(a.get("epsilon", 1e-5))) * scale + bias

def normalized(x, axes, epsilon, centred=True):
    """The normalized value, its mean, and the reciprocal of its standard deviation."""
    mean = x.mean(axes, keepdims=True) if centred else field(0)
    rstd = 1 / np.sqrt(np.square(x - mean).mean(axes, keepdims=True) + np.float32(epsilon))
    return [(x - mean) * rstd, mean, rstd]

def group_normalization(a, x, scale, bias):
    groups = a["num_groups"]
    y = normalized(x.reshape(len(x), groups, -1), -1, a.get("epsilon", 1e-5))[0].reshape(len(x), groups, -1, *x.shape[2:])
    scale, bias = (v.reshape(groups, -1, *[1] * (x.ndim - 2)) for v in (scale, bias))
    return (y * scale + bias).reshape(x.shape)

def lanes(a, x):
    """The lanes of a Softmax along the last axis, and a function that moves the axis back."""
    axis = a.get("axis", -1 if a["opset"] >= 13 else 1)
    if a["opset"] < 13:
        return x.reshape(math.prod(x.shape[:axis % x.ndim]), -1), lambda y: y.reshape(x.shape)
    return np.moveaxis(x, axis, -1), lambda y: np.moveaxis(y, -1, axis)

def softmax(a, x):
    """Each lane is a random function of the differences to its first element."""
    x, back = lanes(a, x)
    seed, seen = hashed(a["point"], a["op"]), ~hidden(x)
    seen |= ~seen.any(-1, keepdims=True) | (a["op"] != "Softmax")
    place = seen.cumsum(-1)  # the position among places that are not hidden
    first = np.take_along_axis(x, seen.argmax(-1)[..., None], -1) if x.size else x
    whole = np.where(seen, scramble(seed, x - first, place), 0).sum(-1, keepdims=True, dtype=np.uint64)
    return back(field(np.where(seen, drawn(scramble(seed, whole, place), "field"), 0)))

def ramp(a, x): return a["function"]("HardSigmoid", x)

def clip(a, x, low=None, high=None):
    bounds = (a.get("min"), a.get("max")) if a["opset"] < 11 else (low, high)
    if any(v is None or np.size(v) > 1 for v in bounds):
        raise Uninterpreted
    low, high = (field(elements(v if isinstance(v, Field) else np.asarray(v))).reshape(()) for v in bounds)
    height = high - low
    if int(height) not in range(1, 65):
        raise Uninterpreted
    return ramp(a, (x - low) / height) * height + low

def hard_sigmoid(a, x):
    alpha = np.float32(a.get("alpha", 0.2))
    whole = next((n for n in range(1, 65) if np.float32(1 / n) == alpha), None)
    return ramp(a, (x / whole if whole else x * alpha) + np.float32(a.get("beta", 0.5)))

def resize(a, x, *rest):
    """Repeats places along each axis, or sums places with random weights whose sum is 1."""
    y, factors = a["result"](), rest[a["opset"] > 10:][:1]
    if a.get("coordinate_transformation_mode") == b"tf_crop_and_resize" or sort_of(y) is None:
        raise Uninterpreted
    factors = np.ravel(factors[0]) if factors and factors[0] is not None else a.get("scales", [])
    factors = {axis % x.ndim: factor for axis, factor in zip(a.get("axes", range(x.ndim)), factors)}
    how = [a.get(k, d) for k, d in (("mode", b"nearest"), ("coordinate_transformation_mode", b""), ("nearest_mode", b""))]
    for axis, extents in enumerate(zip(x.shape, y.shape)):
        if a["opset"] > 10 and how == [b"nearest", b"asymmetric", b"floor"] and not a.get("antialias") and factors.get(
                axis, extents[1] / extents[0]) == extents[1] // extents[0]:
            x = x.repeat(extents[1] // extents[0], axis)
        elif factors.get(axis, extents[1] / extents[0]) != 1:
            seed = hashed(a["point"], a["said"], [digest(v) for v in rest], axis, extents)
            weights = random(seed, extents, "field")
            weights[0] += 1 - weights.sum(0)
            x = np.moveaxis(np.moveaxis(x, axis, -1) @ weights, -1, axis)
    return x

def gather_elements(a, x, at):  # the reference evaluator fails for extents above 32
    axis = a.get("axis", 0) % x.ndim
    x = x[tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(at.shape))]
    return np.take_along_axis(x, at % x.shape[axis], axis)

def dequantize_linear(a, x, scale, zero=None):
    """Codes times scales. There is one scale in all, for each place along an axis, or for each block."""
    x, zero = (v if v is None or isinstance(v, Field) else field(image(v)) for v in (x, zero))
    def spread(v):
        if v.size == 1:
            return v.reshape(())
        axis = a.get("axis", 1) % x.ndim
        if a.get("block_size"):
            return v.repeat(a["block_size"], axis)[tuple(slice(n) for n in x.shape)]
        return v.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return (x if zero is None else x - spread(zero)) * spread(scale)

SPECIAL = {
    "AveragePool": average_pool, "BatchNormalization": batch_normalization, "GroupNormalization": group_normalization,
    "Softmax": softmax, "LogSoftmax": softmax, "Softsign": lambda a, x: x / (a["function"]("Abs", x) + 1),
    "Clip": clip, "HardSigmoid": hard_sigmoid, "HardSwish": lambda a, x: x * ramp(a, x / 6 + 0.5), "Resize": resize,
    "Upsample": resize, "GatherElements": gather_elements, "Cast": cast, "CastLike": cast, "DequantizeLinear": dequantize_linear,
    "Mean": lambda a, *x: sum(x[1:], x[0]) / len(x), "Dropout": lambda a, x, *_: [x, np.ones(x.shape, bool)]}

# Operators of com.microsoft.
def fused_mat_mul(x, w, alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0):
    if transBatchA or transBatchB or transA and x.ndim > w.ndim == 1 or transB and w.ndim > x.ndim == 1:
        raise Uninterpreted
    x, w = (v.swapaxes(-1, -2) if turned and v.ndim > 1 else v for v, turned in ((x, transA), (w, transB)))
    return [x @ w * np.float32(alpha)]

def layer_normalization(x, scale, bias=field(0), axis=-1, epsilon=1e-5, stash_type=1, centred=True):
    y, *more = normalized(x, tuple(range(axis % x.ndim, x.ndim)), epsilon, centred)
    return [y * scale + bias, *more[not centred:]]

def skip_normalization(x, skip, scale, *rest, epsilon=1e-12, centred=True):
    shift, bias = [v if v is not None else field(0) for v in ([None] * (not centred) + [*rest, None, None])[:2]]
    y, *more = normalized(x + skip + bias, -1, epsilon, centred)
    return [y * scale + shift, *more, x + skip + bias]

def group_norm(x, scale, bias, groups, epsilon=1e-5, activation=0, channels_last=1):
    if activation:
        raise Uninterpreted
    x = np.moveaxis(x, -1, 1) if channels_last else x
    y = group_normalization({"num_groups": groups, "epsilon": epsilon}, x, scale, bias)
    return [np.moveaxis(y, 1, -1) if channels_last else y]

def unpacked(codes, bits):
    """The codes along the last axis. If they have 4 bits, a byte holds two."""
    return np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1) if bits == 4 else codes

def mat_mul_n_bits(x, codes, scales, zeros=None, groups=None, bias=None, *, K, N, block_size, bits=4, accuracy_level=0):
    """A product with a weight [N, K] whose rows are quantized in blocks."""
    if groups is not None or bits not in (4, 8):
        raise Uninterpreted
    blocks = -(-K // block_size)
    if zeros is None:
        zeros = np.full((N, blocks), 1 << (bits - 1))
    elif not isinstance(zeros, Field):
        zeros = unpacked(zeros.reshape(N, -1), bits)[:, :blocks]
    weight = dequantize_linear({"axis": 1, "block_size": block_size}, unpacked(codes.reshape(N, -1), bits),
                               scales.reshape(N, blocks), zeros.reshape(N, blocks))[:, :K]
    return [x @ weight.T + (0 if bias is None else bias)]

def gather_block_quantized(data, at, scales, zeros=None, *, bits=4, block_size=128, gather_axis=0, quantize_axis=1):
    """Rows of a table that is quantized in blocks along its last axis, whose number shows if a byte holds two codes."""
    blocks, extent = scales.shape[quantize_axis], data.shape[quantize_axis]
    plain, packed = -(-extent // block_size) == blocks, bits == 4 and -(-2 * extent // block_size) == blocks
    if plain == packed or bits not in (4, 8) or quantize_axis % data.ndim != data.ndim - 1:
        raise Uninterpreted
    if zeros is None:
        zeros = np.full(scales.shape, 1 << (bits - 1) if packed or bits == 8 else 0)
    elif packed:
        zeros = unpacked(zeros, bits)[..., :blocks]
    codes = unpacked(data, bits) if packed else data
    table = dequantize_linear({"axis": quantize_axis, "block_size": block_size}, codes, scales, zeros)
    return [table.take(at % table.shape[gather_axis], gather_axis)]

MICROSOFT = {
    "FusedMatMul": fused_mat_mul, "GroupNorm": group_norm, "MatMulNBits": mat_mul_n_bits,
    "GatherBlockQuantized": gather_block_quantized,
    "LayerNormalization": layer_normalization, "SkipLayerNormalization": skip_normalization,
    "SimplifiedLayerNormalization": lambda *x, **a: layer_normalization(*x, **a, centred=False),
    "SkipSimplifiedLayerNormalization": lambda *x, **a: skip_normalization(*x, **a, centred=False)}

def heads_of(a, q, k, v):
    """The extents of the result of MultiHeadAttention. It is as wide as the values, which are a separate input, in
    heads, or packed with queries and keys."""
    v = v or q
    return [*q[:2], v[1] * v[3] if len(v) == 4 else v[2] * v[4] if len(v) == 5 else v[2]]

def groups_of(a, q, k, v):
    """The extents of the result of GroupQueryAttention, whose keys and values may be packed after the queries."""
    heads, others = a["num_heads"], a["kv_num_heads"]
    return q if k else [*q[:2], q[2] // (heads + 2 * others) * heads]

# The extents of results, computed from those of the inputs, for operators that shape inference does not know.
WIDE = {
    "GroupQueryAttention": groups_of, "MultiHeadAttention": heads_of, "QAttention": lambda a, x, y, z: [*x[:2], y[1] // 3],
    "DynamicQuantizeLSTM": lambda a, x, y, z: [x[0], 1 + (a.get("direction") == b"bidirectional"), x[1], a["hidden_size"]],
    **dict.fromkeys(["BiasAdd", "Gelu", "MoE", "QMoE", "QuickGelu", "RotaryEmbedding"], lambda a, x, y, z: x),
    **dict.fromkeys(["MatMulBnb4", "MatMulFpQ4", "MatMulNBits"], lambda a, x, y, z: [*x[:-1], a["N"]]),
    **dict.fromkeys(["DynamicQuantizeMatMul", "GemmFastGelu", "MatMulIntegerToFloat"],
                    lambda a, x, y, z: [*np.broadcast_shapes(x[:-2], y[:-2]), x[-2], y[-1]])}

# Results that depend only on stored numbers are computed in float64 for the operators of DECIDED.
def flushed(x, below=NOTHING): return np.where(np.abs(x) < below, 0, x)

def shares(y, axis):
    """The value of a Softmax. In a lane of n equal numbers, each result is exactly 1/n."""
    even = (y == y.take([0], axis)).all(axis, keepdims=True)
    return field(np.where(even, inverse(image(y.shape[axis])), elements(stored(flushed(y)))))

def sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x > 0, 1, small) / (1 + small)

def softmax_of(x, axis):
    lanes = np.ascontiguousarray(np.moveaxis(x, axis, -1))  # makes sums the same for every position of the axis
    powers = np.exp(lanes - lanes.max(-1, keepdims=True))
    return np.moveaxis(powers / powers.sum(-1, keepdims=True), -1, axis)

def decide(a, x, y):
    if a["op"] == "Softmax":
        x, back = lanes(a, x)
        return back(shares(softmax_of(x, -1), -1))
    return stored(flushed({"Exp": np.exp, "Sigmoid": sigmoid}.get(a["op"], lambda x: y)(x)))

# Graphs.
def bodies(node): return [a.g for a in sorted(node.attribute, key=lambda a: a.name) if a.HasField("g")]

def said(node):
    """The attributes of a node, without bodies."""
    return sorted(a.SerializeToString(deterministic=True) for a in node.attribute if not a.HasField("g"))

def reads(node):
    """The values that a node reads, including those that its bodies read from outside."""
    names = list(node.input)
    for body in bodies(node):
        own = {i.name for i in body.input} | {o for n in body.node for o in n.output}
        names += [n for n in [*(i for n in body.node for i in reads(n)), *(o.name for o in body.output)] if n not in own]
    return names

def alone(node, inputs, opsets, known=()):
    """A model of one node."""
    outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
    graph = helper.make_graph([node], "alone", inputs, outputs, known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets.items()])

def reference(node, feeds, opsets):
    if node.op_type == "GatherElements":
        return [gather_elements({k.name: k.i for k in node.attribute}, *(feeds[n] for n in node.input))]
    with np.errstate(all="ignore"):
        model = alone(node, [helper.make_tensor_value_info(n, 1, None) for n in feeds], opsets)
        return [np.asanyarray(v) for v in ReferenceEvaluator(model).run(None, feeds)]

class Graph:
    """A model with its functions expanded and its stored tensors apart from its nodes. The path to a body is the prefix
    of names in it."""
    def __init__(self, model):
        graph, imports = onnx.GraphProto(), [o for part in [*model.functions, model] for o in part.opset_import]
        graph.CopyFrom(model.graph)
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in imports}
        self.ends = [[(v.name, v.type.SerializeToString(deterministic=True)) for v in graph.input],
                     [(v.name, v.type.tensor_type.elem_type) for v in graph.output]]
        self.tensors, self.stored_as = {}, {}  # stored_as: the name in the file for each tensor
        self.lay_out(graph, "", {}, {})
        self.defaults = {n: self.tensors[n] for n, _ in self.ends[0] if n in self.tensors and model.ir_version >= 4}
        self.nodes, self.outputs = graph.node, [o.name for o in graph.output]
        self.inputs = {i.name: i.type.tensor_type for i in graph.input if model.ir_version >= 4 or i.name not in self.tensors}

    def lay_out(self, graph, way, names, given):
        own = [v.name for v in [*graph.input, *graph.initializer]] + [o for n in graph.node for o in n.output]
        names = names | {n: n and way + n for n in own}
        for value in [*graph.input, *graph.output, *graph.value_info]:
            value.name = names.get(value.name, value.name)
        for tensor in graph.initializer:
            self.tensors[names[tensor.name]], self.stored_as[names[tensor.name]] = numpy_helper.to_array(tensor), tensor.name
        nodes = list(self.expanded(graph.node, way, names, given))
        maker = {o: i for i, n in enumerate(nodes) for o in n.output if o}  # some exporters do not sort nodes
        order = TopologicalSorter({i: {maker[r] for r in reads(n) if r in maker} for i, n in enumerate(nodes)})
        del graph.node[:], graph.initializer[:]
        graph.node.extend(nodes[i] for i in order.static_order())

    def expanded(self, nodes, way, names, given):
        """The nodes with these names and attributes. Calls of functions are replaced by the nodes of the functions."""
        for node in nodes:
            inputs, outputs = ([names.get(n, n) for n in part] for part in (node.input, node.output))
            domain, name = "" if node.domain == "ai.onnx" else node.domain, node.name and way + node.name
            new = helper.make_node(node.op_type, inputs, outputs, name, domain=domain, overload=node.overload)
            for attribute in node.attribute:
                if not attribute.ref_attr_name or attribute.ref_attr_name in given:
                    new.attribute.add().CopyFrom(given.get(attribute.ref_attr_name, attribute))
                    new.attribute[-1].name = attribute.name
            for attribute in new.attribute:
                if attribute.HasField("g"):
                    self.lay_out(attribute.g, f"{next(filter(None, outputs))}.{attribute.name}/", names, given)
            function = self.functions.get((node.domain, node.op_type, node.overload))
            if function:
                call = (name or (*outputs, "")[0]) + "/"
                inner = {o: call + o for n in function.node for o in n.output if o}
                inner |= {a: b for a, b in zip(function.output, outputs) if b}
                inner |= dict(itertools.zip_longest(function.input, inputs, fillvalue=""))
                attributes = {a.name: a for a in [*function.attribute_proto, *new.attribute]}
                yield from self.expanded(function.node, call, inner, attributes)
            elif node.op_type == "Constant" and not new.domain:
                (self.tensors[new.output[0]],), self.stored_as[new.output[0]] = reference(new, {}, self.opsets), node.output[0]
            else:
                yield new

    def extents(self, sizes, default=2):
        def extent(d): return d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, default)
        return {n: [extent(d) for d in t.shape.dim] for n, t in self.inputs.items() if t.HasField("shape")}

Number = namedtuple("Number", "own wide ops")  # computed in its type and in float64, and by which operators

class Run:
    """A graph evaluated at a random point."""
    def __init__(self, graph, point, extents, recipes={}, keep=(), scales=None, is_open=False):
        self.graph, self.point, self.recipes, self.scales, self.depth = graph, point, recipes, scales, 0
        self.undecided = {"Shape", "Size"} if is_open else set()  # what follows from these is not decided by numbers
        self.values, self.numbers, self.unclear, self.bound = {}, {}, set(), 0
        self.degrees, self.types = dict.fromkeys(graph.inputs, 1), {n: t.elem_type for n, t in graph.inputs.items()}
        self.types |= {n: helper.np_dtype_to_tensor_dtype(array.dtype) for n, array in graph.tensors.items()}
        for name, type_ in graph.inputs.items():
            seed, sort = hashed(point, "input", name), name in extents and kind_of(type_.elem_type)
            self.values[name] = random(seed, extents[name], sort) if sort else seed
        left = Counter([*graph.outputs, *keep, *(n for node in graph.nodes for n in reads(node))])
        for node in graph.nodes:
            self.apply(node)
            for name in reads(node):
                left[name] -= 1
                if not left[name]:
                    self.values.pop(name, None)
        self.outputs = {name: self.read(name) for name in graph.outputs}
        self.bound += sum(self.degrees.get(name, 0) for name in graph.outputs) / P

    def read(self, name):
        if name not in self.values and name in self.graph.tensors:
            self.values[name] = self.recipes[name]() if name in self.recipes else stored(self.graph.tensors[name])
        return self.values.get(name)

    def number(self, name):
        """The numbers of a value, or None if it depends on an input."""
        if name in self.graph.tensors and name not in self.graph.inputs:
            own = self.graph.tensors[name]
            return Number(own, own.astype(np.float64) if is_float(own) else own, set())
        return self.numbers.get(name)

    def compute(self, node):
        """The numbers of a node's results, or None if they depend on an input."""
        known = {n: self.number(n) for n in node.input if n}
        if node.op_type == "CastLike" and self.types.get(node.input[1]):  # only its type matters
            like = np.zeros((), helper.tensor_dtype_to_np_dtype(self.types[node.input[1]]))
            known[node.input[1]] = Number(like, like, set())
        if None in known.values() or node.op_type in RANDOM or bodies(node) and (node.domain or node.op_type != "If"):
            return None
        if bodies(node):  # takes the branch of the condition
            branch = next(k.g for k in node.attribute if k.name == ("else_branch", "then_branch")[bool(known[node.input[0]].own)])
            made, ops = [self.number(o.name) for o in branch.output], known[node.input[0]].ops
            return None if None in made else [n._replace(ops=n.ops | ops) for n in made]
        try:
            feeds = ({n: getattr(k, part) for n, k in known.items()} for part in ("own", "wide"))
            own, wide = (reference(node, feed, self.graph.opsets) for feed in feeds)
        except Exception:
            return None
        wide = [known[node.input[0]].wide] if node.op_type in ("Cast", "CastLike") else wide
        ops = {node.op_type}.union(*(k.ops for k in known.values()))
        return [Number(o, w.astype(np.float64) if is_float(o) else o, ops) for o, w in zip(own, wide)]

    def apply(self, node):
        op, x = node.op_type, [self.read(n) if n else None for n in node.input]
        made = self.inside(node, x) if bodies(node) else None
        plain = not node.domain or node.domain == "com.microsoft" and op in {*MICROSOFT, *ELEMENTWISE}
        plain &= not bodies(node) and not any(isinstance(v, bytes) for v in x)
        numbers, y, guess = self.compute(node), None, False
        floats = numbers and any(is_float(n.own) for n in numbers)
        is_open = floats and not numbers[0].ops.isdisjoint(self.undecided)
        if floats and plain and op in DECIDED.values() and not is_open:
            y = [decide(self.attributes(node, x), self.number(node.input[0]).wide, numbers[0].wide)]
        elif plain and (floats or not numbers) and not (op == "Clip" and self.scales):
            y = self.interpret(node, x)
        if y is None and numbers and not is_open:
            y = [stored(n.own) for n in numbers]
        if y is None:
            y, guess = self.function(node, x, plain, made), True
        if op in ("Shape", "Size") and not guess:
            numbers = [Number(v, v, {op}) for v in y]
        read = [*reads(node), *(o.name for body in bodies(node) for o in body.output)]
        degrees = [self.degrees.get(n, 0) for n in read]
        degree = (max if op in ADDS else sum)(degrees or [0]) * (1 + (op == "ReduceSumSquare"))  # others are at most products
        self.bound += degree / P if guess or op in GUESSES else 0
        degree = 1 if guess or op in ANEW or "Norm" in op else degree
        like = slice(op == "CastLike", None)
        types = [self.types.get(n) for n, v in zip(node.input[like], x[like]) if isinstance(v, Field)]
        named = [n for n in node.output if n] if len(y) < len(node.output) else node.output
        for i, (name, value) in enumerate(zip(named, y)):
            self.values[name], self.degrees[name] = value, degree
            self.types[name] = next((k.i for k in node.attribute if k.name == "to"), (*types, None)[0])
            if numbers:
                self.numbers[name] = numbers[i]

    def inside(self, node, x):
        """The results of the bodies of a node. A loop body reads random elements. None if a body does not fit these."""
        self.depth += 1
        try:
            a, read = {k.name: helper.get_attribute_value(k) for k in node.attribute}, [self.read(n) for n in reads(node)]
            apart = len(x) - a.get("num_scan_inputs", 0)
            rows = [v.take(0, axis) for v, axis in zip(x[apart:], a.get("scan_input_axes", [0] * len(x)))]
            steps = [np.zeros((), np.int64), np.zeros((), bool)]  # the iteration number and the condition
            like = {"If": [], "Loop": [*steps, *x[2:]], "Scan": [*x[:apart], *rows]}["" if node.domain else node.op_type]
            seeds = [hashed(self.point, "given", self.depth, i) for i in range(len(like))]
            given = [random(seed, v.shape, sort_of(v)) if sort_of(v) else seed for seed, v in zip(seeds, like)]
            made, unclear = [], False
            for body in bodies(node):
                names = [i.name for i in body.input]
                self.values |= zip(names, given, strict=True)
                self.degrees |= dict.fromkeys(names, 1)
                for inner in body.node:
                    self.apply(inner)
                    unclear |= not self.unclear.isdisjoint(inner.output)
                made.append([self.read(o.name) for o in body.output])
            if unclear or bytes in map(type, sum(made, read)):
                self.unclear.update(filter(None, node.output))
            return made
        except (Unfit, LookupError, AttributeError, ValueError):
            self.unclear.update(filter(None, node.output))
            return None
        finally:
            self.depth -= 1

    def attributes(self, node, x):
        """The attributes of a node, and other facts that an operator may need."""
        def function(op, x): return self.function(helper.make_node(op, ["an operand"], ["a result"]), [x], True)[0]
        a = {k.name: helper.get_attribute_value(k) for k in node.attribute}
        return a | {"op": node.op_type, "opset": self.graph.opsets.get("", 1), "outputs": len(node.output),
                    "point": self.point, "said": said(node), "function": function,
                    "result": lambda: self.results(node, x, "")[0]}

    def interpret(self, node, x):
        """The results of an interpreted operator, or None."""
        op, a, real = node.op_type, self.attributes(node, x), [isinstance(v, Field) for v in x]
        names, feeds = {k.name for k in node.attribute}, {n: v for n, v in zip(node.input, x) if n}
        known = op in MOVES or op in SPECIAL and (real[0] or "Cast" in op or op == "DequantizeLinear") or op in ARITHMETIC and real[0]
        trains = op == "Dropout" and (a["opset"] < 7 or len(x) > 2 and np.any(x[2]))
        try:
            if node.domain or op == "SimplifiedLayerNormalization":  # onnxruntime has it in both domains
                return MICROSOFT[op](*x, **{n: a[n] for n in names}) if op in MICROSOFT and any(real) else None
            old, adds = {"axis", "broadcast"} <= names, a.get("reduction", b"none") != b"none"
            unknown = not known and (any(real) or op in RANDOM)
            if unknown or trains or old or adds or not names <= {*onnx.defs.get_schema(op, a["opset"]).attributes}:
                return None
            if op in SPECIAL and known:
                made = SPECIAL[op](a, *x)
                return made if isinstance(made, list) else [made]
            if op.startswith(("Gather", "Scatter")):  # turns any integer into an index
                first, last = a.get("batch_dims", a.get("axis", 0)), np.shape(x[1])[-1:] or (0,)
                extents = x[0].shape[first:][:last[0]] if op.endswith("ND") else x[0].shape[first]
                if (number := self.number(node.input[1])) and not ((-np.array(extents) <= number.own) & (number.own < extents)).all():
                    raise Unfit(f"{op} {node.name or node.output[0]}: an index is out of range")
                feeds[node.input[1]] = x[1] % np.array(extents)
            if op == "Pad" and len(x) > 1 and (x[1] < 0).any():  # negative pads cut
                cut, axes = np.minimum(x[1], 0).reshape(2, -1), x[3] if len(x) > 3 and x[3] is not None else range(x[0].ndim)
                places = dict(zip((int(axis) % x[0].ndim for axis in axes), cut.T))
                at = [slice(-int(b), n + int(e)) for n, (b, e) in ((n, places.get(i, (0, 0))) for i, n in enumerate(x[0].shape))]
                feeds |= {node.input[0]: x[0][tuple(at)], node.input[1]: np.maximum(x[1], 0)}
            y = reference(node, feeds, self.graph.opsets)
            fits = known or not any(map(is_float, y))
            made = field if op in CARRIED else of_elements
            return [made(v) if any(real) and is_float(v) else stored(v) for v in y] if fits else None
        except (Undecided, Unfit):
            raise
        except Exception as error:
            if known and not isinstance(error, Uninterpreted):
                raise Unfit(f"{op} {node.name or node.output[0]}: {error}") from None
            return None

    def function(self, node, x, plain, made=None):
        """The results of a node as an uninterpreted function."""
        op, inner = node.op_type, [[digest(v) for v in values] for values in made or []]
        if made is None and bodies(node):  # depends on the text of the bodies and on all that they read
            x, inner = [self.read(n) for n in reads(node)], [n.SerializeToString() for body in bodies(node) for n in body.node]
        kinds = [v.own.dtype.str for v in map(self.number, node.input) if v and v.own.dtype.kind in "iu" and v.own.dtype != "i8"]
        seed = self.point, node.domain, op, node.overload, said(node), inner, op in RANDOM and (node.name or [*node.output]), kinds
        bounded = op == "Clip" and len(x) > 1  # its bounds are inputs
        count = len(x) if op in ("Max", "Min") or bounded else 1
        factor = self.factor(seed, x, count) if self.scales and plain and (op in PASSES or bounded) else None
        x = [v * factor if i < count and v is not None else v for i, v in enumerate(x)] if factor else x
        if plain and op in RECURRENT:  # depends on the input projection and biases
            half = x[1].shape[1]
            biases = x[3] if len(x) > 3 and x[3] is not None else field(np.zeros((len(x[1]), 2 * half)))
            sums = np.einsum("sbi,dki->dsbk", x[0], x[1]) + biases[:, None, None, :half]
            x = [sums, None, x[2], biases[:, half:], *x[4:]]
        x = [x[0] + x[1]] if plain and op in ("BiasGelu", "FastGelu") and len(x) > 1 else x
        if plain and op in ("FusedConv", "FusedGemm"):  # depends on the result without the activation
            inner = [k for k in node.attribute if not k.name.startswith("activation")]
            seed = *seed[:4], said(onnx.NodeProto(attribute=[k for k in node.attribute if k not in inner])), *seed[5:]
            inner = onnx.NodeProto(op_type=op[5:], input=node.input[:3], output=node.output, attribute=inner)
            x = [self.interpret(inner, x[:3])[0] + (x[3] if len(x) > 3 else 0)]
        if plain and op == "QuantizeLinear" and x[1].size == 1:  # depends on the quotient
            x = [x[0] / x[1].reshape(()), None, *x[2:]]
        if node.domain == "com.microsoft" and op == "Attention":  # depends on the projection
            x = [x[0] @ x[1] + (x[2] if len(x) > 2 and x[2] is not None else 0), None, None, *x[3:]]
        y = self.interpret(node, x) if op == "Clip" and plain and self.scales else None
        y = self.at_places(node, x, seed) if y is None and plain and op in ELEMENTWISE else y
        own = node.domain in ("", "com.microsoft" if op == "RotaryEmbedding" else "") and not bodies(node)
        if y is None and own and (op in LANES or op == "DeformConv"):
            y = (self.deformed if op == "DeformConv" else self.of_lanes)(node, x, seed)
        y = self.results(node, x, seed, made) if y is None else y
        if factor:  # divides the original's result by the factor
            y = [v / factor if isinstance(v, Field) else v for v in y]
            self.bound += len(self.scales[0]) / P
        return y

    def factor(self, seed, x, count):
        """The positive factor that turns the operands into those of the original, or None."""
        positive, original, is_original = self.scales
        whole = [v for v in x[:count] if v is not None]
        first = next((int(v) for v in np.concatenate([[], *(v.view(np.ndarray).ravel() for v in whole)]) if v), 0)
        if not first or not all(isinstance(v, Field) for v in whole):
            return None
        parts = [digest(v / first if i < count and v is not None else v) for i, v in enumerate(x)]
        before = original.setdefault(hashed(seed, parts), [])
        factors = (other * pow(first, -1, P) % P for other in before)
        factor = next((factor for factor in factors if factor in positive | {1}), None)
        if factor is None and is_original:
            before.append(first)
        return factor if factor != 1 else None

    def lanes(self, seed, rows, results, item, shift, linear):
        """The results of a function for each row: the first element plus the first difference times random elements."""
        rest = rows - (rows[:, :1] if shift else 0)
        first = [next((int(v) for v in row if v), 0) for row in rest.view(np.ndarray)]
        parts, y = rest / field([[v or 1] for v in first]), []
        for i, (row, v) in enumerate(zip(parts, first)):
            key, like = hashed(seed, item(i), digest(row), results), 1 if linear else v
            if self.scales and v and not linear:
                positive, original, is_original = self.scales
                before = original.setdefault(key, [])
                like = next((k for k in before if k == v or k * pow(v, -1, P) % P in positive), None)
                if like is None and is_original:
                    before.append(v)
                like = like or v
                self.bound += len(positive) / P * (like != v)
            start = rows[i, 0] if shift else 0
            y.append((random(hashed(key, like), [results], "field") * (v * pow(like, -1, P) % P) if v else field(np.zeros(results))) + start)
        return field(np.stack([v.view(np.ndarray) for v in y]))

    def of_lanes(self, node, x, seed):
        """The results of operators in LANES: maxima, samples of images, rotations of pairs of channels. None if the
        node may compute something else."""
        op, v, a = node.op_type, x[0], {k.name: helper.get_attribute_value(k) for k in node.attribute}
        read = {n for other in self.graph.nodes for n in reads(other)} | {*self.graph.outputs}
        shape = getattr(self.results(node, x, "")[0], "shape", None)
        if not isinstance(v, Field) or not v.size or shape is None or not math.prod(shape) or read & {*node.output[1:]}:
            return None
        others, order, outer = [digest(k) for k in x[1:]], [*range(v.ndim)], v.ndim - 1 if op[0] == "R" else 2
        shift, linear, per = True, False, v.size
        if op == "MaxPool":  # along each axis, every window must contain a place of the image
            kernel, rank, auto = a["kernel_shape"], v.ndim - 2, a.get("auto_pad", b"NOTSET")
            for i, (n, many) in enumerate(zip(v.shape[2:], shape[2:])):
                step, gap = (a.get(k, [1] * rank)[i] for k in ("strides", "dilations"))
                total = max((many - 1) * step + (kernel[i] - 1) * gap + 1 - n, 0)
                before = {b"NOTSET": a.get("pads", [0] * 2 * rank)[i], b"SAME_UPPER": total // 2, b"SAME_LOWER": total - total // 2}
                places = np.arange(many)[:, None] * step - before.get(auto, 0) + np.arange(kernel[i]) * gap
                if not ((places >= 0) & (places < n)).any(1).all():
                    return None
        elif op in ("ReduceMax", "ReduceMin"):
            axes = a.get("axes", x[1] if len(x) > 1 and x[1] is not None else [])
            axes = {int(axis) % v.ndim for axis in axes} or (set() if a.get("noop_with_empty_axes") else set(order))
            order, outer = [i for i in order if i not in axes] + sorted(axes), v.ndim - len(axes)
        elif op == "GridSample":
            shift, linear, per = a.get("padding_mode") in (b"border", b"reflection"), True, v.shape[1]
        elif op == "RotaryEmbedding":
            shift, linear, per = False, True, 1
        count = math.prod(v.shape[i] for i in order[:outer])
        rows = v.transpose(order).reshape(count, -1)
        y = self.lanes((seed, others), rows, math.prod(shape) // count, lambda i: i // per, shift, linear)
        return [y.reshape(shape)]

    def deformed(self, node, x, seed):
        """The results of a DeformConv: products of the weight with the samples at its taps in each channel."""
        a = {k.name: helper.get_attribute_value(k) for k in node.attribute}
        if not all(isinstance(v, Field) for v in x[:3]):
            return None
        v, w, places, groups, parts = *x[:2], x[2].shape[2:], a.get("group", 1), a.get("offset_group", 1)
        taps, count, per = math.prod(w.shape[2:]), math.prod(places), v.shape[1] // parts
        others = [digest(k) for k in (x[2], *x[4:5])]
        def item(i): return i // v.shape[1] * parts + i % v.shape[1] // per
        y = self.lanes((seed, others), v.reshape(v.shape[0] * v.shape[1], -1), taps * count, item, False, True)
        y = y.reshape(len(v), groups, w.shape[1] * taps, count)
        y = (w.reshape(groups, -1, w.shape[1] * taps)[None] @ y).reshape(len(v), len(w), *places)
        return [y + x[3].reshape(-1, *[1] * len(places)) if len(x) > 3 and x[3] is not None else y]

    def at_places(self, node, x, seed):
        """Random results, each of which depends on the elements at its place. None if the operands do not broadcast."""
        alike, to = node.op_type == "CastLike", next((k.i for k in node.attribute if k.name == "to"), None)
        sort = "int" if node.op_type == "QuantizeLinear" else "bool" if node.op_type in TRUTH else kind_of(to) if to else sort_of(x[alike])
        used = [v.view(np.ndarray) for v in (x[:1] if alike else x) if v is not None]
        try:
            bits = scramble(hashed(seed, [v is None for v in x]), *np.broadcast_arrays(*used))
            return [drawn(bits, sort)] if sort else None
        except ValueError:
            return None

    def results(self, node, x, seed, made=None):
        """Random results that depend on all operands. Their extents come from shape inference or from the bodies."""
        there = {n: v for n in reads(node) if n and sort_of(v := self.read(n))}
        types, like, states = {}, [], [self.read(n) for n in node.input][2 * (node.op_type == "Loop"):]
        if made:  # results that both branches have in common, or states with the same extents
            first, other = made if node.op_type == "If" else (made[0][node.op_type == "Loop":], states)
            like = [v if sort_of(v) == sort_of(w) and np.shape(v) == np.shape(w) else None for v, w in zip(first, other)]
        try:
            if not made and bytes in map(type, x):  # onnx crashes on some nodes whose inputs have no type
                raise NotImplementedError
            types_of = {"field": 1, "bool": 9, "int": 7}
            typed = [helper.make_tensor_value_info(n, types_of[sort_of(v)], v.shape) for n, v in there.items()]
            numbers = {n: self.number(n) for n, v in there.items() if v.size <= 64}
            known = [numpy_helper.from_array(number.own, n) for n, number in numbers.items() if number]
            model = shape_inference.infer_shapes(alone(node, typed, self.graph.opsets, known), data_prop=True)
            types = {v.name: v.type.tensor_type for v in model.graph.output}
        except Exception:
            pass  # the results are opaque
        if node.domain == "com.microsoft" and node.op_type in WIDE:
            extents = [v.shape if sort_of(v) else None for v in (*x, None, None)][:3]
            wide = WIDE[node.op_type]({k.name: helper.get_attribute_value(k) for k in node.attribute}, *extents)
            types = {node.output[0]: helper.make_tensor_type_proto(1, wide).tensor_type}
        def result(i, name):
            v, whole = (*like[i:i + 1], None)[0], hashed(seed, i, [digest(v) for v in x])
            if node.op_type == "If" and sort_of(v) in ("int", "bool") and digest(v) == digest(made[1][i]):
                return v
            type_ = types.get(name, onnx.TypeProto.Tensor())
            shape = [d.dim_value if d.HasField("dim_value") else None for d in type_.shape.dim]
            if type_.HasField("shape") and None not in shape and kind_of(type_.elem_type):
                return random(whole, shape, kind_of(type_.elem_type))
            return random(whole, v.shape, sort_of(v)) if sort_of(v) else whole
        return [result(i, name) for i, name in enumerate(node.output)]

# Recipes. Each number has a magnitude: its error is at most the unit times its magnitude.
STEPS = {
    "neg": lambda s, x: -x, "sqrt": lambda s, x: np.sqrt(x), "exp": lambda s, x: np.exp(x), "sigmoid": lambda s, x: sigmoid(x),
    "add": lambda s, x, y: x + y, "sub": lambda s, x, y: x - y, "mul": lambda s, x, y: x * y, "div": lambda s, x, y: x / y,
    "sum": lambda s, x: x.sum(s["axis"], keepdims=True), "max": lambda s, x: x.max(s["axis"], keepdims=True),
    "reshape": lambda s, x: x.reshape(s["shape"]), "expand": lambda s, x: np.broadcast_to(x, s["shape"]),
    "transpose": lambda s, x: x.transpose(s["perm"]), "concat": lambda s, *x: np.concatenate(x, s["axis"]),
    "pick": lambda s, x: picked(x, s["axis"], np.array([-1 if place is None else place for place in s["places"]])),
    "product": lambda s, x, y: x @ y, "conv": lambda s, w, x: convolved(s, w, x),
    "softmax": lambda s, x: softmax_of(x, s["axis"]), "round": lambda s, x: x, "flush": lambda s, x: x}
MAGNITUDES = {  # magnitudes of a result y, for the steps that cannot be applied to the magnitudes
    "neg": lambda s, y, a: a[1], "sub": lambda s, y, a, b: a[1] + b[1], "div": lambda s, y, a, b: a[1] * b[1] / b[0] ** 2,
    "sqrt": lambda s, y, a: np.divide(a[1], y, out=np.zeros_like(y), where=y > 0),
    "exp": lambda s, y, a: y * (a[1] + 4), "sigmoid": lambda s, y, a: y * (a[1] + 8),
    "softmax": lambda s, y, a: y * (2 * a[1].max(s["axis"], keepdims=True, initial=0) + 8)}

def number_type(name): return np.dtype(getattr(ml_dtypes, name, name))

def picked(x, axis, at):
    """The given places along an axis, with 0 for places outside it."""
    with_zero = np.concatenate([x, x.take([0], axis) * 0], axis)
    return with_zero.take(np.where((at >= 0) & (at < x.shape[axis]), at, x.shape[axis]), axis)

def convolved(s, w, x):
    x, rank = x.reshape(*x.shape[:2], *s["input"]), len(s["kernel"])
    for i in range(rank):  # splits each axis into two: taps, and places of the result
        place, tap = np.arange(s["output"][i]), np.arange(s["kernel"][i])[:, None] * s["dilations"][i]
        stride, before = s["strides"][i], s["before"][i]
        at = place + before - tap if s["transposed"] else place * stride - before + tap
        at = np.where(at % stride, -1, at // stride) if s["transposed"] else at
        x = picked(x, 2 + 2 * i, at)
    x = x.transpose([0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2)])
    return w.reshape(*w.shape[:2], -1) @ x.reshape(len(x), -1, math.prod(s["output"]))

def literal(step):
    numbers = np.float64(step["numbers"])
    return np.broadcast_to(numbers.reshape(step["shape"] if numbers.size > 1 else ()), step["shape"])

def evaluate(entry, leaf, compute):
    """The values of the steps of a recipe, by functions for its leaves and its other steps."""
    values = []
    for step in entry["steps"]:
        if step["op"] not in ("constant", "literal", *STEPS):
            raise Undecided(f"this checker does not know the step {step['op']}")
        inputs = [values[i] for i in step.get("inputs", [])]
        values.append(compute(step, *inputs) if step["op"] in STEPS else leaf(step))
        shape = list((values[-1][0] if isinstance(values[-1], tuple) else values[-1]).shape)
        if shape != step.get("shape", shape):
            raise Disproved(f"{entry['name']}: a step has other extents than {step['shape']}")
    return values

def in_numbers(entry, original, real=np.float64, wide=False, drops={}):
    """The numbers and magnitudes of the steps of a recipe."""
    def leaf(step):
        v = literal(step) if step["op"] == "literal" else original.number(step["name"])
        v = (v.wide if wide else v.own) if isinstance(v, Number) else v
        return v.astype(real), np.abs(v.astype(real))
    def compute(step, *x):
        op = step["op"]
        if op in drops:
            return drops[op](step, *x)
        y = np.asarray(STEPS[op](step, *(v for v, _ in x)))
        return y, MAGNITUDES[op](step, y, *x) if op in MAGNITUDES else STEPS[op](step, *(size for _, size in x))
    with np.errstate(all="ignore"):
        return evaluate(entry, leaf, compute)

def in_field(entry, original):
    """The field elements of the steps of a recipe."""
    decided = any(s["op"] in DECIDED for s in entry["steps"])
    numbers = in_numbers(entry, original, wide=True) if decided else []
    numbers = {id(step): number for step, (number, _) in zip(entry["steps"], numbers)}
    def leaf(step):
        value = field(image(literal(step))) if step["op"] == "literal" else original.read(step["name"])
        return value if len(entry["steps"]) == 1 else field(elements(value))  # a constant keeps its hidden elements
    def compute(step, *x):
        if step["op"] == "softmax":
            return shares(numbers[id(step)], step["axis"])
        if step["op"] in DECIDED:
            return stored(flushed(numbers[id(step)]))
        return of_elements(STEPS[step["op"]](step, *x))
    return evaluate(entry, leaf, compute)

def positive_factors(entries, original):
    """The factors that recipes may have moved through positively homogeneous operators."""
    parts, rows = {}, set()
    for entry in itertools.islice(entries.values(), 4096):
        steps = zip(in_numbers(entry, original), in_field(entry, original))
        parts |= dict.fromkeys(int(v.item()) for (n, _), v in steps if v.size == 1 and 0 < n.item() < np.inf and v.item())
        of_channels = [*factors_of_row(entry, original)]
        for row in [factor for factor in of_channels if len(factor) == 1], of_channels:
            for i in range(len(row)):
                product = [1]
                for factor in row[i:]:
                    if len({len(product), len(factor)} - {1}) > 1 or len(rows) > 1 << 15:
                        break
                    product = [int(p) * int(q) % P for p, q in np.broadcast(product, factor)]
                    rows |= set(product) - {0}
    paired = {1, *[*parts][:64]}
    paired |= {pow(part, -1, P) for part in paired}
    rows |= set(parts)
    return {a * b % P for a in paired for b in paired} | rows | {pow(product, -1, P) for product in rows}

def factors_of_row(entry, original):
    """The images of the factors of a tensor, the last first. Each is one number or one for each channel, and 0 if it is
    not positive."""
    numbers, values, at = in_numbers(entry, original), in_field(entry, original), len(entry["steps"]) - 1
    while (step := entry["steps"][at])["op"] in ("mul", "reshape", "round", "transpose", "neg"):
        at, *other = sorted(step["inputs"], key=lambda i: -values[i].size)
        if other and values[other[0]].size <= 4096:
            real = np.ravel(numbers[other[0]][0])
            row = np.where((real > 0) & (real < np.inf), np.ravel(values[other[0]].view(np.ndarray)), 0)
            if not row.any():
                return
            yield [int(v) for v in row]

def unit_of(x, type_):
    """The unit in the last place of each number."""
    one, limits = x.dtype.type(1), ml_dtypes.finfo(type_)
    return np.ldexp(one, np.frexp(np.maximum(np.abs(x), np.ldexp(one, limits.minexp)))[1] - 1 - limits.nmant)

def rounded(x, type_):
    """The nearest numbers of a type. astype may round twice, because it converts by way of float32."""
    unit = unit_of(x, type_)
    return (np.rint(x / unit) * unit).astype(type_).astype(x.dtype)

def check_rounding(entry, array, original):
    """Checks that each element is within half a unit in the last place of its recipe, plus the error of sums."""
    steps, limits = entry["steps"], ml_dtypes.finfo(array.dtype)
    real = np.longdouble if array.dtype == np.float64 else np.float64
    used = [original.number(s["name"]) for s in steps if s["op"] == "constant"]
    if None in used:
        raise Undecided(f"{entry['name']} is made of what this checker knows as no constant")
    types = {array.dtype, *(n.own.dtype for n in used)}
    drops = {"flush": lambda s: s["below"] > NOTHING, "round": lambda s: number_type(s["data_type"]) not in types}
    if any(s["op"] in drops and drops[s["op"]](s) for s in steps):
        raise Disproved(f"the recipe of {entry['name']} drops more than it may")
    rough = any(n.ops - ROUNDED and np.any(n.own != n.wide) for n in used)  # engines differ, such as in a Softmax
    def terms(step):
        extents = steps[step["inputs"][0]]["shape"]
        return math.prod(extents[-2:]) if step["op"] == "conv" else extents[step.get("axis", -1)]
    summed = [terms(s) for s in steps if s["op"] in ("sum", "softmax", "product", "conv")]
    unit = 2.0**-52 * (len(steps) + sum(summed))
    def near(f):  # allows the neighbouring number, if rounding may reach it
        def bounded(step, x):
            y, low, high = (f(step, x[0] + e * unit * x[1]) for e in (0, -1, 1))
            return y, np.maximum(np.abs(y), x[1]) + (high - low) / unit
        return bounded
    value, size = in_numbers(entry, original, real, drops={
        "flush": near(lambda s, x: flushed(x, s["below"])),
        "round": near(lambda s, x: rounded(x, number_type(s["data_type"])))})[-1]
    held = array.astype(real)
    ulp = unit_of(np.minimum(np.abs(value), np.abs(held)), array.dtype)  # below a power of 2, units are smaller
    allowed = unit * size + ulp / 2 + rough * (ulp / 2 + 64 * float(limits.eps) * size.max(initial=0))
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

# The rewriting of fused operators in docs/judge.md.
ROOT_OF_HALF, TANH_FACTOR = np.float32(math.sqrt(0.5)), np.float32(math.sqrt(2 / math.pi))

class Notation:
    """Replaces operators that tools fuse with the operators that they stand for."""
    def __init__(self, model):
        self.graph, self.nodes = model.graph, []
        tensors = {t.name: t for t in self.graph.initializer}
        tensors |= {n.output[0]: n.attribute[0].t for n in self.graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"}
        self.divisors = {name for name, t in tensors.items() if not t.dims and t.data_type == 1 and numpy_helper.to_array(t) == np.float32(math.sqrt(2))}
        self.erfs = {n.input[0] for n in self.graph.node if n.op_type == "Erf"}
        for node in self.graph.node:
            self.write(node, {a.name: helper.get_attribute_value(a) for a in node.attribute})
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)

    def add(self, op, *inputs, to=None, **attributes):
        made = to or f"{self.nodes[-1].output[0] if self.nodes else op}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [made], **attributes))
        return made

    def number(self, number, name=None):
        name = name or f"number/{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.float32(number), name))
        return name

    def gate(self, x, inner, function, to):
        """x·(1 + f(inner))/2"""
        half = self.add("Mul", x, self.number(0.5))
        self.add("Mul", half, self.add("Add", self.add(function, inner), self.number(1)), to=to)

    def write(self, node, attributes):
        op, x, to = node.op_type, node.input[0] if node.input else "", node.output[0]
        if op in ("BiasGelu", "FastGelu") and len(node.input) > 1:
            x = self.add("Add", x, node.input[1])
        if op == "FastGelu" or op == "Gelu" and attributes.get("approximate") == b"tanh":
            cube = self.add("Mul", self.add("Mul", x, x), x)
            inner = self.add("Add", x, self.add("Mul", cube, self.number(0.044715)))
            self.gate(x, self.add("Mul", inner, self.number(TANH_FACTOR)), "Tanh", to)
        elif op in ("BiasGelu", "Gelu"):
            self.gate(x, self.add("Mul", x, self.number(ROOT_OF_HALF)), "Erf", to)
        elif op == "QuickGelu":
            inner = self.add("Mul", x, self.number(attributes.get("alpha", 1.702)))
            self.add("Mul", x, self.add("Sigmoid", inner), to=to)
        elif op == "Div" and to in self.erfs and node.input[1] in self.divisors:
            self.add("Mul", x, self.number(ROOT_OF_HALF), to=to)
        elif op == "FusedMatMul" and attributes.get("alpha", 1) != 1:
            product = self.add(op, *node.input, domain=node.domain, **attributes | {"alpha": 1.0})
            self.add("Mul", product, self.number(attributes["alpha"], (node.name or to).rstrip("/") + "/_constant_0"), to=to)
        elif op == "FusedConv" and attributes["activation"] in (b"Relu", b"Sigmoid", b"Tanh") and len(node.input) < 4:
            function = attributes.pop("activation").decode()
            self.add(function, self.add("Conv", *node.input, **attributes), to=to)
        else:
            self.nodes.append(node)

def drop_defaults(graph, opsets):
    """Drops the attributes of ONNX's operators that are at their defaults, and omitted last inputs."""
    for node in graph.node:
        while node.input and not node.input[-1]:
            del node.input[-1]
        if node.domain in ("", "ai.onnx"):
            schema = onnx.defs.get_schema(node.op_type, opsets[""]).attributes
            for attribute in [*node.attribute]:
                value, known = helper.get_attribute_value(attribute), schema.get(attribute.name)
                has_default = known and known.default_value.type  # otherwise the type is 0, which is no default
                default = helper.get_attribute_value(known.default_value) if has_default else None
                of_each = {"pads": 0, "strides": 1, "dilations": 1}.get(attribute.name)
                if value == default and default is not None or of_each is not None and {*value} == {of_each}:
                    node.attribute.remove(attribute)
        for body in bodies(node):
            drop_defaults(body, opsets)

def in_notation(model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    drop_defaults(copy.graph, {"" if o.domain == "ai.onnx" else o.domain: o.version for o in copy.opset_import})
    Notation(copy)
    return copy

# The formulas of a verdict.
FUNCTIONS = {name: name for name in STEPS} | {"matmul": "product", "filled": "literal"} | dict.fromkeys(("float16", "bfloat16", "float32", "float", "double"), "round")
CALL, OPTION, NUMBER = re.compile(r"(\w+)\("), re.compile(r"(?:(\w+)=)?(\[.*?\]|(?<==)[-\w.+]+)"), re.compile(r"-?\d[\d.]*(?:e[-+]?\d+)?")
LISTS = {"reshape": "shape", "expand": "shape", "filled": "shape", "transpose": "perm", "pick": "places"}

class Formula:
    """Reads steps from text such as `t1 = mul(w, s); reshape(t1, [4, 1])`. A name may contain any characters, so the
    longest known name is read."""
    def __init__(self, text, names):
        self.text, self.at, self.steps, self.parts, self.names = text, 0, [], {}, names

    def read(self):
        while part := re.compile(r"(t\d+) = ").match(self.text, self.at):
            self.at = part.end()
            self.parts[part[1]] = self.operand()
            self.at += len("; ")
        self.operand()
        if self.at != len(self.text):
            raise Undecided(f"this checker cannot read the formula {self.text}")
        return self.steps

    def step(self, **step):
        self.steps.append(step)
        return len(self.steps) - 1

    def operand(self):
        call = CALL.match(self.text, self.at)
        if call and call[1] in FUNCTIONS:
            return self.call(call)
        there = [n for n in (*self.parts, *self.names) if self.text.startswith(n, self.at)]
        number = NUMBER.match(self.text, self.at)
        if not there and not number:
            raise Undecided(f"this checker cannot read the formula {self.text}")
        read = max(there, key=len) if there else number[0]
        self.at += len(read)
        if read in self.parts:
            return self.parts[read]
        return self.step(op="constant", name=read) if there else self.step(op="literal", numbers=[float(read)], shape=[])

    def call(self, call):
        self.at, inputs, options = call.end(), [], {}
        while self.text[self.at] != ")":
            option = OPTION.match(self.text, self.at)
            if option:
                self.at = option.end()
                options[option[1] or LISTS[call[1]]] = self.option(option[2])
            else:
                inputs.append(self.operand())
            self.at += 2 * self.text.startswith(", ", self.at)
        self.at += 1
        if call[1] == "filled":
            return self.step(op="literal", numbers=self.steps[inputs[0]]["numbers"], **options)
        return self.step(op=FUNCTIONS[call[1]], inputs=inputs, data_type=call[1], **options)

    def option(self, text):
        if "places" in text:
            raise Undecided(f"the formula {self.text} leaves places out")
        if ".." in text:
            return list(range(*map(int, text[1:-1].split(".."))))
        return json.loads(text.replace("-,", "null,").replace("-]", "null]"))

def renamed(graph, names):
    """Renames the values of a graph and of its bodies."""
    for value in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for part in node.input, node.output:
            part[:] = [names.get(n, n) for n in part]
        for body in bodies(node):
            renamed(body, names)

def with_ends_of(model, original):
    """The model with the names of the original's inputs and outputs, in their order, where the names differ."""
    given = {t.name for t in model.graph.initializer}
    def ends(graph): return [[v.name for v in graph.input if v.name not in given], [v.name for v in graph.output]]
    own, wanted = ends(model.graph), ends(original.graph)
    names = {}
    for these, those in zip(own, wanted):
        if sorted(these) != sorted(those) and len(these) == len(those):
            names |= zip(these, those)
    taken = {n: n + "_of_its_own" for n in names.values() if n not in names}  # another value may have such a name
    renamed(model.graph, taken | names)
    return model

def of_verdict(verdict, original, fused):
    """Both graphs, with the one that has formulas second, and the entries of its tensors with formulas."""
    tensors = verdict["judgement"].get("tensors", [])
    if any(t["is_of_first"] for t in tensors):
        original, fused = fused, original
    names = [*original.tensors, *(o for node in original.nodes for o in node.output if o)]
    held = {fused.stored_as[name]: array for name, array in fused.tensors.items()}
    entries = [dict(name=t["name"], steps=Formula(t["formula"], names).read()) for t in tensors]
    fused.stored_as |= {t["name"]: t["name"] for t in tensors if t["name"] not in held}  # computed of constants
    return original, fused, dict(tensors=entries, is_verdict=True)

def check_formula(entry, array, original):
    """Checks that each element equals its formula up to the rounding of operations in its type."""
    steps, eps = entry["steps"], float(ml_dtypes.finfo(array.dtype).eps)
    used = [original.number(s["name"]) for s in steps if s["op"] == "constant"]
    if None in used:
        raise Undecided(f"{entry['name']} is made of what this checker knows as no constant")
    values = in_numbers(entry, original)
    value, size = (x.reshape(array.shape) for x in values[-1])
    terms = [values[s["inputs"][0]][0].shape[s.get("axis", -1)] for s in steps if s["op"] in ("sum", "product")]
    allowed = eps * (len(steps) + sum(terms)) * size
    if any(n.ops - MOVES for n in used):  # computed by operations that may cancel
        allowed = allowed + 64 * eps * size.max(initial=0)
    if len(steps) == 1 and not used[0].ops:  # the fold is in neither model
        allowed = 6 * eps * size.max(initial=0)
    if not (np.abs(array.astype(np.float64) - value) <= allowed).all():
        raise Disproved(f"{entry['name']} is not its formula, but for rounding")

def store_computed(graph, names, point, extents):
    """Stores these constants, which a graph computes."""
    names = [name for name in names if name not in graph.tensors]
    run = Run(graph, point, extents, keep=names) if names else None
    for name in names:
        if run.number(name) is None:
            raise Undecided(f"{name} is no constant that this checker knows")
        graph.tensors[name] = np.asarray(run.number(name).own)
    for node in graph.nodes:
        node.output[:] = ["" if name in names else name for name in node.output]

def operators(nodes):
    """The operators of nodes and of their bodies."""
    return {(n.domain, n.op_type) for n in nodes}.union(*(operators(b.node) for n in nodes for b in bodies(n)))

IN_FORM = {"Pad", "Reshape", "Split", *(f"Reduce{kind}" for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum"))}

def have_same_meaning(*graphs):
    """Whether no operator of these graphs changed between their operator sets, from set 13 on, except in its form."""
    versions = [graph.opsets.get("", 1) for graph in graphs]
    def changed(op): return len({onnx.defs.get_schema(op, version).since_version for version in versions}) > 1
    used = set().union(*(operators(graph.nodes) for graph in graphs))
    own = {op for domain, op in used if not domain}
    domains = {d for graph in graphs for d in graph.opsets if d and any(domain == d for domain, _ in used)}
    same = all(len({graph.opsets[d] for graph in graphs if d in graph.opsets}) == 1 for d in domains)
    form = IN_FORM | ({"Resize"} if max(versions) <= 18 else set())  # set 18 adds attributes, and keeps what others mean
    return same and min(versions) >= 13 and not any(changed(op) for op in own - form)

def parted(first, second):
    """The name of the first output that differs, or None."""
    return next((n for n, v in first.outputs.items() if digest(v) != digest(second.outputs[n])), None)

def compare(original, fused, certificate, point, sizes, tried=(2, 3, 1, 4, 8, 16), is_checked=False):
    """The bound on the probability of an error, if both graphs agree at the point."""
    entries = {t["name"]: t for t in certificate.get("tensors", [])}
    entries = {name: entries[stored_as] for name, stored_as in fused.stored_as.items() if stored_as in entries}
    keep = [s["name"] for t in entries.values() for s in t["steps"] if s["op"] == "constant"]
    for size in tried:  # for open extents, takes the first size at which the original can be evaluated
        try:
            extents = original.extents(sizes, size)
            first = Run(original, point, extents, keep=keep)
            break
        except Unfit as error:
            unfit = error
    else:
        raise unfit
    if certificate.get("is_verdict"):
        store_computed(fused, entries, point, extents)
        for name, entry in entries.items():
            entry["shape"] = list(fused.tensors[name].shape)
        for name, entry in () if is_checked else entries.items():
            check_formula(entry, fused.tensors[name], first)
    elif not is_checked:
        check_tensors(fused, first, entries)
    recipes = {n: lambda e=e: in_field(e, first)[-1].reshape(e["shape"]) for n, e in entries.items()}
    for is_open in False, True:  # first, results that follow from fixed extents are decided by numbers
        first = Run(original, point, extents, keep=keep, is_open=True) if is_open else first
        second = Run(fused, point, extents, recipes, is_open=is_open)
        if parted(first, second):  # a positive factor may have been moved
            scales = positive_factors(entries, first), {}
            first = Run(original, point, extents, keep=keep, scales=(*scales, True), is_open=is_open)
            second = Run(fused, point, extents, recipes, scales=(*scales, False), is_open=is_open)
        name = parted(first, second)
        if name is None:
            return second.bound
    needed = {name}
    for node in reversed(fused.nodes):
        needed |= set(reads(node)) if needed & set(node.output) else set()
    if bytes in map(type, (first.outputs[name], second.outputs[name])) or needed & (first.unclear | second.unclear):
        raise Undecided(f"{name} comes of what has no known extents, or of bodies that could not be evaluated")
    raise Disproved(f"{name} differs")

APART = (5, 7, 11, 13, 6, 9, 17, 19)

def prove(original, fused, certificate, sizes, seed):
    """The bound on the probability that the proof is wrong."""
    global turn
    bound = prove_once(original, fused, certificate, sizes, seed)
    symbols = dict.fromkeys(d.dim_param for t in original.inputs.values() for d in t.shape.dim if d.dim_param not in ("", "?", *sizes))
    apart = sizes | dict(zip([s for s in symbols if s.isidentifier()], APART))
    turn = 1  # takes the other root of −1
    try:
        try:  # gives each symbol a different size
            return max(bound, compare(original, fused, certificate, hashed(seed, "apart"), apart, (3, 1), True))
        except Disproved:
            raise
        except (Undecided, LookupError, TypeError, ValueError, AttributeError, MemoryError, RecursionError):
            return max(bound, prove_once(original, fused, certificate, sizes, hashed(seed, "again"), True))
    finally:
        turn = 0

def prove_once(original, fused, certificate, sizes, seed, is_checked=False):
    """The bound on the probability that the proof is wrong, at one assignment of sizes."""
    if original.ends != fused.ends:
        raise Disproved("the inputs or outputs have other names or types")
    if any(n not in fused.defaults or digest(v) != digest(fused.defaults[n]) for n, v in original.defaults.items()):
        raise Disproved("what an input is where nobody gives it is not that of the original")
    if any(original.opsets.get(*o) != o[1] for o in fused.opsets.items()) and not have_same_meaning(original, fused):
        raise Undecided("the operator sets are of other versions")
    for attempt in range(4):  # if a divisor is 0, tries another point
        try:
            return compare(original, fused, certificate, hashed(seed, attempt), sizes, is_checked=is_checked)
        except (Undecided, LookupError, TypeError, ValueError, AttributeError, MemoryError, RecursionError) as why:
            undecided = why
    raise Undecided(f"{type(undecided).__name__}: {undecided}")

def check_files(part, path):
    for file, wanted in {path: part["sha256"], **{path.parent / n: d for n, d in part["data"].items()}}.items():
        if hashlib.sha256(file.read_bytes()).hexdigest() != wanted:
            raise Disproved(f"{file.name} is not the file that the certificate is for")

def main():
    parser = argparse.ArgumentParser(description="Proves that FUSED computes what ORIGINAL does.")
    for name in "original", "fused", "--certificate":
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--verdict", type=pathlib.Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sizes = {name: int(size) for name, _, size in (d.rpartition("=") for d in options.dim)}
    try:
        models = [onnx.load(path) for path in (options.original, options.fused)]
        if options.verdict:
            models[1] = with_ends_of(models[1], models[0])
        original, fused = (Graph(in_notation(model) if options.verdict else model) for model in models)
        certificate = json.loads(options.certificate.read_text()) if options.certificate else {}
        verdict = json.loads(options.verdict.read_text()) if options.verdict else {}
    except Exception as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        for part in ("original", "fused") if certificate else ():
            check_files(certificate[part], getattr(options, part))
        if verdict:
            original, fused, certificate = of_verdict(verdict, original, fused)
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
