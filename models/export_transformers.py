"""Exports a network of the transformers library with its LayerNorms and random weights.

    python models/export_transformers.py clip-vision --exporter dynamo -o clip.onnx

As in `export_timm.py`, all that initialization leaves constant is drawn at random from a fixed seed.
"""

import argparse
from pathlib import Path

import torch
import transformers

from export import EXPORTERS, export
from swap import randomize


def tokens(end):
    return torch.randint(0, end, (2, 16))


class Encoder(torch.nn.Module):
    """The encoder of a network, alone."""

    def __init__(self, whole):
        super().__init__()
        self.encoder = whole.get_encoder()

    def forward(self, input_features):
        return self.encoder(input_features).last_hidden_state


class Pooled(torch.nn.Module):
    """A tower that ends in an embedding."""

    def __init__(self, tower, **constants):
        super().__init__()
        self.tower = tower
        self.constants = constants

    def forward(self, x):
        return self.tower(**{self.tower.main_input_name: x}, **self.constants)[0]


def clip_vision():
    config = transformers.CLIPVisionConfig(num_hidden_layers=12, attn_implementation="eager")
    tower = transformers.CLIPVisionModelWithProjection(config)
    return Pooled(tower), dict(x=torch.randn(2, 3, 224, 224))


def clip_text():
    config = transformers.CLIPTextConfig(vocab_size=1000, eos_token_id=999, attn_implementation="eager")
    return Pooled(transformers.CLIPTextModelWithProjection(config)), dict(x=tokens(1000))


def whisper_encoder():
    config = transformers.WhisperConfig(
        encoder_layers=4, decoder_layers=1, d_model=384, encoder_attention_heads=6, vocab_size=1000,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        attn_implementation="eager",
    )
    return Encoder(transformers.WhisperModel(config)), dict(input_features=torch.randn(2, 80, 3000))


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=1000, n_layer=12, use_cache=False, bos_token_id=1, eos_token_id=2, attn_implementation="eager"
    )
    # Without a mask the network looks at run time for where sequences begin, which tract does not run.
    causal = torch.full((1, 1, 16, 16), -1e9).triu(1)
    return Pooled(transformers.GPT2LMHeadModel(config), attention_mask=causal), dict(x=tokens(1000))


NETWORKS = {"clip-vision": clip_vision, "clip-text": clip_text, "whisper-encoder": whisper_encoder, "gpt2": gpt2}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--exporter", default="dynamo", choices=EXPORTERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    model, inputs = NETWORKS[arguments.network]()
    error = export(randomize(model, arguments.seed).eval(), inputs, str(arguments.output), arguments.exporter)
    size = arguments.output.stat().st_size / 1e6
    print(f"{arguments.output}: {size:.1f} MB, onnxruntime against PyTorch {error:.1e}")


if __name__ == "__main__":
    main()
