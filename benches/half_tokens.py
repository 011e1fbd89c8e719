"""Measures `--to float16` on five kinds of networks whose streams exceed float16: errors, and tokens.

    pip install -r benches/peers/requirements.txt transformers
    python benches/half_tokens.py
    python benches/half_tokens.py --outliers

Exports small networks like T5, Gemma 3, Whisper, gpt-oss and nanochat with open extents, each in two variants. In the
inflated variant, all writers of the stream are multiplied by 30,000. It computes the same function as the plain
variant, except for the ε of its normalizations, but its stream exceeds 65,504. With `--outliers`, only one of 16
channels of some writers is multiplied, so it is another function. `unfold`, which is found on the PATH, converts both
with `--to float16`, and measures the error of each result with every value rounded to half, on 1,000 tokens. The table
has the geometric mean over several networks, which differ in their random weights. onnxruntime runs the last result on
the same tokens. Each token attends to the tokens before it. The tables are in docs/half.md.
"""

import argparse
import json
import subprocess
import tempfile

import numpy as np
import onnx
import torch
import transformers
from streams import SIZE, add_outliers, export, gemma3, randomize, run, t5, whisper

BATCH, LENGTH, FACTOR = 5, 200, 30_000.0


def gpt_oss():
    config = transformers.GptOssConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=3, head_dim=16,
                                       num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
                                       num_experts_per_tok=2, sliding_window=32, **SIZE)
    network = transformers.GptOssForCausalLM(config)
    network.set_experts_implementation("batched_mm")
    return network, ["o_proj"], {"input_ids": None}


def nanochat():
    config = transformers.NanoChatConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
                                         num_key_value_heads=2, **SIZE)
    return transformers.NanoChatForCausalLM(config), ["fc2", "o_proj"], {"input_ids": None}


NETWORKS = {"T5": t5, "Gemma 3": gemma3, "Whisper": whisper, "gpt-oss": gpt_oss, "nanochat": nanochat}

# The modules that write the stream: linear ones in the first list, and in the second one normalizations whose scale is
# 1 + weight. The stream that the layers in the third list read is written by an activation, or by a normalization
# without a scale.
WRITERS = {
    "T5": (["shared", "o", "wo"], [], []),
    "Gemma 3": (["embed_tokens"], ["post_attention_layernorm", "post_feedforward_layernorm"], []),
    "Whisper": (["embed_tokens", "decoder.embed_positions", "out_proj", "fc2"], [], ["encoder.layers.0"]),
    "gpt-oss": (["embed_tokens", "o_proj"], [], []),
    "nanochat": (["o_proj", "fc2"], [], ["layers.0"]),
}


def untie(network):
    """Gives the head its own weight, because an inflated weight would inflate the logits."""
    network.config.tie_word_embeddings = False
    head = network.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())


def inflate(network, writers):
    """Multiplies all writers of the stream."""
    linear, normalizations, layers = ([f".{name}" for name in names] for names in writers)
    parameters = {}
    for name, module in network.named_modules():
        path = f".{name}"
        if path.endswith(tuple(linear)):
            parameters |= {id(parameter): parameter for parameter in module.parameters()}
        if type(module).__name__ == "GptOssExperts":
            parameters |= {id(parameter): parameter for parameter in (module.down_proj, module.down_proj_bias)}
        if path.endswith(tuple(normalizations)):
            module.weight.data = (1 + module.weight.data) * FACTOR - 1
        if path.endswith(tuple(layers)):
            module.register_forward_pre_hook(multiplied, with_kwargs=True)
    for parameter in parameters.values():
        parameter.data.mul_(FACTOR)


def multiplied(_, arguments, options):
    """Returns the arguments of a layer, the first of which, the stream, is multiplied."""
    stream, *others = arguments
    return (stream * FACTOR, *others), options


def samples(inputs):
    """A thousand random tokens, and for each other input as many samples as there are sequences."""
    generator, made = torch.Generator().manual_seed(1), {}
    for name, given in inputs.items():
        if given is not None and given.is_floating_point():
            made[name] = torch.randn(BATCH, *given.shape[1:], generator=generator)
        else:
            made[name] = torch.randint(3, SIZE["vocab_size"], (BATCH, LENGTH), generator=generator)
    return made


def tokens(exact, half):
    """The number of positions with the same token as in float32, and the number of other positions with a large margin.

    The margin is the difference of the two largest logits. It is large if it exceeds twice the error.
    """
    error = np.abs(half - exact).max()
    best = np.sort(exact, axis=-1)
    margin = best[..., -1] - best[..., -2]
    differs = exact.argmax(-1) != half.argmax(-1)
    return int((~differs).sum()), int((differs & (margin > 2 * error)).sum())


def converted(path, out, given):
    np.savez(given["file"], **given["inputs"])
    command = ["unfold", "fuse", path, "-o", out, "--to", "float16", "--input", given["file"], "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measured(name, seed, how, folder):
    """The report of a conversion, and the logits in float32 and of the result."""
    network, outliers, inputs = NETWORKS[name]()
    untie(network)
    randomize(network, seed)
    if how == "outliers":
        add_outliers(network, outliers)
    elif how == "inflated":
        inflate(network, WRITERS[name])
    inputs = samples(inputs)
    path, out = f"{folder}/model.onnx", f"{folder}/half.onnx"
    export(network, inputs, path, dynamo=name != "T5", is_open=True)
    given = {"inputs": {name: value.numpy() for name, value in inputs.items()}, "file": f"{folder}/samples.npz"}
    report = converted(path, out, given)
    logits = [run(onnx.load(file), given["inputs"], True) for file in (path, out)]
    return report, logits


def mean(reports):
    """The geometric mean of the errors, and whether all of them are finite."""
    errors = [report["half_error"]["error"] for report in reports]
    return None if None in errors else float(np.exp(np.log(errors).mean()))


def row(name, how, seeds):
    before, after = [], []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            before.append(measured(name, seed, None, folder)[0])
            report, logits = measured(name, seed, how, folder)
            after.append(report)
    errors = [mean(reports) for reports in (after, before)]
    ratio = "" if None in errors else f"{errors[0] / errors[1]:.2f}"
    equal, beyond = tokens(*logits)
    last = after[-1]
    wide = ", ".join(sorted({operator["why"] for operator in last["half"]["wide"]}))
    naive = last["half_error"].get("naive_error")
    error, error_before = ("not finite" if error is None else f"{error:.1e}" for error in errors)
    powers = sorted({report.get("scale_stream") or 0 for report in after})
    cells = [name, "–".join(map(str, powers)), error, error_before, ratio, "not finite" if naive is None else f"error {naive:.1g}",
             wide, f"{equal} of {BATCH * LENGTH}", str(beyond)]
    return f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--outliers", action="store_true", help="inflate one of 16 channels")
    parser.add_argument("--seeds", type=int, default=5, help="how many networks, each with weights of its own")
    arguments = parser.parse_args()
    print("| network | K | error | error before inflation | ratio | naive conversion | in float32 | equal tokens | beyond the error |")
    print("|---|---:|---:|---:|---:|---|---|---:|---:|")
    for name in arguments.networks:
        print(row(name, "outliers" if arguments.outliers else "inflated", arguments.seeds), flush=True)


if __name__ == "__main__":
    main()
