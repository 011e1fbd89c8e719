"""Exports networks of timm and of transformers with their own normalizers and random weights.

    pip install -r benches/peers/requirements.txt
    python benches/peers/architectures.py --folder models
    python benches/peers/architectures.py --folder models vit_tiny_patch16_224 bert

All parameters that initialization leaves constant are drawn at random. Running statistics are those of a forward pass,
because a deep network whose statistics do not fit is chaotic, and then a comparison in float32 means nothing. The
legacy exporter and the dynamo exporter take turns from network to network. If one fails, the other one writes the
network. `--exporter` selects one for all networks. Existing files stay as they are.
"""

import argparse
import sys
from pathlib import Path

import torch
import transformers
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent / "models"))

from export import EXPORTERS, export  # noqa: E402
from networks import build  # noqa: E402
from swap import randomize  # noqa: E402

IMAGES = """
    vit_tiny_patch16_224 deit3_small_patch16_224 cait_xxs24_224 swin_tiny_patch4_window7_224 swinv2_tiny_window8_256
    convnext_atto convnextv2_atto levit_128s efficientformerv2_s0 poolformer_s12 pvt_v2_b0 maxvit_rmlp_pico_rw_256
    mobilevit_xxs mobilevitv2_050 edgenext_xx_small xcit_nano_12_p16_224 visformer_tiny crossvit_tiny_240 coat_tiny
    twins_svt_small mixer_s32_224 resmlp_12_224 gmlp_ti16_224 eva02_tiny_patch14_224 focalnet_tiny_srf hiera_tiny_224
    tiny_vit_5m_224 resnet18 resnetv2_18 densenet121 regnety_002 efficientnet_b0 mobilenetv3_small_050 ghostnet_100
    hrnet_w18_small nfnet_l0 mixnet_s fastvit_t8 repvit_m0_9 starnet_s1
""".split()

WIDTH, DEPTH, HEADS, VOCABULARY, LENGTH = 192, 3, 4, 1000, 32
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=WIDTH,
    intermediate_size=2 * WIDTH,
    num_hidden_layers=DEPTH,
    num_attention_heads=HEADS,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
)
SEQUENCES = dict(
    vocab_size=VOCABULARY,
    d_model=WIDTH,
    encoder_layers=DEPTH,
    decoder_layers=DEPTH,
    encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS,
    encoder_ffn_dim=2 * WIDTH,
    decoder_ffn_dim=2 * WIDTH,
    max_position_embeddings=64,
)
VISION = {name: SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
SPEECH = VISION | dict(conv_dim=(64,) * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)
TEXT, MASKED, CAUSAL = transformers.AutoModel, transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM
# The kind of a configuration, the class of its model, the arguments of the configuration, and the
# inputs.
TRANSFORMERS = {
    "bert": (MASKED, SIZES, "ids"),
    "distilbert": (MASKED, dict(vocab_size=VOCABULARY, dim=WIDTH, n_layers=DEPTH, n_heads=HEADS, hidden_dim=384), "ids"),
    "albert": (MASKED, SIZES | dict(embedding_size=64), "ids"),
    "deberta-v2": (TEXT, SIZES | dict(relative_attention=True, pos_att_type=["c2p", "p2c"]), "ids"),
    "mobilebert": (TEXT, SIZES | dict(intra_bottleneck_size=64, embedding_size=64, true_hidden_size=64), "ids"),
    "roformer": (TEXT, SIZES | dict(embedding_size=WIDTH), "ids"),
    "modernbert": (TEXT, SIZES | dict(cls_token_id=1, sep_token_id=2), "ids"),
    "gpt2": (CAUSAL, dict(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=DEPTH, n_head=HEADS, n_positions=64), "ids"),
    "gpt_neox": (CAUSAL, SIZES, "ids"),
    "llama": (CAUSAL, SIZES, "ids"),
    "gemma2": (CAUSAL, SIZES | dict(num_key_value_heads=2, head_dim=48), "ids"),
    "qwen3": (CAUSAL, SIZES | dict(num_key_value_heads=2, head_dim=48), "ids"),
    "granite": (CAUSAL, SIZES | dict(embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0), "ids"),
    "cohere": (CAUSAL, SIZES | dict(num_key_value_heads=2), "ids"),
    "t5": (transformers.T5EncoderModel, dict(vocab_size=VOCABULARY, d_model=WIDTH, d_kv=48, d_ff=384, num_layers=DEPTH, num_heads=HEADS), "ids"),
    "bart": (TEXT, SEQUENCES, "ids"),
    "vit": (TEXT, VISION, "image"),
    "dinov2": (TEXT, VISION | dict(image_size=224), "image"),
    "segformer": (TEXT, {}, "image"),
    "wav2vec2": (TEXT, SPEECH, "sound"),
}


class Reads(nn.Module):
    """A model of transformers with the only input x, and only its first output."""

    NAMES = {"ids": "input_ids", "image": "pixel_values", "sound": "input_values"}

    def __init__(self, kind):
        super().__init__()
        constructor, arguments, self.read = TRANSFORMERS[kind]
        config = transformers.AutoConfig.for_model(kind, **arguments)
        config._attn_implementation = "eager"
        config.use_cache = False
        make = getattr(constructor, "from_config", None) or constructor
        self.model = make(config)

    def example(self):
        if self.read == "ids":
            return torch.randint(1, VOCABULARY, (2, LENGTH))
        return torch.randn((2, 3, 224, 224) if self.read == "image" else (2, 4000))

    def forward(self, x):
        return self.model(**{self.NAMES[self.read]: x}, return_dict=False)[0]


def calibrate(model, inputs):
    """Gives every batch normalization the statistics of a forward pass."""
    batch = {name: torch.cat([value, *(torch.randn(value.shape) for _ in range(3))]) for name, value in inputs.items()}
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    if norms:
        with torch.no_grad():
            model(**batch)
    return model.eval()


def network(name):
    """A network with random weights and statistics that fit, and example inputs."""
    torch.manual_seed(0)
    if name in TRANSFORMERS:
        model = Reads(name)
        return randomize(model).eval(), {"x": model.example()}
    model, inputs = build(name)
    return calibrate(randomize(model).eval(), inputs), inputs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--exporter", choices=EXPORTERS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    every = [*IMAGES, *TRANSFORMERS]
    for name in arguments.networks or every:
        turn = every.index(name) % 2
        exporters = [arguments.exporter] if arguments.exporter else [*EXPORTERS[turn:], *EXPORTERS[:turn]]
        paths = [arguments.folder / f"{name}.{exporter}.onnx" for exporter in exporters]
        for exporter, path in zip(exporters, paths):
            if any(path.exists() for path in paths):
                break
            try:
                error = export(*network(name), str(path), exporter)
                print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, onnxruntime against PyTorch {error:.1e}", flush=True)
            except Exception as error:
                # The other exporter may write this network.
                path.unlink(missing_ok=True)
                print(f"{path.name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
