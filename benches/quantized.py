"""Scales the streams of quantized networks. Counts the scales that absorb the factor, and checks that the codes stay.

    pip install onnxruntime onnx numpy onnx-ir
    python benches/quantized.py bert.onnx gpt2.onnx vit.onnx ...

onnxruntime quantizes each model in float32 in four ways: statically in QDQ form, dynamically, and with weights of 4 and
of 8 bits in blocks (`MatMulNBitsQuantizer`). `unfold`, which is found on the PATH, folds each result with and without
`--scale-stream 2^-5`, and proves both. The table in docs/streams.md has the numbers of operators before and after, of
streams that are scaled and that stay, of Muls that the scaling adds, and of stored codes that are not in the original.
It also has the largest difference of the outputs of both results on random inputs, relative to the largest output.
onnxruntime runs them without optimizations. With optimizations, it fuses the two results differently, and a difference
in the last bit changes codes that it computes.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from half_converters import random_inputs
from onnx import TensorProto
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

SAMPLES = 4
CODES = {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4, TensorProto.INT32}


class Samples(CalibrationDataReader):
    """Random inputs that calibrate a static quantization."""

    def __init__(self, model):
        self.samples = iter([random_inputs(model, seed) for seed in range(SAMPLES)])

    def get_next(self):
        return next(self.samples, None)


def static(model, out):
    quantize_static(
        model,
        out,
        Samples(onnx.load(model)),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
    )


def dynamic(model, out):
    quantize_dynamic(model, out, weight_type=QuantType.QInt8, per_channel=True)


def blocks(bits, operators):
    def quantize(model, out):
        how = DefaultWeightOnlyQuantConfig(block_size=32, bits=bits, op_types_to_quantize=operators)
        quantizer = MatMulNBitsQuantizer(onnx.load(model), algo_config=how)
        quantizer.process()
        quantizer.model.save_model_to_file(out)

    return quantize


WAYS = {
    "static, QDQ": static,
    "dynamic": dynamic,
    "4 bits": blocks(4, ("MatMul", "Gather")),
    "8 bits": blocks(8, ("MatMul",)),
}


def run(path, inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, inputs)


def codes(path):
    """The bytes of each stored tensor of codes with more than one element."""
    tensors = (tensor for tensor in onnx.load(path).graph.initializer if tensor.data_type in CODES)
    arrays = (onnx.numpy_helper.to_array(tensor) for tensor in tensors)
    return {array.tobytes() for array in arrays if array.size > 1}


def is_part(found, originals):
    """Whether a tensor of codes is in the original, or consists of consecutive rows of a table of the original."""
    return any(found in original for original in originals)


def folded(model, out, *options):
    command = ["unfold", "fuse", model, "-o", out, "--verify", "prove", "--json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def row(quantized, folder):
    """A row of the table for one quantized model."""
    plain, out = f"{folder}/folded.onnx", f"{folder}/scaled.onnx"
    folded(quantized, plain)
    report = folded(quantized, out, "--scale-stream", "2^-5")
    scaled = [stream["scaling"] for stream in report.get("streams", []) if stream.get("scaling")]
    stay = sum(scaling["outcome"] == "kept" for scaling in scaled)
    muls = sum(len(scaling.get("multiplied", [])) for scaling in scaled)
    originals = codes(quantized)
    other = sum(not is_part(found, originals) for found in codes(out))
    inputs = random_inputs(onnx.load(quantized), SAMPLES)
    pairs = zip(run(plain, inputs), run(out, inputs))
    error = max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs if a.dtype.kind == "f")
    nodes = [len(onnx.load(path).graph.node) for path in (quantized, out)]
    return [
        f"{nodes[0]} → {nodes[1]}",
        len(scaled) - stay,
        stay,
        muls,
        other,
        f"{error:.0e}",
        report["proof"]["verdict"],
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    arguments = parser.parse_args()
    print("| network | quantization | operators | scaled | stay | Muls | codes that differ | difference | |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---|")
    for path in arguments.models:
        for name, quantize in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                quantized = f"{folder}/quantized.onnx"
                quantize(path, quantized)
                cells = row(quantized, folder)
            print(f"| {Path(path).name.split('.')[0]} | {name} | " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
