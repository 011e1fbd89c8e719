"""Counts the operators that onnxruntime fuses in networks before and after `unfold fuse`.

    pip install -r benches/fusions/requirements.txt
    python benches/fusions/fusions.py
    python benches/fusions/fusions.py --keep folder BERT GPT-2

The networks have their own normalizers, random weights, biases other than zero, and a depth of about 2. `--keep` leaves
their files in a folder. `unfold` is found on the PATH. If no network is named, writes the second table of
docs/engines.md. The exit code is 1 if a network has lost a fused operator, or if its outputs have changed.
"""

import argparse
import datetime
import importlib.metadata
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import transformers
from torch import nn

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path += [str(HERE.parent), str(ROOT / "models")]

from engines import unfold, write_between  # noqa: E402
from export import TOLERANCE, export, relative_error, run  # noqa: E402
from export_timm import network  # noqa: E402
from fused import is_fused, lost, optimised  # noqa: E402
from swap import randomize  # noqa: E402

DOCUMENT = ROOT / "docs" / "engines.md"

IMAGES = {
    "ViT": "vit_small_patch16_224",
    "MaxViT": "maxvit_nano_rw_256",
    "DINOv2": "vit_small_patch14_dinov2",
    "SigLIP": "vit_base_patch16_siglip_224",
    "TinyViT": "tiny_vit_5m_224",
    "EVA-02": "eva02_tiny_patch14_224",
    "ConvNeXt": "convnext_atto",
}
TEXT = {
    "BERT": ("bert", transformers.AutoModelForMaskedLM),
    "GPT-2": ("gpt2", transformers.AutoModelForCausalLM),
    "LLaMA": ("llama", transformers.AutoModelForCausalLM),
}
SIZES = dict(
    vocab_size=1000,
    hidden_size=96,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
    bos_token_id=None,
    eos_token_id=None,
)

BATCHES = {"any": None, "1": 1}


class Logits(nn.Module):
    """A language model of transformers: ids [B, N] -> logits [B, N, vocabulary]."""

    def __init__(self, kind, auto):
        super().__init__()
        config = transformers.AutoConfig.for_model(kind, **SIZES)
        self.model = auto.from_config(config)

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits


def build(name):
    """A network with random weights, and example inputs."""
    if name in IMAGES:
        return network(IMAGES[name], "own", tiny=True)
    torch.manual_seed(0)
    model = randomize(Logits(*TEXT[name])).eval()
    return model, {"ids": torch.randint(SIZES["vocab_size"], (2, 16))}


def told(before, after):
    """The number of fused operators of each kind, and the number before folding if it differs."""
    change = lambda kind: f" (of {before[kind]})" if before[kind] != after[kind] else ""
    return ", ".join(f"{after[kind]} {kind}{change(kind)}" for kind in sorted(before | after))


def compare(name, folder):
    """The rows of one network, and whether all fused operators remain and the outputs agree."""
    exported, folded = folder / f"{name}.onnx", folder / f"{name}.fused.onnx"
    model, inputs = build(name)
    export(model, inputs, str(exported), "dynamo")
    report = json.loads(unfold("fuse", str(exported), "-o", str(folded), "--json", "--quiet"))
    sites = sum(family["folded"] for family in report["summary"].values())
    feed = {key: value.numpy() for key, value in inputs.items()}
    error = relative_error(run(str(folded), feed), run(str(exported), feed))
    rows, fine = [], error <= TOLERANCE
    for said, batch in BATCHES.items():
        graphs = [optimised(path, batch) for path in (exported, folded)]
        before, after = (Counter(node.op_type for node in graph if is_fused(node)) for graph in graphs)
        kinds, gone = told(before, after), lost(before, after)
        if gone:
            kinds += f"; **lost: {', '.join(gone)}**"
        fine &= not gone
        cells = [name, sites, said, *map(len, graphs), before.total(), after.total(), kinds]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    if error > TOLERANCE:
        print(f"{name}: the outputs differ by {error:.1e}", file=sys.stderr)
    return rows, fine


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [*IMAGES, *TEXT]
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(every))
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    names = arguments.networks or every
    torch.set_num_threads(1)
    packages = ["torch", "timm", "transformers", "onnxruntime"]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    lines = [
        f"{datetime.date.today()}, {', '.join(versions)}, {unfold('--version').strip()}.",
        "",
        "| network | sites folded | batch | nodes | after `fuse` | fused operators | after `fuse` | what they are |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    fine = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        for name in names:
            rows, well = compare(name, folder)
            print("\n".join(rows), flush=True)
            lines += rows
            fine &= well
    if names == every:
        write_between(DOCUMENT, "networks", lines)
    sys.exit(not fine)


if __name__ == "__main__":
    main()
