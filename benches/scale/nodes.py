"""Measures the cost of folding as a function of the number of nodes, compared with onnxsim on the same files.

    pip install -r benches/peers/requirements.txt
    python benches/scale/nodes.py

`unfold` is found on the PATH. Writes the section "Number of nodes" of docs/scale.md. A time is the CPU time of the
whole command. It is compared with runs immediately before, because the machine may have other work.
"""

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import graphs

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "scale.md"
TITLE = "## Number of nodes"
TEXT = """\
`benches/scale/graphs.py` makes the graphs, from layers of eight channels. Their numbers of normalizers grow with their
numbers of nodes, and all sites fold. The columns are

- for each size, the processor time of `unfold fuse --verify off`, relative to preceding runs on a tenth of the nodes,
- in brackets, the same ratio without system time, which depends on how fast a virtual machine gets memory,
- the largest resident set for each node of the largest graph,
- the time of onnxsim relative to unfold, on the file of 10,000 nodes.

`cargo bench --bench stages` times the stages one by one. The ratios for 1,000,000 nodes vary between runs by up to a
quarter, because the speed of the memory varies. They are 11.2 to 14.2 for layer norms, 11.4 to 13.1 for convolutions,
and 11.0 to 12.3 for the fan.
"""
PEER = "import onnx, onnxsim, sys; onnx.save(onnxsim.simplify(onnx.load(sys.argv[1]))[0], sys.argv[2])"
PEER_NODES = 10_000
# The number of times that the reference, which is smaller or faster, runs in each round.
OTHERS = 5


def run(command):
    """Runs a command. Returns its CPU time with and without system time, its peak resident set, and its output."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(map(str, command))}: {said}")
    return (usage.ru_utime + usage.ru_stime, usage.ru_utime), usage.ru_maxrss * 1024, said


def over(command, other, rounds):
    """Returns the times of a command relative to those of another one, and the result of `run`.

    In each round, the other command runs several times just before, so that other work on the machine slows both. The
    median over the rounds is returned.
    """
    ratios = []
    for _ in range(rounds):
        others = [run(other)[0] for _ in range(OTHERS)]
        times, memory, said = run(command)
        ratios.append([time / statistics.mean(of_other) for time, of_other in zip(times, zip(*others))])
    return [statistics.median(of) for of in zip(*ratios)], (times, memory, said)


def written(form, nodes, path):
    """Writes a graph, and returns the number of its nodes.

    A separate process does this, because the memory of this process would count for each program that it starts later.
    """
    return int(subprocess.check_output([sys.executable, graphs.__file__, form.__name__, str(nodes), path]))


def folded(said):
    """The number of sites. Exits unless all of them fold."""
    counts = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+) ", said)]
    if not counts or any(fold != there for fold, there in counts):
        sys.exit(f"not all sites fold: {said}")
    return sum(there for _, there in counts)


def measure(form, sizes, unfold, peer, folder):
    """Measures one line of the table."""
    result, name = folder / "result.onnx", form.__name__.replace("_", " ")
    made = [written(form, nodes, folder / f"{nodes}.onnx") for nodes in sizes]
    commands = [[unfold, "fuse", folder / f"{nodes}.onnx", "-o", result, "--verify", "off"] for nodes in sizes]
    steps, against = [], ""
    for nodes, before, command in zip(sizes[1:], commands, commands[1:]):
        rounds = 9 if nodes <= 10_000 else 3 if nodes <= 100_000 else 2
        (whole, own), ((time, _), memory, said) = over(command, before, rounds)
        steps.append(f"{whole:.1f} ({own:.1f})")
        if peer and nodes == PEER_NODES:
            slower, _ = over([sys.executable, "-c", PEER, folder / f"{nodes}.onnx", result], command, 2)
            against = f"{slower[0]:.0f}"
        print(name, nodes, f"{time:.2f} s", steps[-1], f"{memory / 1e6:.0f} MB", against, file=sys.stderr)
    return f"| {name} | {folded(said):,} | {' | '.join(steps)} | {memory / made[-1] / 1000:.1f} kB | {against} |"


def lines_before():
    """The lines of the existing table, by the names of their graphs."""
    section = DOCUMENT.read_text().partition(TITLE)[2].partition("\n## ")[0] if DOCUMENT.exists() else ""
    return {line.split(" | ")[0].strip("| "): line for line in section.splitlines() if line.startswith("| ")}


def write_section(title, text):
    """Replaces a section of docs/scale.md."""
    before = DOCUMENT.read_text() if DOCUMENT.exists() else "# Scale\n"
    sections = before.split("\n## ")
    others = [section for section in sections[1:] if f"## {section.splitlines()[0]}" != title]
    parts = [sections[0].strip(), *(f"## {section.strip()}" for section in others), f"{title}\n\n{text.strip()}"]
    DOCUMENT.write_text("\n\n".join(parts) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unfold", default="unfold", help="the program")
    parser.add_argument("--largest", type=int, default=1_000_000, help="the number of nodes of the largest graphs")
    parser.add_argument("--no-peer", action="store_true", help="leaves onnxsim out")
    parser.add_argument("forms", nargs="*", metavar="FORM", help="the graphs, by name; the lines of the others stay")
    arguments = parser.parse_args()
    sizes = [size for size in (1_000, 10_000, 100_000, 1_000_000) if size <= arguments.largest]
    # With this limit, a model that is too large causes an error, and does not exhaust the machine.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    heads = [f"{size:,} nodes" for size in sizes[1:]]
    lines = ["| graph | sites | " + " | ".join(heads) + " | memory | onnxsim |", "|---|" + "---:|" * (len(heads) + 3)]
    before = lines_before()
    with tempfile.TemporaryDirectory() as folder:
        for form in graphs.FORMS:
            if not arguments.forms or form.__name__ in arguments.forms:
                lines.append(measure(form, sizes, arguments.unfold, not arguments.no_peer, Path(folder)))
            elif line := before.get(form.__name__.replace("_", " ")):
                lines.append(line)
    write_section(TITLE, f"{TEXT}\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
