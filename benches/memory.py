"""What slices are worth: memory and time of a model whole and cut, in tract and in onnxruntime.

usage: python benches/memory.py [--rounds N] [--write docs/memory.md]

Networks are made with random weights: ViT-S of timm at several sizes, folded, then cut by the goals below. The heap of
tract is what the counting allocator of `unfold bench` sees, above the loaded model. The resident set of onnxruntime is the
peak of a process of its own, above that of the loaded session. Ratios are to the folded model without slices.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from engines import session, times, unfold, write_between

# Name, extent of the image, blocks, batch.
NETWORKS = [
    ("ViT-S, 12 blocks, 224², batch 1", 224, 12, 1),
    ("ViT-S, 12 blocks, 224², batch 8", 224, 12, 8),
    ("ViT-S, 4 blocks, 512²", 512, 4, 1),
    ("ViT-S, 4 blocks, 1024²", 1024, 4, 1),
]

# Options of each variant.
VARIANTS = {
    "whole": [],
    "`--slice 8`": ["--slice", "8"],
    "`--memory 50%`": ["--memory", "50%"],
    "`--memory min`": ["--memory", "min"],
}


def network(size, depth, batch, path):
    """Writes a ViT-S with weights drawn at random."""
    import timm
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = timm.create_model("vit_small_patch16_224", img_size=size, depth=depth).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.1)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    image = torch.randn(batch, 3, size, size)
    torch.onnx.export(model, (image,), path, dynamo=False, input_names=["x"], opset_version=20)


def resident(path):
    """Bytes that a run takes at its peak above the loaded session, in a process of its own."""
    program = f"import memory; print(memory.measured({str(path)!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parent)
    return int(done.stdout)


def feed(loaded):
    """The same image for each variant."""
    (image,) = loaded.get_inputs()
    return {image.name: np.random.default_rng(0).standard_normal(image.shape).astype(np.float32)}


def measured(path):
    """The peak of the resident set of this process over a run, above what it is before."""
    loaded = session(path)
    given = feed(loaded)
    Path("/proc/self/clear_refs").write_text("5")
    before = held("VmRSS")
    loaded.run(None, given)
    return held("VmHWM") - before


def held(entry):
    """An entry of the status of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(entry))


def in_tract(paths, rounds):
    """The outcome of each variant in `unfold bench`."""
    named = [f"{number}={path}" for number, path in enumerate(paths)]
    told = json.loads(unfold("bench", *named, "--reference", "0", "--rounds", str(rounds), "--json"))
    return [variant["outcome"]["ran"] for variant in told["settings"][0]["variants"]]


def rows(name, size, depth, batch, rounds, folder):
    """A row of the table for each variant of a network."""
    model = folder / "model.onnx"
    network(size, depth, batch, model)
    paths, told = [], []
    for number, options in enumerate(VARIANTS.values()):
        paths.append(folder / f"{number}.onnx")
        told.append(json.loads(unfold("fuse", str(model), "-o", str(paths[-1]), *options, "--json")))
    ran = in_tract(paths, rounds)
    loaded = [session(path) for path in paths]
    taken = times(loaded, feed(loaded[0]), rounds)
    del loaded
    sets = [resident(path) for path in paths]
    for number, variant in enumerate(VARIANTS):
        memory = ran[number]["memory"]
        planned = told[number].get("memory") or {}
        parts = sorted({cut["parts"] for cut in planned.get("cuts", [])})
        cells = [
            name,
            variant,
            ", ".join(map(str, parts)) or "1",
            part(memory["live_peak"], ran[0]["memory"]["live_peak"]),
            part(memory["heap_peak"], ran[0]["memory"]["heap_peak"]),
            f"{ran[number]['ratios'][0]['ratio']['value']:.2f}",
            part(sets[number], sets[0]),
            f"{np.median(taken[:, number] / taken[:, 0]):.2f}",
        ]
        yield "| " + " | ".join(cells) + " |"
        name = ""


def part(size, whole):
    """Megabytes, and as a part of those of the whole."""
    return f"{size / 1e6:.1f} MB ({size / whole:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    lines = [
        "| network | variant | parts | live bytes | heap in tract | time in tract | resident set in onnxruntime "
        "| time in onnxruntime |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, size, depth, batch in NETWORKS:
        if given.only in name:
            with tempfile.TemporaryDirectory() as folder:
                for row in rows(name, size, depth, batch, given.rounds, Path(folder)):
                    lines.append(row)
                    print(row, flush=True)
    if given.write:
        write_between(given.write, "memory", lines)


if __name__ == "__main__":
    main()
