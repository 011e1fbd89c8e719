"""What folding does to the error of ViT-S in half precision, against float64.

    pip install -r benches/peers/requirements.txt
    python benches/halves.py un

Exports ViT-S with the normalizers that are named, UN or BN, statistics calibrated, in the ways that half precision comes about; folds each with
`unfold`, which is found on the PATH; and computes both models operator by operator, each in float64 and rounded once
to the type of its result, which no engine does better. The error is against the model as it was, computed in float64
throughout, root mean square over all logits, as a part of the largest. The table is in docs/types.md.
"""

import copy
import json
import subprocess
import sys
import tempfile
import warnings
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
    """The model with the statistics of what it sees: those of an untrained one fit nothing."""

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


def variants(model, inputs, folder):
    """Each way in which half precision comes about, and the file."""
    path = str(folder / "model.onnx")
    for name, dtype in TYPES.items():
        half = {key: value.to(dtype) for key, value in inputs.items()}
        write(copy.deepcopy(model).to(dtype), half, path)
        yield name, path
        write(widened(copy.deepcopy(model).to(dtype)), half, path)
        yield f"{name}, normalizers in float32", path
        write(Autocast(copy.deepcopy(model), dtype), inputs, path)
        yield f"{name} products in a float32 network (autocast)", path
    write(model, inputs, path)
    proto = onnx.load(path)
    onnx.save(float16.convert_float_to_float16(copy.deepcopy(proto)), path)
    yield "float16, by onnxruntime's converter", path
    block = float16.DEFAULT_OP_BLOCK_LIST + STAY_IN_FLOAT32
    onnx.save(float16.convert_float_to_float16(proto, keep_io_types=True, op_block_list=block), path)
    yield f"the same, but for {' and '.join(STAY_IN_FLOAT32)}", path


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
    """The first output, each float rounded to its type, or none."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    declared = [*graph.value_info, *graph.input, *graph.output]
    types = {value.name: value.type.tensor_type.elem_type for value in declared}
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    values = {tensor.name: array(tensor) for tensor in model.graph.initializer} | feed
    waiting = list(model.graph.node)
    while waiting:
        # Converters do not keep nodes in order.
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
    """The errors of two models against the first of them in float64."""
    value = before.graph.input[0]
    shape = [dim.dim_value or BATCH for dim in value.type.tensor_type.shape.dim]
    generator, found = np.random.default_rng(0), []
    for _ in range(INPUTS):
        images = generator.standard_normal(shape).astype(ROUNDED[value.type.tensor_type.elem_type])
        feed = {value.name: images.astype(np.float64)}
        exact = run(before, feed, rounds=False)
        found.append([error(run(model, feed, rounds=True), exact) for model in (before, after)])
    return np.mean(found, axis=0)


def main():
    torch.set_num_threads(1)
    print("| normalizer | types | sites folded | error before | error after | ratio |")
    print("|---|---|---:|---:|---:|---:|")
    for norm in sys.argv[1:]:
        model, inputs = network(NETWORK, norm)
        inputs = {name: value[:BATCH] for name, value in inputs.items()}
        with tempfile.TemporaryDirectory() as folder:
            for name, path in variants(calibrated(model, inputs), inputs, Path(folder)):
                out = f"{folder}/fused.onnx"
                told = subprocess.run(["unfold", "fuse", path, "-o", out, "--verify", "off", "--json"], capture_output=True)
                count = json.loads(told.stdout)["summary"]["offline"]
                before, after = errors(onnx.load(path), onnx.load(out))
                cells = f"{count['folded']} of {count['sites']} | {before:.1e} | {after:.1e} | {after / before:.2f}"
                print(f"| {norm.upper()} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
