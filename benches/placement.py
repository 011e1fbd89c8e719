"""Measures the gain if linear work is done where values have the fewest places.

    pip install -r benches/peers/requirements.txt
    taskset -c 1 python benches/placement.py [--batch 1 8] [--rounds N] [--exporter legacy|dynamo] [NETWORK ...]

Exports each network with random weights and an open batch, and folds it with and without the passes `placement` and
`demand`. Prints the multiply-adds of both results, and the CPU time of the first relative to that of the second in
tract, onnxruntime and OpenVINO, on one thread. `unfold` is found on the PATH. `--write` writes the table to
docs/placement.md.
"""

import argparse
import math
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import timm
import torch
import transformers
from onnx import TensorProto, helper, numpy_helper

from engines import InOpenVINO, drawn, ratios_of, session, told, tract_ratios, unfold, write_between

DOCUMENT = Path(__file__).parent.parent / "docs" / "placement.md"
SKIP = ["--skip", "placement", "--skip", "demand"]
EAGER = {"attn_implementation": "eager"}
# The text models have six layers, and the width of the base models.
TEXT = dict(num_hidden_layers=6) | EAGER


class Read(torch.nn.Module):
    """A model of transformers with one input, and only the named result."""

    def __init__(self, model, name, result):
        super().__init__()
        self.model, self.name, self.result = model, name, result

    def forward(self, x):
        return self.model(**{self.name: x})[self.result]


def image_model(name, size=224):
    return lambda: (timm.create_model(name).eval(), torch.randn(2, 3, size, size))


def text_model(kind, config, result, length=77, **arguments):
    ids = torch.randint(3, 1000, (2, length))
    return lambda: (Read(kind(config(**arguments)).eval(), "input_ids", result), ids)


def segformer():
    config = transformers.SegformerConfig(num_labels=150, **EAGER)
    model = transformers.SegformerForSemanticSegmentation(config)
    return Read(model.eval(), "pixel_values", "logits"), torch.randn(2, 3, 512, 512)


class Decoder(torch.nn.Module):
    """The decoder of an autoencoder: nearest upsampling before convolutions, from 16² to 128² places."""

    def __init__(self, widths=(256, 256, 128, 64)):
        super().__init__()
        layers = [torch.nn.Conv2d(4, widths[0], 3, padding=1)]
        for inner, outer in zip(widths, widths[1:]):
            layers += [torch.nn.Conv2d(inner, inner, 3, padding=1), torch.nn.SiLU(), torch.nn.Upsample(scale_factor=2)]
            layers += [torch.nn.Conv2d(inner, outer, 3, padding=1), torch.nn.SiLU()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Conv2d(widths[-1], 3, 3, padding=1))

    def forward(self, x):
        return self.layers(x)


T = transformers
# A model and an example of its input, by the name of the network.
NETWORKS = {
    "SegFormer-B0, 512²": segformer,
    "DenseNet-121": image_model("densenet121"),
    "decoder, 16² to 128²": lambda: (Decoder().eval(), torch.randn(2, 4, 16, 16)),
    "ViT-B": image_model("vit_base_patch16_224"),
    "DeiT-S, distilled": image_model("deit_small_distilled_patch16_224"),
    "DeiT-III-S": image_model("deit3_small_patch16_224"),
    "CaiT-XXS-24": image_model("cait_xxs24_224"),
    "ViT-S, mean and fc_norm": image_model("vit_small_patch16_rope_224.naver_in1k"),
    "Inception-v3": image_model("inception_v3", 299),
    "CLIP, text": text_model(T.CLIPTextModelWithProjection, T.CLIPTextConfig, "text_embeds", eos_token_id=2, **TEXT),
    "BERT, classification": text_model(T.BertForSequenceClassification, T.BertConfig, "logits", **TEXT),
    "DistilBERT, classification": text_model(T.DistilBertForSequenceClassification, T.DistilBertConfig, "logits", **EAGER),
}


def exported(network, path, exporter):
    """Writes a network of `NETWORKS` with an open batch. Any `exporter` other than `dynamo` selects the legacy one."""
    torch.manual_seed(0)
    model, example = NETWORKS[network]()
    names = dict(input_names=["x"], output_names=["y"])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            shapes = ({0: torch.export.Dim("batch")},)
            torch.onnx.export(model, (example,), dynamo=True, dynamic_shapes=shapes, verbose=False, **names).save(path)
        else:
            torch.onnx.export(model, (example,), path, dynamo=False, dynamic_axes={"x": {0: "batch"}}, opset_version=17, **names)


def upsampled(path, channels):
    """Writes a network that upsamples 32² places by 2 to the nearest, and then applies a 3 × 3 convolution."""
    weight = np.random.default_rng(0).standard_normal((channels, channels, 3, 3)) / (9 * channels) ** 0.5
    factors = np.array([1, 1, 2, 2], np.float32)
    constants = [numpy_helper.from_array(weight.astype(np.float32), "w"), numpy_helper.from_array(factors, "f")]
    how = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    nodes = [
        helper.make_node("Resize", ["x", "", "f"], ["r"], **how),
        helper.make_node("Conv", ["r", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in
            [("x", ["batch", channels, 32, 32]), ("y", ["batch", channels, 64, 64])]]
    graph = helper.make_graph(nodes, "upsampled", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def work(path, batch):
    """The multiply-adds of products and convolutions for a batch. The model runs once, to get the operands' shapes."""
    model = onnx.load(path)
    given = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    layers = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm", "Conv")]
    wanted = {name for node in layers for name in [node.input[0], node.output[0]]}
    wanted -= {value.name for value in [*model.graph.input, *model.graph.output]} | {*given}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    running = session(model.SerializeToString(), optimise=False)
    numbers = np.random.default_rng(0)
    feed = {value.name: drawn(value, batch, numbers) for value in running.get_inputs()}
    names = [value.name for value in running.get_outputs()]
    shapes = {name: value.shape for name, value in zip(names, running.run(names, feed))}
    shapes |= {name: value.shape for name, value in feed.items()} | given
    products = 0
    for node in layers:
        inner = shapes[node.input[1]][1:] if node.op_type == "Conv" else shapes[node.input[0]][-1:]
        products += math.prod(shapes[node.output[0]]) * math.prod(inner)
    return products


def ratios(paths, batch, rounds):
    """The time of the second model relative to the first in each engine, as text."""
    numbers = np.random.default_rng(0)
    feed = {value.name: drawn(value, batch, numbers) for value in session(paths[0]).get_inputs()}
    found = [tract_ratios(paths, batch, rounds)[1]]
    found += [ratios_of(lambda: map(load, paths), feed, rounds)[1] for load in (session, InOpenVINO)]
    return [told(*ratio) if ratio else "-" for ratio in found]


def row(network, batches, rounds, exporter, folder):
    """A row of the table."""
    paths = [str(folder / f"{name}.onnx") for name in ("original", "without", "with")]
    if network.startswith("upsampling"):
        upsampled(paths[0], int(network.split()[1]))
    elif network.startswith("ViT-S, UN"):
        unfold("zoo", "vit-s", "--norm", "un", "-o", paths[0])
    else:
        exported(network, paths[0], exporter)
    growth = ["--max-growth", "100"]
    unfold("fuse", paths[0], "-o", paths[1], *growth, *SKIP, "--no-verify")
    unfold("fuse", paths[0], "-o", paths[2], *growth, "--no-verify")
    millions = [work(path, 1) / 1e6 for path in paths[1:]]
    measured = [ratios(paths[1:], batch, rounds) for batch in batches]
    cells = [", ".join(of_engine) for of_engine in zip(*measured)]
    return f"| {network} | {millions[0]:,.0f} | {millions[1]:,.0f} | {' | '.join(cells)} |"


def main():
    built = ["ViT-S, UN, class token", "upsampling 128 channels"]
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=[*built, *NETWORKS])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--exporter", default="legacy")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = ["| network | multiply-adds without, in millions | with | tract | onnxruntime | OpenVINO |", "|---|---:|---:|---:|---:|---:|"]
    for network in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(row(network, options.batch, options.rounds, options.exporter, Path(folder)))
        print(lines[-1], flush=True)
    if options.write:
        write_between(DOCUMENT, "placement", lines)


if __name__ == "__main__":
    main()
