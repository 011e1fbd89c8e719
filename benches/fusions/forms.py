"""Lists the operators by which onnxruntime, OpenVINO and tract replace common forms of operators around normalizers.

    pip install -r benches/fusions/requirements.txt
    python benches/fusions/forms.py

Each form is a model of a few operators. A row has the operators of the optimized graph in each engine. For tract,
`cargo bench --bench forms` prints them. Writes the first table of docs/engines.md.
"""

import datetime
import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import numpy_helper, parser

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "benches"))

from engines import write_between  # noqa: E402

DOCUMENT = ROOT / "docs" / "engines.md"

TOKENS, IMAGE, C = "float[2, 16, 32]", "float[2, 32, 8, 8]", 32
ERF = "e = Erf(d) p = Add(e, one) m = Mul({0}, p)"
TANH = "t = Pow(x, three) q = Mul(cubic, t) u = Add(x, q) d = Mul(flat, u) e = Tanh(d) p = Add(e, one)"
RMS = "v = ReduceMean <keepdims = 1> (q, last) f = Add(v, half) t = Sqrt(f)"
# The name, the input, and the nodes from x to y. The constants: w is [32, 32], k is a kernel of 1 x 1, c is [32],
# r is [1, 1, 32], and i is [32, 1, 1].
FORMS = [
    ("GELU by erf, x/√2, ½ behind", TOKENS, f"d = Div(x, root) {ERF.format('x')} y = Mul(m, half)"),
    ("the same, ½ before", TOKENS, "h = Mul(x, half) d = Div(x, root) e = Erf(d) p = Add(e, one) y = Mul(h, p)"),
    ("the same, ½ on the gate", TOKENS, "d = Div(x, root) e = Erf(d) p = Add(e, one) h = Mul(p, half) y = Mul(x, h)"),
    ("GELU by tanh, ½ before, MatMul", TOKENS, f"{TANH} h = Mul(x, half) m = Mul(h, p) y = MatMul(m, w)"),
    ("the same, ½ on the gate", TOKENS, f"{TANH} h = Mul(p, half) m = Mul(x, h) y = MatMul(m, w)"),
    ("the same by erf, without ½", TOKENS, f"d = Div(x, root) {ERF.format('x')} y = Identity(m)"),
    ("the same, ½ in the next weight", TOKENS, f"d = Div(x, root) {ERF.format('x')} y = MatMul(m, w)"),
    ("Gelu (opset 20)", TOKENS, "y = Gelu(x)"),
    ("SiLU, x·sigmoid(x)", TOKENS, "s = Sigmoid(x) y = Mul(x, s)"),
    ("MatMul + bias [C]", TOKENS, "a = MatMul(x, w) y = Add(a, c)"),
    ("MatMul + bias [1, 1, C]", TOKENS, "a = MatMul(x, w) y = Add(a, r)"),
    ("MatMul + bias [C], GELU", TOKENS, f"a = MatMul(x, w) x2 = Add(a, c) d = Div(x2, root) {ERF.format('x2')} y = Mul(m, half)"),
    ("MatMul + bias [1, 1, C], GELU", TOKENS, f"a = MatMul(x, w) x2 = Add(a, r) d = Div(x2, root) {ERF.format('x2')} y = Mul(m, half)"),
    ("MatMul, times [C]", TOKENS, "a = MatMul(x, w) y = Mul(a, c)"),
    ("times [C], MatMul", TOKENS, "a = Mul(x, c) y = MatMul(a, w)"),
    ("LayerNormalization", TOKENS, "y = LayerNormalization <axis = -1> (x, c, c)"),
    ("LayerNormalization without shift", TOKENS, "y = LayerNormalization <axis = -1> (x, c)"),
    ("x + z, LayerNormalization", TOKENS, "z = Relu(x) s = Add(x, z) y = LayerNormalization <axis = -1> (s, c, c)"),
    ("RMSNormalization (opset 23)", TOKENS, "y = RMSNormalization <axis = -1> (x, c)"),
    ("RMS of Pow, ReduceMean, Sqrt, Div", TOKENS, f"q = Pow(x, two) {RMS} d = Div(x, t) y = Mul(d, c)"),
    ("the same, times the Reciprocal", TOKENS, f"q = Pow(x, two) {RMS} z = Reciprocal(t) d = Mul(x, z) y = Mul(d, c)"),
    ("RMS of Mul, ReduceMean, Sqrt, Div", TOKENS, f"q = Mul(x, x) {RMS} d = Div(x, t) y = Mul(d, c)"),
    ("Conv, BatchNormalization", IMAGE, "a = Conv(x, k) y = BatchNormalization(a, c, c, c, c)"),
    ("Conv, times [C, 1, 1], plus [C, 1, 1]", IMAGE, "a = Conv(x, k) b = Mul(a, i) y = Add(b, i)"),
    ("Conv, times 0.5, plus 0.5", IMAGE, "a = Conv(x, k) b = Mul(a, half) y = Add(b, half)"),
    ("times [C, 1, 1], Conv", IMAGE, "a = Mul(x, i) y = Conv(a, k)"),
    ("Conv, Relu", IMAGE, "a = Conv(x, k) y = Relu(a)"),
    ("Conv, plus z, Relu", IMAGE, "z = Sigmoid(x) a = Conv(x, k) b = Add(a, z) y = Relu(b)"),
    ("Softmax of scaled scores", TOKENS, "t = Transpose <perm = [0, 2, 1]> (x) a = MatMul(x, t) s = Mul(a, half) y = Softmax <axis = -1> (s)"),
    ("Softmax of scores", TOKENS, "t = Transpose <perm = [0, 2, 1]> (x) a = MatMul(x, t) y = Softmax <axis = -1> (a)"),
]


def model(shape, body):
    """The model of a form, with random constants."""
    opset = 23 if "RMSNormalization" in body else 20
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g ({shape} x) => ({shape.split("[")[0]}[p, q, r, s] y) {{ {body} }}'
    if shape == TOKENS:
        text = text.replace("[p, q, r, s]", "[p, q, r]")
    made = parser.parse_model(text)
    draw = np.random.default_rng(0).uniform
    constants = {
        "w": draw(-1, 1, (C, C)), "k": draw(-1, 1, (C, C, 1, 1)), "c": draw(0.5, 1, C), "r": draw(-1, 1, (1, 1, C)),
        "i": draw(0.5, 1, (C, 1, 1)), "half": np.array(0.5), "one": np.array(1.0), "root": np.array(np.sqrt(2)),
        "two": np.array(2.0), "three": np.array(3.0), "cubic": np.array(0.044715), "flat": np.array(np.sqrt(2 / np.pi)),
    }
    read = {name for node in made.graph.node for name in node.input}
    for name, value in constants.items():
        if name in read:
            made.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    if "last" in read:
        made.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last"))
    onnx.checker.check_model(made)
    # Engines infer unknown extents.
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def in_onnxruntime(path, folder):
    target = folder / "optimised.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(target).graph.node]


def in_openvino(path):
    compiled = openvino.Core().compile_model(str(path), "CPU")
    told = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    kinds = [str(info["layerType"].astype(str)) for info in told]
    return [kind for kind in kinds if kind not in ("Input", "Output", "Const", "Reorder", "Result", "Parameter")]


def in_tract(folder):
    """The operators in tract, by the name of the file."""
    command = ["cargo", "bench", "--bench", "forms", "--", folder]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    lines = [line.removeprefix("form ").split(": ") for line in run.stdout.splitlines() if line.startswith("form ")]
    return {name: operators.split(", ") for name, operators in lines}


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for place, (_, shape, body, *_) in enumerate(FORMS):
            onnx.save(model(shape, body), folder / f"{place:02}.onnx")
        tract = in_tract(folder)
        rows = ["| form | onnxruntime | OpenVINO | tract |", "| --- | --- | --- | --- |"]
        for place, (name, *_) in enumerate(FORMS):
            path = folder / f"{place:02}.onnx"
            cells = [in_onnxruntime(path, folder), in_openvino(path), tract[path.stem]]
            rows.append(f"| {name} | {' | '.join(', '.join(cell) for cell in cells)} |")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("onnxruntime", "openvino")]
    write_between(DOCUMENT, "forms", [f"{datetime.date.today()}, {', '.join(versions)}.", "", *rows])


if __name__ == "__main__":
    main()
