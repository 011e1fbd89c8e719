"""Exports small language models of transformers with random weights, open batch and open tokens.

    pip install -r benches/peers/requirements.txt
    python benches/peers/languages.py --folder models
    python benches/peers/languages.py --folder models llama gemma2
    python benches/peers/languages.py --folder models --steps llama mistral qwen3 gemma3_text

The dynamo exporter writes each network. Its input is token ids, its output is logits, and it has no cache. Without a
mask, the network searches for the places where packed sequences begin. With `--mask`, it reads an attention mask.
Existing files stay as they are.

With `--steps`, both exporters write each network with a cache of keys and values as inputs and outputs, and with 32
heads that share 8 heads of keys and values. Prints the time of a step without repeated keys and values, relative to the
same folded model with `--skip heads`. A time is the median CPU time of interleaved runs in onnxruntime and OpenVINO, on
one thread. All outputs are compared. `unfold` is found on the PATH.
"""

import argparse
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import nn
from transformers.cache_utils import DynamicCache

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent / "models"))

from export import forget_sources  # noqa: E402
from swap import randomize  # noqa: E402

WIDTH, DEPTH, HEADS, VOCABULARY = 64, 2, 4, 100
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=WIDTH,
    intermediate_size=2 * WIDTH,
    num_hidden_layers=DEPTH,
    num_attention_heads=HEADS,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
GROUPED = SIZES | dict(num_key_value_heads=2)
HEADED = GROUPED | dict(head_dim=WIDTH // HEADS)
OLD = dict(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=DEPTH, n_head=HEADS, n_positions=64)
SLIDING = HEADED | dict(sliding_window=8)
EXPERTS = HEADED | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=WIDTH)

# The sizes of a step of a network with a cache: attention as in large networks, and small layers.
STEP = dict(
    hidden_size=256, intermediate_size=512, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
    max_position_embeddings=8192, sliding_window=None,
)
# The numbers of samples, of new tokens, and of tokens in the cache.
STEPS = [(1, 1, 1024), (1, 1, 4096), (8, 1, 1024), (1, 128, 0), (1, 512, 0), (1, 128, 1024)]

# The kind of a configuration, and its arguments.
NETWORKS = {
    "llama": GROUPED,
    "mistral": GROUPED | dict(sliding_window=None),
    "qwen2": GROUPED,
    "qwen3": HEADED,
    "gemma": HEADED,
    "gemma2": SLIDING,
    "gemma3_text": SLIDING,
    "gpt2": OLD,
    "gpt_neox": SIZES,
    "gpt_neo": dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_layers=DEPTH, num_heads=HEADS, attention_types=[[["global", "local"], 1]]),
    "gptj": OLD | dict(rotary_dim=8),
    "codegen": OLD | dict(rotary_dim=8),
    "phi": SIZES,
    "phi3": GROUPED,
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "cohere": GROUPED,
    "cohere2": SLIDING,
    "granite": GROUPED | dict(embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0),
    "stablelm": GROUPED,
    "starcoder2": GROUPED,
    "falcon": dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS),
    "opt": dict(vocab_size=VOCABULARY, hidden_size=WIDTH, ffn_dim=128, num_hidden_layers=DEPTH, num_attention_heads=HEADS, max_position_embeddings=64, word_embed_proj_dim=WIDTH),
    "bloom": dict(vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=DEPTH, n_head=HEADS),
    "mpt": dict(vocab_size=VOCABULARY, d_model=WIDTH, n_layers=DEPTH, n_heads=HEADS, max_seq_len=64),
    "smollm3": GROUPED,
    "nemotron": GROUPED,
    "glm": HEADED,
    "helium": HEADED,
    "persimmon": SIZES,
    "biogpt": SIZES,
    "xglm": dict(vocab_size=VOCABULARY, d_model=WIDTH, ffn_dim=128, num_layers=DEPTH, attention_heads=HEADS, max_position_embeddings=64),
    "ernie4_5": HEADED,
    "exaone4": SLIDING,
    "qwen3_moe": EXPERTS,
    "mamba": dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=DEPTH, state_size=8),
}


class Logits(nn.Module):
    """A language model from ids, and optionally a mask, to logits."""

    def __init__(self, kind):
        super().__init__()
        config = transformers.AutoConfig.for_model(kind, **NETWORKS[kind])
        config._attn_implementation = "eager"
        config.use_cache = False
        self.model = transformers.AutoModelForCausalLM.from_config(config)

    def forward(self, input_ids, attention_mask=None):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]


class Step(nn.Module):
    """A language model that reads ids, a mask, positions and a cache, and computes logits and the longer cache."""

    def __init__(self, kind, sizes):
        super().__init__()
        config = transformers.AutoConfig.for_model(kind, **NETWORKS[kind] | sizes)
        config._attn_implementation = "sdpa"
        self.model = transformers.AutoModelForCausalLM.from_config(config)

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = DynamicCache()
        for layer in range(DEPTH):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        made = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache
        )
        layers = made.past_key_values.layers
        return made.logits, *[value for layer in layers for value in (layer.keys, layer.values)]


def step_inputs(samples, tokens, past, sizes=STEP):
    """Inputs of a step, by name."""
    generator = np.random.default_rng(samples + tokens + past)
    positions = np.tile(np.arange(past, past + tokens), (samples, 1))
    inputs = dict(
        input_ids=generator.integers(3, VOCABULARY, (samples, tokens)),
        attention_mask=np.ones((samples, past + tokens), np.int64),
        position_ids=positions,
    )
    shape = (samples, sizes["num_key_value_heads"], past, sizes["head_dim"])
    for layer in range(DEPTH):
        for part in ("key", "value"):
            inputs[f"past.{layer}.{part}"] = generator.standard_normal(shape).astype(np.float32)
    return inputs


def export_step(kind, path, exporter, sizes=STEP):
    """Writes a step with random weights to `path`."""
    torch.manual_seed(0)
    model = randomize(Step(kind, sizes)).eval()
    inputs = {name: torch.from_numpy(value) for name, value in step_inputs(2, 3, 5, sizes).items()}
    caches = [name for name in inputs if name.startswith("past.")]
    outputs = ["logits", *[name.replace("past", "present") for name in caches]]
    lengths = dict(input_ids="tokens", attention_mask="total", position_ids="tokens")
    axes = {name: {0: "batch", 2 if name in caches else 1: lengths.get(name, "past")} for name in inputs}
    names = dict(input_names=list(inputs), output_names=outputs)
    values = tuple(inputs.values())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "legacy":
            torch.onnx.export(model, values, path, dynamo=False, dynamic_axes=axes, opset_version=17, **names)
            return
        open_axes = [{axis: torch.export.Dim.DYNAMIC for axis in axes[name]} for name in inputs]
        shapes = (*open_axes[:3], tuple(open_axes[3:]))
        program = torch.onnx.export(model, values, dynamo=True, dynamic_shapes=shapes, verbose=False, **names)
    program.save(path, external_data=False)
    forget_sources(path)


def in_onnxruntime(path):
    """A function that runs a model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def in_openvino(path):
    """A function that runs a model in float32."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda inputs: list(request.infer(inputs, share_inputs=True).values())


def compare_steps(path):
    """Prints the CPU time of a step without repeated heads, relative to that with repeated heads."""
    paths = [f"{path}.{form}.onnx" for form in ("repeated", "grouped")]
    for result, arguments in zip(paths, (["--skip", "heads"], [])):
        subprocess.run(["unfold", "fuse", path, "-o", result, "--no-verify", *arguments], check=True, capture_output=True)
    for engine in (in_onnxruntime, in_openvino):
        original, *forms = [engine(path) for path in (path, *paths)]
        for size in STEPS:
            inputs = step_inputs(*size)
            expected = original(inputs)
            for run in forms:
                for one, other in zip(expected, run(inputs)):
                    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
            ratio = cpu_ratio(forms, inputs, 61 if size[1] == 1 else 15)
            print(f"{Path(path).stem} {engine.__name__} {size}: {ratio:.2f}", flush=True)


def cpu_ratio(forms, inputs, rounds):
    """The median CPU time of the second form relative to that of the first, in interleaved runs."""
    times = np.zeros((rounds, 2))
    for number in range(rounds):
        for place in (0, 1) if number % 2 else (1, 0):
            start = time.process_time()
            forms[place](inputs)
            times[number, place] = time.process_time() - start
    before, after = np.median(times, axis=0)
    return after / before


def export(kind, path, masked):
    """Writes the network with random weights to `path`."""
    torch.manual_seed(0)
    model = randomize(Logits(kind)).eval()
    ids = torch.randint(3, VOCABULARY, (2, 12))
    inputs = dict(input_ids=ids)
    if masked:
        inputs["attention_mask"] = torch.ones_like(ids)
    open_axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = {name: open_axes for name in inputs}
        program = torch.onnx.export(
            model, kwargs=inputs, dynamo=True, dynamic_shapes=shapes, output_names=["logits"], verbose=False
        )
    program.save(path, external_data=False)
    forget_sources(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--mask", action="store_true", help="read an attention mask")
    parser.add_argument("--steps", action="store_true", help="write steps with a cache, and measure them")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    for name in arguments.networks or NETWORKS:
        exports = {f"{name}-{kind}-step": kind for kind in ("dynamo", "legacy")} if arguments.steps else {name: None}
        for stem, exporter in exports.items():
            written(name, arguments.folder / f"{stem}.onnx", exporter, arguments.mask)


def written(kind, path, exporter, masked):
    """Writes a network unless its file exists. If `exporter` is given, the network is a step, which is measured too."""
    try:
        if not path.exists():
            export_step(kind, str(path), exporter) if exporter else export(kind, str(path), masked)
            print(f"{path.stem}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
        if exporter:
            compare_steps(str(path))
    except Exception as error:  # an exporter may raise any exception
        print(f"{path.stem}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)


if __name__ == "__main__":
    main()
