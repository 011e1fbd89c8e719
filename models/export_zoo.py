"""Exports the networks of the papers at their published sizes, without their weights: the zoo of `unfold bench`.

    python models/export_zoo.py              # all of models/zoo/
    python models/export_zoo.py swin-t.un    # that one again

A topology is the file that PyTorch's exporter wrote, compressed, in which every large tensor of floats has lost its
data. Its `doc_string` says how unfold draws it anew: `normal MEAN DEVIATION`, or `uniform LOWEST HIGHEST` where all
elements have one sign. What has a few values only, such as a mask or a shape, is no weight and stays.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from zopfli import gzip

from export import export
from export_timm import network

FOLDER = Path(__file__).parent / "zoo"
FEW = 16  # distinct elements: scalars, shapes, masks

NETWORKS = {
    "vit-s": "vit_small_patch16_224",
    "swin-t": "swin_tiny_patch4_window7_224",
    "t2t-vit-14": "t2t_vit_14",
    "iwslt14": "encoder_decoder",
    "dtn-vit-s": "dtn_vit_small_patch16_224",
    "dtn-vit-ti": "dtn_vit_tiny_patch16_224",
}

TOPOLOGIES = {
    "vit-s": ["ln", "bn", "un", "mabn", "pnstar", "pn", "repbn", "dyt"],
    "swin-t": ["ln", "bn", "un", "mabn", "pnstar", "pn", "repbn", "dyt", "dtn"],
    "t2t-vit-14": ["ln", "bn", "un", "mabn"],
    "iwslt14": ["ln", "bn", "un", "mabn", "pnstar", "pn"],
    "dtn-vit-s": ["ln", "bn", "dtn"],
    "dtn-vit-ti": ["ln", "bn", "dtn"],
}


def is_weight(values):
    """Whether these are floats that training has set."""
    return values.dtype == np.float32 and np.unique(values).size > FEW


def recipe(values):
    """How to draw values like these."""
    lowest, highest = values.min(), values.max()
    if lowest * highest > 0:
        return f"uniform {lowest:.6g} {highest:.6g}"
    return f"normal {values.mean():.6g} {values.std():.6g}"


def strip(proto):
    """Takes the data out of the weights of a model, in place."""
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if is_weight(values):
            tensor.ClearField("raw_data")
            tensor.doc_string = recipe(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [f"{name}.{norm}" for name, norms in TOPOLOGIES.items() for norm in norms]
    parser.add_argument("topologies", nargs="*", default=every, metavar="NETWORK.NORM")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for topology in arguments.topologies:
        name, norm = topology.rsplit(".", 1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            export(*network(NETWORKS[name], norm), str(path), "dynamo")
            proto = onnx.load(path)
        strip(proto)
        packed = gzip.compress(proto.SerializeToString(deterministic=True), numiterations=5)
        file = FOLDER / f"{topology}.onnx.gz"
        file.write_bytes(packed)
        print(f"{file.name}: {len(packed) / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
