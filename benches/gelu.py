"""What it is worth to halve a value before the gate of its GELU, and not the gate, as torch's exporter decomposes it.

    pip install -r benches/peers/requirements.txt
    python benches/gelu.py

The latency of MLPs as unfold writes them over that of the same as they were. `unfold` is found on the PATH. Writes the table
under "Forms" in docs/engines.md.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from engines import in_onnxruntime, in_tract, unfold, write_between

DOCUMENT = Path(__file__).parent.parent / "docs" / "engines.md"
LAYERS, TOKENS, ROUNDS = 4, 197, 30
GATES = {
    "erf": "d{0} = Div(a{0}, root) e{0} = Erf(d{0})",
    "tanh": "t{0} = Pow(a{0}, three) q{0} = Mul(cubic, t{0}) u{0} = Add(a{0}, q{0}) d{0} = Mul(flat, u{0}) e{0} = Tanh(d{0})",
}
MLP = ("m{0} = MatMul(x{0}, w{0}) a{0} = Add(m{0}, b{0}) {1} s{0} = Add(e{0}, one) h{0} = Mul(half, s{0}) g{0} = Mul(a{0}, h{0}) "
       "n{0} = MatMul(g{0}, v{0}) x{2} = Add(n{0}, c{0})")


def model(gate, width):
    """The layers one behind the other."""
    body = " ".join(MLP.format(layer, GATES[gate].format(layer), layer + 1) for layer in range(LAYERS))
    shape = f"float[batch, {TOKENS}, {width}]"
    text = f'<ir_version: 8, opset_import: ["": 18]> g ({shape} x0) => ({shape} x{LAYERS}) {{ {body} }}'
    made, numbers = parser.parse_model(text), np.random.default_rng(0)
    constants = {"root": np.sqrt(2), "one": 1, "half": 0.5, "three": 3, "cubic": 0.044715, "flat": np.sqrt(2 / np.pi)}
    for layer in range(LAYERS):
        for name, extents in (("w", (width, 4 * width)), ("b", 4 * width), ("v", (4 * width, width)), ("c", width)):
            constants[f"{name}{layer}"] = numbers.standard_normal(extents) / np.sqrt(width)
    read = {name for node in made.graph.node for name in node.input}
    for name in read & constants.keys():
        made.graph.initializer.append(numpy_helper.from_array(np.array(constants[name], np.float32), name))
    return made


def main():
    lines = ["| GELU by | width | tract | onnxruntime |", "|---|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        before, after = (str(Path(folder) / f"{name}.onnx") for name in ("before", "after"))
        for gate in GATES:
            for width in (192, 384):
                onnx.save(model(gate, width), before)
                unfold("fuse", before, "-o", after)
                ratios = [engine([before, after], 1, ROUNDS)[1] for engine in (in_tract, in_onnxruntime)]
                lines.append(f"| {gate} | {width} | {' | '.join(ratios)} |")
                print(lines[-1], flush=True)
    write_between(DOCUMENT, "gelu", lines)


if __name__ == "__main__":
    main()
