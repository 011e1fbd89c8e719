"""Measures the share of the nodes with the same value in two models that `unfold diff` aligns.

    pip install -r benches/peers/requirements.txt
    python benches/peers/architectures.py --folder models
    python benches/peers/diff_alignment.py --binary target/release/unfold --folder models
    python benches/peers/diff_alignment.py --binary target/release/unfold --folder models bert.dynamo --tools onnxslim

Six tools rewrite 26 networks. All names of a result are scrambled. onnxruntime, without graph optimizations, computes
all values of both files for a batch of three random inputs. A node of the original counts if a node of the result
computes a value of the same shape that is equal up to rounding. It is aligned if `unfold diff` pairs it with such a
node. A pair is wrong if its values differ by more than rounding. Prints a line for each pair of files, in JSON, and a
table by tool. Results of tools stay in the folder, and are used again.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))

from peers import run_tool  # noqa: E402

TOOLS = ["onnxsim", "onnxslim", "onnxscript", "onnxoptimizer", "onnxruntime_basic", "onnxruntime"]
NETWORKS = """
    albert.dynamo bart.legacy bert.dynamo cait_xxs24_224.dynamo convnext_atto.legacy deberta-v2.legacy densenet121.legacy
    dinov2.legacy efficientformerv2_s0.dynamo efficientnet_b0.legacy fastvit_t8.legacy gemma2.dynamo ghostnet_100.legacy
    gpt2.dynamo levit_128s.legacy llama.dynamo mixnet_s.dynamo mobilenetv3_small_050.dynamo mobilevit_xxs.dynamo
    pvt_v2_b0.dynamo resnet18.legacy segformer.dynamo t5.dynamo vit_tiny_patch16_224.dynamo wav2vec2.legacy
    xcit_nano_12_p16_224.legacy
""".split()
BATCH = 3
SAMPLES = 16
# Differences relative to the largest magnitude of a value: the largest one that rounding explains, and the smallest one
# of a wrong pair.
ROUNDING, WRONG = 1e-4, 1e-3


def scrambled(graph, names, draw):
    """Renames all values and nodes of a graph and of its bodies."""
    for value in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        value.name = scrambled_name(value.name, names, draw)
    for node in graph.node:
        node.name = f"node_{draw.getrandbits(48):x}"
        node.input[:] = [scrambled_name(name, names, draw) for name in node.input]
        node.output[:] = [scrambled_name(name, names, draw) for name in node.output]
        node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            for body in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                scrambled(body, names, draw)


def scrambled_name(name, names, draw):
    return name and names.setdefault(name, f"value_{draw.getrandbits(48):x}")


def feeds(model):
    """Random inputs of a model, in the order of its inputs."""
    draw = np.random.default_rng(0)
    stored = {tensor.name for tensor in model.graph.initializer}
    given = []
    for value in model.graph.input:
        if value.name not in stored:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            shape = [dim.dim_value or BATCH for dim in value.type.tensor_type.shape.dim]
            numbers = draw.standard_normal(shape) if dtype.kind == "f" else draw.integers(1, 100, shape)
            given.append(numbers.astype(dtype))
    return given


class Computed:
    """The first results of the nodes of a model, as onnxruntime computes them."""

    def __init__(self, model, inputs):
        model, self.nodes = onnx.ModelProto.FromString(model.SerializeToString()), {}
        declared = {output.name for output in model.graph.output}
        for node in model.graph.node:
            if node.op_type != "Constant" and node.output[0]:
                self.nodes[node.name or node.output[0]] = node
                if node.output[0] not in declared:
                    model.graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        outputs = [output.name for output in session.get_outputs()]
        made = dict(zip(outputs, session.run(None, dict(zip(names, inputs)))))
        self.values = {name: Value(made[node.output[0]]) for name, node in self.nodes.items()}

    def by_key(self):
        """The values by their types and shapes."""
        values = defaultdict(list)
        for value in self.values.values():
            values[value.key].append(value)
        return values


class Value:
    """An array, with a few of its elements for a quick comparison. A sequence is not an array, and equals no value."""

    def __init__(self, array):
        self.array = np.asarray(array) if isinstance(array, np.ndarray) else np.array(np.nan)
        self.key = (self.array.dtype.kind, self.array.shape)
        magnitudes = np.abs(self.array) if self.key[0] == "f" else np.zeros(1)
        self.scale = float(np.max(magnitudes, initial=0, where=np.isfinite(magnitudes)))
        places = np.random.default_rng(0).integers(0, max(self.array.size, 1), SAMPLES)
        self.sample = self.array.reshape(-1)[places] if self.array.size else self.array.reshape(-1)

    def equals(self, other, tolerance):
        """Whether both are equal, relative to the largest magnitude."""
        if self.key != other.key:
            return False
        pairs = [(self.sample, other.sample), (self.array, other.array)]
        return all(is_close(a, b, tolerance * self.scale) for a, b in pairs)


def is_close(a, b, most):
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    return np.abs(np.subtract(a, b, where=finite, out=np.zeros_like(a))).max(initial=0) <= most


def difference(binary, original, result):
    """The pairs of nodes that `unfold diff` aligns, by the name of the first, and its verdict."""
    command = [binary, "diff", str(original), str(result), "--json", "--quiet"]
    process = subprocess.run(command, capture_output=True, text=True)
    if not process.stdout:
        raise RuntimeError(process.stderr)
    document = json.loads(process.stdout)
    return {pair["first"]: pair["second"] for pair in document["aligned"]}, document["judgement"]


def measured(binary, source, first, result):
    """The counts of one pair of files. `first` are the values of the original."""
    second = onnx.load(result)
    scrambled(second.graph, {}, random.Random(1))
    with tempfile.TemporaryDirectory() as folder:
        renamed = Path(folder) / "result.onnx"
        onnx.save(second, renamed)
        pairs, judgement = difference(binary, source, renamed)
    second = Computed(second, feeds(second))
    others = second.by_key()
    equal, missed = 0, []
    for node, value in first.values.items():
        found = any(value.equals(other, ROUNDING) for other in others[value.key])
        equal += found
        missed += [node] * (found and node not in pairs)
    known = [(a, b) for a, b in pairs.items() if a in first.values and b in second.values]
    wrong = [(a, b) for a, b in known if not first.values[a].equals(second.values[b], WRONG)]
    return {
        "verdict": judgement["verdict"],
        "reason": judgement.get("reason"),
        "equal": equal,
        "aligned": equal - len(missed),
        "wrong": wrong[:9],
        "missed": Counter(first.nodes[node].op_type for node in missed),
        "first missed": missed[:3],
    }


def result_of(tool, source):
    """The path of the model that a tool writes. `None` if the tool fails."""
    folder = source.parent / "results"
    folder.mkdir(exist_ok=True)
    target = folder / f"{source.stem}.{tool}.onnx"
    if not target.exists():
        seconds, failure = run_tool(tool, source, target)
        if seconds is None:
            print(json.dumps({"network": source.stem, "tool": tool, "failed": failure}), flush=True)
            return None
    return target


def table(counts):
    """The counts by tool."""
    lines = ["| tool | pairs | nodes with a value in both | aligned | wrong pairs |", "|---|---:|---:|---:|---:|"]
    counts["all"] = sum(counts.values(), Counter())
    for tool, count in counts.items():
        share = 100 * count["aligned"] / max(count["equal"], 1)
        lines.append(f"| {tool} | {count['pairs']} | {count['equal']:,} | {share:.1f} % | {count['wrong']} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="unfold")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tools", nargs="+", default=TOOLS)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    arguments = parser.parse_args()
    counts = {tool: Counter() for tool in arguments.tools}
    for network in arguments.networks:
        source = arguments.folder / f"{network}.onnx"
        model = onnx.load(source)
        first = Computed(model, feeds(model))
        for tool in arguments.tools:
            result = result_of(tool, source)
            if result is None:
                continue
            found = measured(arguments.binary, source, first, result)
            print(json.dumps({"network": network, "tool": tool, **found}), flush=True)
            counts[tool].update(pairs=1, equal=found["equal"], aligned=found["aligned"], wrong=len(found["wrong"]))
    print(table(counts))


if __name__ == "__main__":
    main()
