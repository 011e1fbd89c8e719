"""Measures the errors of onnxruntime's quantizers after scales are moved between layers, or a stream is rotated.

    pip install onnxruntime onnx numpy onnx-ir pillow
    python benches/balance.py digits models/digits/ln-dynamo.onnx
    python benches/balance.py text ch_PP-OCRv4_rec_infer.onnx

The first model is a trained network of this repository. The second model is from the package rapidocr_onnxruntime. It
reads lines of text that this script draws. `unfold`, which is found on the PATH, folds the model. The scales of its
normalizations are then 1, so other scales can be moved into them. SmoothQuant computes s from samples, with α = 1/2. It
divides γ by s and multiplies the weight by s. In attention, the values are divided by s, and the weight of the
projection after them is multiplied by s. The stream of the digits is centred, and all its writers and readers are
multiplied by a Hadamard matrix of 40 channels. Each variant is the same function in float32.

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
    def __init__(self, images):
        self.batches = iter([{"x": images[at : at + BATCH]} for at in range(0, len(images), BATCH)])

    def get_next(self):
        return next(self.batches, None)


def digits(path):
    """Returns the images for calibration, the images for the measurement, and the options of `unfold`."""
    images = np.load(Path(path).parent / "test-images.npy")
    return images[:48], images[48:448], ["--centre"]


def text(_):
    generator = np.random.default_rng(0)
    images = np.stack([line(generator) for _ in range(80)])
    return images[:16], images[16:], [f"--fix=p2o.DynamicDimension.0={BATCH}", "--fix=p2o.DynamicDimension.1=320"]


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


def run(model, images, outputs=None):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    batches = [session.run(outputs, {"x": images[at : at + BATCH]}) for at in range(0, len(images), BATCH)]
    return [np.concatenate(parts) for parts in zip(*batches)]


class Network:
    """A folded model whose weights may change."""

    def __init__(self, model, images):
        self.model, self.images = model, images
        self.weights = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in model.graph.initializer}
        self.makers = {output: node for node in model.graph.node for output in node.output}
        nodes = model.graph.node
        self.products = [node for node in nodes if node.op_type == "MatMul" and node.input[1] in self.weights]

    def inputs(self):
        """The values of the left operand of each product with a weight."""
        names = [node.input[0] for node in self.products]
        watched = onnx.ModelProto.FromString(self.model.SerializeToString())
        watched.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in set(names))
        return run(watched.SerializeToString(), self.images, names)

    def bias(self, product):
        """The name of the constant that is added to a product."""
        [add] = [node for node in self.model.graph.node if node.op_type == "Add" and product.output[0] in node.input]
        [bias] = [name for name in add.input if name in self.weights]
        return bias

    def written(self):
        model = onnx.ModelProto.FromString(self.model.SerializeToString())
        for tensor in model.graph.initializer:
            array = self.weights[tensor.name].astype(numpy_helper.to_array(tensor).dtype)
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
        return model


def factors(values, weight):
    """SmoothQuant's factors of the channels of a value. Their geometric mean is 1."""
    most = np.abs(values).reshape(-1, values.shape[-1]).max(0)
    found = np.maximum(most, 1e-6) ** ALPHA / np.maximum(np.abs(weight).max(1), 1e-6) ** (1 - ALPHA)
    return found / np.exp(np.log(found).mean())


def parameters(network, value):
    """The names of the scale and the shift of the normalization that computes a value, if it has them."""
    found, node = [], network.makers[value]
    while node.op_type in ("Add", "Mul") and len(node.input) == 2 and node.input[1] in network.weights:
        found.append(node.input[1])
        if node.op_type == "Mul":
            return found
        node = network.makers[node.input[0]]
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
    inputs = network.inputs()
    for before, product, values in zip(network.products, network.products[1:], inputs[1:]):
        packed, weight = network.weights[before.input[1]], network.weights[product.input[1]]
        channels = len(weight)
        if packed.shape[1] != 3 * channels or weight.shape != (channels, channels):
            continue
        found = factors(values, weight)
        for name in (before.input[1], network.bias(before)):
            network.weights[name][..., 2 * channels :] /= found
        network.weights[product.input[1]] = weight * found[:, None]


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
    return lambda model, out, images: quantize_static(
        model, out, Samples(images), quant_format=QuantFormat.QDQ, per_channel=per_channel,
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
            "both": [smoothed, balanced_values], "rotated": [rotated]}


def stored(model):
    """Replaces Constants by initializers, because the quantizers need them."""
    for node in [node for node in model.graph.node if node.op_type == "Constant"]:
        tensor = node.attribute[0].t
        tensor.name = node.output[0]
        model.graph.initializer.append(tensor)
        model.graph.node.remove(node)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["digits", "text"])
    parser.add_argument("model", metavar="MODEL")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    calibration, images, options = {"digits": digits, "text": text}[arguments.kind](arguments.model)
    print("| network | " + " | ".join(QUANTIZERS) + " |\n|---|" + "---:|" * len(QUANTIZERS))
    with tempfile.TemporaryDirectory() as folder:
        folded, plain, quantized = (f"{folder}/{name}.onnx" for name in ("folded", "plain", "quantized"))
        command = ["unfold", "fuse", arguments.model, "-o", folded, "--target", "portable", "--verify", "off", "--quiet"]
        subprocess.run([*command, *options], check=True)
        exact = run(folded, images)[0]
        for name, steps in VARIANTS.items():
            if rotated in steps and arguments.kind != "digits":
                continue
            network = Network(stored(onnx.load(folded)), calibration)
            for step in steps:
                step(network)
            onnx.save(network.written(), plain)
            assert np.abs(run(plain, images)[0] - exact).max() < 1e-4 * np.abs(exact).max(), name
            cells = []
            for quantize in QUANTIZERS.values():
                quantize(plain, quantized, calibration)
                difference = run(quantized, images)[0] - exact
                cells.append(f"{np.sqrt((difference**2).mean()) / np.abs(exact).max():.1e}")
            print(f"| {arguments.kind}, {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
