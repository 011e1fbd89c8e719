"""What other tools leave of the normalizers, beside unfold, on the same files.

    pip install -r benches/peers/requirements.txt
    python benches/peers/peers.py swin-t.un vit-s.bn

The files are networks of unfold's zoo, by name. `unfold` is found on the PATH. Writes docs/peers.md.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime

from tools import TOOLS

HERE = Path(__file__).parent
DOCUMENT = HERE.parent.parent / "docs" / "peers.md"
DEFAULT = ["vit-s.un", "vit-s.bn", "swin-t.un", "swin-t.bn"]
ROUNDS = 12


def unfold(*arguments):
    return subprocess.run(["unfold", *arguments], check=True, capture_output=True, text=True).stdout


def run_tool(name, source, target):
    """Seconds, and the peak of the resident set in MB, of one tool on one file; or None and why it failed."""
    command = [sys.executable, str(HERE / "tools.py"), name, str(source), str(target)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        return None, process.stderr.strip().splitlines()[-1]
    seconds, memory = map(float, process.stdout.split()[-2:])
    return seconds, memory


def sites_left(path):
    """Normalizers with fixed statistics that are still in the model."""
    sites = json.loads(unfold("inspect", "--json", str(path)))["sites"]
    return sum(site["kind"]["family"] == "offline" for site in sites)


def onnxruntime_latencies(paths, batch):
    """Median milliseconds of each model in onnxruntime on one thread, in interleaved rounds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    sessions = [onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]) for path in paths]
    generator = np.random.default_rng(0)
    shape = [batch, *sessions[0].get_inputs()[0].shape[1:]]
    inputs = {sessions[0].get_inputs()[0].name: generator.standard_normal(shape, dtype=np.float32)}
    times = [[] for _ in sessions]
    for round in range(ROUNDS + 1):
        for place in range(len(sessions)):
            place = (place + round) % len(sessions)
            start = time.perf_counter()
            sessions[place].run(None, inputs)
            if round:
                times[place].append(time.perf_counter() - start)
    return [1e3 * statistics.median(one) for one in times]


def tract_latencies(paths, batch):
    """The same in tract, by `unfold bench`; None for what tract cannot run."""
    named = [f"{name}={path}" for name, path in paths.items()]
    report = json.loads(unfold("bench", *named, "--batch", str(batch), "--rounds", str(ROUNDS), "--json", "-q"))
    ran = {variant["name"]: variant["outcome"].get("ran") for variant in report["settings"][0]["variants"]}
    return [1e3 * ran[name]["latency"]["median"]["value"] if ran[name] else None for name in paths]


def compare(model, batch, folder):
    """The lines of the table of one model."""
    source = folder / f"{model}.onnx"
    unfold("zoo", model, "-o", str(source))
    paths, facts = {"as exported": source}, {"as exported": ("", "")}
    failures = {}
    for name in TOOLS:
        target = folder / f"{model}-{name}.onnx"
        seconds, memory = run_tool(name, source, target)
        if seconds is None:
            failures[name] = memory
        else:
            paths[name], facts[name] = target, (f"{seconds:.2f}", f"{memory:.0f}")
    tract = tract_latencies(paths, batch)
    ort = onnxruntime_latencies(list(paths.values()), batch)
    for (name, path), in_tract, in_ort in zip(paths.items(), tract, ort):
        shown = "-" if in_tract is None else f"{in_tract:.1f}"
        seconds, memory = facts[name]
        yield f"| {name} | {sites_left(path)} | {seconds} | {memory} | {shown} | {in_ort:.1f} |"
    for name, reason in failures.items():
        yield f"| {name} | failed: {reason} | | | | |"


def machine():
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return f"{os.cpu_count()} cores{', AVX-512' if 'avx512' in flags else ''}, {platform.system()} {platform.machine()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=DEFAULT, metavar="MODEL")
    parser.add_argument("--batch", type=int, default=1)
    arguments = parser.parse_args()
    packages = [name for name in TOOLS if name != "unfold"]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    lines = [
        "# unfold and its peers",
        "",
        "Written by `python benches/peers/peers.py`. Seconds and peak memory (resident set, with the Python that a",
        "tool runs in) are of the tool; latencies are medians of its result, one thread, interleaved rounds.",
        "`sites left` counts the normalizers with fixed statistics that `unfold inspect` still finds. A tool that",
        "rewrites them into other operators may hide them from that count, so read it with the latencies.",
        "",
        f"{datetime.date.today()}, {machine()}, batch {arguments.batch}, {ROUNDS} rounds.",
        f"{', '.join(versions)}, {unfold('--version').strip()}.",
    ]
    for model in arguments.models:
        lines += ["", f"## {model}", ""]
        lines += ["| tool | sites left | seconds | peak, MB | tract, ms | onnxruntime, ms |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
        with tempfile.TemporaryDirectory() as folder:
            lines += compare(model, arguments.batch, Path(folder))
        print("\n".join(lines[-len(TOOLS) - 6 :]), flush=True)
    DOCUMENT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
