"""Converts networks whose residual streams exceed float16 to half precision, unscaled and scaled by a power of two.

    pip install -r benches/peers/requirements.txt transformers
    python benches/streams.py

Exports small networks like T5, Gemma 3 and Whisper. Their last layers write values so large that the stream exceeds
65,504, as in the large networks. `unfold`, which is found on the PATH, folds each with and without `--scale-stream
auto`. Both results run in float32, and after a cast to float16 in which only normalizers compute in float32. The table
is in docs/streams.md.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

INFLATED = 3e4
SIZE = {"vocab_size": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Logits(torch.nn.Module):
    def __init__(self, network, names):
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *inputs):
        return self.network(**dict(zip(self.names, inputs)), use_cache=False).logits


def t5():
    config = transformers.T5Config(d_model=64, d_ff=128, d_kv=16, num_heads=4, num_layers=3, decoder_start_token_id=0, **SIZE)
    network = transformers.T5ForConditionalGeneration(config)
    return network, ["wo"], {"input_ids": tokens(9), "decoder_input_ids": tokens(5)}


def gemma3():
    config = transformers.Gemma3TextConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=3, head_dim=16,
                                           num_attention_heads=4, num_key_value_heads=2, **SIZE)
    return transformers.Gemma3ForCausalLM(config), ["post_feedforward_layernorm"], {"input_ids": tokens(9)}


def whisper():
    config = transformers.WhisperConfig(d_model=64, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4,
                                        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
                                        num_mel_bins=20, max_source_positions=30, decoder_start_token_id=1, **SIZE)
    features = torch.randn(2, 20, 60, generator=torch.Generator().manual_seed(1))
    network = transformers.WhisperForConditionalGeneration(config)
    return network, ["fc2"], {"input_features": features, "decoder_input_ids": tokens(5)}


def tokens(length):
    return torch.randint(3, 256, (2, length), generator=torch.Generator().manual_seed(length))


def exported(network, inflated, inputs, path, dynamo=True):
    """Writes the network after its writers are scaled so much that the stream exceeds float16."""
    randomize(network)
    add_outliers(network, inflated)
    export(network, inputs, path, dynamo)


def randomize(network, seed=0):
    torch.manual_seed(seed)
    network.eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)


def add_outliers(network, names):
    """Inflates one of 16 rows of the weights of the named modules. In trained networks, few channels dominate too."""
    with torch.no_grad():
        for module, part in network.named_modules():
            if module.split(".")[-1] in names:
                rows = part.weight.shape[0]
                part.weight.mul_(torch.where(torch.arange(rows) % 16 == 3, INFLATED, 1.0).view(-1, *[1] * (part.weight.dim() - 1)))
                if part.weight.dim() == 1:
                    part.weight.add_(torch.where(torch.arange(rows) % 16 == 3, INFLATED, 1.0))


def export(network, inputs, path, dynamo=True, is_open=False):
    """Writes the network. If `is_open`, the first axis of each input is open, and the second axis of each matrix."""
    names, options = list(inputs), {}
    if is_open:
        axes = {name: {0: "batch", 1: f"{name}_length"} if value.dim() == 2 else {0: "batch"} for name, value in inputs.items()}
        symbols = {name: {axis: torch.export.Dim(symbol) for axis, symbol in own.items()} for name, own in axes.items()}
        options = {"dynamic_shapes": (tuple(symbols.values()),)} if dynamo else {"dynamic_axes": axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Logits(network, names), tuple(inputs.values()), path, input_names=names, output_names=["logits"],
                          dynamo=dynamo, verbose=False, **options)


def in_float32(graph):
    """The results of the nodes of normalizers, which stay in float32."""
    makers = {output: node for node in graph.node for output in node.output}
    readers = {}
    for node in graph.node:
        for value in node.input:
            readers.setdefault(value, []).append(node)
    found = [node for node in graph.node if node.op_type == "LayerNormalization"]
    for mean in (node for node in graph.node if node.op_type == "ReduceMean" and makers[node.input[0]].op_type in ("Pow", "Mul")):
        square, node = makers[mean.input[0]], mean
        found += [square, mean]
        while square.input[0] not in node.input:
            [node] = readers[node.output[0]]
            found.append(node)
    constants = [node for node in graph.node if node.op_type == "Constant"]
    wide = {node.output[0] for node in found}
    are_wide = lambda nodes: all(node.output[0] in wide for node in nodes)
    return wide | {node.output[0] for node in constants if are_wide(readers.get(node.output[0], []))}


def halved(model):
    """Converts a model to float16, except for the values inside normalizers, the inputs and the outputs."""
    model = onnx.shape_inference.infer_shapes(model)
    graph = model.graph
    wide = in_float32(graph)
    floats = {value.name for value in [*graph.value_info, *graph.input, *graph.output] if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    floats |= {tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}
    is_wide = {tensor.name: True for tensor in graph.initializer} | {value.name: True for value in graph.input}
    nodes, cast = [], {}

    def read(name, is_to_be_wide):
        if name not in floats or is_wide[name] == is_to_be_wide:
            return name
        if (name, is_to_be_wide) not in cast:
            cast[name, is_to_be_wide] = name + ("_wide" if is_to_be_wide else "_half")
            to = TensorProto.FLOAT if is_to_be_wide else TensorProto.FLOAT16
            nodes.append(helper.make_node("Cast", [name], [cast[name, is_to_be_wide]], to=to))
        return cast[name, is_to_be_wide]

    for node in graph.node:
        is_to_be_wide = len(node.output) > 0 and node.output[0] in wide
        inputs = [read(name, is_to_be_wide) for name in node.input]
        del node.input[:]
        node.input.extend(inputs)
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT and not is_to_be_wide:
                attribute.i = TensorProto.FLOAT16
            if attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT and not is_to_be_wide:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float16)))
        is_wide.update({name: is_to_be_wide for name in node.output})
        nodes.append(node)
    for output in graph.output:
        if output.name in floats and not is_wide[output.name]:
            last = next(node for node in nodes if output.name in node.output)
            place = list(last.output).index(output.name)
            last.output[place] += "_half"
            nodes.append(helper.make_node("Cast", [last.output[place]], [output.name], to=TensorProto.FLOAT))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(copies)
    return model


def run(model, inputs, optimized=False):
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, inputs)[0].astype(np.float64)


def rounded(model, inputs):
    """The output of the model if the result of each operator is rounded to its type, which engines need not do."""
    return ReferenceEvaluator(model).run(None, inputs)[0].astype(np.float64)


def error(logits, exact):
    if not np.isfinite(logits).all():
        return f"{np.mean(~np.isfinite(logits)):.0%} Inf or NaN"
    return f"{np.abs(logits - exact).max() / np.abs(exact).max():.1e}"


def main(names):
    print("| model | 2^-k | float32, bits that differ | float16 | float16, scaled |\n|---|---|---:|---:|---:|")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path, fused, scaled, samples = [str(Path(folder) / file) for file in ("m.onnx", "f.onnx", "s.onnx", "i.npz")]
            network, inflated, inputs = {"t5": t5, "gemma3": gemma3, "whisper": whisper}[name]()
            exported(network, inflated, inputs, path, dynamo=name != "t5")
            inputs = {key: value.numpy() for key, value in inputs.items()}
            np.savez(samples, **inputs)
            fuse = ["unfold", "fuse", path, "--quiet", "--verify", "off"]
            subprocess.run([*fuse, "-o", fused], check=True)
            scale = [*fuse, "-o", scaled, "--scale-stream", "auto", "--input", samples, "--json"]
            power = json.loads(subprocess.run(scale, check=True, stdout=subprocess.PIPE).stdout)["scale_stream"]
            fused, scaled = onnx.load(fused), onnx.load(scaled)
            bits = [np.sum(run(fused, inputs, how) != run(scaled, inputs, how)) for how in (False, True)]
            exact = run(onnx.load(path), inputs)
            halves = [[judge(halved(model), inputs) for judge in (run, rounded)] for model in (fused, scaled)]
            told = [" / ".join(error(logits, exact) for logits in half) for half in halves]
            print(f"| {name} | 2^-{power} | {max(bits)} | {told[0]} | {told[1]} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["t5", "gemma3", "whisper"])
