"""Kills `unfold fuse` at random times while it folds a large model, and checks the files that are left.

    python tests/kills.py MODEL [--unfold target/release/unfold] [--rounds 50]

Two runs without a kill, one of which folds nothing, give two models. After each kill, the file of the result must be
one of them, to the last byte of its weights. At the end, one more run must leave no file but its result. Needs the onnx
package. `benches/scale/size.py` makes large models.
"""

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import tempfile
import time

import onnx


def digest(path):
    """A digest of the weights of a model, inside its file and in its data files."""
    model = onnx.load(path, load_external_data=False)
    names = {entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"}
    whole = hashlib.blake2b()
    for tensor in model.graph.initializer:
        whole.update(tensor.name.encode() + tensor.raw_data)
        whole.update(str([(e.key, e.value) for e in tensor.external_data if e.key != "location"]).encode())
    for name in sorted(names):
        with open(os.path.join(os.path.dirname(path), name), "rb") as file:
            while piece := file.read(1 << 24):
                whole.update(piece)
    return whole.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--unfold", default="target/release/unfold")
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="kills-", dir=os.path.dirname(os.path.abspath(args.model)))
    result = os.path.join(folder, "result.onnx")
    forms = [[], ["--skip", "*"]]
    command = lambda form: [args.unfold, "fuse", args.model, "-o", result, "--verify", "off", "-q", *forms[form]]
    try:
        known, seconds = [], []
        for form in (0, 1):
            begin = time.time()
            subprocess.run(command(form), check=True)
            seconds.append(time.time() - begin)
            known.append(digest(result))
        counts = [0, 0]
        for number in range(args.rounds):
            process = subprocess.Popen(command(number % 2))
            time.sleep(random.uniform(0, 2 * max(seconds)))
            process.kill()
            process.wait()
            counts[known.index(digest(result))] += 1
        subprocess.run(command(0), check=True)
        assert digest(result) == known[0]
        left = sorted(os.listdir(folder))
        assert len(left) <= 2, left
        print(f"{args.rounds} kills: {counts[0]} times the one model, {counts[1]} times the other, always whole; left: {left}")
    finally:
        shutil.rmtree(folder)


main()
