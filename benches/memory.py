"""Compares the memory and time of whole and sliced networks in tract, onnxruntime and OpenVINO.

usage: python benches/memory.py [--only TEXT] [--rounds N] [--results FILE] [--write docs/memory.md]

Each network is folded, then cut with the options below. Ratios are relative to the folded network without slices. The
heap of tract is the peak in the counting allocator of `unfold bench`, minus the loaded model. The live bytes follow
from the order in which tract runs the operators. The resident set of onnxruntime is the peak of a separate process,
minus that of the loaded session. Times of tract are wall-clock times, and those of the other engines are CPU times. All
use one thread and interleaved rounds. Results are kept in a file, so that networks can be measured one at a time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from engines import InOpenVINO, session, unfold, write_between
from memory_networks import networks

# Options of each variant; the first is the reference.
VARIANTS = {
    "whole": [],
    "`--memory 50%`": ["--memory", "50%"],
    "`--memory min`": ["--memory", "min"],
    "`--target onnxruntime`": ["--target", "onnxruntime"],
    "the same, `--memory min`": ["--target", "onnxruntime", "--memory", "min"],
}

COLUMNS = ["live bytes", "heap in tract", "time in tract", "resident in onnxruntime", "time in onnxruntime"]
HEADER = ["network", "variant", "parts", *COLUMNS, "time in OpenVINO"]


def resident(path):
    """The peak of the memory of a run, minus that of the loaded session, in bytes. Measured in a separate process."""
    program = f"import memory; print(memory.measured({str(path)!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parent)
    return int(done.stdout)


def measured(path):
    """The peak of the resident set of this process during a run, minus the resident set before it."""
    loaded = session(path)
    given = feed(loaded)
    Path("/proc/self/clear_refs").write_text("5")
    before = held("VmRSS")
    loaded.run(None, given)
    return held("VmHWM") - before


def feed(loaded):
    """Random inputs, which are the same for each variant."""
    drawn = np.random.default_rng(0)
    return {value.name: drawn.standard_normal(value.shape).astype(np.float32) for value in loaded.get_inputs()}


def held(entry):
    """The entry of this name in the status of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(entry))


def in_tract(paths, rounds):
    """The ratios and the memory of each variant in tract, from `unfold bench`."""
    named = [f"{number}={path}" for number, path in enumerate(paths)]
    report = json.loads(unfold("bench", *named, "--reference", "0", "--rounds", str(rounds), "--json", "--quiet"))
    return [variant["outcome"]["ran"] for variant in report["settings"][0]["variants"]]


def processor_times(loaded, given, rounds):
    """The median over interleaved rounds of each variant's time, relative to the first variant."""
    taken = np.zeros((rounds + 1, len(loaded)))
    orders = np.random.default_rng(0)
    for round in range(rounds + 1):
        for which in orders.permutation(len(loaded)):
            start = time.process_time()
            loaded[which].run(None, given)
            taken[round, which] = time.process_time() - start
    return np.median(taken[1:] / taken[1:, :1], axis=0).tolist()


def has_own_operators(path):
    """Whether a model has operators that only onnxruntime has."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    return any(node.domain == "com.microsoft" for node in model.graph.node)


def measurements(write, rounds, folder):
    """A dictionary of measurements for each variant of a network."""
    model = folder / "model.onnx"
    write(str(model))
    paths, rows = [], []
    for number, (variant, options) in enumerate(VARIANTS.items()):
        paths.append(folder / f"{number}.onnx")
        report = json.loads(unfold("fuse", str(model), "-o", str(paths[-1]), *options, "--no-verify", "--json"))
        cuts = (report.get("memory") or {}).get("cuts", [])
        rows.append({"variant": variant, "parts": sorted({cut["parts"] for cut in cuts})})
    model.unlink()
    loaded = [session(path) for path in paths]
    given = feed(loaded[0])
    for row, ratio, path in zip(rows, processor_times(loaded, given, rounds), paths):
        row["time in onnxruntime"] = ratio
        row["resident in onnxruntime"] = resident(path)
    del loaded
    everywhere = [number for number, path in enumerate(paths) if not has_own_operators(path)]
    compiled = [InOpenVINO(paths[number]) for number in everywhere]
    for number, ratio in zip(everywhere, processor_times(compiled, given, rounds)):
        rows[number]["time in OpenVINO"] = ratio
    del compiled
    for number, ran in zip(everywhere, in_tract([paths[number] for number in everywhere], rounds)):
        rows[number]["time in tract"] = ran["ratios"][0]["ratio"]["value"]
        rows[number]["live bytes"] = ran["memory"]["live_peak"]
        rows[number]["heap in tract"] = ran["memory"]["heap_peak"]
    return rows


def lines(name, rows):
    """The rows of the table for a network."""
    for row in rows:
        cells = [name, row["variant"], ", ".join(map(str, row["parts"])) or "1"]
        cells += [cell(column, row, rows[0]) for column in HEADER[3:]]
        yield "| " + " | ".join(cells) + " |"
        name = ""


def cell(column, row, whole):
    """A measurement as text: a ratio of times, or megabytes and their ratio."""
    if column not in row:
        return "–"
    if column.startswith("time"):
        return f"{row[column]:.2f}"
    return f"{row[column] / 1e6:.1f} MB ({row[column] / whole[column]:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="measures the networks whose names contain this text")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--results", type=Path, default=Path("memory.json"))
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    results = json.loads(given.results.read_text()) if given.results.exists() else {}
    for name, write in networks().items():
        if given.only is not None and given.only in name:
            with tempfile.TemporaryDirectory() as folder:
                results[name] = measurements(write, given.rounds, Path(folder))
            given.results.write_text(json.dumps(results, indent=1))
            print("\n".join(lines(name, results[name])), flush=True)
    if given.write:
        table = [f"| {' | '.join(HEADER)} |", "|---|---|---|" + "---:|" * (len(HEADER) - 3)]
        for name in networks():
            table += lines(name, results[name]) if name in results else []
        write_between(given.write, "memory", table)


if __name__ == "__main__":
    main()
