"""Trains small pre-norm ViTs on the handwritten digits of scikit-learn, one for each normalizer, and exports them.

    python models/train_digits.py [kind ...]

Everything is written to models/digits/: <kind>-<exporter>.onnx, the held-back test images and labels, accuracy.json.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn import functional as F

from export import EXPORTERS, export, run
from networks.vit import DualPatchNorm, PatchEmbedding, ViT
from normalizers import NORMALIZERS
from swap import replace, sites

FOLDER = Path(__file__).parent / "digits"
HEADS = 4
KINDS = [*NORMALIZERS, "dpn"]  # "dpn": LayerNorm in the blocks, and round the patch embedding

# One recipe for all; a sigmoid, which is flat and off centre at its start, takes longer.
RECIPE = dict(epochs=80, rate=6e-3)
RECIPES = {"dys": dict(epochs=160, rate=1e-2)}


def digits():
    """Training and held-back test images [B, 1, 8, 8] in [-1, 1], then their labels [B]; the split is fixed."""
    data = load_digits()
    images = (data.images[:, None] / 8 - 1).astype(np.float32)
    return train_test_split(images, data.target, test_size=450, stratify=data.target, random_state=0)


def build(kind):
    """The untrained ViT with normalizers of `kind`, and the names of its normalizer sites."""
    # Patches that are normalized need more than 2 x 2 pixels to tell strokes apart.
    patch, embedding = (4, DualPatchNorm) if kind == "dpn" else (2, PatchEmbedding)
    model = ViT(8, patch, inputs=1, channels=40, hidden=80, depth=3, heads=HEADS, classes=10, embedding=embedding)
    names = sites(model)
    options = dict(heads=HEADS, side=8 // patch) if kind == "dtn" else {}
    return replace(model, "own" if kind == "dpn" else kind, lambda site: options), names


def shifted(images):
    """Moves each image by up to one pixel each way: [B, 1, 8, 8] -> [B, 1, 8, 8]."""
    windows = F.pad(images, (1, 1, 1, 1), value=-1).unfold(2, 8, 1).unfold(3, 8, 1)  # [B, 1, 3, 3, 8, 8]
    y, x = torch.randint(3, (2, len(images)))
    return windows[torch.arange(len(images)), :, y, x]


def train(model, images, labels, epochs, rate, batch=64):
    """Trains `model` in place: AdamW, one cycle of the learning rate, label smoothing, shifted images."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.05)
    steps = len(images) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, epochs * steps, pct_start=0.2)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(images))
        for chosen in order[: steps * batch].split(batch):
            loss = F.cross_entropy(model(shifted(images[chosen])), labels[chosen], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def record(name, entry):
    """Writes what is known of one exported file into accuracy.json."""
    report = FOLDER / "accuracy.json"
    known = json.loads(report.read_text()) if report.exists() else {}
    report.write_text(json.dumps(dict(sorted((known | {name: entry}).items())), indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="kind", help=f"of {', '.join(KINDS)}")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    train_images, test_images, train_labels, test_labels = digits()
    np.save(FOLDER / "test-images.npy", test_images)
    np.save(FOLDER / "test-labels.npy", test_labels)

    for kind in arguments.kinds:
        start = time.monotonic()
        torch.manual_seed(0)
        model, names = build(kind)
        train(model, torch.tensor(train_images), torch.tensor(train_labels), **RECIPES.get(kind, RECIPE))
        for exporter in EXPORTERS:
            path = FOLDER / f"{kind}-{exporter}.onnx"
            error = export(model, {"x": torch.tensor(test_images[:16])}, str(path), exporter)
            correct = run(str(path), {"x": test_images}).argmax(1) == test_labels
            record(path.name, dict(kind=kind, exporter=exporter, accuracy=round(correct.mean(), 4), sites=names))
            seconds = time.monotonic() - start
            print(f"{path.name}: {correct.sum()} of {len(correct)} right, {error:.1e}, {seconds:.0f} s")


if __name__ == "__main__":
    main()
