"""Checks whether sliced networks give the same bits as whole ones, in onnxruntime and OpenVINO.

usage: python benches/equal_bits.py [--only TEXT] [--parts N,N,...]

Each network of benches/memory_networks.py is folded, then cut by `--slice N`. A line has the largest difference of the
results in each engine, which is 0 if all bits are equal. The engines use one thread and float32.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from engines import InOpenVINO, session, unfold
from memory import feed
from memory_networks import networks


def differences(write, numbers, folder):
    """For each number of parts, the largest difference of the sliced from the whole network in each engine."""
    model, whole = folder / "model.onnx", folder / "whole.onnx"
    write(str(model))
    unfold("fuse", str(model), "-o", str(whole), "--no-verify", "--quiet")
    given = feed(session(whole))
    expected = results(whole, given)
    for parts in numbers:
        path = folder / f"{parts}.onnx"
        unfold("fuse", str(model), "-o", str(path), "--slice", str(parts), "--no-verify", "--quiet")
        yield parts, [np.abs(one - other).max() for one, other in zip(expected, results(path, given))]
        path.unlink()


def results(path, given):
    """The first output of a model in onnxruntime and in OpenVINO."""
    return [engine(path).run(None, given)[0] for engine in (session, InOpenVINO)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="compares the networks whose names contain this text")
    parser.add_argument("--parts", default="2,4,8,16")
    given = parser.parse_args()
    numbers = [int(number) for number in given.parts.split(",")]
    for name, write in networks().items():
        if given.only in name:
            with tempfile.TemporaryDirectory() as folder:
                for parts, (in_onnxruntime, in_openvino) in differences(write, numbers, Path(folder)):
                    print(f"{name}, {parts} parts: onnxruntime {in_onnxruntime:.1e}, OpenVINO {in_openvino:.1e}", flush=True)


if __name__ == "__main__":
    main()
