"""Compares folding a message in Python with folding a file with the command: time and peak memory.

    python benches/python.py UNFOLD [ROUNDS]

UNFOLD is the command, compiled like the package. `unfold_onnx` and onnx must be installed. Prints a Markdown table. The
memory is only measured on Linux.
"""
import statistics, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx

import unfold_onnx as unfold

command, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9


def took(work) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def peak(code: str, *arguments: str) -> float:
    """The peak of the memory of a new process in its last step, including the memory that it has before."""
    code += "\n[most] = [line for line in open('/proc/self/status') if line.startswith('VmHWM')]"
    code += "\nprint(int(most.split()[1]) * 1024)"
    return float(subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout)


START = "import sys, onnx, unfold_onnx as unfold\n"
FOLD = """
model = onnx.load(sys.argv[1])
# From here on.
open("/proc/self/clear_refs", "w").write("5")
fused = unfold.fuse(model, verify="off")
"""

with tempfile.TemporaryDirectory() as folder:
    print("| | file | verified | time over the command's | most memory over the file | without the interpreter's |")
    print("|---|---:|---|---:|---:|---:|")
    for network in "vit-s", "swin-t":
        path, output = Path(folder, f"{network}.onnx"), Path(folder, "fused.onnx")
        subprocess.run([command, "zoo", network, "--norm", "un", "-o", path], capture_output=True, check=True)
        model, size = onnx.load(path), path.stat().st_size
        for verify in "off", "auto":
            arguments = [command, "fuse", path, "-o", output, "--verify", verify]
            ratios = []
            for _ in range(rounds):
                alone = took(lambda: subprocess.run(arguments, capture_output=True, check=True))
                ratios.append(took(lambda: unfold.fuse(model, verify=verify)) / alone)
            assert unfold.fuse(model, verify="off").SerializeToString() == output.read_bytes()
            memory = ["", ""]
            if verify == "off":
                most, interpreter = peak(START + FOLD, str(path)), peak(START)
                memory = [f"{most / size:.2f}", f"{(most - interpreter) / size:.2f}"]
            print(f"| {network} | {size / 1e6:.0f} MB | {verify} | {statistics.median(ratios):.2f} | {memory[0]} | {memory[1]} |")

    small = (Path(__file__).parents[1] / "models/digits/un-dynamo.onnx").read_bytes()
    many = [small] * 64
    ratios = []
    for _ in range(rounds):
        alone = took(lambda: [unfold.fuse(model) for model in many])
        with ThreadPoolExecutor(8) as pool:
            ratios.append(alone / took(lambda: list(pool.map(unfold.fuse, many))))
    print(f"\n64 models of {len(small) / 1e3:.0f} kB by 8 threads: {statistics.median(ratios):.2f} times as fast as one after the other.")
