"""Checks whether `unfold tune` picks the candidate that is fastest in an independent measurement.

    python benches/tune.py vit-s.onnx swin-t.onnx bert.onnx llama.onnx ocr.onnx --dim batch=1
    taskset -c 1 python benches/tune.py vit-s.onnx --times 10 --rounds 60

Writes the file of each candidate of `tune` with `unfold fuse`, and measures all files in tract in interleaved rounds.
Then runs `tune` several times. A pick is good if the independent time of the picked file is within 1 % of the fastest
one. Prints a line for each model. The exit code is 1 if fewer than nine of ten picks are good. `unfold` is found on the
PATH.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from engines import unfold

GOOD = 1.01
LEAST = 0.9


def tuned(model, target, sizes):
    """The report of one run of `tune`."""
    return json.loads(unfold("tune", str(model), "-o", str(target), "--json", "--quiet", *sizes, ends=(0, 1, 2, 3, 4)))


def words(name, expected):
    """The options of `fuse` that write the candidate with this name."""
    if name == "as exported":
        return ["--skip", "*"]
    if name == "fuse by default":
        return []
    return [*name.split(), *(expected if "--memory" in name else [])]


def written(model, names, sizes, folder):
    """Writes the file of each candidate."""
    expected = ["--expect" if word == "--dim" else word for word in sizes]
    files = {}
    for place, name in enumerate(names):
        files[name] = folder / f"{place}.onnx"
        unfold("fuse", str(model), "-o", str(files[name]), "--quiet", "--verify", "off", *words(name, expected))
    return files


def times(files, sizes, rounds):
    """The time of each file relative to the fastest one, in tract."""
    named = [f"{place}={file}" for place, file in enumerate(files.values())]
    arguments = ["--reference", "0", "--rounds", str(rounds), "--json", "--quiet", *sizes]
    report = json.loads(unfold("bench", *named, *arguments, ends=(0, 1)))
    ran = [variant["outcome"].get("ran") for variant in report["settings"][0]["variants"]]
    ratios = [one["ratios"][0]["ratio"]["value"] if one and one["ratios"] else float("inf") for one in ran]
    fastest = min(ratios)
    return {name: ratio / fastest for name, ratio in zip(files, ratios)}


def judged(model, arguments):
    """Returns the relative times of the candidates, and the picks of all runs."""
    sizes = [word for dim in arguments.dim for word in ("--dim", dim)]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "tuned.onnx"
        first = tuned(model, target, sizes)
        names = [candidate["name"] for candidate in first["candidates"]]
        measured = times(written(model, names, sizes, Path(folder)), sizes, arguments.rounds)
        reports = [first] + [tuned(model, target, sizes) for _ in range(arguments.times - 1)]
    return measured, [report["chosen"] for report in reports]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--dim", action="append", default=[], help="as for unfold tune")
    parser.add_argument("--times", type=int, default=10, help="how often tune runs")
    parser.add_argument("--rounds", type=int, default=60, help="of the independent measurement")
    arguments = parser.parse_args()
    is_good = True
    for model in arguments.models:
        measured, picks = judged(model, arguments)
        good = [measured[pick] <= GOOD for pick in picks]
        counts = ", ".join(f"{name} {picks.count(name)} times" for name in dict.fromkeys(picks))
        told = ", ".join(f"{name} {ratio:.3f}" for name, ratio in measured.items())
        print(f"{model.stem}: {sum(good)} of {len(picks)} picks good ({counts}); measured: {told}", flush=True)
        is_good = is_good and sum(good) >= LEAST * len(picks)
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
