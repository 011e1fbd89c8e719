"""Streams beyond float16 in five kinds of networks: errors of `--to float16`, and tokens.

    pip install -r benches/peers/requirements.txt transformers
    python benches/half_tokens.py

Exports small networks like T5, Gemma 3, Whisper, gpt-oss and nanochat twice: as they are, and with
writers of the stream that are so large that it exceeds 65,504. `unfold`, which is found on the PATH, converts both with
`--to float16`, and measures the error of each result with every value rounded to half, on 1,000 tokens. onnxruntime runs
the result on the same tokens, each of which reads those before it. The table is in docs/half.md.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
from streams import SIZE, exported, gemma3, run, t5, whisper

BATCH, LENGTH = 5, 200


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


def samples(inputs):
    """A thousand tokens that are to be read, and as many of other inputs as there are samples."""
    generator, made = torch.Generator().manual_seed(1), {}
    for name, given in inputs.items():
        if given is not None and given.is_floating_point():
            made[name] = torch.randn(BATCH, *given.shape[1:], generator=generator)
        else:
            made[name] = torch.randint(3, SIZE["vocab_size"], (BATCH, LENGTH), generator=generator)
    return made


def tokens(exact, half):
    """The positions whose token is the one of float32, and those of the others whose margin exceeds the error."""
    error = np.abs(half - exact).max()
    best = np.sort(exact, axis=-1)
    margin = best[..., -1] - best[..., -2]
    differs = exact.argmax(-1) != half.argmax(-1)
    return int((~differs).sum()), int((differs & (margin > 2 * error)).sum())


def converted(path, out, given):
    np.savez(given["file"], **given["inputs"])
    command = ["unfold", "fuse", path, "-o", out, "--to", "float16", "--input", given["file"], "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measured(make, inflates, folder):
    """The power of the stream, the strict error, and the logits in float32 and of the result."""
    network, inflated, inputs = make()
    inputs = samples(inputs)
    path, out = f"{folder}/model.onnx", f"{folder}/half.onnx"
    exported(network, inflated if inflates else [], inputs, path, dynamo=make is not t5)
    given = {"inputs": {name: value.numpy() for name, value in inputs.items()}, "file": f"{folder}/samples.npz"}
    report = converted(path, out, given)
    logits = [run(onnx.load(file), given["inputs"], True) for file in (path, out)]
    return report, logits


def main(names):
    print("| network | K | error | error before inflation | naive conversion | in float32 | equal tokens | beyond the error |")
    print("|---|---:|---:|---:|---|---|---:|---:|")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            before, _ = measured(NETWORKS[name], False, folder)
            after, logits = measured(NETWORKS[name], True, folder)
        errors = [report["half_error"] for report in (after, before)]
        equal, beyond = tokens(*logits)
        wide = ", ".join(sorted({operator["why"] for operator in after["half"]["wide"]}))
        naive = errors[0].get("naive_error")
        print(f"| {name} | {after.get('scale_stream') or 0} | {errors[0]['error']:.1e} | {errors[1]['error']:.1e} | "
              f"{naive if naive is None else f'{naive:.1e}'} | {wide} | {equal} of {BATCH * LENGTH} | {beyond} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(NETWORKS))
