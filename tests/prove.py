"""Checks that a folded model computes what its original does: the second checker of docs/proof.md.

    python tests/prove.py ORIGINAL FUSED [--certificate FILE] [--dim NAME=SIZE] [--seed N] [--points N] [--json]

It is written from that page and shares no code with unfold. Needs numpy and onnx.
Exit codes: 0 proved, 1 a file is unreadable, 2 usage, 3 disproved, 4 undecided.
"""
import argparse, hashlib, json, math, pathlib, re, sys
import ml_dtypes, numpy as np, onnx
from onnx import helper, inliner, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

P = 2**31 - 69
BOUND = 2**28  # elements of one value


class Undecided(Exception): pass
class Disproved(Exception): pass
class Uninterpreted(Exception): pass  # this use of an operator is not in the table


# ---- the field: arrays of uint64 below P. Integer tensors are int64 or bool, opaque values are bytes. ----

POWERS = np.array([pow(2, k if k < 2048 else k - 4096, P) for k in range(4096)], np.uint64)  # also of negative k


def image(numbers):
    if numbers.dtype.kind in "iub":
        return (numbers % P).astype(np.uint64)
    mantissa, exponent = np.frexp(numbers.astype(np.float64))
    return (np.ldexp(mantissa, 53).astype(np.int64) % P).astype(np.uint64) * POWERS[exponent - 53] % P


def add(*values):
    total = values[0]
    for value in values[1:]:
        total = (total + value) % P
    return total


def mul(a, b): return a * b % P
def neg(a): return (P - a) % P
def sub(a, b): return (a + (P - b)) % P
def root(a): return power(a, (P + 1) // 4)
def const(number): return image(np.float64(number))


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


def div(a, b): return mul(a, inverse(b))
def total(a, axes): return np.sum(a, axis=tuple(axes), keepdims=True, dtype=np.uint64) % P
def mean(a, axes): return div(total(a, axes), image(np.int64(math.prod(a.shape[i] for i in axes))))


def products(f, a, b, terms):
    """f(a, b), where each result is a sum of so many products: exact in float64, by digits of b that are small enough."""
    width = 24 - max(terms - 1, 0).bit_length()
    a, b = (np.where(x > P // 2, x.astype(np.int64) - P, x.astype(np.int64)) for x in (a, b))
    result, shift, a, half = None, 0, a.astype(np.float64), 1 << (width - 1)
    while result is None or b.any():
        digit = ((b + half) & (2 * half - 1)) - half
        part = (f(a, digit.astype(np.float64)).astype(np.int64) % P).astype(np.uint64) * POWERS[shift] % P
        result = part if result is None else add(result, part)
        b, shift = (b - digit) >> width, shift + width
    return result


def matmul(a, b): return products(np.matmul, a, b, a.shape[-1])


def windows(x, kernel, strides, dilations, before, output, transposed):
    """[..., spatial axes] to [..., taps, places]: what each tap of a convolution sees from each place of its output."""
    lead, rank = x.ndim - len(kernel), len(kernel)
    for i in range(rank):
        axis, tap, place = lead + 2 * i, np.arange(kernel[i])[:, None] * dilations[i], np.arange(output[i])
        at = place + before[i] - tap if transposed else place * strides[i] - before[i] + tap
        outside = at % strides[i] != 0 if transposed else at < 0
        at = at // strides[i] if transposed else at
        at[outside | (at < 0) | (at >= x.shape[axis])] = x.shape[axis]
        x = np.concatenate([x, np.zeros(x.shape[:axis] + (1,) + x.shape[axis + 1:], x.dtype)], axis).take(at, axis)
    x = x.transpose([*range(lead), *range(lead, lead + 2 * rank, 2), *range(lead + 1, lead + 2 * rank, 2)])
    return x.reshape(x.shape[:lead] + (math.prod(kernel), math.prod(output)))


# ---- random elements ----

def mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashed(*parts):
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def digest(value):
    if value is None or isinstance(value, bytes):
        return value
    data = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).digest()
    return hashed(value.dtype.str, value.shape, data)


def scramble(seed, *arrays):
    """A random function of the elements at each place."""
    state = np.frombuffer(seed, np.uint64)[:1]
    for x in arrays:
        state = mix(mix(state + np.uint64(0x9E3779B97F4A7C15)) ^ x.astype(np.uint64))
    return mix(state + np.uint64(1))


def sort(bits, kind):
    """Random bits as elements of a field, an integer or a truth tensor."""
    return bits % P if kind == "field" else bits % 2 == 1 if kind == "bool" else (bits % 100).astype(np.int64)


def random(seed, shape, kind="field"):
    if math.prod(shape) > BOUND:
        raise Undecided("a value is too large")
    return sort(scramble(seed, np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)), kind)


def kind_of(data_type):
    name = onnx.TensorProto.DataType.Name(data_type)
    return "bool" if name == "BOOL" else "field" if "FLOAT" in name or name == "DOUBLE" else "int" if "INT" in name else None


def stored(array):
    """The value of a stored tensor."""
    if array.dtype.kind in "OSU" or array.dtype.kind == "c":
        return hashed(array.shape, array.tolist())
    if array.dtype.kind in "iub" or re.match("u?int", array.dtype.name):
        return array if array.dtype.kind == "b" else array.astype(np.int64)
    if np.isfinite(array.astype(np.float64)).all():
        return image(array)
    return scramble(hashed("not finite"), np.ascontiguousarray(array.astype(np.float64)).view(np.uint64)) % P


# ---- the operators of the table ----

class Attributes(dict):  # also: opset, outputs (how many), number(i): what input i is in numbers, or None
    pass


MOVES, ARITHMETIC = {}, {}  # name: (function, the attributes it reads)


def operator(table, names, attributes=""):
    def register(function):
        table.update((name, (function, attributes.split())) for name in names.split())
        return function
    return register


for name, function in dict(Add=add, Sum=add, Sub=sub, Mul=mul, Div=div, Neg=neg, Reciprocal=inverse, Sqrt=root, MatMul=matmul).items():
    ARITHMETIC[name] = ((lambda f: lambda a, *x: f(*x))(function), [])
ARITHMETIC["Mean"] = (lambda a, *x: div(add(*x), const(len(x))), [])


def integers(x):
    if x is None or x.dtype == np.uint64:
        raise Uninterpreted
    return [int(i) for i in np.ravel(x)]


def given(a, name, x, default=None):
    """A list of integers that older operator sets have as an attribute."""
    return list(a[name]) if name in a else default if x is None else integers(x)


@operator(ARITHMETIC, "Softsign")
def softsign(a, x): return div(x, add(const(1), a.function("Abs", x)))


def axes_of(axes, rank): return sorted(i % rank for i in axes)


@operator(ARITHMETIC, "Pow")
def pow_(a, x, y):
    exponent = a.number(1)
    if exponent is None or exponent.size == 0 or (exponent != exponent.flat[0]).any():
        raise Uninterpreted
    e, x = float(exponent.flat[0]), np.broadcast_to(x, np.broadcast_shapes(x.shape, y.shape))
    if abs(e) == 0.5:
        return root(x) if e > 0 else inverse(root(x))
    if abs(e) > 8 or e != int(e):
        raise Uninterpreted
    return power(x, int(e)) if e >= 0 else inverse(power(x, int(-e)))


@operator(ARITHMETIC, "Gemm", "alpha beta transA transB")
def gemm(a, x, w, c=None):
    y = mul(matmul(x.T if a.get("transA") else x, w.T if a.get("transB") else w), const(a.get("alpha", 1.0)))
    return y if c is None else add(y, mul(c, const(a.get("beta", 1.0))))


@operator(ARITHMETIC, "FusedMatMul", "alpha transA transB transBatchA transBatchB")
def fused_matmul(a, x, w):
    if a.get("transBatchA") or a.get("transBatchB"):
        raise Uninterpreted
    x, w = (v.swapaxes(-1, -2) if a.get(t) and v.ndim > 1 else v for v, t in ((x, "transA"), (w, "transB")))
    return mul(matmul(x, w), const(a.get("alpha", 1.0)))


@operator(ARITHMETIC, "Einsum", "equation")
def einsum(a, *x):
    left, arrow, right = a["equation"].decode().replace(" ", "").partition("->")
    terms, spare = left.split(","), [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in left]
    dots = max(v.ndim - len(t.replace("...", "")) if "..." in t else 0 for v, t in zip(x, terms))
    names = "".join(spare[:dots])
    terms = [t.replace("...", names[dots - (v.ndim - len(t.replace("...", ""))):]) for v, t in zip(x, terms)]
    letters = "".join(terms)
    right = right.replace("...", names) if arrow else names + "".join(sorted(c for c in set(letters) - set(names) if letters.count(c) == 1))
    if any(len(set(t)) < len(t) for t in terms):
        raise Uninterpreted
    y, have = x[0], terms[0]
    for i in range(len(x)):
        w, term = (x[i], terms[i]) if i else (np.ones((), np.uint64), "")
        want = "".join(c for c in dict.fromkeys(have + term) if c in right or any(c in t for t in terms[i + 1:]))
        want = right if i == len(x) - 1 else want
        sizes = {c: max(n, m) for c, n, m in [(c, dict(zip(have, y.shape)).get(c, 1), dict(zip(term, w.shape)).get(c, 1)) for c in have + term]}
        summed = math.prod(n for c, n in sizes.items() if c not in want)
        y, have = products(lambda p, q: np.einsum(f"{have},{term}->{want}", p, q, optimize=True), y, w, summed), want
    return y


def window_attributes(a, x, kernel):
    """Strides, dilations, the padding before and after each axis, and the extents of the result."""
    rank, size = len(kernel), x.shape[2:]
    strides, dilations = (list(a.get(k, [1] * rank)) for k in ("strides", "dilations"))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    pads, auto = list(a.get("pads", [0] * 2 * rank)), a.get("auto_pad", b"NOTSET").decode()
    if auto.startswith("SAME"):
        need = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(size, strides, reach)]
        small = [n // 2 for n in need]
        large = [n - m for n, m in zip(need, small)]
        pads = small + large if auto == "SAME_UPPER" else large + small
    elif auto == "VALID":
        pads = [0] * 2 * rank
    before, after = pads[:rank], pads[rank:]
    room = [n + b + e - r for n, b, e, r in zip(size, before, after, reach)]
    if a.get("ceil_mode"):  # the last window starts inside the value or the padding before it
        output = [-(-n // s) + 1 for n, s in zip(room, strides)]
        output = [o - ((o - 1) * s >= n + b) for o, s, n, b in zip(output, strides, size, before)]
    else:
        output = [n // s + 1 for n, s in zip(room, strides)]
    return strides, dilations, before, after, output


@operator(ARITHMETIC, "Conv ConvTranspose", "auto_pad dilations group kernel_shape output_padding pads strides")
def conv(a, x, w, bias=None):
    kernel, group, transposed = w.shape[2:], a.get("group", 1), a.op == "ConvTranspose"
    strides, dilations, before, after, output = window_attributes(a, x, kernel)
    if transposed:
        if a.get("auto_pad", b"NOTSET") != b"NOTSET":
            raise Uninterpreted
        output = [(n - 1) * s + (k - 1) * d + 1 - b - e + o for n, s, k, d, b, e, o in zip(
            x.shape[2:], strides, kernel, dilations, before, after, a.get("output_padding", [0] * len(kernel)))]
        w = w.reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2).reshape(-1, w.shape[0] // group, *kernel)
    seen = windows(x, kernel, strides, dilations, before, output, transposed)
    if math.prod(seen.shape) > BOUND:
        raise Undecided("a convolution is too large")
    w = w.reshape(group, w.shape[0] // group, -1)
    y = products(lambda v, u: np.matmul(u, v), seen.reshape(len(x), group, -1, seen.shape[-1]), w, w.shape[-1])
    y = y.reshape(len(x), -1, *output)
    return y if bias is None else add(y, bias.reshape(-1, *[1] * len(kernel)))


@operator(ARITHMETIC, "AveragePool", "auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides")
def average_pool(a, x):
    kernel = a["kernel_shape"]
    strides, dilations, before, after, output = window_attributes(a, x, kernel)
    inside = np.ones((1, 1, *x.shape[2:]), np.uint64)
    if a.get("count_include_pad"):
        inside = np.pad(inside, [(0, 0), (0, 0), *zip(before, after)], constant_values=1)
    taps, counted = (windows(v, kernel, strides, dilations, b, output, False) for v, b in (
        (x, before), (inside, [0] * len(kernel) if a.get("count_include_pad") else before)))
    return div(total(taps, [2]), total(counted, [2])).reshape(*x.shape[:2], *output)


@operator(ARITHMETIC, "GlobalAveragePool")
def global_average_pool(a, x): return mean(x, range(2, x.ndim))


@operator(ARITHMETIC, "ReduceSum ReduceMean ReduceSumSquare ReduceL2", "axes keepdims noop_with_empty_axes")
def reduce(a, x, axes=None):
    axes = given(a, "axes", axes, [])
    axes = axes_of(axes, x.ndim) if axes else [] if a.get("noop_with_empty_axes") else list(range(x.ndim))
    x = mul(x, x) if a.op in ("ReduceSumSquare", "ReduceL2") else x
    y = mean(x, axes) if a.op == "ReduceMean" else total(x, axes)
    y = root(y) if a.op == "ReduceL2" else y
    return y if a.get("keepdims", 1) else np.squeeze(y, tuple(axes))


def normalize(x, axes, epsilon, centred=True):
    """The normalized value, the mean, and one by the root of the variance."""
    middle = mean(x, axes) if centred else np.zeros((), np.uint64)
    x = sub(x, middle)
    rstd = inverse(root(add(mean(mul(x, x), axes), const(np.float32(epsilon)))))
    return mul(x, rstd), middle, rstd


@operator(ARITHMETIC, "BatchNormalization", "epsilon momentum training_mode spatial is_test")
def batch_normalization(a, x, scale, bias, middle, variance):
    if a.get("training_mode") or a.outputs > 1 or not a.get("spatial", 1) or a.opset < 7 and not a.get("is_test"):
        raise Uninterpreted
    scale, bias, middle, variance = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, bias, middle, variance))
    deviation = root(add(variance, const(np.float32(a.get("epsilon", 1e-5)))))
    return add(mul(div(sub(x, middle), deviation), scale), bias)


@operator(ARITHMETIC, "InstanceNormalization", "epsilon")
def instance_normalization(a, x, scale, bias):
    scale, bias = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, bias))
    return add(mul(normalize(x, range(2, x.ndim), a.get("epsilon", 1e-5))[0], scale), bias)


@operator(ARITHMETIC, "GroupNormalization", "epsilon num_groups stash_type")
def group_normalization(a, x, scale, bias):
    groups = x.reshape(len(x), a["num_groups"], -1, *x.shape[2:])
    scale, bias = (v.reshape(1, a["num_groups"], -1, *[1] * (x.ndim - 2)) for v in (scale, bias))
    return add(mul(normalize(groups, range(2, groups.ndim), a.get("epsilon", 1e-5))[0], scale), bias).reshape(x.shape)


@operator(ARITHMETIC, "LayerNormalization RMSNormalization SimplifiedLayerNormalization", "axis epsilon stash_type")
def layer_normalization(a, x, scale, bias=None):
    axes, centred = range(a.get("axis", -1) % x.ndim, x.ndim), a.op == "LayerNormalization"
    y, middle, rstd = normalize(x, axes, a.get("epsilon", 1e-5), centred)
    y = mul(y, scale)
    return [y if bias is None else add(y, bias), *([middle] if centred else []), rstd]


@operator(ARITHMETIC, "SkipLayerNormalization SkipSimplifiedLayerNormalization", "epsilon")
def skip_layer_normalization(a, x, skip, scale, *rest):
    centred = a.op == "SkipLayerNormalization"
    beta, bias = (list(rest if centred else (None, *rest)) + [None, None])[:2]
    x = add(x, skip) if bias is None else add(x, skip, bias)
    y, middle, rstd = normalize(x, [x.ndim - 1], a.get("epsilon", 1e-12), centred)
    return [mul(y, scale) if beta is None else add(mul(y, scale), beta), middle, rstd, x]


@operator(ARITHMETIC, "Softmax LogSoftmax", "axis")
def softmax(a, x):
    shape, axis = x.shape, a.get("axis", -1 if a.opset >= 13 else 1)
    lanes = x.reshape(math.prod(shape[:axis % x.ndim]), -1) if a.opset < 13 else np.moveaxis(x, axis, -1)
    lanes = sub(lanes, lanes[..., :1])
    place = np.arange(lanes.shape[-1], dtype=np.uint64)
    whole = scramble(hashed(a.point, a.op), lanes, place).sum(-1, keepdims=True, dtype=np.uint64)  # the place keeps the order
    y = scramble(hashed(a.point, a.op), whole, place) % P
    return y.reshape(shape) if a.opset < 13 else np.moveaxis(y, -1, axis)


@operator(MOVES, "Identity")
def identity(a, x): return x


@operator(MOVES, "Dropout", "ratio seed is_test")
def dropout(a, x, ratio=None, training=None):
    if training is not None and any(integers(training)) or a.opset < 7 and not a.get("is_test"):
        raise Uninterpreted
    return [x, np.ones(x.shape, bool)]


@operator(MOVES, "Cast CastLike", "to saturate round_mode")
def cast(a, x, like=None):
    floats = like.dtype == np.uint64 if a.op == "CastLike" else not isinstance(a["to"], bytes) and kind_of(a["to"]) == "field"
    if not floats:
        raise Uninterpreted
    return x if x.dtype == np.uint64 else image(x)


@operator(MOVES, "Shape", "start end")
def shape_(a, x): return np.array(x.shape[slice(a.get("start"), a.get("end"))], np.int64)


@operator(MOVES, "Size")
def size(a, x): return np.array(x.size, np.int64)


@operator(MOVES, "Reshape", "allowzero")
def reshape(a, x, shape):
    shape = [n if n or a.get("allowzero") else x.shape[i] for i, n in enumerate(integers(shape))]
    return x.reshape(shape)


@operator(MOVES, "Transpose", "perm")
def transpose(a, x): return x.transpose(a.get("perm"))


@operator(MOVES, "Squeeze", "axes")
def squeeze(a, x, axes=None):
    axes = given(a, "axes", axes)
    return np.squeeze(x, None if axes is None else tuple(axes))


@operator(MOVES, "Unsqueeze", "axes")
def unsqueeze(a, x, axes=None): return np.expand_dims(x, tuple(given(a, "axes", axes)))


@operator(MOVES, "Flatten", "axis")
def flatten(a, x):
    axis = a.get("axis", 1)
    return x.reshape(math.prod(x.shape[:axis if axis >= 0 else axis + x.ndim]), -1)


@operator(MOVES, "Slice", "starts ends axes")
def slice_(a, x, starts=None, ends=None, axes=None, steps=None):
    starts, ends = given(a, "starts", starts), given(a, "ends", ends)
    axes, cut = given(a, "axes", axes, list(range(len(starts)))), [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, given(a, "steps", steps, [1] * len(starts))):
        cut[axis] = slice(start, None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(cut)]


@operator(MOVES, "Split", "axis split num_outputs")
def split(a, x, sizes=None):
    axis = a.get("axis", 0)
    sizes = given(a, "split", sizes, [-(-x.shape[axis] // a.outputs)] * (a.outputs - 1))
    return np.split(x, np.cumsum(sizes)[:a.outputs - 1], axis)


@operator(MOVES, "Concat", "axis")
def concat(a, *x): return np.concatenate(x, a.get("axis", 1))


@operator(MOVES, "Gather", "axis")
def gather(a, x, places):
    axis = a.get("axis", 0)
    integers(places[:0] if places.ndim else places)
    return x.take(places % x.shape[axis], axis)


@operator(MOVES, "GatherElements", "axis")
def gather_elements(a, x, places):
    axis = a.get("axis", 0) % x.ndim
    grid = list(np.indices(places.shape, sparse=True))
    grid[axis] = places % x.shape[axis]
    return x[tuple(grid)]


@operator(MOVES, "GatherND", "batch_dims")
def gather_nd(a, x, places):
    batch = a.get("batch_dims", 0)
    lead = np.indices(places.shape[:batch] + (1,) * (places.ndim - 1 - batch), sparse=True)[:batch] if batch else []
    return x[(*lead, *(places[..., i] % x.shape[batch + i] for i in range(places.shape[-1])))]


@operator(MOVES, "Expand")
def expand(a, x, shape): return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(integers(shape))))


@operator(MOVES, "Tile")
def tile(a, x, repeats): return np.tile(x, integers(repeats))


@operator(MOVES, "Pad", "mode pads paddings value")
def pad(a, x, pads=None, value=None, axes=None):
    pads = given(a, "pads", pads) if "paddings" not in a else list(a["paddings"])
    axes = [i % x.ndim for i in given(a, "axes", axes, list(range(x.ndim)))]
    if a.get("mode", b"constant") != b"constant":
        raise Uninterpreted
    value = const(a.get("value", 0.0)) if x.dtype == np.uint64 and value is None else 0 if value is None else value.ravel()[0]
    shape, inner, outer = list(x.shape), [slice(None)] * x.ndim, [slice(None)] * x.ndim
    for axis, before, after in zip(axes, pads[:len(axes)], pads[len(axes):]):
        shape[axis] += before + after
        inner[axis] = slice(max(-before, 0), x.shape[axis] - max(-after, 0))
        outer[axis] = slice(max(before, 0), shape[axis] - max(after, 0))
    y = np.full(shape, value, x.dtype)
    y[tuple(outer)] = x[tuple(inner)]
    return y


@operator(MOVES, "DepthToSpace SpaceToDepth", "blocksize mode")
def depth_to_space(a, x):
    n, c, h, w = x.shape
    b = a["blocksize"]
    if a.op == "SpaceToDepth":
        order = (0, 3, 5, 1, 2, 4) if a.get("mode", b"DCR") == b"DCR" else (0, 1, 3, 5, 2, 4)
        return x.reshape(n, c, h // b, b, w // b, b).transpose(order).reshape(n, -1, h // b, w // b)
    if a.get("mode", b"DCR") == b"DCR":
        return x.reshape(n, b, b, -1, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, -1, h * b, w * b)
    return x.reshape(n, -1, b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, -1, h * b, w * b)


@operator(MOVES, "Where")
def where(a, condition, x, y): return np.where(condition, x, y)


@operator(MOVES, "ConstantOfShape", "value")
def constant_of_shape(a, shape): return np.full(integers(shape), stored(a.get("value", np.zeros(1, np.float32)))[0])


@operator(MOVES, "CumSum", "exclusive reverse")
def cum_sum(a, x, axis):
    axis = integers(axis)[0]
    x = np.flip(x, axis) if a.get("reverse") else x
    y = x.cumsum(axis, x.dtype) - (x if a.get("exclusive") else 0)  # sums of less than 2³³ elements fit
    y = y % P if x.dtype == np.uint64 else y
    return np.flip(y, axis) if a.get("reverse") else y


@operator(MOVES, "Trilu", "upper")
def trilu(a, x, k=None): return (np.triu if a.get("upper", 1) else np.tril)(x, 0 if k is None else integers(k)[0])


# ---- graphs ----

ELEMENTWISE = set("""Abs Acos Acosh And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike
    Ceil Celu Clip Cos Cosh Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu
    Less LessOrEqual Log Max Min Mish Mod Not Or Pow PRelu Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign
    Swish Tan Tanh ThresholdedRelu Xor BiasGelu FastGelu QuickGelu""".split())
TRUTH = set("Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual And Or Xor Not".split())
RANDOM = set("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli Dropout".split())
DEGREES_ADD = set("Mul MatMul FusedMatMul Gemm Einsum Conv ConvTranspose".split())
ANEW = set("Div Sqrt Pow Reciprocal ReduceL2 Softmax LogSoftmax Softsign".split())
MICROSOFT = set("""FusedMatMul SkipLayerNormalization SimplifiedLayerNormalization SkipSimplifiedLayerNormalization
    Gelu BiasGelu FastGelu QuickGelu""".split())


class Graph:
    """A model with its functions expanded, its stored tensors apart from its nodes."""

    def __init__(self, path): self.read(onnx.load(path))

    def read(self, model):
        model = inliner.inline_local_functions(model) if model.functions else model
        self.opsets, graph = {o.domain.replace("ai.onnx", "") if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}, model.graph
        self.tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.nodes, self.outputs = [], [o.name for o in graph.output]
        for node in graph.node:
            constant = constant_of(node)
            if constant is None:
                self.nodes.append(node)
            else:
                self.tensors[node.output[0]] = constant
        self.inputs = {i.name: i.type for i in graph.input if model.ir_version >= 4 or i.name not in self.tensors}
        self.producers = {name: (i, node) for i, node in enumerate(self.nodes) for name in node.output if name}

    def extents(self, sizes, default):
        """The inputs, with numbers for symbols."""
        known = {}
        for name, type_ in self.inputs.items():
            if not type_.HasField("tensor_type") or not type_.tensor_type.HasField("shape"):
                continue
            known[name] = [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, default) for d in type_.tensor_type.shape.dim]
        return known


def constant_of(node):
    """The array of a Constant node."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    name, value = node.attribute[0].name, helper.get_attribute_value(node.attribute[0])
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    return numpy_helper.to_array(value) if name == "value" else np.array(value, types[name]) if name in types else None


def canonical(graph, scope, captures):
    """A body without its names; what it captures gets a number."""
    scope = dict(scope)

    def define(name): scope[name] = f"v{len(scope)}"

    def read(name): return scope[name] if name in scope else name and f"c{captures.setdefault(name, len(captures))}"

    text = []
    for name in [i.name for i in graph.input] + [t.name for t in graph.initializer]:
        define(name)
    text += [(read(t.name), digest(stored(numpy_helper.to_array(t)))) for t in graph.initializer]
    for node in graph.node:
        inputs, attributes = [read(n) for n in node.input], attribute_text(node, captures, scope)
        for name in filter(None, node.output):
            define(name)
        text.append((node.domain, node.op_type, inputs, attributes, [scope.get(n) for n in node.output]))
    return len(graph.input), text, [read(o.name) for o in graph.output]


def attribute_text(node, captures, scope=()):
    """What the attributes of a node say; captures gets the names that bodies capture."""
    text = []
    for attribute in sorted(node.attribute, key=lambda a: a.name):
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.GraphProto):
            value = canonical(value, scope or {}, captures)
        elif isinstance(value, onnx.TensorProto):
            array = numpy_helper.to_array(value)
            value = array.dtype.name, digest(stored(array))
        elif attribute.type not in (1, 2, 3, 6, 7, 8):
            value = attribute.SerializeToString(deterministic=True)
        text.append((attribute.name, list(value) if attribute.type in (6, 7, 8) else value))
    return text


def reference(nodes, feeds, outputs, opsets):
    inputs = [helper.make_tensor_value_info(n, 1, None) for n in feeds]
    graph = helper.make_graph(nodes, "part", inputs, [helper.make_empty_tensor_value_info(n) for n in outputs])
    imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(helper.make_model(graph, opset_imports=imports)).run(None, feeds)


class Run:
    """A graph evaluated at a point."""

    def __init__(self, graph, point, extents, recipes=None, record=False):
        self.graph, self.point, self.recipes, self.bound = graph, point, recipes or {}, 0
        self.values, self.degrees, self.digests = {}, {}, {}
        for name, type_ in graph.inputs.items():
            kind = kind_of(type_.tensor_type.elem_type) if name in extents else None
            seed = hashed(point, "input", name)
            self.values[name] = random(seed, extents[name], kind) if kind else seed
            self.degrees[name] = 1
        left = {}
        for node in graph.nodes:
            for name in self.reads(node):
                left[name] = left.get(name, 0) + 1
        for name in graph.outputs:
            left[name] = left.get(name, 0) + 1
        for node in graph.nodes:
            self.apply(node)
            if record:
                self.digests.update((n, digest(self.values[n])) for n in node.output if n)
            for name in self.reads(node):
                left[name] -= 1
                value = self.values.get(name)
                if not left[name] and isinstance(value, np.ndarray) and value.dtype == np.uint64 and not self.kept(name):
                    del self.values[name]
        self.outputs = {name: self.read(name) for name in graph.outputs}
        self.bound += sum(self.degrees.get(name, 0) for name in graph.outputs) / P

    def kept(self, name): return name not in self.graph.tensors and self.closure(name) is not None  # recipes may read it

    def reads(self, node):
        captures = {}
        attribute_text(node, captures)
        return [n for n in node.input if n] + list(captures)

    def read(self, name):
        if name not in self.values:
            if name in self.recipes:
                self.values[name] = self.recipes[name]()
            elif name in self.graph.tensors:
                self.values[name] = stored(self.graph.tensors[name])
            else:
                raise Unfit(f"{name} is read before it is there")
        return self.values[name]

    def closure(self, name):
        """The nodes that compute a value from known numbers alone, and these; None where an input reaches it."""
        nodes, feeds, todo, seen = {}, {}, [name], set()
        while todo:
            name = todo.pop()
            if name in seen or not name:
                continue
            seen.add(name)
            value = self.values.get(name)
            if name in self.graph.tensors and name not in self.graph.inputs:
                feeds[name] = self.graph.tensors[name]
            elif isinstance(value, np.ndarray) and value.dtype != np.uint64:
                feeds[name] = value
            elif name in self.graph.producers and not any(a.type in (5, 10) for a in self.graph.producers[name][1].attribute):
                index, node = self.graph.producers[name]
                nodes[index] = node
                todo += node.input
            else:
                return None
        return [nodes[i] for i in sorted(nodes)], feeds

    def number(self, name):
        """What a value is in numbers, if no input reaches it."""
        part = self.closure(name)
        if part is None or name in part[1]:
            return part and part[1][name]
        try:
            return np.asarray(reference(*part, [name], self.graph.opsets)[0])
        except Exception:
            return None

    def apply(self, node):
        captures, op, domain = {}, node.op_type, node.domain if node.domain != "ai.onnx" else ""
        said = attribute_text(node, captures)
        x = [self.read(n) if n else None for n in [*node.input, *captures]]
        a = Attributes((k.name, helper.get_attribute_value(k)) for k in node.attribute)
        a.update((k, numpy_helper.to_array(v)) for k, v in a.items() if isinstance(v, onnx.TensorProto))
        a.op, a.opset, a.outputs, a.point = op, self.graph.opsets.get("", 1), len([n for n in node.output if n]), self.point
        a.number = lambda i: self.number(node.input[i])
        a.function = lambda op, v: scramble(hashed((self.point, "", op, "", [], False), [False]), v) % P
        degrees = [self.degrees.get(n, 0) for n in node.input]
        fresh, y = 1, None
        ours = domain == "" or domain == "com.microsoft" and op in MICROSOFT
        if ours and not captures and not any(isinstance(v, bytes) for v in x) or op == "Identity":
            y = self.interpret(node, a, x, domain)
            fresh = 1 if op in ANEW or "Norm" in op else max(degrees, default=0)
            fresh = sum(degrees) if op in DEGREES_ADD else 2 * fresh if op == "ReduceSumSquare" else fresh
        if y is None or op in ("Softmax", "LogSoftmax", "Softsign"):
            self.bound += max(degrees, default=0) / P
        if y is None:
            fresh, seed = 1, (self.point, domain, op, node.overload, said, op in RANDOM and node.name)
            y = self.elementwise(node, a, x, seed) if ours and op in ELEMENTWISE and all(isinstance(v, (np.ndarray, type(None))) for v in x) else self.uninterpreted(node, x, seed)
        y = list(y) if isinstance(y, (list, tuple)) else [y]
        for name, value in zip(node.output, y):
            if name:
                self.values[name], self.degrees[name] = value, fresh

    def interpret(self, node, a, x, domain):
        """The results of an operator of the table, or None."""
        op, whole = node.op_type, all(v is None or v.dtype != np.uint64 for v in x)
        function, attributes = MOVES.get(op) or ARITHMETIC.get(op) or (None, [])
        try:
            if function and set(a) <= set(attributes) and (op in MOVES or x and x[0] is not None and x[0].dtype == np.uint64):
                return function(a, *x)
        except Uninterpreted:
            pass
        except (ValueError, IndexError, TypeError, ZeroDivisionError) as error:
            raise Unfit(f"{op} {node.name or node.output[0]}: {error}") from None
        if op == "Range" or op == "Cast" and not whole:
            numbers = [self.number(n) for n in node.output]
            return None if numbers[0] is None else [stored(n) for n in numbers]
        if whole and not any(k.type in (5, 10) for k in node.attribute) and op not in RANDOM:
            feeds = {n: self.graph.tensors.get(n, v) for n, v in zip(node.input, x) if n}
            try:
                return [stored(np.asarray(v)) for v in reference([node], feeds, [n for n in node.output if n], self.graph.opsets)]
            except Exception:
                return None

    def elementwise(self, node, a, x, seed):
        op = node.op_type
        if op in ("BiasGelu", "FastGelu") and len(x) > 1:
            x = [add(x[0], x[1])]
        present = [v for v in x if v is not None]
        kind = "bool" if op in TRUTH else kind_of(a["to"]) if op == "Cast" else "field" if any(v.dtype == np.uint64 for v in present) else "int"
        arrays = np.broadcast_arrays(*present) if op != "CastLike" else [x[0]]
        return sort(scramble(hashed(seed, [v is None for v in x]), *arrays), kind or "int")

    def uninterpreted(self, node, x, seed):
        seed, types = hashed(seed, [digest(v) for v in x]), {}
        try:
            domain = "" if node.domain == "ai.onnx" else node.domain
            schema = onnx.defs.get_schema(node.op_type, self.graph.opsets[domain], domain)
            known, data = {}, {}
            for name, value in zip(node.input, x):
                if not isinstance(value, np.ndarray):
                    continue
                type_ = 1 if value.dtype == np.uint64 else 9 if value.dtype == bool else 7
                known[name] = helper.make_tensor_type_proto(type_, value.shape)
                numbers = self.number(name) if value.size <= 64 else None
                if numbers is not None:
                    data[name] = numpy_helper.from_array(np.asarray(numbers), name)
            imports = [helper.make_opsetid(d, v) for d, v in self.graph.opsets.items()]
            types = shape_inference.infer_node_outputs(schema, node, known, data, opset_imports=imports)
        except Exception:
            pass
        results = []
        for i, name in enumerate(node.output):
            type_ = types[name].tensor_type if name in types else None
            whole = type_ is not None and type_.HasField("shape") and all(d.HasField("dim_value") for d in type_.shape.dim)
            kind = whole and kind_of(type_.elem_type)
            seed_i = hashed(seed, i)
            results.append(random(seed_i, [d.dim_value for d in type_.shape.dim], kind) if kind else seed_i)
        return results


class Unfit(Exception): pass  # the extents of a graph do not fit each other


# ---- recipes: a value is (element of the field,), or (number, magnitude that bounds what it may be off) ----

def lift(f): return lambda step, *x: (f(*(v[0] for v in x)),)
def both(f): return lambda step, *x: tuple(f(step, *parts) for parts in zip(*x))


def taken(step, x):
    axis, n = step["axis"], x.shape[step["axis"]]
    x = np.concatenate([x, np.zeros(x.shape[:axis] + (1,) + x.shape[axis + 1:], x.dtype)], axis)
    return x.take([n if i is None else i for i in step["places"]], axis)


def convolved(step, w, x, product):
    seen = windows(x.reshape(*x.shape[:2], *step["input"]), *(step[k] for k in ("kernel", "strides", "dilations", "before", "output", "transposed")))
    return product(w.reshape(*w.shape[:2], -1), seen.reshape(len(x), -1, seen.shape[-1]))


SHAPED = {
    "reshape": both(lambda s, x: x.reshape(s["shape"])),
    "expand": both(lambda s, x: np.broadcast_to(x, s["shape"])),
    "transpose": both(lambda s, x: x.transpose(s["perm"])),
    "pick": both(taken),
    "concat": both(lambda s, *x: np.concatenate(x, s["axis"])),
}
IN_FIELD = SHAPED | {
    "neg": lift(neg), "sqrt": lift(root), "add": lift(add), "sub": lift(sub), "mul": lift(mul), "div": lift(div), "round": lift(lambda x: x),
    "sum": both(lambda s, x: total(x, [s["axis"]])), "product": lift(matmul),
    "conv": both(lambda s, w, x: convolved(s, w, x, matmul)),
}
IN_NUMBERS = SHAPED | {
    "neg": lambda s, a: (-a[0], a[1]),
    "sqrt": lambda s, a: (np.sqrt(a[0]), np.divide(a[1], np.sqrt(a[0]), out=np.zeros_like(a[0]), where=a[0] > 0)),
    "add": lambda s, a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda s, a, b: (a[0] - b[0], a[1] + b[1]),
    "mul": lambda s, a, b: (a[0] * b[0], a[1] * b[1]),
    "div": lambda s, a, b: (a[0] / b[0], a[1] * b[1] / b[0] ** 2),
    "sum": both(lambda s, x: x.sum(s["axis"], keepdims=True)),
    "product": both(lambda s, a, b: a @ b),
    "conv": both(lambda s, w, x: convolved(s, w, x, np.matmul)),
}


def number_type(name): return np.dtype(getattr(ml_dtypes, {"float": "float32", "double": "float64"}.get(name, name), None) or {"float": "float32", "double": "float64"}.get(name, name))


def evaluate(steps, operations, leaf):
    values = []
    for step in steps:
        x = [values[i] for i in step.get("inputs", [])]
        y = leaf(step) if step["op"] in ("constant", "literal") else operations[step["op"]](step, *x)
        if list(y[0].shape) != step["shape"]:
            raise Disproved(f"a step {step['op']} has extents {list(y[0].shape)}, not {step['shape']}")
        values.append(y)
    return values[-1]


def literal(step):
    numbers = np.array(step["numbers"], np.float64)
    return np.broadcast_to(numbers, step["shape"]) if numbers.size == 1 else numbers.reshape(step["shape"])


def in_field(entry, original):
    def leaf(step): return (image(literal(step)) if step["op"] == "literal" else original.read(step["name"]),)
    return evaluate(entry["steps"], IN_FIELD, leaf)[0]


def check_rounding(entry, array, original):
    """The stored tensor is the exact value of its recipe within half a unit in the last place, and what sums in float64 may be off."""
    steps, real = entry["steps"], np.longdouble if array.dtype == np.float64 else np.float64
    rough, unit = False, 2.0**-51

    def leaf(step):
        nonlocal rough
        if step["op"] == "constant":
            part = original.closure(step["name"])
            rough |= part is None or not {n.op_type for n in part[0]} <= ROUNDED
        v = (literal(step) if step["op"] == "literal" else original.number(step["name"])).astype(real)
        return v, np.abs(v)

    def terms(step):
        shape = steps[step["inputs"][0]]["shape"] if step.get("inputs") else []
        return shape[step["axis"]] if step["op"] == "sum" else shape[-1] * (shape[-2] if step["op"] == "conv" else 1) if step["op"] in ("product", "conv") else 1

    unit = 2.0**-52 * sum(map(terms, steps))

    def rounded(step, x):
        low, high, v = ((x[0] + e * unit * x[1]).astype(number_type(step["data_type"])).astype(real) for e in (-1, 1, 0))
        return v, np.maximum(np.abs(v), x[1]) + (high - low) / unit

    value, size = evaluate(steps, IN_NUMBERS | {"round": rounded}, leaf)
    limits = ml_dtypes.finfo(array.dtype)
    stored_ = array.astype(real)
    exponent = np.frexp(np.maximum(np.abs(value), np.abs(stored_)))[1] - 1
    ulp = np.ldexp(real(1), np.maximum(exponent, limits.minexp) - limits.nmant)
    off = np.abs(stored_ - value)
    allowed = (ulp + 8 * float(limits.eps) * size if rough else ulp / 2) + unit * size
    if array.shape != value.shape or not (off <= allowed).all():
        raise Disproved(f"{entry['name']} is not its recipe, rounded")


ROUNDED = set("Add Sub Mul Div Sqrt Neg Reciprocal Cast CastLike Identity Shape Size".split()) | set(MOVES)


# ---- the verdict ----

def key(array): return array.dtype.name, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def check_files(certificate, part, path):
    wanted = certificate[part]
    files = {path: wanted["sha256"], **{path.parent / name: d for name, d in wanted["data"].items()}}
    for file, expected in files.items():
        if hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise Disproved(f"{file.name} is not the file that the certificate is for")


def prove(original, fused, certificate, sizes, seed, points):
    entries = {t["name"]: t for t in certificate.get("tensors", [])}
    if list(original.inputs) != list(fused.inputs) or original.outputs != fused.outputs:
        raise Disproved("the inputs or outputs have other names")
    tried, bound, done, failed = 0, 1.0, 0, ""
    while done < points:
        if tried == 4 * points:
            raise Undecided(failed)
        point, tried = hashed(seed, tried), tried + 1
        try:
            first, extents = run_original(original, point, sizes)
            if done == 0:
                check_tensors(original, fused, entries, first)
            recipes = {name: lambda entry=entry: in_field(entry, first) for name, entry in entries.items()}
            second = Run(fused, point, extents, recipes)
        except Undecided as error:
            failed = str(error)
            continue
        except Unfit as error:
            raise Disproved(str(error)) from None
        for name in original.outputs:
            if digest(first.outputs[name]) != digest(second.outputs[name]):
                raise Disproved(parting(original, fused, point, extents, entries, name, certificate))
        bound, done = bound * min(1.0, second.bound), done + 1
    return bound


def run_original(original, point, sizes):
    for default in (2, 3, 1, 4, 8, 16):
        try:
            extents = original.extents(sizes, default)
            return Run(original, point, extents), extents
        except Unfit as error:
            failed = error
    raise Undecided(f"the extents do not fit, give sizes by --dim: {failed}")


def check_tensors(original, fused, entries, run):
    there = {key(a) for a in original.tensors.values()}
    for name, array in fused.tensors.items():
        if name in entries:
            entry = entries[name]
            if array.dtype != number_type(entry["data_type"]) or list(array.shape) != entry["shape"]:
                raise Disproved(f"{name} has another type or other extents than its recipe")
            check_rounding(entry, array, run)
        elif array.dtype.kind not in "iub" and key(array) not in there:
            raise Disproved(f"{name} has no recipe and is no tensor of the original")


def parting(original, fused, point, extents, entries, output, certificate):
    """The first value from which on the two never meet again, and the site for whose sake it was changed."""
    first = Run(original, point, extents, record=True)
    second = Run(fused, point, extents, {n: lambda e=e: in_field(e, first) for n, e in entries.items()}, record=True)
    needed, blamed, name = {output}, [], output
    for node in reversed(fused.nodes):
        if needed & set(node.output):
            needed |= set(second.reads(node))
            same = [first.digests.get(n) == second.digests[n] for n in node.output if n in first.digests]
            if same and all(same):
                break
            name = node.output[0] if same else name
            blamed = [s for n in node.input for s in entries.get(n, {}).get("sites", [])] or blamed
    sites = ", ".join(certificate["sites"][s]["name"] for s in blamed)
    return f"{output} differs, from {name} on" + (f", by {sites}" if sites else "")


def main():
    parser = argparse.ArgumentParser(description="Proves that FUSED computes what ORIGINAL does.")
    parser.add_argument("original", type=pathlib.Path)
    parser.add_argument("fused", type=pathlib.Path)
    parser.add_argument("--certificate", type=pathlib.Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = {name: int(size) for name, _, size in (d.rpartition("=") for d in options.dim)}
    try:
        original, fused = Graph(options.original), Graph(options.fused)
        certificate = json.loads(options.certificate.read_text()) if options.certificate else {}
    except Exception as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    answer, code = {}, 0
    try:
        for part in ("original", "fused"):
            if certificate:
                check_files(certificate, part, getattr(options, part))
        answer = {"verdict": "proved", "bound": prove(original, fused, certificate, sizes, options.seed, options.points)}
    except Disproved as error:
        answer, code = {"verdict": "disproved", "reason": str(error)}, 3
    except Undecided as error:
        answer, code = {"verdict": "undecided", "reason": str(error)}, 4
    print(json.dumps(answer) if options.json else ": ".join(map(str, [answer["verdict"], *list(answer.values())[1:]])))
    return code


if __name__ == "__main__":
    sys.exit(main())
