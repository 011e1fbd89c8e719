"""Draws the time of sliced networks against their memory in onnxruntime, for several numbers of parts.

usage: python benches/memory_curve.py [--rounds N] [--results FILE] [--draw docs/memory.svg]

Each network is folded, then cut by `--slice N`. Ratios are relative to the folded network without slices. Memory is the
peak of the resident set of a run, minus that of the loaded session. Time is CPU time on one thread, in interleaved
rounds.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

from engines import session, unfold
from memory import feed, processor_times, resident
from memory_networks import networks

NAMES = ["ViT-S, 4 blocks, 512²", "ViT-S, 4 blocks, 1024²"]
PARTS = [1, 2, 4, 8, 16, 32, 64]

# The plot in pixels, and the ranges of its axes.
LEFT, TOP, WIDTH, HEIGHT = 60, 24, 480, 240
LEAST, MOST = 0.1, 1.0
FASTEST, SLOWEST = 0.8, 1.25

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; text-anchor: middle; }
  .axis { stroke: #818b98; fill: none; }
  .line { fill: none; stroke-width: 1.6; }
  .n0 { stroke: #0969da; } circle.n0, text.n0 { fill: #0969da; stroke: none; }
  .n1 { stroke: #bc4c00; } circle.n1, text.n1 { fill: #bc4c00; stroke: none; }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .axis { stroke: #656c76; } }
"""


def measured(write, rounds, folder):
    """For each number of parts, the memory and the time relative to the whole network."""
    model = folder / "model.onnx"
    write(str(model))
    paths = [folder / f"{parts}.onnx" for parts in PARTS]
    for parts, path in zip(PARTS, paths):
        options = ["--slice", str(parts)] if parts > 1 else []
        unfold("fuse", str(model), "-o", str(path), *options, "--no-verify", "--quiet")
    loaded = [session(path) for path in paths]
    times = processor_times(loaded, feed(loaded[0]), rounds)
    del loaded
    memory = [resident(path) for path in paths]
    return [[parts, own / memory[0], time] for parts, own, time in zip(PARTS, memory, times)]


def picture(results):
    """The curves as SVG: a line for each network, with the number of parts at each point."""
    width, height = LEFT + WIDTH + 24, TOP + HEIGHT + 68
    label = "Time of slices over their memory in onnxruntime"
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}">',
        f"<style>{STYLE}</style>",
        *axes(),
    ]
    for number, (name, measurements) in enumerate(results.items()):
        svg += curve(measurements, f"n{number}")
        x = LEFT + WIDTH * (1 + 2 * number) / 4
        svg.append(f'<text class="n{number}" x="{x:.0f}" y="{height - 8}">{name}</text>')
    return "\n".join([*svg, "</svg>", ""])


def axes():
    """The frame of the plot, with the marks of both axes."""
    bottom = TOP + HEIGHT
    yield f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{LEFT + WIDTH}"/>'
    yield f'<path class="axis" stroke-dasharray="2 4" d="M{LEFT} {down(1):.0f}H{LEFT + WIDTH}"/>'
    for memory in (0.1, 0.2, 0.3, 0.5, 0.7, 1):
        yield f'<text x="{across(memory):.0f}" y="{bottom + 16}">{memory}</text>'
    for time in (0.8, 0.9, 1.0, 1.1, 1.2):
        yield f'<text x="{LEFT - 16}" y="{down(time) + 4:.0f}">{time}</text>'
    yield f'<text x="{LEFT + WIDTH / 2:.0f}" y="{bottom + 34}">resident memory, relative</text>'
    yield f'<text transform="translate({LEFT - 40} {TOP + HEIGHT // 2}) rotate(-90)">time, relative</text>'


def curve(measurements, kind):
    """The line of a network, with the number of parts at each point."""
    places = [(parts, across(memory), down(time)) for parts, memory, time in measurements]
    path = " ".join(f"{x:.0f},{y:.0f}" for _, x, y in places)
    yield f'<polyline class="line {kind}" points="{path}"/>'
    for parts, x, y in places:
        yield f'<circle class="{kind}" cx="{x:.0f}" cy="{y:.0f}" r="3"/>'
        yield f'<text class="{kind}" x="{x:.0f}" y="{y - 7:.0f}">{parts}</text>'


def across(memory):
    """The position of a ratio of memory, on a logarithmic axis."""
    return LEFT + WIDTH * math.log(max(memory, LEAST) / LEAST) / math.log(MOST / LEAST)


def down(time):
    """The position of a ratio of time."""
    return TOP + HEIGHT * (SLOWEST - time) / (SLOWEST - FASTEST)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--results", type=Path, default=Path("memory_curve.json"))
    parser.add_argument("--draw", type=Path)
    given = parser.parse_args()
    results = json.loads(given.results.read_text()) if given.results.exists() else {}
    for name in NAMES:
        if name not in results:
            with tempfile.TemporaryDirectory() as folder:
                results[name] = measured(networks()[name], given.rounds, Path(folder))
            given.results.write_text(json.dumps(results, indent=1))
        for parts, memory, time in results[name]:
            print(f"{name}, {parts} parts: memory {memory:.2f}, time {time:.2f}")
    if given.draw:
        given.draw.write_text(picture(results))


if __name__ == "__main__":
    main()
