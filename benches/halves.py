"""Measures the effect of folding on the error of ViT-S in half precision, relative to float64.

    pip install -r benches/peers/requirements.txt
    python benches/halves.py un
    python benches/halves.py un --networks 9 --only bfloat16

Exports ViT-S with UN or BN, as named, and with calibrated statistics, in each way in which a model gets half precision.
Folds each model with `unfold`, which is found on the PATH. Computes both models operator by operator: each operator in
float64, and its result rounded once to its type. No engine that computes in these types is more accurate. The error is
relative to the original model in float64. It is the root mean square over all logits, divided by the largest logit. For
several networks, prints the mean error, and the mean of the ratios with its standard error. The table is in
docs/types.md.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import load_op
from onnxruntime.transformers import float16

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
from export_timm import network  # noqa: E402

NETWORK, BATCH, INPUTS = "vit_small_patch16_224", 2, 2
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
ROUNDED = {TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16, TensorProto.FLOAT: np.float32}
FLOATS = {*ROUNDED, TensorProto.DOUBLE}
STAY_IN_FLOAT32 = ["Div", "BatchNormalization"]


class Wide(torch.nn.Module):
    """A normalizer in float32 between tokens of another type."""

    def __init__(self, normalizer):
        super().__init__()
        self.normalizer = normalizer.float()

    def forward(self, x):
        return self.normalizer(x.float()).to(x.dtype)


class Autocast(torch.nn.Module):
    """A float32 network whose products are in another type."""

    def __init__(self, inner, dtype):
        super().__init__()
        self.inner, self.dtype = inner, dtype

    def forward(self, x):
        with torch.autocast("cpu", dtype=self.dtype):
            return self.inner(x)


def normalizers(model):
    return [name for name, module in model.named_modules() if type(module).__name__ in ("UN", "BN")]


def calibrated(model, inputs):
    """Sets the statistics of a model to those of random inputs. The statistics of an untrained model fit no inputs."""

    def calibrate(module, arguments):
        tokens = arguments[0].reshape(-1, arguments[0].shape[-1])
        for inner in module.modules():
            if getattr(inner, "running_mean", None) is not None:
                inner.running_mean.copy_(tokens.mean(0))
                inner.running_var.copy_(tokens.var(0))
            elif getattr(inner, "running_var", None) is not None:
                inner.running_var.copy_((tokens**2).mean(0))

    hooks = [model.get_submodule(name).register_forward_pre_hook(calibrate) for name in normalizers(model)]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model(**{name: torch.randn((8, *value.shape[1:]), generator=generator) for name, value in inputs.items()})
    for hook in hooks:
        hook.remove()
    return model


def widened(model):
    for name in normalizers(model):
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, Wide(model.get_submodule(name)))
    return model


def write(model, inputs, path):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = list(inputs)
        torch.onnx.export(model, tuple(inputs.values()), path, dynamo=False, input_names=names, output_names=["output"])


def variants(model, inputs):
    """For each way to get a model in half precision, by its name, a function that writes such a model to a file."""

    def cast(dtype, change, path):
        write(change(copy.deepcopy(model).to(dtype)), {key: value.to(dtype) for key, value in inputs.items()}, path)

    def converted(path, **options):
        write(model, inputs, path)
        onnx.save(float16.convert_float_to_float16(onnx.load(path), **options), path)

    ways = {}
    for name, dtype in TYPES.items():
        ways[name] = partial(cast, dtype, lambda half: half)
        ways[f"{name}, normalizers in float32"] = partial(cast, dtype, widened)
        autocast = partial(Autocast, copy.deepcopy(model), dtype)
        ways[f"{name} products in a float32 network (autocast)"] = lambda path, of=autocast: write(of(), inputs, path)
    ways["float16, by onnxruntime's converter"] = converted
    block = float16.DEFAULT_OP_BLOCK_LIST + STAY_IN_FLOAT32
    but = f"float16 except {' and '.join(STAY_IN_FLOAT32)}, by onnxruntime's converter"
    ways[but] = partial(converted, keep_io_types=True, op_block_list=block)
    return ways


def array(tensor):
    values = numpy_helper.to_array(tensor)
    return values.astype(np.float64) if tensor.data_type in FLOATS else values


def with_torch(function, x):
    return function(torch.from_numpy(np.ascontiguousarray(x))).numpy()


def compute(node, inputs, opsets):
    """The outputs of a node, in float64."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    match node.op_type:
        case "Constant":
            value = attributes["value"]
            return [array(value) if isinstance(value, onnx.TensorProto) else np.array(value)]
        case "Cast":
            is_float = attributes["to"] in FLOATS
            return [inputs[0].astype(np.float64 if is_float else onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]))]
        case "MatMul":
            return [inputs[0] @ inputs[1]]
        case "Gelu":
            return [with_torch(torch.nn.functional.gelu, inputs[0])]
        case "Erf":
            return [with_torch(torch.erf, inputs[0])]
        case "Conv":
            x, weight, *bias = (torch.from_numpy(np.ascontiguousarray(value)) for value in inputs)
            return [torch.nn.functional.conv2d(x, weight, *bias, stride=attributes["strides"]).numpy()]
    operator = load_op(node.domain, node.op_type, opsets[node.domain])
    context = {"log": lambda *_: None, "opsets": opsets, "verbose": 0, "evaluator_cls": ReferenceEvaluator}
    context |= {"new_ops": {}, "existing_functions": {}}
    with np.errstate(all="ignore"):
        return operator(node, context).run(*inputs)


def run(model, feed, rounds):
    """The first output. If `rounds`, each float value is rounded to its type."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    declared = [*graph.value_info, *graph.input, *graph.output]
    types = {value.name: value.type.tensor_type.elem_type for value in declared}
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    values = {tensor.name: array(tensor) for tensor in model.graph.initializer} | feed
    waiting = list(model.graph.node)
    while waiting:
        # Converters may write nodes out of topological order.
        node = next(node for node in waiting if all(name in values for name in node.input if name))
        waiting.remove(node)
        outputs = compute(node, [values[name] if name else None for name in node.input], opsets)
        for name, value in zip(node.output, outputs):
            if np.asarray(value).dtype.kind == "f" and rounds and types[name] in ROUNDED:
                value = value.astype(ROUNDED[types[name]]).astype(np.float64)
            values[name] = value
    return values[model.graph.output[0].name]


def error(value, exact):
    return float(np.sqrt(((value - exact) ** 2).mean()) / np.abs(exact).max())


def errors(before, after):
    """The errors of both models relative to the first one in float64."""
    value = before.graph.input[0]
    shape = [dim.dim_value or BATCH for dim in value.type.tensor_type.shape.dim]
    generator, found = np.random.default_rng(0), []
    for _ in range(INPUTS):
        images = generator.standard_normal(shape).astype(ROUNDED[value.type.tensor_type.elem_type])
        feed = {value.name: images.astype(np.float64)}
        exact = run(before, feed, rounds=False)
        found.append([error(run(model, feed, rounds=True), exact) for model in (before, after)])
    return np.mean(found, axis=0)


def measured(norm, seed, only, folder):
    """For one network and each way: the name, the number of folded sites, and the errors before and after folding."""
    model, inputs = network(NETWORK, norm, seed=seed)
    inputs = {name: value[:BATCH] for name, value in inputs.items()}
    path, out = f"{folder}/model.onnx", f"{folder}/fused.onnx"
    for name, write_to in variants(calibrated(model, inputs), inputs).items():
        if only and name not in only:
            continue
        write_to(path)
        told = subprocess.run(["unfold", "fuse", path, "-o", out, "--verify", "off", "--json"], capture_output=True)
        count = json.loads(told.stdout)["summary"]["offline"]
        yield name, f"{count['folded']} of {count['sites']}", errors(onnx.load(path), onnx.load(out))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("norms", nargs="+", metavar="NORM", help="un or bn")
    parser.add_argument("--networks", type=int, default=1, help="how many networks, each with weights of its own")
    parser.add_argument("--only", action="append", metavar="TYPES", help="a row by its name (may be repeated)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| normalizer | types | sites folded | error before | error after | ratio |")
    print("|---|---|---:|---:|---:|---:|")
    for norm in arguments.norms:
        rows = {}
        for seed in range(arguments.networks):
            with tempfile.TemporaryDirectory() as folder:
                for name, sites, found in measured(norm, seed, arguments.only, folder):
                    rows.setdefault((name, sites), []).append(found)
        for (name, sites), found in rows.items():
            before, after = np.mean(found, axis=0)
            ratios = [after / before for before, after in found]
            ratio = f"{np.mean(ratios):.2f}"
            if len(ratios) > 1:
                ratio += f" ± {np.std(ratios, ddof=1) / len(ratios) ** 0.5:.2f}"
            print(f"| {norm.upper()} | {name} | {sites} | {before:.1e} | {after:.1e} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
