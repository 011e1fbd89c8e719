"""Measures the latency of one grouped convolution relative to convolutions of the parts of a Split.

    pip install -r benches/peers/requirements.txt
    python benches/split_convolutions.py

Each model has four layers: a Split of the channels, a Conv of each part, a Concat and a Relu, or one Conv with groups
and a Relu. Prints the table of docs/engines.md. `unfold` is found on the PATH.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engines import InOpenVINO, ratios_of, session, told, tract_ratios

LAYERS, ROUNDS = 4, 24
# The number of channels, the extents of the image and of the kernel, and the number of parts.
CASES = [
    (48, 56, 1, 2), (80, 28, 1, 2), (120, 14, 1, 2), (240, 28, 1, 2), (128, 28, 1, 4), (512, 7, 1, 8),
    (64, 56, 3, 2), (64, 56, 3, 4), (128, 28, 3, 2), (256, 14, 3, 4), (512, 14, 3, 2), (128, 28, 5, 4),
]  # fmt: skip


def model(channels, extent, kernel, parts, merged):
    """The model with convolutions of parts, or with merged ones."""
    generator, width = np.random.default_rng(0), channels // parts
    nodes, initializers, value = [], [], "x"

    def constant(values):
        initializers.append(numpy_helper.from_array(np.asarray(values), f"c{len(initializers)}"))
        return initializers[-1].name

    for layer in range(LAYERS):
        weights = generator.standard_normal((parts, width, width, kernel, kernel), np.float32) / 10
        biases = generator.standard_normal((parts, width), np.float32)
        joined, pads = f"joined{layer}", [kernel // 2] * 4
        if merged:
            inputs = [value, constant(np.concatenate(weights)), constant(np.concatenate(biases))]
            nodes.append(helper.make_node("Conv", inputs, [joined], pads=pads, group=parts))
        else:
            split = [f"part{layer}_{part}" for part in range(parts)]
            convolved = [f"convolved{layer}_{part}" for part in range(parts)]
            nodes.append(helper.make_node("Split", [value, constant([width] * parts)], split, axis=1))
            for part in range(parts):
                inputs = [split[part], constant(weights[part]), constant(biases[part])]
                nodes.append(helper.make_node("Conv", inputs, [convolved[part]], pads=pads))
            nodes.append(helper.make_node("Concat", convolved, [joined], axis=1))
        value = f"relu{layer}"
        nodes.append(helper.make_node("Relu", [joined], [value]))
    shape = ["batch", channels, extent, extent]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", value)]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main():
    print("| channels | image | kernel | parts | tract | onnxruntime | OpenVINO |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            channels, extent, kernel, parts = case
            files = [Path(folder) / name for name in ("parts.onnx", "merged.onnx")]
            for file, merged in zip(files, (False, True)):
                onnx.save(model(*case, merged), file)
            image = np.random.default_rng(1).standard_normal((1, channels, extent, extent), np.float32)
            ratios = [tract_ratios(files, 1, ROUNDS)[1]]
            for engine in (session, InOpenVINO):
                ratios.append(ratios_of(lambda engine=engine: map(engine, files), {"x": image}, ROUNDS)[1])
            cells = [f"{channels}", f"{extent}²", f"{kernel}²", f"{parts}", *(told(*ratio) for ratio in ratios)]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
