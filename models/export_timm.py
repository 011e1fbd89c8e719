"""Exports a network with random weights and any normalizer in the place of LayerNorm.

    python models/export_timm.py vit_small_patch16_224 --norm un --exporter dynamo -o vit-un.onnx

The network is one of `networks.OURS` or any model of timm. All that initialization leaves constant (gammas, biases,
running statistics) is drawn at random from a fixed seed, so that a wrong fold shows in the numbers.
"""

import argparse
import math
from pathlib import Path

import torch

from export import EXPORTERS, export
from networks import build
from normalizers import NORMALIZERS
from swap import randomize, replace, sites


def token_counts(model, inputs):
    """How many tokens each site sees, by its name: the size of [B, ..., C] without B and C."""
    counts = {}

    def count(site):
        return lambda module, arguments: counts.update({site: math.prod(arguments[0].shape[1:-1])})

    hooks = [model.get_submodule(site).register_forward_pre_hook(count(site)) for site in sites(model)]
    with torch.no_grad():
        model.eval()(**inputs)
    for hook in hooks:
        hook.remove()
    return counts


def dtn_options(model, inputs):
    """The arguments of DTN by site, as section A.1 of its paper places it: within blocks, on grids of tokens alone.

    Larger grids are pooled to 14 x 14.
    """
    counts = token_counts(model, inputs)

    def options(site):
        attention = getattr(model.get_submodule(site.rpartition(".")[0]), "attn", None)
        side = math.isqrt(counts[site])
        if attention is None or side**2 != counts[site]:
            return None
        return dict(heads=attention.num_heads, side=side, pool=max(1, side // 14))

    return options


def network(name, kind, tiny=False, seed=0):
    """The network in inference mode with normalizers of `kind` and random statistics, and its example inputs."""
    torch.manual_seed(seed)
    model, inputs = build(name, tiny)
    model = replace(model, kind, *[dtn_options(model, inputs)] * (kind == "dtn"))
    return randomize(model, seed).eval(), inputs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", help="a network of this folder, or any model of timm")
    parser.add_argument("--norm", default="own", choices=["own", *NORMALIZERS], help="own: the network's own")
    parser.add_argument("--exporter", default="dynamo", choices=EXPORTERS)
    parser.add_argument("--tiny", action="store_true", help="a tiny version, for tests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    model, inputs = network(arguments.network, arguments.norm, arguments.tiny, arguments.seed)
    error = export(model, inputs, str(arguments.output), arguments.exporter)
    size = arguments.output.stat().st_size / 1e6
    print(f"{arguments.output}: {size:.1f} MB, onnxruntime against PyTorch {error:.1e}")


if __name__ == "__main__":
    main()
