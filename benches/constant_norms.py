"""Measures networks like GPT-2 with constant LayerNorms in onnxruntime: tokens, latency and memory.

    pip install -r benches/peers/requirements.txt transformers
    python benches/constant_norms.py

Both exporters write the GPT-2 of transformers with random weights, 2 to 12 layers, ε = 10¹² and γ about 10⁶. `unfold`,
which is found on the PATH, folds each model with `--constant-norms` and proves the result. The head shares its weight
with the embedding, so the weight is copied. The token of a position is the one with the largest logit. A latency is the
CPU time of a process of onnxruntime with one thread, in interleaved rounds. The table has the median, the smallest and
the largest ratio to the export. Memory is the peak of the resident set of such a process. The table is in
docs/streams.md.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import warnings

import onnx
import onnxruntime
import torch
import transformers

BATCH, LENGTH, ROUNDS, RUNS = 8, 160, 5, 3


class Logits(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, input_ids):
        hidden = torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)
        return self.network(input_ids=input_ids, attention_mask=hidden[None, None], use_cache=False).logits


def network(layers):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=1000, n_positions=256, n_embd=192, n_layer=layers, n_head=6,
                                     layer_norm_epsilon=1e12, attn_implementation="eager")
    made = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.split(".")[-2].startswith("ln_") and name.endswith("weight"):
                parameter.copy_(1e6 * (1 + 0.1 * torch.randn_like(parameter)))
    return Logits(made)


def tokens():
    return torch.randint(0, 1000, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def exported(layers, dynamo, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network(layers), (tokens(),), path, input_names=["input_ids"], output_names=["logits"],
                          dynamo=dynamo, verbose=False)


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def measured(path):
    """Prints the CPU time of a run in seconds, and the peak resident set in megabytes. Runs in its own process."""
    model, feeds = session(path), {"input_ids": tokens().numpy()}
    model.run(None, feeds)
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for _ in range(RUNS):
        model.run(None, feeds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([(used.ru_utime - begin) / RUNS, used.ru_maxrss / 1024]))


def ratios(before, after):
    times, sizes = [], []
    for _ in range(ROUNDS):
        pair = [json.loads(subprocess.check_output([sys.executable, __file__, "--measure", path])) for path in (before, after)]
        times.append(pair[1][0] / pair[0][0])
        sizes.append(pair[1][1] - pair[0][1])
    return statistics.median(times), min(times), max(times), statistics.median(sizes)


def row(layers, dynamo, folder):
    before, after = f"{folder}/before.onnx", f"{folder}/after.onnx"
    exported(layers, dynamo, before)
    command = ["unfold", "fuse", before, "-o", after, "--constant-norms", "--max-growth", "100", "--verify", "prove", "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    logits = [session(path).run(None, {"input_ids": tokens().numpy()})[0] for path in (before, after)]
    equal = int((logits[0].argmax(-1) == logits[1].argmax(-1)).sum())
    left = [node.op_type for node in onnx.load(after).graph.node if node.op_type in ("LayerNormalization", "ReduceMean")]
    median, least, most, size = ratios(before, after)
    exporter = "dynamo" if dynamo else "legacy"
    return (f"| {layers}, {exporter} | {2 * layers + 1} | {len(left)} | {equal} of {BATCH * LENGTH} | "
            f"{median:.2f} [{least:.2f}, {most:.2f}] | {size:+.0f} MB | {report['proof']['verdict']} |")


def main():
    if sys.argv[1:2] == ["--measure"]:
        return measured(sys.argv[2])
    print("| layers | LayerNorms | stay | equal tokens | onnxruntime | memory | |\n|---|---:|---:|---:|---:|---:|---|")
    for layers in map(int, sys.argv[1:] or (2, 4, 8, 12)):
        for dynamo in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                print(row(layers, dynamo, folder), flush=True)


if __name__ == "__main__":
    main()
