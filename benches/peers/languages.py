"""Exports small language models of transformers with random weights, open batch and open tokens.

    pip install -r benches/peers/requirements.txt
    python benches/peers/languages.py --folder models
    python benches/peers/languages.py --folder models llama gemma2

The dynamo exporter writes each: token ids come in, logits come out, and nothing is kept between calls. Without a mask, the
network looks for where packed sequences begin; with `--mask`, it reads an attention mask. Existing files stay as they are.
"""

import argparse
import sys
import warnings
from pathlib import Path

import torch
import transformers
from torch import nn

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
    """A language model from ids, and a mask where one is given, to logits."""

    def __init__(self, kind):
        super().__init__()
        config = transformers.AutoConfig.for_model(kind, **NETWORKS[kind])
        config._attn_implementation = "eager"
        config.use_cache = False
        self.model = transformers.AutoModelForCausalLM.from_config(config)

    def forward(self, input_ids, attention_mask=None):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]


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
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    for name in arguments.networks or NETWORKS:
        path = arguments.folder / f"{name}.onnx"
        if path.exists():
            continue
        try:
            export(name, str(path), arguments.mask)
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
        except Exception as error:  # whatever an exporter raises
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)


if __name__ == "__main__":
    main()
