"""Compares `unfold fuse --to float16` with two other converters: Casts, size and error in onnxruntime.

    pip install -r benches/peers/requirements.txt onnxconverter-common
    python benches/half_converters.py models/digits/ln-dynamo.onnx vit-s.onnx ...

Each model in float32 is converted by onnxconverter-common (`keep_io_types=True`), by `onnxslim --dtype fp16`, and by
`unfold`, which is found on the PATH. onnxruntime runs all of them on the same random inputs, on one thread of the CPU.
An error is the root mean square over an output, relative to its largest magnitude in float32. Of several outputs, the
largest error counts. With `--draws N`, the error is the root mean square of the errors for N draws of the inputs. With
`--ends`, onnxconverter-common and `unfold` (`--io half`) convert each model twice: with inputs and outputs in float32,
and in half. onnxslim converts each model once, because it has no such option. The table then has the size of each file
relative to that of the model, and the engines that run it: onnxruntime and tract (`unfold bench`). The tables are in
docs/half.md.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto
from onnxconverter_common import float16

FLOATS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}
BATCH, EXTENT, TOKENS = 2, 16, 50


def by_onnxconverter(model, out, keeps_ends=True):
    onnx.save(float16.convert_float_to_float16(onnx.load(model), keep_io_types=keeps_ends), out)


def by_onnxslim(model, out):
    subprocess.run(["onnxslim", model, out, "--dtype", "fp16"], check=True, capture_output=True)


def by_unfold(model, out, *options):
    subprocess.run(["unfold", "fuse", model, "-o", out, "--to", "float16", "--quiet", "--verify", "off", *options], check=True)


CONVERTERS = {"onnxconverter-common": by_onnxconverter, "onnxslim": by_onnxslim, "unfold": by_unfold}
ENDS = {
    "float32": {"onnxconverter-common": by_onnxconverter, "unfold": by_unfold},
    "half": {
        "onnxconverter-common": lambda model, out: by_onnxconverter(model, out, keeps_ends=False),
        "onnxslim": by_onnxslim,
        "unfold": lambda model, out: by_unfold(model, out, "--io", "half"),
    },
}


def extents(value, sizes):
    """The extents of an input. `sizes` has those of open axes, by symbol or as `x:2`, like `unfold bench --dim`."""
    dims = value.type.tensor_type.shape.dim
    own = [sizes.get(dim.dim_param) or sizes.get(f"{value.name}:{axis}") for axis, dim in enumerate(dims)]
    return [dim.dim_value or size or (EXTENT if axis else BATCH) for axis, (dim, size) in enumerate(zip(dims, own))]


def random_inputs(model, sizes, seed=0):
    """An array for each input: normally distributed floats, indices of a table, or ones for masks and truth values."""
    generator, given = np.random.default_rng(seed), {tensor.name for tensor in model.graph.initializer}
    inputs = {}
    for value in (value for value in model.graph.input if value.name not in given):
        tensor = value.type.tensor_type
        shape = extents(value, sizes)
        if tensor.elem_type in FLOATS:
            inputs[value.name] = generator.standard_normal(shape).astype(FLOATS[tensor.elem_type])
        elif tensor.elem_type == TensorProto.BOOL or "mask" in value.name:
            inputs[value.name] = np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        else:
            places = generator.integers(0, TOKENS, shape)
            inputs[value.name] = places.astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return inputs


class Samples:
    """Random inputs of a model, and its outputs for them in float32."""

    def __init__(self, path, sizes, draws):
        self.model = onnx.load(path)
        self.inputs = [random_inputs(self.model, sizes, seed) for seed in range(draws)]
        self.exact = run(path, self.inputs)

    def error(self, path):
        errors = [error(*outputs) for outputs in zip(run(path, self.inputs), self.exact)]
        return float(np.sqrt(np.square(errors).mean()))


def run(path, samples):
    """The outputs of a model for each of the samples."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    halves = {value.name for value in session.get_inputs() if value.type == "tensor(float16)"}
    narrow = [{name: x.astype(np.float16) if name in halves else x for name, x in sample.items()} for sample in samples]
    return [session.run(None, sample) for sample in narrow]


def error(outputs, exact):
    parts = [0.0]
    for output, x in zip(outputs, exact):
        x, difference = x.astype(np.float64), output.astype(np.float64) - x
        parts.append(float(np.sqrt((difference**2).mean()) / np.abs(x).max()))
    return max(parts)


def casts(graph):
    bodies = [attribute.g for node in graph.node for attribute in node.attribute if attribute.g.node]
    return sum(node.op_type == "Cast" for node in graph.node) + sum(map(casts, bodies))


def cell(converter, path, samples):
    """The number of Casts and the error of one conversion, or `fails`."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/half.onnx"
        try:
            converter(path, out)
            found = samples.error(out)
        except Exception as reason:  # onnxruntime's and the converters' own kinds
            print(f"{path}: {reason}", file=sys.stderr)
            return "fails"
        return f"{casts(onnx.load(out).graph)}, {found:.1e}"


def runs_in_tract(path, sizes):
    dims = [f"--dim={name}={size}" for name, size in sizes.items()]
    command = ["unfold", "bench", f"one={path}", f"other={path}", "--rounds", "1", "--quiet", *dims]
    return subprocess.run(command, capture_output=True).returncode == 0


def details(model, converter, samples, sizes):
    """The number of Casts, the error, and the relative size of one conversion, and the engines that run it."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/half.onnx"
        try:
            converter(model, out)
            found = f"{samples.error(out):.1e}"
        except Exception as reason:  # onnxruntime's and the converters' own kinds
            print(f"{model}: {reason}", file=sys.stderr)
            found = "does not run"
        if not Path(out).exists():
            return ["fails", "", "", ""]
        size = Path(out).stat().st_size / Path(model).stat().st_size
        tract = "runs" if runs_in_tract(out, sizes) else "does not run"
        return [str(casts(onnx.load(out).graph)), found, f"{size:.2f}", tract]


def all_ends(models, sizes, draws):
    print("| model | ends | converter | Casts | error in onnxruntime | size | tract |\n|---|---|---|---:|---:|---:|---|")
    for path in models:
        samples = Samples(path, sizes, draws)
        for ends, converters in ENDS.items():
            for name, converter in converters.items():
                cells = details(path, converter, samples, sizes)
                print(f"| {Path(path).stem} | {ends} | {name} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--ends", action="store_true", help="convert inputs and outputs too, and show sizes and engines")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="the size of an open axis")
    parser.add_argument("--draws", type=int, default=1, metavar="N", help="the number of random inputs")
    arguments = parser.parse_args()
    sizes = {name: int(size) for name, size in (dim.rsplit("=", 1) for dim in arguments.dim)}
    if arguments.ends:
        return all_ends(arguments.models, sizes, arguments.draws)
    print("| model | Casts | " + " | ".join(CONVERTERS) + " |\n|---|---:|" + "---:|" * len(CONVERTERS))
    for path in arguments.models:
        samples = Samples(path, sizes, arguments.draws)
        cells = [cell(converter, path, samples) for converter in CONVERTERS.values()]
        print(f"| {Path(path).stem} | {casts(samples.model.graph)} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
