"""Measures `--to float16` on five kinds of networks whose streams exceed float16: errors, and tokens.

    pip install -r benches/peers/requirements.txt transformers
    python benches/half_tokens.py
    python benches/half_tokens.py --outliers
    python benches/half_tokens.py --unbounded

Exports small networks like T5, Gemma 3, Whisper, gpt-oss and nanochat with open extents, plain and inflated. In an
inflated network, all writers of the stream are multiplied by a factor. It computes the same function as the plain
network, except for the ε of its normalizations, but its stream exceeds 65,504. With `--outliers`, only one of 16
channels of some writers is multiplied, so it is another function. `unfold`, which is found on the PATH, converts each
network with `--to float16`, and measures the error of the result with every value rounded to half, on 1,000 tokens.
onnxruntime runs the result on the same tokens. Each token attends to the tokens before it. Each row is for several
draws of random weights: errors are geometric means, and tokens are sums. With `--control`, the writers are also
multiplied by the factor over its nearest power of two: the weights have the digits of the inflated ones, but the stream
does not overflow. With `--unbounded`, PyTorch computes the networks with outliers in numbers of 11 bits, like those of
float16, but with any exponent: their error has no part from the range of float16. The tables are in docs/half.md.
"""

import argparse
import json
import subprocess
import tempfile
from functools import partial

import numpy as np
import onnx
import torch
import transformers
from streams import SIZE, add_outliers, export, gemma3, randomize, run, t5, whisper

BATCH, LENGTH = 5, 200
FACTORS = [3_000.0, 30_000.0, 300_000.0]


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


def inflate(network, writers, factor):
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
            module.weight.data = (1 + module.weight.data) * factor - 1
        if path.endswith(tuple(layers)):
            module.register_forward_pre_hook(partial(multiplied, factor), with_kwargs=True)
    for parameter in parameters.values():
        parameter.data.mul_(factor)


def multiplied(factor, _, arguments, options):
    """Returns the arguments of a layer, the first of which, the stream, is multiplied."""
    stream, *others = arguments
    return (stream * factor, *others), options


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


def measured(name, seed, factor):
    """The report of a conversion, and the logits in float32 and of the result."""
    network, outliers, inputs = NETWORKS[name]()
    untie(network)
    randomize(network, seed)
    if factor == "outliers":
        add_outliers(network, outliers)
    else:
        inflate(network, WRITERS[name], factor)
    inputs = samples(inputs)
    with tempfile.TemporaryDirectory() as folder:
        path, out = f"{folder}/model.onnx", f"{folder}/half.onnx"
        export(network, inputs, path, dynamo=name != "T5", is_open=True)
        given = {"inputs": {name: value.numpy() for name, value in inputs.items()}, "file": f"{folder}/samples.npz"}
        report = converted(path, out, given)
        logits = [run(onnx.load(file), given["inputs"], True) for file in (path, out)]
    return report, logits


def rounded(numbers):
    """Numbers of 11 bits with any exponent."""
    significands, exponents = torch.frexp(numbers)
    return torch.ldexp(torch.round(significands * 2**11) / 2**11, exponents)


def round_outputs(network):
    """Rounds all weights, and the results of layers and normalizations."""
    for parameter in network.parameters():
        parameter.copy_(rounded(parameter))
    for module in network.modules():
        name = type(module).__name__
        if name in ("Linear", "Embedding", "Conv1d") or "Norm" in name:
            module.register_forward_hook(lambda _, __, output: rounded(output))


@torch.no_grad()
def unbounded_error(name, seed, has_outliers):
    """The largest error of the logits, relative to the largest logit, if numbers have 11 bits and any exponent."""
    network, outliers, inputs = NETWORKS[name]()
    untie(network)
    randomize(network, seed)
    if has_outliers:
        add_outliers(network, outliers)
    inputs = samples(inputs)
    exact = network(**inputs, use_cache=False).logits.double()
    round_outputs(network)
    return float((network(**inputs, use_cache=False).logits - exact).abs().max() / exact.abs().max())


def unbounded(networks, seeds):
    print("| network | error | error before | ratio |\n|---|---:|---:|---:|")
    for name in networks:
        errors = [geometric_mean([unbounded_error(name, seed, has) for seed in range(seeds)]) for has in (True, False)]
        print(f"| {name} | {errors[0]:.1e} | {errors[1]:.1e} | {errors[0] / errors[1]:.2f} |", flush=True)


def strict_error(report):
    error = report["half_error"]["error"]
    return np.nan if error is None else error


def geometric_mean(numbers):
    return float(np.exp(np.log(numbers).mean()))


def row(name, factor, drawn, before):
    """A row of the table, from the conversions of all draws and the errors before inflation."""
    reports = [report for report, _ in drawn]
    errors = [strict_error(report) for report in reports]
    ratios = [error / other for error, other in zip(errors, before)]
    equal, beyond = (sum(counts) for counts in zip(*(tokens(*logits) for _, logits in drawn)))
    last = reports[-1]
    wide = ", ".join(sorted({operator["why"] for operator in last["half"]["wide"]}))
    naive = last["half_error"].get("naive_error")
    powers = sorted({report.get("scale_stream") or 0 for report in reports})
    cells = [name, factor if factor == "outliers" else f"{factor:,.6g}", "–".join(map(str, powers)), f"{geometric_mean(errors):.1e}",
             f"{geometric_mean(before):.1e}", f"{geometric_mean(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}",
             "not finite" if naive is None else f"error {naive:.1g}", wide, f"{equal:,} of {BATCH * LENGTH * len(drawn):,}", str(beyond)]
    return f"| {' | '.join(cells)} |"


def near_one(factor):
    """A factor over its nearest power of two."""
    return factor / 2.0 ** round(np.log2(factor))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--outliers", action="store_true", help="inflate one of 16 channels")
    parser.add_argument("--unbounded", action="store_true", help="outliers in numbers of 11 bits with any exponent")
    parser.add_argument("--factors", nargs="+", type=float, default=FACTORS, help="multiply all writers by these numbers")
    parser.add_argument("--control", action="store_true", help="also multiply by each factor over its nearest power of two")
    parser.add_argument("--seeds", type=int, default=5, help="how many networks, each with weights of its own")
    arguments = parser.parse_args()
    if arguments.unbounded:
        return unbounded(arguments.networks, arguments.seeds)
    controls = [near_one(factor) for factor in arguments.factors] if arguments.control else []
    factors = ["outliers"] if arguments.outliers else arguments.factors + controls
    print("| network | factor | K | error | error before | ratio | of the draws | naive conversion | in float32 | equal tokens "
          "| beyond the error |")
    print("|---|---:|---:|---:|---:|---:|---:|---|---|---:|---:|")
    for name in arguments.networks:
        before = [strict_error(measured(name, seed, 1.0)[0]) for seed in range(arguments.seeds)]
        for factor in factors:
            drawn = [measured(name, seed, factor) for seed in range(arguments.seeds)]
            print(row(name, factor, drawn, before), flush=True)


if __name__ == "__main__":
    main()
