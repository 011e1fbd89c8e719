"""Compares unfold with other tools by the normalizers that remain in the same files.

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
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from engines import in_onnxruntime, in_tract, unfold  # noqa: E402
from tools import PEERS  # noqa: E402

DOCUMENT = HERE.parent.parent / "docs" / "peers.md"
DEFAULT = ["vit-s.un", "vit-s.bn", "swin-t.un", "swin-t.bn"]
ROUNDS = 12
PATIENCE = 300  # seconds
TOOLS = [*PEERS, "unfold"]


def run_tool(name, source, target):
    """Runs one tool on one file. Returns the seconds and the peak resident set in MB, or `None` and the error."""
    command = [sys.executable, str(HERE / "tools.py"), name, str(source), str(target)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return None, f"not done in {PATIENCE} s"
    if process.returncode:
        return None, process.stderr.strip().splitlines()[-1]
    seconds, memory = map(float, process.stdout.split()[-2:])
    return seconds, memory


def sites_left(path):
    """Normalizers with fixed statistics that are still in the model."""
    sites = json.loads(unfold("inspect", "--json", str(path)))["sites"]
    return sum(site["kind"]["family"] == "offline" for site in sites)


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
    models = list(paths.values())
    latencies = zip(in_tract(models, batch, ROUNDS), in_onnxruntime(models, batch, ROUNDS))
    for (name, path), (tract, ort) in zip(paths.items(), latencies):
        seconds, memory = facts[name]
        yield f"| {name} | {sites_left(path)} | {seconds} | {memory} | {tract} | {ort} |"
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
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PEERS]
    lines = [
        "# Other tools",
        "",
        "This page compares unfold with other tools that simplify ONNX files. `python benches/peers/peers.py` writes it.",
        "",
        "- `sites left` counts the normalizers with fixed statistics that `unfold inspect` still finds. A tool that rewrites",
        "  normalizers into other operators may hide them from this count, so compare the latencies too.",
        "- Seconds and peak memory (resident set, including Python) are those of the tool.",
        "- tract and onnxruntime: the latency of the tool's result relative to the exported model, on one thread. It is the median",
        "  over interleaved rounds with its 95 % interval.",
        "",
        f"{datetime.date.today()}, {machine()}, batch {arguments.batch}, {ROUNDS} rounds.",
        f"{', '.join(versions)}, {unfold('--version').strip()}.",
    ]
    for model in arguments.models:
        lines += ["", f"## {model}", ""]
        lines += ["| tool | sites left | seconds | peak, MB | tract | onnxruntime |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
        with tempfile.TemporaryDirectory() as folder:
            lines += compare(model, arguments.batch, Path(folder))
        print("\n".join(lines[-len(TOOLS) - 6 :]), flush=True)
    DOCUMENT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
