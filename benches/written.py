"""Measures the gain of writing GELU and RMSNorm in the forms that engines recognize.

    pip install -r benches/peers/requirements.txt
    python benches/written.py

The blocks are MLPs with a GELU that halves its gate, and products after an RMSNorm that multiplies by a reciprocal.
Prints the latency of the blocks as unfold writes them, relative to the original blocks. `unfold` is found on the PATH.
Writes the table under "Forms" in docs/engines.md.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from engines import in_onnxruntime, in_tract, unfold, write_between

DOCUMENT = Path(__file__).parent.parent / "docs" / "engines.md"
LAYERS, TOKENS, ROUNDS = 4, 197, 30
MLP = ("m{0} = MatMul(x{0}, w{0}) a{0} = Add(m{0}, b{0}) %s s{0} = Add(e{0}, one) h{0} = Mul(half, s{0}) g{0} = Mul(a{0}, h{0}) "
       "n{0} = MatMul(g{0}, v{0}) x{1} = Add(n{0}, c{0})")
BLOCKS = {
    "GELU by erf": MLP % "d{0} = Div(a{0}, root) e{0} = Erf(d{0})",
    "GELU by tanh": MLP % ("t{0} = Pow(a{0}, three) q{0} = Mul(cubic, t{0}) u{0} = Add(a{0}, q{0}) d{0} = Mul(flat, u{0}) "
                           "e{0} = Tanh(d{0})"),
    "RMSNorm": "q{0} = Pow(x{0}, two) m{0} = ReduceMean <keepdims = 1> (q{0}, last) e{0} = Add(m{0}, epsilon) s{0} = Sqrt(e{0}) "
               "r{0} = Reciprocal(s{0}) n{0} = Mul(x{0}, r{0}) g{0} = Mul(n{0}, c{0}) a{0} = MatMul(g{0}, w{0}) "
               "k{0} = Relu(a{0}) h{0} = MatMul(k{0}, v{0}) x{1} = Add(x{0}, h{0})",
}


def model(block, width):
    """A model of layers in sequence."""
    body = " ".join(block.format(layer, layer + 1) for layer in range(LAYERS))
    shape = f"float[batch, {TOKENS}, {width}]"
    text = f'<ir_version: 8, opset_import: ["": 18]> g ({shape} x0) => ({shape} x{LAYERS}) {{ {body} }}'
    made, numbers = parser.parse_model(text), np.random.default_rng(0)
    constants = {"root": np.sqrt(2), "one": 1, "half": 0.5, "two": 2, "three": 3, "cubic": 0.044715, "epsilon": 1e-6}
    constants["flat"] = np.sqrt(2 / np.pi)
    for layer in range(LAYERS):
        for name, extents in (("w", (width, 4 * width)), ("b", 4 * width), ("v", (4 * width, width)), ("c", width)):
            constants[f"{name}{layer}"] = numbers.standard_normal(extents) / np.sqrt(width)
    constants = {name: np.array(value, np.float32) for name, value in constants.items()} | {"last": np.array([-1])}
    read = {name for node in made.graph.node for name in node.input}
    for name in read & constants.keys():
        made.graph.initializer.append(numpy_helper.from_array(constants[name], name))
    return made


def main():
    lines = ["| what | width | tract | onnxruntime |", "|---|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        before, after = (str(Path(folder) / f"{name}.onnx") for name in ("before", "after"))
        for name, block in BLOCKS.items():
            for width in (192, 384):
                onnx.save(model(block, width), before)
                unfold("fuse", before, "-o", after)
                ratios = [engine([before, after], 1, ROUNDS)[1] for engine in (in_tract, in_onnxruntime)]
                lines.append(f"| {name} | {width} | {' | '.join(ratios)} |")
                print(lines[-1], flush=True)
    write_between(DOCUMENT, "written", lines)


if __name__ == "__main__":
    main()
